"""The form of a scan: which elements it combines, in which order, and where they lie.

A shard of any shape, scanned along any axis, is [outer, n, inner] scanned along n.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .arrays import HostFields
from .operators import Operator
from .scalars import exact_scalar, integer, scalar

# ---- extents: the shape of a shard, seen as the scan sees it ---------------------------------


class Extents(NamedTuple):
    """The view of a shard as [outer, n, inner], scanned along n.

    Attributes
    ----------
    outer, length, inner
        The number of elements of the axes before the scanned one, its length, and the number of
        elements of the axes after it: 1, n, 1 for a flattened or 1-D scan.
    shape
        The shape of the array.
    axis
        The scanned axis, counted from the front. None: the array is flattened, or 1-D.
    order
        The order in which the axes are read: the outermost in memory first. None: in their order.

    Examples
    --------
    >>> extents = Extents.of((2, 3, 4), axis=1)
    >>> extents.outer, extents.length, extents.inner
    (2, 3, 4)
    >>> extents = Extents.of((2, 3, 4), axis=1, order=(2, 0, 1))  # read as [4, 2, 3]
    >>> extents.outer, extents.length, extents.inner
    (8, 3, 1)
    """

    outer: int = 1
    length: int = 0
    inner: int = 1
    shape: tuple[int, ...] = ()
    axis: int | None = None
    order: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, shape: tuple[int, ...], axis: int | None, order: tuple[int, ...] | None = None
    ) -> "Extents":
        """Return the extents of an array of ``shape``; raise AxisError for an axis it lacks."""
        ndim = max(len(shape), 1)  # a scalar is an array of one element, as in numpy.cumsum
        if axis is not None and not -ndim <= axis < ndim:
            raise np.exceptions.AxisError(
                f"axis {axis} is out of bounds for array of dimension {ndim}; axes are "
                f"{-ndim} to {ndim - 1}"
            )
        if axis is None or ndim == 1:
            return cls(length=math.prod(shape), shape=shape)
        axis %= ndim
        read = shape if order is None else tuple(shape[i] for i in order)
        along = axis if order is None else order.index(axis)
        outer, inner = math.prod(read[:along]), math.prod(read[along + 1 :])
        if outer * inner == 0:  # without rows or columns there is nothing to scan
            outer, length, inner = 1, 0, 1
        else:
            length = shape[axis]
        return cls(outer, length, inner, shape, axis, order)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.outer * self.length * self.inner

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (self.length,) if self.axis is None else self.shape

    @property
    def goes_on(self) -> bool:
        """Whether the scan continues from rank to rank."""
        return self.axis is None or (self.axis == 0 and math.prod(self.shape[1:]) > 0)

    @property
    def has_rows(self) -> bool:
        """Whether a rank's total is a row, not one value."""
        return self.axis == 0 and math.prod(self.shape[1:]) != 1

    def view(self, array: Any) -> Any:
        """Return a view of ``array`` for a backend's steps; None if only a copy would do.

        The view is flat if the array is contiguous in this order of axes. NumPy's arrays with
        other strides are viewed as [outer, n, inner]; CUDA kernels need contiguous memory.

        >>> Extents.of((2, 6), axis=1).view(np.zeros((2, 6))).shape
        (12,)
        >>> Extents.of((2, 6), axis=1).view(np.zeros((6, 2)).T).shape
        (2, 6, 1)
        """
        if self.order is not None:
            array = array.transpose(self.order)
        if array.flags.c_contiguous:
            return array.reshape(-1)
        if not isinstance(array, np.ndarray):
            return None
        with suppress(ValueError):
            shape = (self.outer, self.length, self.inner)
            return array if array.ndim == 1 else array.reshape(shape, copy=False)
        return None

    def restored(self, result: Any) -> Any:
        """Return a contiguous result in its shape, with its axes in memory ordered as the input's.

        >>> Extents.of((2, 3), axis=1, order=(1, 0)).restored(np.arange(6))
        array([[0, 2, 4],
               [1, 3, 5]])
        """
        if self.order is None:
            return result.reshape(self.result_shape)
        result = result.reshape([self.shape[axis] for axis in self.order])
        return result.transpose([self.order.index(axis) for axis in range(len(self.order))])


