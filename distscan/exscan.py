"""The exchange of totals, ``MPI_Exscan``: what comes before this rank's shard."""

import functools
import secrets
import weakref
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .errors import RankError
from .exchange import Comm, backwards  # which says what to do where there is no MPI
from .forms import PLAIN, Form, Pending, longest_piece, pieces
from .operators import Operator

# Begun and not yet ended: MPI writes into their buffers, whoever else has forgotten them.
_IN_FLIGHT: "set[Exscan]" = set()
_ABSENT, _PRESENT, _HEAD, _BROKEN = range(4)  # the state of a total; the higher of two outlasts

# What a rank sends beside its total through an operator of MPI's: that it is sound, or that it has
# failed, which no other rank's word undoes. Of exclusive ors, that is a number at random.
_SOUND = {"SUM": 0, "PROD": 1, "MAX": 0, "MIN": 1, "BAND": -1, "BOR": 0, "BXOR": 0}
_FAILED = {"SUM": 1, "PROD": 0, "MAX": 1, "MIN": 0, "BAND": 0, "BOR": 1}


class Exscan:
    """The exchange of totals, prepared once: gives each rank what comes before its shard.

    A total has a value of ``dtype``, 0-d or [inner]. The offset that comes back has the same
    shape, and begins with ``form.first``. None says that the shard begins behind ``form.first``:
    nothing comes before it, or its first element is a head. The next exchange overwrites it.

    A rank that has failed takes part too, without a call (None for ``pending``): later ranks, whose
    offsets lack its total, then raise ``RankError``.

    A long row is exchanged piece by piece, so that one piece crosses ranks while others go from a
    GPU to the host and back. Each piece of the offset is put where the total was, and ``finish``
    gets it from there.

    ``seeds`` is the type of 0-d offsets, where the running value is narrower than ``dtype``.
    ``edges`` is the type of the segments' edges, for a segmented form. Without ``across`` nothing
    crosses ranks: each is on its own.
    """

    def __init__(
        self,
        op: Operator,
        dtype: np.dtype[Any],
        form: Form = PLAIN,
        *,
        edges: np.dtype[Any] | None = None,
        seeds: np.dtype[Any] | None = None,
        across: bool = True,
    ) -> None:
        self._op, self._form, self._across = op, form, across
        self._dtype, self._edges = dtype, edges
        self._builtin = _mpi_name(op, dtype, form)
        self._mpi_op = MPI.OP_NULL
        if across:
            self._mpi_op = getattr(MPI, self._builtin) if self._builtin else _combining()
        self._fault: BaseException | None = None
        self._call: Pending | None = None
        self._offset: Any = None
        self._seed = None if seeds is None or seeds == dtype else np.zeros((), seeds)
        self._messages: list[_BuiltIn | _Packed] = []
        #: Whether totals are rows of several pieces; then ``reserve`` comes before the first use.
        self.long = across and form.inner > longest_piece(dtype)
        if across and not self.long:
            self.reserve()

    def reserve(self) -> None:
        """Allocate what is sent and received, if that has not been done."""
        if not self._messages:
            row = pieces(self._form.inner, self._dtype) if self.long else [None]
            self._messages = [self._message(piece) for piece in row]

    def _message(self, piece: slice | None) -> "_BuiltIn | _Packed":
        if self._builtin:
            return _BuiltIn(self._op, self._dtype, self._form, piece)
        return _Packed(self._op, self._dtype, self._form, piece, self._edges)

    @property
    def nbytes(self) -> int:
        """How many bytes ``reserve`` allocates."""
        return 2 * self._form.inner * self._dtype.itemsize if self._across else 0

    def __call__(self, comm: Comm, pending: Pending | None) -> Any:
        """Combine the totals of all ranks before this one in scan order (``MPI_Exscan``)."""
        if comm.size == 1 or not self._across:
            return None
        comm = self._begin(comm, pending)
        for message in self._messages:
            self._pack(message)
            comm.Exscan(message.send, message.receive, self._mpi_op)
            self._unpack(message, comm)
        return self._end()

    def start(self, comm: Comm, pending: Pending | None) -> None:
        """Begin the same and do not wait for it (``MPI_Iexscan``)."""
        if comm.size > 1 and self._across:
            comm = self._begin(comm, pending)
            for message in self._messages:
                self._pack(message)
                message.request = comm.Iexscan(message.send, message.receive, self._mpi_op)
            _IN_FLIGHT.add(self)

    def wait(self, comm: Comm) -> Any:
        """End what ``start`` began; return the offset."""
        if comm.size == 1 or not self._across:
            return None
        comm = self._ordered(comm)
        for message in self._messages:
            message.request.Wait()
            self._unpack(message, comm)
        _IN_FLIGHT.discard(self)
        return self._end()

    def prepare(self, comm: Comm) -> None:
        """Make what exchanges over ``comm`` need; collective. The first exchange does it, too."""
        if comm.size > 1 and self._across:
            self._ordered(comm)

    def _ordered(self, comm: Comm) -> Comm:
        """Return the ranks in scan order."""
        return backwards(comm) if self._form.reverse else comm

    def _begin(self, comm: Comm, pending: Pending | None) -> Comm:
        self._call, self._offset = pending, None
        return self._ordered(comm)

    def _end(self) -> Any:
        offset, self._call, self._offset = self._offset, None, None
        fault, self._fault = self._fault, None
        for message in self._messages:
            fault, message.fault = message.fault or fault, None
        if fault is not None:
            raise fault
        return offset

    # What goes wrong with a message is raised at the end: the other ranks count on every one.

    def _pack(self, message: "_BuiltIn | _Packed") -> None:
        """Put what this rank has into a message; after a fault, that there was one."""
        try:
            message.put(self._call if self._fault is None else None)
        except BaseException as error:
            self._fault = error
            message.put(None)

    def _unpack(self, message: "_BuiltIn | _Packed", comm: Comm) -> None:
        """Take from a message what comes before this rank's shard."""
        # MPI leaves the first rank's receive buffer undefined.
        if comm.rank == 0 or self._fault is not None:
            return
        try:
            if not message.has_offset():
                return
            if self._form.first is not None:
                self._op.combine(self._form.first, message.offset, out=message.offset)
            if message.piece is not None:
                if self._call is not None and not self._call.empty:
                    self._call.put(message.piece, message.offset)
                    self._offset = self._call.offset
                return
            self._offset = message.offset
            if self._seed is not None:
                # As C rounds: at once, and infinite without a warning.
                self._seed.reshape(1).data[0] = message.offset.item()
                self._offset = self._seed
        except BaseException as error:
            self._fault = error


