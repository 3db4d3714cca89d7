"""Which axis is scanned, and in which order of axes an array is read.

That is the order in which it lies in memory, where the result is the same.
"""

from contextlib import suppress
from operator import index
from typing import Any

import numpy as np


def axis_number(axis: Any) -> int | None:
    """Return ``axis`` as a number, or None; raise TypeError for all else, bool too, as NumPy.

    >>> axis_number(-1), axis_number(None)
    (-1, None)
    """
    if axis is None:
        return None
    with suppress(TypeError):
        if not isinstance(axis, bool | np.bool_):
            return index(axis)
    raise TypeError(f"axis must be an integer or None, not a {type(axis).__name__}")


def order(x: Any, out: Any, axis: int | None) -> tuple[int, ...] | None:
    """Return the axes of ``x``, that which is outermost in memory first, if it lies in that order.

    None where the axes keep their order: where ``x`` is contiguous in that order, or in none; where
    ``out`` lies in another order; and where the scan goes on from rank to rank, since the arrays of
    other ranks may lie in another order.

    >>> import numpy as np
    >>> order(np.zeros((2, 3, 4)).transpose(1, 2, 0), None, axis=1)
    (2, 0, 1)
    """
    if axis is None or x.flags.c_contiguous or axis % x.ndim == 0 or abs(axis) > x.ndim:
        return None
    found = tuple(sorted(range(x.ndim), key=lambda i: -x.strides[i]))
    if out is not None and (out.shape != x.shape or not _contiguous(out, found)):
        return None
    return found if _contiguous(x, found) else None


def turned(array: Any, order: tuple[int, ...]) -> Any:
    """View an array, if there is one, in this order of axes, behind an axis [1] for the ranks."""
    return None if array is None else array.transpose(order)[None]


def restored(array: Any, order: tuple[int, ...]) -> Any:
    """Undo ``turned``."""
    return array[0].transpose([order.index(axis) for axis in range(len(order))])


def _contiguous(array: Any, order: tuple[int, ...]) -> bool:
    return bool(array.transpose(order).flags.c_contiguous)
