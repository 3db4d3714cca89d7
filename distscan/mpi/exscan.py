"""The exchange of totals by ``MPI_Exscan``: it gives each rank its offset.

A message has a total, or one piece of a long row of totals.
"""

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..core.errors import RankError
from ..core.form import IN_FLIGHT, PLAIN, Form, Pieces, is_long, longest_piece
from ..core.operators import Operator
from ..core.steps import Pending
from .communicators import MPI, Comm, backwards, derived_key

# ---- the messages of an exchange ---------------------------------------------------

# The status that a rank sends beside its total, sound or failed, by the name of MPI's operator. The
# operator keeps a failure, for any statuses of other ranks. For BXOR, a failure is a random number.
_SOUND = {"SUM": 0, "PROD": 1, "MAX": 0, "MIN": 1, "BAND": -1, "BOR": 0, "BXOR": 0}
FAILED = {"SUM": 1, "PROD": 0, "MAX": 1, "MIN": 0, "BAND": 0, "BOR": 1}


class BuiltIn:
    """A message that MPI's own operator combines: a total, and the status of its rank.

    The buffers to send and to receive are [k + 1]: a total [k], or 0-d for k = 1, and a status.
    """

    fault: BaseException | None = None

    def __init__(
        self, op: Operator, dtype: np.dtype[Any], form: Form, piece: slice | None, _: object
    ) -> None:
        self.name, self.piece, self.request = mpi_name(op, dtype, form), piece, MPI.REQUEST_NULL
        width, shape = _extent(form, piece)
        wire = _wire(dtype, rows=form.extents.inner > 1)
        sent, received = np.zeros(width + 1, wire), np.zeros(width + 1, wire)
        # The type is given, because mpi4py would look for it in each call.
        kind = MPI.Datatype.fromcode(wire.char)
        self.send = [MPI.buffer(sent), width + 1, kind]
        self.receive = [MPI.buffer(received), width + 1, kind]
        self.total, self.received = sent[:-1].reshape(shape), received[:-1].reshape(shape)
        self.offset = self.received if wire == dtype else np.zeros(shape, dtype)
        self.identity: Any = op.identity  # of a type: called for empty shards only
        self.status = sent[-1:]
        # The statuses as integers: Python reads and writes them in a tenth of the time.
        self.sent_bits, self.received_bits = _bits(sent[-1:]), _bits(received[-1:])
        self.status[:] = np.array([_SOUND[self.name]])  # arrays are cast, numbers checked
        self.sound = self.sent_bits[0]

    @staticmethod
    def nbytes(dtype: np.dtype[Any], width: int, *, rows: bool) -> int:
        """Return the bytes of messages of ``width`` values, without their statuses."""
        wire = _wire(dtype, rows=rows)
        return width * (2 * wire.itemsize + (0 if wire == dtype else dtype.itemsize))

    def put(self, pending: Pending | None) -> None:
        """Set the total to be sent, the identity for an empty shard; None: the rank has failed."""
        if pending is None:
            # With exclusive or, two equal words cancel. Random ones are equal once in 2^30 or 2^62.
            bits = int.from_bytes(os.urandom(self.status.itemsize), "little") >> 2
            word = FAILED.get(self.name, 1 + bits)
            self.status[:] = np.array([word])
            return
        self.sent_bits[0] = self.sound
        if pending.empty:
            self.total[...] = self.identity(self.offset.dtype)
        else:
            self.total[...] = pending.total(self.piece)

    def has_offset(self) -> bool:
        """Store the offset and return True; raise RankError if an earlier rank failed."""
        if self.received_bits[0] != self.sound:
            raise _failed()
        if self.offset is not self.received:
            self.offset[...] = self.received
        return True


_ABSENT, _PRESENT, _HEAD, _BROKEN = range(4)  # the state of a total; of two, the higher one wins


