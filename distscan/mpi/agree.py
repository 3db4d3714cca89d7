"""Agreement: what one rank finds wrong, every rank raises, or none does."""

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import DisagreementError, RankError
from .communicators import Comm, Votes, votes


class Terms(dict[str, object]):
    """What must be the same on every rank, by name; complete once its key has been asked for."""

    def texts(self) -> dict[str, str]:
        """Return the terms as text, which other ranks can compare."""
        return {name: str(value) for name, value in self.items()}

    @functools.cached_property
    def key(self) -> int:
        """63 bits of a digest; 0 where there are no terms."""
        digest = hashlib.blake2b(repr(self.texts()).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1 if self else 0


class Agreement:
    """A local step of every rank, after which every rank goes on, or every rank raises.

    All ranks raise the same exception, whose message names the ranks and the fault. What the step
    sets ``same`` to must be the same on every rank. It costs one ``MPI_Allreduce``, in
    ``settle``; what is done between the step's end and that must not be seen outside, and must not
    raise. A rank at fault has nothing to do in between: there, the step's end settles.

    Agreements are numbered on each communicator, and the number is agreed on too: a rank that has
    raised alone, and then goes on, is out of step with the others, and all of them raise, in every
    later call.

    Example::

        with Agreement(comm) as checked:
            checked.same = Terms(dtype=x.dtype)
            check(x)
        total = x.sum()
        checked.settle()
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.same: Terms | None = None
        #: Whether this rank has elements; from ``settle`` on, whether any rank has.
        self.some = True
        #: Of this agreement, the same on every rank.
        self.number = 0
        #: None where this rank is alone.
        self._votes: Votes | None = None
        if comm.size > 1:
            self._votes = votes(comm)
            self.number = next(self._votes.numbers)

    def __enter__(self) -> "Agreement":
        return self

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        # Of any kind, Ctrl-C too: the other ranks must not wait for this one.
        if fault is not None and self._votes is not None:
            self._settle(self._votes, fault)

    def settle(self) -> None:
        """Learn whether the step worked on every rank; raise on each, or on none."""
        if self._votes is not None:
            self._settle(self._votes, None)

    def _settle(self, voting: Votes, fault: BaseException | None) -> None:
        key, number = self.same.key if self.same else 0, self.number
        worked, low, high, first, last, none = voting.minimum(
            self.comm, fault is None, key, -key, number, -number, not self.some
        )
        self.some = not none
        if worked and low == -high and first == -last:
            return
        if first != -last:
            raise mark_collective(_out_of_step(self.comm.allgather(number)))
        faults = self.comm.allgather(None if fault is None else _portable(fault))
        if fault is not None and not isinstance(fault, Exception):
            raise fault
        if any(faults):
            # What ranks have only heard of is not said where the ranks at fault say it themselves.
            own = [found and found[0] is not RankError for found in faults]
            said = [found if first or not any(own) else None
                    for found, first in zip(faults, own, strict=True)]  # fmt: skip
            kind = next(found[0] for found in said if found)
            raise mark_collective(kind(_by_rank([found and found[1] for found in said]))) from fault
        everyone = self.comm.allgather(self.same.texts() if self.same else {})
        for name in dict.fromkeys(name for terms in everyone for name in terms):
            values = [terms.get(name, "not asked for") for terms in everyone]
            if len(set(values)) > 1:
                raise mark_collective(
                    DisagreementError(f"the ranks disagree on {name}: {_by_rank(values)}")
                )
        raise mark_collective(DisagreementError("the ranks disagree on what they are doing"))


def _out_of_step(numbers: list[int]) -> Exception:
    at = _by_rank([f"step {number}" for number in numbers])
    return DisagreementError(
        f"the ranks are out of step on this communicator: {at}; a rank has raised alone, or has "
        "left out a call: start the ranks again, or go on with a new communicator (comm.Dup())"
    )


@contextmanager
def agreed(comm: Comm, function: str = "") -> Iterator[Terms]:
    """Run a local step and settle it: an ``Agreement`` with nothing to do meanwhile.

    ``function`` is the public one that the step begins: ranks that call another one are told so.

    Example::

        with agreed(comm, "compact") as same:
            same["dtype"] = x.dtype
            check(x)
    """
    with Agreement(comm) as agreement:
        agreement.same = Terms({"the function": function} if function else {})
        yield agreement.same
    agreement.settle()


def mark_collective(fault: Exception) -> Exception:
    """Mark an exception that every rank is about to raise."""
    fault.__dict__["on_every_rank"] = True
    return fault


def is_agreed(fault: Exception) -> bool:
    """Whether every rank raises this exception too."""
    return "on_every_rank" in fault.__dict__


def _portable(fault: BaseException) -> tuple[type[Exception], str]:
    """Reduce an exception to a type that every rank can import and build from a message."""
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


def _by_rank(messages: list[str | None]) -> str:
    """Join the messages of all ranks, each said once behind the ranks that say it.

    >>> _by_rank(["no", None, "no", "no"])
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
    """Write sorted numbers shortly.

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
