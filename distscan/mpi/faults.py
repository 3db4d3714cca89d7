"""The exceptions that every rank raises: their messages name the faults and the ranks."""

from ..core.errors import DisagreementError, RankError
from .communicators import Comm


def raise_all(comm: Comm, fault: BaseException | None) -> None:
    """Raise the faults of all ranks, if any, as one exception on every rank; collective."""
    faults = comm.allgather(None if fault is None else (*portable(fault), is_agreed(fault)))
    if fault is not None and not isinstance(fault, Exception):
        raise fault
    if not any(faults):
        return
    if fault is not None and len(set(faults)) == 1 and faults[0][2]:
        raise fault  # of an agreement inside this one: its message names the ranks
    # A RankError repeats another rank's fault: it is left out if any rank has a fault of its own.
    own = [found and found[0] is not RankError for found in faults]
    said = [
        found if first or not any(own) else None for found, first in zip(faults, own, strict=True)
    ]
    kind = next(found[0] for found in said if found)
    raise mark_collective(kind(by_rank([found and found[1] for found in said]))) from fault


def raise_disagreement(comm: Comm, terms: dict[str, str]) -> None:
    """Raise DisagreementError on every rank for the first term that differs; collective."""
    everyone = comm.allgather(terms)
    for name in dict.fromkeys(name for each in everyone for name in each):
        values = [each.get(name, "none") for each in everyone]
        if len(set(values)) > 1:
            raise mark_collective(
                DisagreementError(f"the ranks disagree on {name}: {by_rank(values)}")
            )
    raise mark_collective(DisagreementError("the ranks disagree on what they are doing"))


def raise_out_of_step(comm: Comm, number: int) -> None:
    """Raise DisagreementError on every rank: the numbers of their agreements differ; collective."""
    at = by_rank([f"step {number}" for number in comm.allgather(number)])
    raise mark_collective(
        DisagreementError(
            f"the ranks are out of step on this communicator: {at}; a rank has raised alone, or "
            "has left out a call: start the ranks again, or continue with a new communicator "
            "(comm.Dup())"
        )
    )


def mark_collective(fault: Exception) -> Exception:
    """Return the exception, marked as one that every rank raises."""
    fault.__dict__["on_every_rank"] = True
    return fault


def is_agreed(fault: BaseException) -> bool:
    """Return whether every rank raises this exception."""
    return "on_every_rank" in fault.__dict__


def portable(fault: BaseException) -> tuple[type[Exception], str]:
    """Return a type for an exception, which every rank can import, and its message."""
    try:
        message = str(fault) or type(fault).__name__
    except Exception:  # an exception that cannot even be printed
        message = type(fault).__name__
    for kind in type(fault).__mro__:
        known = kind.__module__ in {"builtins", "distscan.core.errors", "numpy.exceptions"}
        if known and issubclass(kind, Exception):
            try:
                if str(kind(message)) == message:
                    return kind, message
            except TypeError:
                continue
    return RuntimeError, message


def by_rank(messages: list[str | None]) -> str:
    """Return the messages of all ranks as one text; each message is there once, after its ranks.

    >>> by_rank(["no", None, "no", "no"])
    'ranks 0, 2-3: no'
    """
    ranks: dict[str, list[int]] = {}
    for rank, message in enumerate(messages):
        if message is not None:
            ranks.setdefault(message, []).append(rank)
    parts = []
    for message, where in list(ranks.items())[:4]:
        if len(where) == len(messages):
            return f"every rank: {message}"
        parts.append(f"{'rank' if len(where) == 1 else 'ranks'} {_ranges(where)}: {message}")
    if len(ranks) > len(parts):
        parts.append(f"and {len(ranks) - len(parts)} more faults")
    return "; ".join(parts)


def _ranges(numbers: list[int]) -> str:
    """Return sorted numbers as a short text.

    >>> _ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