#: Of a shard without elements.
EMPTY = Extents()


def axis_number(axis: Any) -> int | None:
    """Return ``axis`` as an integer, or None; raise TypeError for anything else, also for bool.

    >>> axis_number(-1), axis_number(None)
    (-1, None)
    """
    if axis is None:
        return None
    with suppress(TypeError):
        if not isinstance(axis, bool | np.bool_):
            return index(axis)
    raise TypeError(f"axis must be an integer or None, not a {type(axis).__name__}")


def shape_of(shape: Any) -> tuple[int, ...]:
    """Return a length, or a sequence of lengths, as a shape; raise TypeError or ValueError.

    >>> shape_of(3), shape_of([2, 3])
    ((3,), (2, 3))
    """
    if not np.iterable(shape):
        return (integer(shape, "shape", least=0),)
    return tuple(integer(length, "each length of shape", least=0) for length in shape)


def memory_order(x: Any, out: Any, axis: int | None) -> tuple[int, ...] | None:
    """Return the axes of ``x``, the outermost in memory first, if it is contiguous in that order.

    None if the axes are to be read in their own order. There are three cases: ``x`` is
    C-contiguous, or contiguous in no order; ``out`` has another order than ``x``; the scan
    continues from rank to rank, and other ranks' arrays may have another order.

    >>> import numpy as np
    >>> memory_order(np.zeros((2, 3, 4)).transpose(1, 2, 0), None, axis=1)
    (2, 0, 1)
    """
    if axis is None or x.flags.c_contiguous or axis % x.ndim == 0 or abs(axis) > x.ndim:
        return None
    order = tuple(sorted(range(x.ndim), key=lambda i: -x.strides[i]))
    if out is not None and (out.shape != x.shape or not _is_contiguous(out, order)):
        return None
    return order if _is_contiguous(x, order) else None


def _is_contiguous(array: Any, order: tuple[int, ...]) -> bool:
    return bool(array.transpose(order).flags.c_contiguous)


# ---- form ------------------------------------------------------------------------------------


class Form(NamedTuple):
    """How the elements of a shard are combined.

    Attributes
    ----------
    extents
        The view of the shard as [outer, n, inner], scanned along n. Rows (outer) and columns
        (inner) are independent scans.
    exclusive
        Whether element i of the result leaves out element i of the input.
    reverse
        Whether the scan goes from the last element to the first. "Before" means before in this
        order.
    segmented
        Whether each call passes segments.
    seed
        The value before each row, column and segment, 0-d: the caller's ``initial``, or the
        operator's identity for an exclusive scan without ``initial``. None: there is no value. Of
        structures it may be [inner], a value for each column of a scan across ranks. A long row is
        a view of the caller's arrays.
    keys
        The type of keys that kernels compare themselves: see ``segments.compared``. None: segments
        are flags, or become flags before a kernel reads them.
    """

    extents: Extents = EMPTY
    exclusive: bool = False
    reverse: bool = False
    segmented: bool = False
    seed: Any = None
    keys: np.dtype[Any] | None = None

    def seed_of(self, columns: slice) -> NDArray[Any] | None:
        """Return the value before some columns, 0-d or a row; None if there is none."""
        seed = self.seed
        if seed is None:
            return None
        return np.asarray(seed if seed.ndim == 0 else seed[columns])


PLAIN = Form()


def seed_value(op: Operator, acc: np.dtype[Any], initial: Any, *, exclusive: bool) -> Any:
    """Return the ``seed`` of a form, 0-d, in the accumulating type; None if there is none."""
    if initial is not None:
        return starting_value(initial, acc)
    if not exclusive:
        return None
    if op.identity is None:
        raise ValueError(f"operator {op.name!r} has no identity: exclusive=True needs initial=")
    identity = np.asarray(op.identity(acc))
    # The identity of sums is -0.0, but an exclusive scan begins with 0.0, as in NumPy.
    return np.zeros((), acc) if acc.kind in "fc" and identity == 0 else identity