class Packed:
    """A message that Python combines, one item (value, edges, state). It needs no identity."""

    fault: BaseException | None = None  # of the operator, inside MPI

    def __init__(
        self,
        op: Operator,
        dtype: np.dtype[Any],
        form: Form,
        piece: slice | None,
        edge: np.dtype[Any] | None,
    ) -> None:
        self.function, self.segmented = op.function, form.segmented
        self.piece, self.request = piece, MPI.REQUEST_NULL
        shape, edge = _extent(form, piece)[1], edge or np.dtype(np.bool_)
        self.item = np.dtype(
            [("value", dtype, shape), ("enters", edge), ("leaves", edge), ("state", np.uint8)]
        )
        self.sent, self.received = np.zeros(1, self.item), np.zeros(1, self.item)
        self.total = self.sent["value"].reshape(shape)
        self.offset = self.received["value"].reshape(shape)
        # The datatype has one element, so that MPI never passes a part of it to the operator.
        self.element = MPI.BYTE.Create_contiguous(self.item.itemsize).Commit()
        weakref.finalize(self, _free, self.element)
        self.send = [MPI.buffer(self.sent.view(np.uint8)), 1, self.element]
        self.receive = [MPI.buffer(self.received.view(np.uint8)), 1, self.element]
        _BY_TYPE[self.element.handle] = self

    @staticmethod
    def nbytes(dtype: np.dtype[Any], width: int, *, rows: bool) -> int:
        """Return the bytes of messages of ``width`` values, without edges and states."""
        return 2 * width * dtype.itemsize

    def put(self, pending: Pending | None) -> None:
        """Set the total to be sent, or the state of an empty shard; None: the rank has failed."""
        sent = self.sent
        if pending is None or pending.empty:
            sent["state"] = _BROKEN if pending is None else _ABSENT
            return
        self.total[...] = pending.total(self.piece)
        sent["state"] = _HEAD if pending.head else _PRESENT
        edges = pending.edges if self.segmented else None
        if edges is not None:
            sent["enters"], sent["leaves"] = edges

    def has_offset(self) -> bool:
        """Return whether a total comes before this shard; raise if an earlier rank failed."""
        state = self.received["state"]
        if state == _BROKEN:
            raise _failed()
        return bool(state != _ABSENT and not self._segment_begins_between(self.received, self.sent))

    def _segment_begins_between(self, earlier: NDArray[Any], later: NDArray[Any]) -> bool:
        """Return whether a segment begins between two neighbouring shards."""
        return self.segmented and bool((earlier["leaves"] != later["enters"])[0])

    def combine(self, earlier: Any, later: Any) -> None:
        """Combine the bytes of two totals: later = earlier op later."""
        state = self.item.itemsize - 1  # the index of the state, the last byte
        try:
            if _BROKEN in (earlier[state], later[state]):
                later[state] = _BROKEN
            elif later[state] == _ABSENT:
                later[:] = earlier[:]
            elif earlier[state] != _ABSENT:
                a, b = (np.frombuffer(packed, self.item, 1) for packed in (earlier, later))
                begins = later[state] == _HEAD or self._segment_begins_between(a, b)
                b["enters"] = a["enters"]
                if begins:
                    later[state] = _HEAD
                else:
                    with np.errstate(all="ignore"):
                        b["value"][0] = self.function(a["value"][0], b["value"][0])
                    later[state] = earlier[state]
        except BaseException as error:  # MPI would abort: the exception is raised at the end
            self.fault = error
            later[state] = _BROKEN


# ---- MPI's operators and types ---------------------------------------------------------------


def _failed() -> Exception:
    return RankError("an earlier rank failed in this call: its shard is missing from the scan")


# The message for which MPI calls ``_combine``, by the handle of its datatype: MPI passes no more.
_BY_TYPE: "weakref.WeakValueDictionary[int, Packed]" = weakref.WeakValueDictionary()


def _combine(earlier: Any, later: Any, element: "MPI.Datatype") -> None:
    message = _BY_TYPE.get(element.handle)
    if message is None:
        later[-1] = _BROKEN  # the state
    else:
        message.combine(earlier, later)


def mpi_name(op: Operator, dtype: np.dtype[Any], form: Form) -> str:
    """Return the name of MPI's operator that gives NumPy's bits for totals of a type, or ""."""
    # MPI's standard has no float16: Open MPI 4.1 has a type for it, and crashes in a reduction.
    if dtype.kind not in op.mpi_kinds or dtype == np.float16 or form.segmented:
        return ""
    return op.mpi.replace("L", "B", 1) if op.mpi.startswith("L") else op.mpi  # bools are bits


