"""Agreement: if one rank finds a fault, every rank raises it; otherwise none raises.

A collective function is decorated by ``collective``. The decorator opens the agreement of the ranks
before the first line of the function, and settles it after the last. So all lines of the function
are inside the agreement. The arguments are checked inside, too, also their names and number.
"""

import functools
import inspect
import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from ..core.errors import DisagreementError, RankError
from ..core.fingerprint import digest
from . import signals
from .communicators import MPI, Comm, communicator, vote_token
from .meeting import Meeting
from .torch_group import TorchComm, default_group

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


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
    """The agreement of all ranks in one collective call, step by step.

    A step is local work. ``settle`` ends it, and compares the ranks by one ``MPI_Allreduce``. If a
    rank has failed, or the ranks differ in ``same``, all ranks raise the same exception. Its
    message names the ranks and the fault. A new agreement has an open step, and ``begin`` opens the
    next one. The end of the ``with`` block settles the step that is open.

    A rank at fault settles at once. So ranks exchange nothing while a step is open, except the
    totals of a scan, in which a rank at fault takes part.

    Steps are numbered on each communicator, and ranks compare the numbers, too. A rank that has
    raised alone, and then continues, is out of step with the others. All ranks then raise, in this
    and in every later call.

    Each rank may contribute a number, which travels with the vote: see ``contributions``.

    Example::

        with Agreement(Votes.of(comm)) as call:  # ``collective`` does this, and ``agreed``
            call.same = Terms(dtype=x.dtype)
            check(x)
            call.settle()
            edges = comm.allgather(x[-1])
            call.begin()
            combine(x, edges)
    """

    def __init__(self, votes: "Votes", *, arrives: bool = False) -> None:
        """Open the first step; ``arrives`` says that it is the first one of a call."""
        self.comm = votes.comm
        #: Whether there are other ranks. Else no step is ever open.
        self.several = votes.several
        self.same: Terms | None = None
        #: Whether this rank has elements; after ``settle``, whether any rank has.
        self.has_elements = True
        #: The number of this step, the same on every rank; 0 if this rank is the only one.
        self.number = 0
        #: A number of this rank, of 8 bytes with a sign, for ``contributions`` on every rank.
        self.contribution: int | None = None
        self._votes = votes if votes.several else None
        self._open: Votes | None = None  # None if no step is open
        self._arrives = arrives
        if votes.several:
            self.begin()

    def __enter__(self) -> "Agreement":
        return self

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        # A fault may be any exception, also Ctrl-C: the other ranks must not wait for this one.
        self.settle(fault)

    def begin(self) -> None:
        """Open the next step; settle the last one, if it is open."""
        if self._votes is not None:
            if self._open is not None:
                self.settle()
            self.number, self._open = next(self._votes.numbers), self._votes

    def settle(self, fault: BaseException | None = None) -> None:
        """Compare the ranks: raise on every rank, or on none; collective.

        ``fault`` is this rank's. Without an open step, nothing is done.
        """
        votes, self._open = self._open, None
        if votes is None:
            return
        number, key = self.number, 0
        arrives, self._arrives = self._arrives, False
        try:
            key = self.same.key if self.same else 0
        except BaseException as error:  # a value that has no text
            fault, self.same = error if fault is None else fault, None
        if self.contribution is not None:
            votes.contribute(self.contribution)
        worked, low, high, first, last, none = votes.minimum(
            fault is None, key, -key, number, -number, not self.has_elements, arrives=arrives
        )
        self.has_elements = not none
        if worked and low == -high and first == -last:
            return
        if first != -last:
            raise_out_of_step(self.comm, number)
        raise_all(self.comm, fault)
        raise_disagreement(self.comm, self.same.texts() if self.same else {})

    def contributions(self) -> list[int]:
        """Return the numbers of all ranks, in rank order; collective, after ``settle``."""
        number = self.contribution or 0
        return [number] if self._votes is None else self._votes.contributions(number)


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
    with Agreement(Votes.of(comm)) as agreement:
        agreement.same = Terms({"the function": function} if function else {})
        yield agreement.same


# ---- collective functions --------------------------------------------------------------------


