"""Infinities, NaN and -0.0 of an array, beside the kernels that add finite numbers; local."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .core import arrays
from .core.special import codes, store_special

_CHUNK = 1 << 18  # elements at a time on the host: they stay in the caches
_GPU_CHUNK = 1 << 23  # on a GPU: enough to fill it


def chunks(x: Any) -> Iterator[tuple[slice, Any]]:
    """Yield the elements of an array in chunks, with their places in the flattened array."""
    flat, chunk = x.reshape(-1), _GPU_CHUNK if arrays.is_cuda(x) else _CHUNK
    for begin in range(0, x.size, chunk):
        place = slice(begin, begin + chunk)
        yield place, flat[place]


def code_of_first(x: Any, *, reverse: bool) -> int:
    """Return the code of the first element of a single scan; 0 of an empty array."""
    if x.size == 0:
        return 0
    first = x.reshape(-1)[-1:] if reverse else x.reshape(-1)[:1]
    return int(codes(np, first.get() if arrays.is_cuda(x) else first)[0])


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
