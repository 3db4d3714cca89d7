"""Agreement: what one rank finds wrong, every rank raises, or none does."""

import functools
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import DisagreementError
from .exchange import Comm, minimum


class Terms(dict[str, object]):
    """What must be the same on every rank, by name; complete once its key has been asked for."""

    def texts(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.items()}

    @functools.cached_property
    def key(self) -> int:
        return zlib.crc32(repr(self.texts()).encode()) if self else 0


class Agreement:
    """A local step of every rank, after which every rank goes on, or every rank raises.

    All ranks raise the same exception, whose message names the ranks and the fault. What the step
    sets ``same`` to must be the same on every rank. It costs one ``MPI_Allreduce``, in
    ``settle``; what is done between the step's end and that must not be seen outside, and must not
    raise. A rank at fault has nothing to do in between: there, the step's end settles.

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

    def __enter__(self) -> "Agreement":
        return self

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        # Of any kind, Ctrl-C too: the other ranks must not wait for this one.
        if fault is not None and self.comm.size > 1:
            self._settle(fault)

    def settle(self) -> None:
        """Learn whether the step worked on every rank; raise on each, or on none."""
        if self.comm.size > 1:
            self._settle(None)

    def _settle(self, fault: BaseException | None) -> None:
        key = self.same.key if self.same else 0
        worked, low, high = minimum(self.comm, array("q", (fault is None, key, -key)))
        if worked and low == -high:
            return
        faults = self.comm.allgather(None if fault is None else _portable(fault))
        if fault is not None and not isinstance(fault, Exception):
            raise fault
        if any(faults):
            kind = next(found[0] for found in faults if found)
            messages = [found and found[1] for found in faults]
            raise everywhere(kind(_by_rank(messages))) from fault
        everyone = self.comm.allgather(self.same.texts() if self.same else {})
        for name in everyone[0]:
            values = [other.get(name) for other in everyone]
            if len(set(values)) > 1:
                raise everywhere(
                    DisagreementError(f"the ranks disagree on {name}: {_by_rank(values)}")
                )
        raise everywhere(DisagreementError("the ranks disagree on what they are doing"))


@contextmanager
def agreed(comm: Comm) -> Iterator[Terms]:
    """Run a local step and settle it: an ``Agreement`` with nothing to do meanwhile.

    Example::

        with agreed(comm) as same:
            same["dtype"] = x.dtype
            check(x)
    """
    with Agreement(comm) as agreement:
        agreement.same = Terms()
        yield agreement.same
    agreement.settle()


def everywhere(fault: Exception) -> Exception:
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
        known = kind.__module__ in {"builtins", "distscan.errors", "numpy.exceptions"}
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
