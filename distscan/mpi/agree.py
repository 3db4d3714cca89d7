"""Agreement: what one rank finds wrong, every rank raises, or none does.

Nor does a signal take one rank out of a call that the others are in.
"""

import functools
import hashlib
import itertools
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from . import faults, signals
from .communicators import Comm, communicator
from .library import MPI

P = ParamSpec("P")
R = TypeVar("R")


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

    ``comm`` is as in ``communicators.communicator``, which checks it.

    Example::

        with Agreement(comm) as checked:
            checked.same = Terms(dtype=x.dtype)
            check(x)
        total = x.sum()
        checked.settle()
    """

    def __init__(self, comm: Comm | None) -> None:
        handle: Any = None if comm is None else getattr(comm, "handle", comm)
        votes = _votes.get(handle)
        if votes is None:
            votes = _votes_of(comm)
        self.comm = votes.comm
        self.same: Terms | None = None
        #: Whether this rank has elements; from ``settle`` on, whether any rank has.
        self.some = True
        #: Of this agreement, the same on every rank.
        self.number = 0
        #: None where this rank is alone.
        self._votes: Votes | None = None
        if votes.comm.size > 1:
            if tuple(map(signals.getsignal, signals.SIGNALS)) != signals.seen[0]:
                signals.defer()
            self._votes, self.number = votes, next(votes.numbers)

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

    def _settle(self, voting: "Votes", fault: BaseException | None) -> None:
        key, number = self.same.key if self.same else 0, self.number
        worked, low, high, first, last, none = voting.minimum(
            fault is None, key, -key, number, -number, not self.some
        )
        self.some = not none
        if worked and low == -high and first == -last:
            return
        if first != -last:
            faults.raise_out_of_step(self.comm, number)
        faults.raise_all(self.comm, fault)
        faults.raise_disagreement(self.comm, self.same.texts() if self.same else {})


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


def collective(function: Callable[P, R]) -> Callable[P, R]:
    """Make signals wait from the first line of ``function`` to its end, at several ranks.

    Python runs handlers between two lines of the main thread, whichever thread the system gave the
    signal to. One that raises there would take this rank out of a call that the others are in. To
    block signals around each call would leave the call's own first and last lines open. So handlers
    stay in place, and look for the frame of this function.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        ended = False
        try:
            return function(*args, **options)
        finally:
            ended = not ended  # from here on signals do not wait
            if signals.later:
                signals.deliver(sys._getframe())

    signals.calls.add(cast(FunctionType, call).__code__)
    return call


# ---- the vote ------------------------------------------------------------------------------


class Votes:
    """Six small numbers of each rank of a communicator, and their minima over the ranks.

    The numbers lie in a buffer whose type MPI knows: to find it out would take longer than to send.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        #: 1, 2, 3, ... on this rank.
        self.numbers = itertools.count(1)
        self._memory = bytearray(_SIX.size)
        self._message = [MPI.buffer(self._memory), 6, MPI.INT64_T]

    def minimum(self, *values: int) -> tuple[int, ...]:
        """Return the minimum of each of six ``values``, of 8 bytes, over all ranks."""
        _SIX.pack_into(self._memory, 0, *values)
        # Blocking: of so few values no library's MPI_Iallreduce is as fast.
        self.comm.Allreduce(MPI.IN_PLACE, self._message, MPI.MIN)
        return _SIX.unpack_from(self._memory)


_SIX = struct.Struct("6q")

# By the handles of communicators that have been checked, whichever objects stand for them; None is
# the default.
_votes: dict[int | None, Votes] = {}
os.register_at_fork(after_in_child=_votes.clear)


def _votes_of(given: Comm | None) -> Votes:
    """Check a communicator; return what it keeps to vote, until it is freed."""
    comm = communicator(given)
    votes = _votes.get(comm.handle)
    if votes is None:
        # The handle of a communicator that is freed may come again: this attribute goes with it.
        comm.Set_attr(_voting(), comm.handle)
        votes = _votes[comm.handle] = Votes(comm)
    if given is None:
        _votes[None] = votes
    return votes


@functools.cache
def _voting() -> int:
    def forget(comm: MPI.Comm, key: int, handle: int) -> None:
        _votes.pop(handle, None)

    return MPI.Comm.Create_keyval(delete_fn=forget)