class _BuiltIn:
    """What MPI sends and receives where it combines itself: a total, and whether its rank is sound.

    ``send`` and ``receive`` are [k + 1], of a total [k] or, for k = 1, 0-d.
    """

    fault = None

    def __init__(self, op: Operator, dtype: np.dtype[Any], form: Form, piece: slice | None) -> None:
        self._op, self.piece, self.request = op, piece, MPI.REQUEST_NULL
        self._name = _mpi_name(op, dtype, form)
        width, shape = _extent(form, piece)
        wire = _wire(dtype, rows=form.inner > 1)
        self.send, self.receive = np.zeros(width + 1, wire), np.zeros(width + 1, wire)
        self._total = self.send[:-1].reshape(shape)
        self._received = self.receive[:-1].reshape(shape)
        self.offset = self._received if wire == dtype else np.zeros(shape, dtype)
        self._sound = _word(wire, _SOUND[self._name])

    def put(self, pending: Pending | None) -> None:
        """Set what is sent: a total, of an empty shard the identity; None says that all failed."""
        self.send[-1] = self._failed() if pending is None else self._sound
        if pending is not None and pending.empty:
            self._total[...] = self._op.identity(self.offset.dtype)
        elif pending is not None:
            self._total[...] = pending.total(self.piece)

    def has_offset(self) -> bool:
        """Take what was received; raise where an earlier rank failed."""
        if self.receive[-1] != self._sound:
            raise _failed()
        if self.offset is not self._received:
            self.offset[...] = self._received
        return True

    def _failed(self) -> Any:
        # Of exclusive ors two equal words would be none: these are equal once in 2^30 or 2^62.
        bits = 8 * self.send.itemsize - 2
        return _word(self.send.dtype, _FAILED.get(self._name, 1 + secrets.randbits(bits)))