def starting_value(initial: Any, acc: np.dtype[Any]) -> Any:
    """Return ``initial`` as a 0-d array of the accumulating type.

    Raises OverflowError for an integer out of the type's range, TypeError for a value of a higher
    kind, such as a float if integers accumulate, and ValueError for a masked value or an array.

    >>> starting_value(3, np.dtype(np.float32))
    array(3., dtype=float32)
    """
    if isinstance(initial, HostFields):
        return initial
    if acc.names is not None:
        value = exact_scalar(initial, acc, "initial")
        return value.reshape(()) if value.size == 1 else value  # an array: see ``Form.seed``
    value = scalar(initial, "initial")
    if not (isinstance(value.item(), int) or np.can_cast(value.dtype, acc, "same_kind")):
        raise TypeError(
            f"initial is {value.dtype}; the scan accumulates in {acc}: name another "
            f"initial, or dtype {value.dtype}"
        )
    return exact_scalar(value, acc, "initial")


# ---- pieces of a long row --------------------------------------------------------------------

# Bytes of a piece. A piece is small, so that a shard's columns of a piece, and the buffers of its
# exchange, stay in cache: between two ranks of a host, a row of 32 MiB takes 57 ms in one message,
# and 14 ms in pieces. On GPUs, the first and the last copy overlap with no other work, and take
# 30 us each over PCIe. A piece is large, so that the fixed costs of a copy and of an MPI_Exscan,
# some 10 us, are a small part of the time.
PIECE = 1 << 20
#: The most pieces for which there are buffers at a time.
IN_FLIGHT = 4
_NARROWEST = 4  # bytes of an integer in a message
_ALIGNED = 1024  # columns: NumPy's steps take so many at a time, of pieces of any length


class Pieces(Sequence[slice]):
    """The pieces in which a row [inner] of totals is exchanged, the same on every rank.

    They are not in memory: a row of an array without rows may be of any length.

    >>> [*Pieces(300000, np.dtype(np.float64))]
    [slice(0, 131072, None), slice(131072, 262144, None), slice(262144, 300000, None)]
    """

    def __init__(self, inner: int, dtype: np.dtype[Any]) -> None:
        """Cut a row of elements of a type."""
        self._lows = range(0, inner, longest_piece(dtype))

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._lows)

    def __getitem__(self, i: Any) -> Any:
        """Return piece ``i``."""
        low = self._lows[i]
        return slice(low, min(low + self._lows.step, self._lows.stop))


def longest_piece(dtype: np.dtype[Any]) -> int:
    """Return the largest number of elements in a piece."""
    number = max(PIECE // max(dtype.itemsize, _NARROWEST), 1)
    return number - number % _ALIGNED or number


def is_long(inner: int, dtype: np.dtype[Any]) -> bool:
    """Return whether a row [inner] of totals has several pieces."""
    return inner > longest_piece(dtype)


# ---- shards and chunks, as integers ----------------------------------------------------------


def bounds(n: int, size: int, rank: int, grain: int = 1, *, whole: bool = False) -> tuple[int, int]:
    """Return ``(start, stop)`` of the shard that ``rank`` of ``size`` ranks owns of ``n`` elements.

    Shards are contiguous and in rank order. Their lengths differ by at most one; the longer shards
    come first. They begin at multiples of ``grain``, if there is one for each rank; always, if
    grains must stay ``whole``.

    >>> [bounds(10, 4, rank) for rank in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    >>> [bounds(10, 2, rank, grain=4) for rank in range(2)]
    [(0, 8), (8, 10)]
    >>> [bounds(10, 4, rank, grain=4, whole=True) for rank in range(4)]
    [(0, 4), (4, 8), (8, 10), (10, 10)]
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not in a communicator of {size} ranks")
    grains = -(-n // grain)
    if grains < n and (whole or size <= grains):
        start, stop = bounds(grains, size, rank)
        return min(start * grain, n), min(stop * grain, n)
    short, longer = divmod(n, size)
    start = rank * short + min(rank, longer)
    return start, start + short + (rank < longer)


def chunks(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield pieces ``(low, high)`` of ``start..stop``; all but the last have ``step`` elements.

    >>> list(chunks(3, 10, 4))
    [(3, 7), (7, 10)]
    """
    for low in range(start, stop, step):
        yield low, min(low + step, stop)
