"""Agreement: if one rank finds a fault, every rank raises it; otherwise none raises.

Signals are deferred, too: a signal must not take one rank out of a collective call.
"""

import functools
import itertools
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

from ..core.digest import digest
from . import faults, signals
from .api import MPI
from .communicators import Comm, communicator

P = ParamSpec("P")
R = TypeVar("R")


class Terms(dict[str, object]):
    """Values that must be the same on every rank, by name. Do not add any once ``key`` is read."""

    def texts(self) -> dict[str, str]:
        """Return the terms as text, which ranks can compare."""
        return {name: str(value) for name, value in self.items()}

    @functools.cached_property
    def key(self) -> int:
        """A digest of 63 bits; 0 if there are no terms."""
        return digest(repr(self.texts()).encode()) if self else 0


class Agreement:
    """A local step of every rank, after which every rank continues, or every rank raises.

    The ``with`` block is the local step; ``settle`` compares the ranks by one ``MPI_Allreduce``. If
    a rank has failed, or the ranks differ in ``same``, all ranks raise the same exception. Its
    message names the ranks and the fault.

    A rank may do other work between the block and ``settle``. This work must not raise, and must
    have no effect outside. A rank at fault does not get there: it settles at the end of the block.

    Agreements are numbered on each communicator, and ranks compare the numbers, too. A rank that
    has raised alone, and then continues, is out of step with the others. All ranks then raise, in
    this and in every later call.

    Each rank may show the others a number, which travels with the vote: see ``shown``.

    ``comm`` is as in ``communicators.communicator``, which checks it.

    Example::

        with Agreement(comm) as checked:
            checked.same = Terms(dtype=x.dtype)
            check(x)
        total = x.sum()
        checked.settle()
    """

    def __init__(self, comm: Comm | None) -> None:
        try:
            votes = _votes[None if comm is None else comm.handle]
        except (KeyError, AttributeError):  # an unknown communicator, or none
            votes = _votes_of(comm)
        self.comm = votes.comm
        self.same: Terms | None = None
        #: Whether this rank has elements; after ``settle``, whether any rank has.
        self.has_elements = True
        #: The number of this agreement, the same on every rank.
        self.number = 0
        #: A number of this rank, of 8 bytes with a sign, for ``shown`` on every rank.
        self.shows: int | None = None
        #: None if this rank is the only one.
        self._votes: Votes | None = None
        if votes.comm.size > 1:
            if tuple(map(signals.getsignal, signals.SIGNALS)) != signals.latest_handlers[0]:
                signals.defer()
            self._votes, self.number = votes, next(votes.numbers)

    def __enter__(self) -> "Agreement":
        return self

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        # A fault may be any exception, also Ctrl-C: the other ranks must not wait for this one.
        if fault is not None and self._votes is not None:
            self._settle(self._votes, fault)

    def settle(self) -> None:
        """Compare the ranks: raise on every rank, or on none; collective."""
        if self._votes is not None:
            self._settle(self._votes, None)

    def shown(self) -> list[int]:
        """Return what all ranks show, in rank order; collective, after ``settle``."""
        shows = self.shows or 0
        return [shows] if self._votes is None else self._votes.shown(shows)

    def _settle(self, voting: "Votes", fault: BaseException | None) -> None:
        number, key = self.number, 0
        try:
            key = self.same.key if self.same else 0
        except Exception as wrong:  # a value that has no text
            fault, self.same = fault or wrong, None
        if self.shows is not None:
            voting.show(self.shows)
        worked, low, high, first, last, none = voting.minimum(
            fault is None, key, -key, number, -number, not self.has_elements
        )
        self.has_elements = not none
        if worked and low == -high and first == -last:
            return
        if first != -last:
            faults.raise_out_of_step(self.comm, number)
        faults.raise_all(self.comm, fault)
        faults.raise_disagreement(self.comm, self.same.texts() if self.same else {})


@contextmanager
def agreed(comm: Comm, function: str = "") -> Iterator[Terms]:
    """Run a local step and settle it at the end of the ``with`` block.

    ``function`` is the name of the public function that begins with this step. If ranks have called
    different functions, the message names them.

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
    """Defer signals from the first line of ``function`` to its end, if there are several ranks.

    Python runs signal handlers between two lines of the main thread, whichever thread received the
    signal. A handler that raises would take this rank out of a call that the other ranks are in.
    To block signals inside the call would not protect its first and last lines. So the handlers
    stay in place, and look for the frame of this function.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        ended = False
        try:
            return function(*args, **options)
        finally:
            ended = not ended  # from here on signals are not deferred
            if signals.deferred:
                signals.deliver(sys._getframe().f_back)

    signals.calls.add(cast(FunctionType, call).__code__)
    return call


# ---- the vote ------------------------------------------------------------------------------


class Votes:
    """The vote of a communicator's ranks: six numbers of each rank, and their minima over ranks.

    Behind the six are slots, one for each rank. Each rank sends a number in its own slot, and the
    largest number in the others. So the minima are the numbers of all ranks. All votes of a
    communicator have the same length, so calls of different functions meet in one vote. With many
    ranks there are no slots, and ``shown`` has an exchange of its own.

    MPI gets buffers of a known type, because to find the type would take longer than to send it.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        #: 1, 2, 3, ... on this rank.
        self.numbers = itertools.count(1)
        slots = comm.size if comm.size <= MOST_SLOTS else 0
        self._sent = bytearray(_SIX.size) + _ONE.pack((1 << 63) - 1) * slots
        self._minima = bytearray(len(self._sent))
        self._send, self._receive = (
            [MPI.buffer(memory), 6 + slots, MPI.INT64_T] for memory in (self._sent, self._minima)
        )
        self._shown = memoryview(self._minima)[_SIX.size :].cast("q") if slots else None
        self._own_slot = _SIX.size + comm.rank * _ONE.size

    def minimum(self, *values: int) -> tuple[int, ...]:
        """Return the minimum of each of six ``values``, of 8 bytes, over all ranks."""
        _SIX.pack_into(self._sent, 0, *values)
        # It is blocking: for so few values, MPI_Iallreduce is slower in every library.
        self.comm.Allreduce(self._send, self._receive, MPI.MIN)
        return _SIX.unpack_from(self._minima)

    def show(self, number: int) -> None:
        """Show a number to all ranks with the next vote."""
        if self._shown is not None:
            _ONE.pack_into(self._sent, self._own_slot, number)

    def shown(self, number: int) -> list[int]:
        """Return what all ranks have shown with the last vote, this rank ``number``; collective."""
        if self._shown is not None:
            return self._shown.tolist()
        every = bytearray(self.comm.size * _ONE.size)
        one = [MPI.buffer(_ONE.pack(number)), 1, MPI.INT64_T]
        self.comm.Allgather(one, [MPI.buffer(every), 1, MPI.INT64_T])
        return memoryview(every).cast("q").tolist()


_SIX, _ONE = struct.Struct("6q"), struct.Struct("q")
#: Up to so many ranks, votes have slots. A vote is then a message of at most 560 bytes.
MOST_SLOTS = 64

# The votes of communicators that have been checked, by their handles: several Python objects may
# stand for one communicator. None is the default communicator.
_votes: dict[int | None, Votes] = {}
os.register_at_fork(after_in_child=_votes.clear)


def _votes_of(given: Comm | None) -> Votes:
    """Check a communicator and return its ``Votes``, which are kept until it is freed."""
    comm = communicator(given)
    votes = _votes.get(comm.handle)
    if votes is None:
        # MPI may use the handle again after the communicator is freed. MPI deletes this attribute
        # then, and the votes with it.
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
