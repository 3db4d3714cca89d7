"""Extents: an array of any shape, scanned along any axis, as [outer, n, inner] scanned along n."""

import math
from contextlib import suppress
from operator import index
from typing import Any, NamedTuple

import numpy as np

from .scalars import integer


class Extents(NamedTuple):
    """The view of a shard as [outer, n, inner], scanned along n.

    Attributes
    ----------
    outer, n, inner
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
    >>> extents.outer, extents.n, extents.inner
    (2, 3, 4)
    >>> extents = Extents.of((2, 3, 4), axis=1, order=(2, 0, 1))  # read as [4, 2, 3]
    >>> extents.outer, extents.n, extents.inner
    (8, 3, 1)
    """

    outer: int = 1
    n: int = 0
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
            raise np.exceptions.AxisError(axis, ndim)
        if axis is None or ndim == 1:
            return cls(n=math.prod(shape), shape=shape)
        axis %= ndim
        read = shape if order is None else tuple(shape[i] for i in order)
        along = axis if order is None else order.index(axis)
        outer, inner = math.prod(read[:along]), math.prod(read[along + 1 :])
        if outer * inner == 0:  # without rows or columns there is nothing to scan
            outer, n, inner = 1, 0, 1
        else:
            n = shape[axis]
        return cls(outer, n, inner, shape, axis, order)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.outer * self.n * self.inner

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (self.n,) if self.axis is None else self.shape

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
            shape = (self.outer, self.n, self.inner)
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
    found = tuple(sorted(range(x.ndim), key=lambda i: -x.strides[i]))
    if out is not None and (out.shape != x.shape or not _is_contiguous(out, found)):
        return None
    return found if _is_contiguous(x, found) else None


def _is_contiguous(array: Any, order: tuple[int, ...]) -> bool:
    return bool(array.transpose(order).flags.c_contiguous)