def collective(function: Callable[Concatenate[Agreement, P], R]) -> Callable[P, R]:
    """Open the agreement of the ranks of ``comm`` around all of a function; defer signals in it.

    ``comm`` is an argument of the function, by position or by name; None is the default one. The
    agreement comes before the caller's arguments, and is not part of the public signature. Its
    first step is open, and has the function's name in its terms. The function may settle it and
    begin others. The decorator settles the step that is open when the function ends or raises.
    Arguments that the function does not take are a fault like any other. Only a wrong ``comm``
    raises on its rank alone.

    A function that ends as another collective function passes its agreement to the ``body`` of that
    function. A collective call inside another one, on the same communicator of several ranks, then
    comes from code of the user, such as an operator's function. Other ranks may not run this code
    at the same time, so the inner call raises RuntimeError.

    Example::

        @collective
        def scan(call: Agreement, x: Any, *, comm: Comm | None = None) -> Any: ...

        scan(x, comm=comm)
    """
    _, *parameters = inspect.signature(function).parameters.values()
    signature = inspect.Signature(parameters)
    places = [
        len(parameters) if p.kind in {p.KEYWORD_ONLY, p.VAR_KEYWORD} else place
        for place, p in enumerate(parameters)
        if p.name == "comm" or p.kind is p.VAR_KEYWORD
    ]
    place, name = places[0], function.__qualname__.removesuffix(".__init__")
    terms = Terms({"the function": name})

    @signals.uninterruptible
    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        comm: Any = args[place] if len(args) > place else options.get("comm")
        votes = Votes.of(comm)
        try:
            if not votes.several:
                return function(Agreement(votes), *args, **options)
        except TypeError:
            _check_arguments(name, signature, args, options)
            raise
        with votes, Agreement(votes, arrives=True) as agreement:
            agreement.same = terms
            try:
                return function(agreement, *args, **options)
            except TypeError:
                _check_arguments(name, signature, args, options)
                raise

    decorated: Any = call
    decorated.__signature__, decorated.__wrapped__ = signature, function
    return call


def collective_method(
    method: Callable[Concatenate[S, Agreement, P], R],
) -> Callable[Concatenate[S, P], R]:
    """Do the same for a method, whose agreement comes after ``self``."""
    instance, agreement, *others = inspect.signature(method).parameters.values()

    @functools.wraps(method)
    def function(call: Agreement, self: S, /, *args: P.args, **options: P.kwargs) -> R:
        return method(self, call, *args, **options)

    reordered: Any = function
    reordered.__signature__ = inspect.Signature([agreement, instance, *others])
    return collective(function)


def body(function: Callable[P, R]) -> Callable[Concatenate[Agreement, P], R]:
    """Return the function that ``collective`` has decorated: it takes an open agreement first.

    It may leave a step open, for the caller's next lines.
    """
    decorated: Any = function
    return cast(Callable[Concatenate[Agreement, P], R], decorated.__wrapped__)