class _Packed:
    """What MPI sends and receives where Python combines: one item (value, edges, state).

    An empty shard needs no identity.
    """

    def __init__(
        self,
        op: Operator,
        dtype: np.dtype[Any],
        form: Form,
        piece: slice | None,
        edge: np.dtype[Any] | None,
    ) -> None:
        self._op, self._segmented = op, form.segmented
        self.piece, self.request = piece, MPI.REQUEST_NULL
        self.fault: BaseException | None = None  # of the operator, inside MPI
        shape, edge = _extent(form, piece)[1], edge or np.dtype(np.bool_)
        self._item = np.dtype(
            [("value", dtype, shape), ("enters", edge), ("leaves", edge), ("state", np.uint8)]
        )
        self._sent, self._received = np.zeros(1, self._item), np.zeros(1, self._item)
        self._total = self._sent["value"].reshape(shape)
        self.offset = self._received["value"].reshape(shape)
        # One element, so that MPI never hands a part of it to the operator.
        element = MPI.BYTE.Create_contiguous(self._item.itemsize).Commit()
        _BY_TYPE[element.handle] = self
        weakref.finalize(self, _free, element)
        self.send = [self._sent.view(np.uint8), 1, element]
        self.receive = [self._received.view(np.uint8), 1, element]

    def put(self, pending: Pending | None) -> None:
        """Set what is sent: a total, that there is none, or, for None, that the rank has failed."""
        sent = self._sent
        if pending is None or pending.empty:
            sent["state"] = _BROKEN if pending is None else _ABSENT
            return
        self._total[...] = pending.total(self.piece)
        sent["state"] = _HEAD if pending.head else _PRESENT
        if pending.edges is not None:
            sent["enters"], sent["leaves"] = pending.edges

    def has_offset(self) -> bool:
        """Whether something comes before this shard; raise where an earlier rank failed."""
        state = self._received["state"]
        if state == _BROKEN:
            raise _failed()
        return bool(state != _ABSENT and not self._parted(self._received, self._sent))

    def _parted(self, earlier: NDArray[Any], later: NDArray[Any]) -> bool:
        """Whether a segment begins between two shards that follow each other."""
        return self._segmented and bool((earlier["leaves"] != later["enters"])[0])

    def combine(self, earlier: Any, later: Any) -> None:
        """Combine the bytes of two totals: later = earlier op later."""
        state = self._item.itemsize - 1  # its place
        try:
            if _BROKEN in (earlier[state], later[state]):
                later[state] = _BROKEN
            elif later[state] == _ABSENT:
                later[:] = earlier[:]
            elif earlier[state] != _ABSENT:
                a, b = (np.frombuffer(packed, self._item, 1) for packed in (earlier, later))
                begins = later[state] == _HEAD or self._parted(a, b)
                b["enters"] = a["enters"]
                if begins:
                    later[state] = _HEAD
                else:
                    b["value"][0] = self._op.combine(a["value"][0], b["value"][0])
                    later[state] = earlier[state]
        except BaseException as error:  # cannot cross MPI, which would abort: raised at the end
            self.fault = error
            later[state] = _BROKEN


def _failed() -> Exception:
    return RankError("an earlier rank failed in this call: its shard is missing from the scan")


# ---- MPI's operators and types ---------------------------------------------------------------


def _mpi_name(op: Operator, dtype: np.dtype[Any], form: Form) -> str:
    """Name MPI's operator with NumPy's bits for totals of a type; empty where there is none."""
    if dtype.kind not in op.mpi_kinds or form.segmented:
        return ""
    return op.mpi.replace("L", "B", 1) if op.mpi.startswith("L") else op.mpi  # bools are bits


def _wire(dtype: np.dtype[Any], *, rows: bool) -> np.dtype[Any]:
    """Return the type in which totals travel: integers wide enough to count ranks that failed."""
    if dtype.kind not in "biu" or (rows and dtype.itemsize >= np.dtype(np.int32).itemsize):
        return dtype
    return np.dtype(np.int64 if dtype.kind == "i" else np.uint64)


def _word(dtype: np.dtype[Any], number: int) -> Any:
    return np.array(number).astype(dtype)[()]


def _extent(form: Form, piece: slice | None) -> tuple[int, tuple[int, ...]]:
    """Return how many values a message has, and the shape that they have."""
    width = form.inner if piece is None else piece.stop - piece.start
    return width, (width,) if form.inner > 1 else ()


# Which message an operator in Python is called for: MPI says no more than its datatype.
_BY_TYPE: "weakref.WeakValueDictionary[int, _Packed]" = weakref.WeakValueDictionary()


@functools.cache
def _combining() -> MPI.Op:
    """Make the one operator of all messages: an MPI process has room for 32 in Python."""
    return MPI.Op.Create(_combine, commute=False)


def _combine(earlier: Any, later: Any, element: MPI.Datatype) -> None:
    message = _BY_TYPE.get(element.handle)
    if message is None:
        later[-1] = _BROKEN  # the state
    else:
        message.combine(earlier, later)


def _free(element: MPI.Datatype) -> None:
    if not MPI.Is_finalized():
        element.Free()