@functools.cache
def mpi_op(function: Callable[..., None]) -> "MPI.Op":
    """Return an MPI operator that calls ``function``; mpi4py has room for 32 of them."""
    return MPI.Op.Create(function, commute=False)


def _wire(dtype: np.dtype[Any], *, rows: bool) -> np.dtype[Any]:
    """Return the type of totals in a message: integers wide enough to count ranks that failed."""
    if dtype.kind not in "biu" or (rows and dtype.itemsize >= np.dtype(np.int32).itemsize):
        return dtype
    return np.dtype(f"{'i' if dtype.kind == 'i' else 'u'}{4 if rows else 8}")


def _bits(one: NDArray[Any]) -> memoryview:
    """View the first bytes of one number, at most 8, as an integer.

    >>> _bits(np.array([1 + 2j])).tolist() == _bits(np.array([1.0])).tolist()
    True
    """
    size = min(one.itemsize, 8)
    return one.view(np.uint8)[:size].view(f"i{size}").data


def _extent(form: Form, piece: slice | None) -> tuple[int, tuple[int, ...]]:
    """Return the number of values in a message, and their shape."""
    width = form.extents.inner if piece is None else piece.stop - piece.start
    return width, (width,) if form.extents.inner > 1 else ()


def _free(element: "MPI.Datatype") -> None:
    if not MPI.Is_finalized():
        element.Free()


# ---- the exchange ----------------------------------------------------------------------------

# Exchanges that have begun and not ended. MPI writes into their buffers, so they must stay alive.
_BEGUN: "set[Exscan]" = set()


