"""The buffers and types of the messages that ``MPI_Exscan`` sends and receives.

A message has a whole total, or one piece of a long row of totals.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.form import Form
from ..core.operators import Operator
from .api import MPI

# The status that a rank sends beside its total, by MPI's operator: sound, or failed. The operator
# keeps a failure, whatever the other ranks send. For exclusive or, a failure is a random number.
_SOUND = {"SUM": 0, "PROD": 1, "MAX": 0, "MIN": 1, "BAND": -1, "BOR": 0, "BXOR": 0}
FAILED = {"SUM": 1, "PROD": 0, "MAX": 1, "MIN": 0, "BAND": 0, "BOR": 1}


class BuiltInBuffers:
    """Buffers that MPI's own operator combines: a total, and the status of its rank.

    The buffers to send and to receive are [k + 1]: a total [k], or 0-d for k = 1, and a status.
    """

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


class PackedBuffers:
    """Buffers that Python combines: one item (value, edges, state)."""

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

    @staticmethod
    def nbytes(dtype: np.dtype[Any], width: int, *, rows: bool) -> int:
        """Return the bytes of messages of ``width`` values, without edges and states."""
        return 2 * width * dtype.itemsize


# ---- MPI's operators and types ---------------------------------------------------------------


def mpi_name(op: Operator, dtype: np.dtype[Any], form: Form) -> str:
    """Return the name of MPI's operator that gives NumPy's bits for totals of a type, or ""."""
    if dtype.kind not in op.mpi_kinds or form.segmented:
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
