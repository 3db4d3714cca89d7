"""What ``MPI_Exscan`` sends and receives: totals, each with a word on whether its rank is sound."""

import functools
import secrets
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import RankError
from ..core.forms import Form, Pending
from ..core.operators import Operator
from .library import MPI

_ABSENT, _PRESENT, _HEAD, _BROKEN = range(4)  # the state of a total; the higher of two outlasts

# What a rank sends beside its total through an operator of MPI's: that it is sound, or that it has
# failed, which no other rank's word undoes. Of exclusive ors, that is a number at random.
_SOUND = {"SUM": 0, "PROD": 1, "MAX": 0, "MIN": 1, "BAND": -1, "BOR": 0, "BXOR": 0}
_FAILED = {"SUM": 1, "PROD": 0, "MAX": 1, "MIN": 0, "BAND": 0, "BOR": 1}


class BuiltIn:
    """What MPI sends and receives where it combines itself: a total, and whether its rank is sound.

    Sent and received are [k + 1]: a total [k] or, for k = 1, 0-d, and a status.
    """

    fault = None

    def __init__(self, op: Operator, dtype: np.dtype[Any], form: Form, piece: slice | None) -> None:
        self._op, self.piece, self.request = op, piece, MPI.REQUEST_NULL
        self._name = mpi_name(op, dtype, form)
        width, shape = _extent(form, piece)
        wire = _wire(dtype, rows=form.inner > 1)
        sent, received = np.zeros(width + 1, wire), np.zeros(width + 1, wire)
        # MPI is told their type: mpi4py would look for it in each call.
        kind = MPI.Datatype.fromcode(wire.char)
        self.send = [MPI.buffer(sent), width + 1, kind]
        self.receive = [MPI.buffer(received), width + 1, kind]
        self._total, self._received = sent[:-1].reshape(shape), received[:-1].reshape(shape)
        self.offset = self._received if wire == dtype else np.zeros(shape, dtype)
        self._status = sent[-1:]
        # The same in integers, which Python reads and writes in a tenth of the time.
        self._says, self._hears = _bits(sent[-1:]), _bits(received[-1:])
        self._status[:] = np.array([_SOUND[self._name]])  # arrays are cast, numbers checked
        self._sound = self._says[0]

    @staticmethod
    def nbytes(dtype: np.dtype[Any], form: Form) -> int:
        """Return how many bytes the messages of a whole total have, without their status words."""
        wire = _wire(dtype, rows=form.inner > 1)
        each = 2 * wire.itemsize + (0 if wire == dtype else dtype.itemsize)
        return form.inner * each

    def put(self, pending: Pending | None) -> None:
        """Set what is sent: a total, of an empty shard the identity; None says that all failed."""
        if pending is None:
            self._status[:] = np.array([self._failed()])
            return
        self._says[0] = self._sound
        if pending.empty:
            self._total[...] = self._op.identity(self.offset.dtype)
        else:
            self._total[...] = pending.total(self.piece)

    def has_offset(self) -> bool:
        """Take what was received; raise where an earlier rank failed."""
        if self._hears[0] != self._sound:
            raise _failed()
        if self.offset is not self._received:
            self.offset[...] = self._received
        return True

    def _failed(self) -> int:
        # Of exclusive ors two equal words would be none: these are equal once in 2^30 or 2^62.
        bits = 8 * self._status.itemsize - 2
        return _FAILED.get(self._name, 1 + secrets.randbits(bits))


class Packed:
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
        self.send = [MPI.buffer(self._sent.view(np.uint8)), 1, element]
        self.receive = [MPI.buffer(self._received.view(np.uint8)), 1, element]

    @staticmethod
    def nbytes(dtype: np.dtype[Any], form: Form) -> int:
        """Return how many bytes the messages of a whole total have, without edges and states."""
        return 2 * form.inner * dtype.itemsize

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


def mpi_name(op: Operator, dtype: np.dtype[Any], form: Form) -> str:
    """Name MPI's operator with NumPy's bits for totals of a type; empty where there is none."""
    if dtype.kind not in op.mpi_kinds or form.segmented:
        return ""
    return op.mpi.replace("L", "B", 1) if op.mpi.startswith("L") else op.mpi  # bools are bits


def _wire(dtype: np.dtype[Any], *, rows: bool) -> np.dtype[Any]:
    """Return the type in which totals travel: integers wide enough to count ranks that failed."""
    if dtype.kind not in "biu" or (rows and dtype.itemsize >= np.dtype(np.int32).itemsize):
        return dtype
    return np.dtype(f"{'i' if dtype.kind == 'i' else 'u'}{4 if rows else 8}")


def _bits(one: NDArray[Any]) -> memoryview:
    """See the first bytes of one number, 8 at most, as an integer.

    >>> _bits(np.array([1 + 2j])).tolist() == _bits(np.array([1.0])).tolist()
    True
    """
    size = min(one.itemsize, 8)
    return one.view(np.uint8)[:size].view(f"i{size}").data


def _extent(form: Form, piece: slice | None) -> tuple[int, tuple[int, ...]]:
    """Return how many values a message has, and the shape that they have."""
    width = form.inner if piece is None else piece.stop - piece.start
    return width, (width,) if form.inner > 1 else ()


# Which message an operator in Python is called for: MPI says no more than its datatype.
_BY_TYPE: "weakref.WeakValueDictionary[int, Packed]" = weakref.WeakValueDictionary()


@functools.cache
def combining() -> "MPI.Op":
    """Make the one operator of all messages: an MPI process has room for 32 in Python."""
    return MPI.Op.Create(_combine, commute=False)


def _combine(earlier: Any, later: Any, element: "MPI.Datatype") -> None:
    message = _BY_TYPE.get(element.handle)
    if message is None:
        later[-1] = _BROKEN  # the state
    else:
        message.combine(earlier, later)


def _free(element: "MPI.Datatype") -> None:
    if not MPI.Is_finalized():
        element.Free()
