"""Infinities, NaN and -0.0 of an array, beside the kernels that add finite numbers; local."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .core import arrays
from .core.special import code_of, codes, is_negative_zero, store_special

_CHUNK = 1 << 18  # elements at a time on the host: they stay in the caches
_GPU_CHUNK = 1 << 23  # on a GPU: enough to fill it


def chunks(x: Any) -> Iterator[tuple[slice, Any]]:
    """Yield the elements of an array in chunks, with their places in the flattened array."""
    flat, chunk = x.reshape(-1), _GPU_CHUNK if arrays.is_cuda(x) else _CHUNK
    for begin in range(0, x.size, chunk):
        place = slice(begin, begin + chunk)
        yield place, flat[place]


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
    return bool((arrays.namespace(x).signbit(x) & (x == 0)).any())


def codes_of_all(x: Any) -> Any:
    """Return the codes of the elements, uint8, in their shape."""
    xp = arrays.namespace(x)
    found = xp.empty(x.size, np.uint8)
    for place, chunk in chunks(x):
        found[place] = codes(xp, chunk)
    return found.reshape(x.shape)


def store_codes(found: Any, sums: Any) -> None:
    """Store what scanned codes say over ``sums``, whose flattened form is a view."""
    for place, chunk in chunks(found):
        store_special(chunk, sums.reshape(-1)[place])