def _check_arguments(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Raise TypeError for arguments that a function does not take.

    Python's own message would count the agreement as an argument.
    """
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None


# ---- the vote ------------------------------------------------------------------------------


class Votes:
    """The vote of a communicator's ranks: six numbers of each rank, and their minima over ranks.

    After the six follow slots, one for each rank. Each rank sends its contribution in its own slot,
    and the largest number of 64 bits in the others. So the minima of the slots are the
    contributions of all ranks. All votes of a communicator have the same length, so calls of
    different functions meet in one vote. With many ranks there are no slots, and ``contributions``
    is another exchange.

    The buffers' type is passed to MPI, because mpi4py takes longer to find it than to send it.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm, self.several = comm, comm.size > 1
        # The threads that are in a collective call.
        self._threads: set[int] = set()
        #: 1, 2, 3, ... on this rank.
        self.numbers = itertools.count(1)
        slots = comm.size if comm.size <= MOST_SLOTS else 0
        self._sent = bytearray(_SIX.size) + _ONE.pack((1 << 63) - 1) * slots
        self._minima = bytearray(len(self._sent))
        self._send, self._receive = (
            [MPI.buffer(memory), 6 + slots, MPI.INT64_T] for memory in (self._sent, self._minima)
        )
        self._slots = memoryview(self._minima)[_SIX.size :].cast("q") if slots else None
        self._slot = _SIX.size + comm.rank * _ONE.size
        self._meeting = Meeting(comm) if vote_token(comm) else None

    @classmethod
    def of(cls, comm: Comm | None) -> "Votes":
        """Return the votes of a communicator, which ``communicators.communicator`` has checked.

        They are kept until it is freed.
        """
        votes = _votes.get(_DEFAULT if comm is None else getattr(comm, "handle", ""))
        if votes is None or (comm is None and not votes.several and default_group() is not None):
            return _votes_of(comm)
        if votes.several:
            handlers = tuple(map(signals.getsignal, signals.SIGNALS))
            if handlers != signals.latest_handlers[0]:
                signals.defer()
        return votes

    def __enter__(self) -> "Votes":
        """Begin a call of this thread; raise RuntimeError inside another one, if there are ranks.

        The votes of one rank concern nobody else, so there calls may be inside others.
        """
        if self.several:
            thread = threading.get_ident()
            if thread in self._threads:
                raise RuntimeError(
                    "distscan was called inside a call of distscan on the same communicator, as by "
                    "an operator's function: the other ranks may not do so at the same time; pass "
                    "comm=MPI.COMM_SELF there"
                )
            self._threads.add(thread)
        return self

    def __exit__(self, *_: object) -> None:
        if self.several:
            self._threads.discard(threading.get_ident())

    def minimum(self, *values: int, arrives: bool) -> tuple[int, ...]:
        """Return the minimum of each of six ``values``, of 8 bytes, over all ranks.

        ``arrives`` says that the ranks may not all have come to this call.
        """
        _SIX.pack_into(self._sent, 0, *values)
        if self._meeting is not None and arrives:
            self._meeting.vote(values[_NUMBER], self._sent, self._minima)
        else:
            # It is blocking: for so few values, MPI_Iallreduce is slower in every library.
            self.comm.Allreduce(self._send, self._receive, MPI.MIN)
        return _SIX.unpack_from(self._minima)

    def contribute(self, number: int) -> None:
        """Send a number to all ranks with the next vote."""
        if self._slots is not None:
            _ONE.pack_into(self._sent, self._slot, number)

    def contributions(self, number: int) -> list[int]:
        """Return the numbers of all ranks; collective. This rank has contributed ``number``."""
        if self._slots is not None:
            return self._slots.tolist()
        numbers = bytearray(self.comm.size * _ONE.size)
        one = [MPI.buffer(_ONE.pack(number)), 1, MPI.INT64_T]
        self.comm.Allgather(one, [MPI.buffer(numbers), 1, MPI.INT64_T])
        return memoryview(numbers).cast("q").tolist()


_SIX, _ONE = struct.Struct("6q"), struct.Struct("q")
_NUMBER = 3  # the place of the step's number in a vote
#: Up to so many ranks, votes have slots. A vote is then a message of at most 560 bytes.
MOST_SLOTS = 64

# The votes of communicators that have been checked, by the communicators' handles: several Python
# objects may stand for one communicator.
_votes: dict[int | str, Votes] = {}
_DEFAULT = "the default communicator"
os.register_at_fork(after_in_child=_votes.clear)


def _votes_of(passed: Comm | None) -> Votes:
    """Check a communicator and return its ``Votes``, which are kept until it is freed."""
    comm = communicator(passed)
    votes = _votes.get(comm.handle)
    if votes is None:
        # MPI may use the handle again after the communicator is freed. So the votes are deleted
        # with this attribute, which MPI deletes when it frees the communicator.
        comm.Set_attr(_voting(), comm.handle)
        votes = _votes[comm.handle] = Votes(comm)
    if passed is None and not isinstance(comm, TorchComm):  # the default group may be destroyed
        _votes[_DEFAULT] = votes
    return votes


@functools.cache
def _voting() -> int:
    def forget(comm: MPI.Comm, key: int, handle: int) -> None:
        _votes.pop(handle, None)

    return MPI.Comm.Create_keyval(delete_fn=forget)


# ---- the exceptions that every rank raises ---------------------------------------------------


def raise_all(comm: Comm, fault: BaseException | None) -> None:
    """Raise the faults of all ranks, if any, as one exception on every rank; collective."""
    faults = comm.allgather(None if fault is None else (*portable(fault), is_agreed(fault)))
    if fault is not None and not isinstance(fault, Exception):
        raise fault
    if not any(faults):
        return
    if fault is not None and len(set(faults)) == 1 and faults[0][2]:
        raise fault  # of an agreement inside this one: its message names the ranks
    # A RankError repeats another rank's fault. Faults of other types are the causes.
    causes = [cause if cause and cause[0] is not RankError else None for cause in faults]
    causes = causes if any(causes) else faults
    kind = next(cause[0] for cause in causes if cause)
    raise mark_collective(kind(by_rank([cause and cause[1] for cause in causes]))) from fault


def raise_disagreement(comm: Comm, terms: dict[str, str]) -> None:
    """Raise DisagreementError on every rank for the first term that differs; collective."""
    all_terms = comm.allgather(terms)
    for name in dict.fromkeys(name for names in all_terms for name in names):
        values = [terms.get(name, "none") for terms in all_terms]
        if len(set(values)) > 1:
            raise mark_collective(
                DisagreementError(f"the ranks disagree on {name}: {by_rank(values)}")
            )
    raise mark_collective(DisagreementError("the ranks disagree on what they are doing"))


def raise_out_of_step(comm: Comm, number: int) -> None:
    """Raise DisagreementError on every rank: the numbers of their agreements differ; collective."""
    steps = by_rank([f"step {number}" for number in comm.allgather(number)])
    raise mark_collective(
        DisagreementError(
            f"the ranks are out of step on this communicator: {steps}; a rank has raised alone, or "
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
    """Return a type that every rank can import, the nearest of a fault, and the fault's message."""
    try:
        message = str(fault) or type(fault).__name__
    except Exception:  # an exception that cannot even be printed
        message = type(fault).__name__
    for kind in type(fault).__mro__:
        is_shared = kind.__module__ in {"builtins", "distscan.core.errors", "numpy.exceptions"}
        if is_shared and issubclass(kind, Exception):
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
    for message, numbers in list(ranks.items())[:4]:
        if len(numbers) == len(messages):
            return f"every rank: {message}"
        parts.append(f"{'rank' if len(numbers) == 1 else 'ranks'} {_ranges(numbers)}: {message}")
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
