"""Infinities, NaN and -0.0 of an array, beside the kernels that add finite numbers; local."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .core import arrays, shards
from .core.special import code_of, codes, is_negative_zero, store_special

_CHUNK = 1 << 18  # elements at a time on the host: they stay in the caches
_GPU_CHUNK = 1 << 23  # on a GPU: enough to fill it
_CODES = 1 << 22  # codes of columns at a time
_FEWEST = 64  # columns at a time: whole cache lines


def chunks(*each: Any) -> Iterator[tuple[Any, ...]]:
    """Yield arrays of the same number of elements chunk by chunk; chunks of results are views.

    Some columns of a row-major matrix may be among the arrays, if all are matrices.
    """
    chunk = _GPU_CHUNK if arrays.is_cuda(each[0]) else _CHUNK
    if any(array.ndim != 2 for array in each) or all(array.flags.c_contiguous for array in each):
        each = tuple(array.reshape(1, -1) for array in each)
    n, inner = each[0].shape
    height = max(1, chunk // max(1, inner))
    for rows in shards.chunks(0, n, height):
        for columns in shards.chunks(0, inner, chunk):
            where = slice(*rows), slice(*columns)
            yield tuple(array[where] for array in each)


def bands(inner: int, n: int) -> list[slice]:
    """Cut rows [inner] into columns for which there is memory for the codes of ``n`` rows."""
    width = min(_CHUNK, max(_FEWEST, _CODES // max(1, n)))
    return [slice(*band) for band in shards.chunks(0, inner, width)]


def firsts(x: Any, axis: int | None, *, reverse: bool) -> Any:
    """Return the first elements along an axis, as a view. ``axis`` None: the first of all."""
    one, every = slice(-1, None) if reverse else slice(1), slice(None)
    where = (one if axis in {None, place} else every for place in range(x.ndim))
    return x[(..., *where)]


def has_negative_zero(x: Any) -> bool:
    """Return whether any element is -0.0."""
    if x.dtype.kind in "biu":
        return False
    if x.size == 1:  # a copy is faster than kernels that look at it
        return is_negative_zero(code_of(float(x.item())))
    xp = arrays.namespace(x)
    return any(bool((xp.signbit(chunk) & (chunk == 0)).any()) for (chunk,) in chunks(x))


def codes_of_all(x: Any) -> Any:
    """Return the codes of the elements, uint8, in their shape."""
    xp = arrays.namespace(x)
    found = xp.empty(x.shape, np.uint8)
    for chunk, target in chunks(x, found):
        target[...] = codes(xp, chunk)
    return found


def store_codes(found: Any, sums: Any) -> None:
    """Store what scanned codes say over ``sums``; these have a flattened view, or are columns."""
    for chunk, target in chunks(found, sums):
        store_special(chunk, target)