class Exscan:
    """The exchange of totals, prepared once for many calls. It gives each rank its offset.

    A total is a value of ``dtype``, 0-d or [inner]. The offset has the same shape: it is the
    combination of ``form.seed`` and the totals of all earlier ranks. If no element comes before
    the shard, or its first element is a head, the offset is ``form.seed``, which may be None. The
    next exchange overwrites the offset.

    A rank that has failed takes part, too: it passes None for ``pending``. The offsets of later
    ranks then lack its total, so these ranks raise ``RankError``.

    A long row is exchanged in pieces. Each piece of the offset goes to the call at once, by
    ``put``. So there are buffers for few pieces only: one in a blocking exchange, and
    ``form.IN_FLIGHT`` from ``start`` to ``wait``.

    ``seeds`` is the type of 0-d offsets, if the running value is narrower than ``dtype``. ``edges``
    is the type of the segments' edges, for a segmented form. If ``across`` is False, nothing is
    exchanged.
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
        builtin = mpi_name(op, dtype, form)
        self._kind = BuiltIn if builtin else Packed
        self._mpi_op = MPI.OP_NULL
        self._backwards = derived_key("backwards") if form.reverse else 0
        if across:
            self._mpi_op = getattr(MPI, builtin) if builtin else mpi_op(_combine)
        self._fault: BaseException | None = None
        self._pending: Pending | None = None
        self._offset: Any = None
        self._seed = None if seeds is None or seeds == dtype else np.zeros((), seeds)
        inner = form.extents.inner
        #: Whether totals are rows of several pieces. If so, call ``reserve`` before the first use.
        self.long = across and is_long(inner, dtype)
        self._pieces: Sequence[slice | None] = Pieces(inner, dtype) if self.long else [None]
        self._messages: list[BuiltIn | Packed] = []
        if across and not self.long:
            self.reserve()

    def reserve(self) -> None:
        """Allocate the messages, once: those of a piece serve one piece after the other."""
        if not self._messages:
            number = len(self._pieces)
            few = range(number) if number <= IN_FLIGHT else [*range(IN_FLIGHT), number - 1]
            self._messages = [
                self._kind(self._op, self._dtype, self._form, self._pieces[i], self._edges)
                for i in few
            ]

    @property
    def nbytes(self) -> int:
        """The number of bytes that ``reserve`` allocates."""
        if not self._across:
            return 0
        width = min(self._form.extents.inner, (IN_FLIGHT + 1) * longest_piece(self._dtype))
        return self._kind.nbytes(self._dtype, width, rows=self._form.extents.inner > 1)

    def __call__(self, comm: Comm, pending: Pending | None) -> Any:
        """Return the offset: exchange totals by ``MPI_Exscan``, in scan order; collective."""
        if comm.size == 1 or not self._across:
            return self._form.seed
        comm = self._begin(comm, pending)
        for i in range(len(self._pieces)):
            message = self._pack(i, 1)
            comm.Exscan(message.send, message.receive, self._mpi_op)
            self._unpack(message, comm)
        return self._end()

    def start(self, comm: Comm, pending: Pending | None) -> None:
        """Begin the exchange by ``MPI_Iexscan``; do not wait for other ranks.

        Of a long row, the first pieces are exchanged: as many as there are buffers for.
        """
        if comm.size > 1 and self._across:
            comm = self._begin(comm, pending)
            for i in range(min(IN_FLIGHT, len(self._pieces))):
                self._send(comm, i)
            _BEGUN.add(self)

    def wait(self, comm: Comm) -> Any:
        """Exchange the pieces that ``start`` has not begun, wait for all; return the offset."""
        if comm.size == 1 or not self._across:
            return self._form.seed
        comm = self._ordered(comm)
        for i in range(len(self._pieces)):
            message = self._message(i, IN_FLIGHT)
            message.request.Wait()
            self._unpack(message, comm)
            if i + IN_FLIGHT < len(self._pieces):
                self._send(comm, i + IN_FLIGHT)
        _BEGUN.discard(self)
        return self._end()

    def prepare(self, comm: Comm) -> None:
        """Create the reverse communicator, if needed, before the first exchange; collective."""
        if comm.size > 1 and self._across:
            self._ordered(comm)

    def _ordered(self, comm: Comm) -> Comm:
        """Return the communicator whose ranks are in scan order."""
        if not self._form.reverse:
            return comm
        reverse: Any = comm.Get_attr(self._backwards)
        return backwards(comm) if reverse is None else cast(Comm, reverse)

    def _begin(self, comm: Comm, pending: Pending | None) -> Comm:
        self._pending, self._offset = pending, self._form.seed
        return self._ordered(comm)

    def _end(self) -> Any:
        offset, self._pending, self._offset = self._offset, None, None
        fault, self._fault = self._fault, None
        for message in self._messages:
            fault, message.fault = message.fault or fault, None
        if fault is not None:
            raise fault
        return offset

    def _message(self, i: int, number: int) -> "BuiltIn | Packed":
        """Return the message of piece ``i``, if ``number`` of them are used in turn.

        The last piece may be shorter: it has another message.
        """
        last = len(self._pieces) - 1
        return self._messages[-1 if i == last else i % min(number, last)]

    def _send(self, comm: Comm, i: int) -> None:
        message = self._pack(i, IN_FLIGHT)
        message.request = comm.Iexscan(message.send, message.receive, self._mpi_op)

    # A fault of a message is raised at the end: the other ranks wait for every message.

    def _pack(self, i: int, number: int) -> "BuiltIn | Packed":
        """Put this rank's total into its message; after a fault, put the failure there."""
        message = self._message(i, number)
        message.piece = self._pieces[i]
        try:
            message.put(self._pending if self._fault is None else None)
        except BaseException as error:
            self._fault = error
            message.put(None)
        return message

    def _unpack(self, message: "BuiltIn | Packed", comm: Comm) -> None:
        """Take this rank's offset from a message."""
        if self._fault is not None:
            return
        try:
            # MPI leaves the first rank's receive buffer undefined.
            offset = message.offset if comm.rank > 0 and message.has_offset() else None
            first = self._form.seed if message.piece is None else self._form.seed_of(message.piece)
            if offset is not None and first is not None:
                with np.errstate(all="ignore"):
                    self._op.function(first, offset, out=offset)
            if message.piece is not None:
                if self._pending is not None and not self._pending.empty:
                    self._pending.put(message.piece, offset)
                    if self._pending.offset is not None:
                        self._offset = self._pending.offset
            elif offset is not None:
                self._offset = offset
                if self._seed is not None:
                    # This rounds as C does, without a warning for infinity, and is fast.
                    self._seed.reshape(1).data[0] = offset.item()
                    self._offset = self._seed
        except BaseException as error:
            self._fault = error
