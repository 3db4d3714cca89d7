"""The special values of exact sums: infinities, NaN, and -0.0.

Kernels of exact sums add finite numbers only. Another pass finds the special values, and stores
their results. Each number has a code. The code of a prefix is the bitwise or of its elements'
codes. So a scan by ``bitwise_or`` gives the codes of all prefixes.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core import arrays, form
from .window import bits_of, format_of

_SOME, _NOT_NEGATIVE_ZERO, _PLUS, _MINUS, _NAN = 1, 2, 4, 8, 16
#: The bits of infinities and NaN.
NOT_FINITE = _PLUS | _MINUS | _NAN
#: The code of a finite number that is not -0.0.
FINITE = _SOME | _NOT_NEGATIVE_ZERO
#: The code of -0.0.
NEGATIVE_ZERO = _SOME


def codes(xp: Any, x: Any) -> Any:
    """Return the codes of numbers, uint8.

    >>> codes(np, np.array([1.5, -0.0, np.inf, -np.inf, np.nan])).tolist()
    [3, 1, 7, 11, 19]
    """
    if x.dtype.kind in "biu":
        return xp.full(x.shape, FINITE, np.uint8)
    bits, (precision, _) = bits_of(xp, x), format_of(x.dtype)
    sign = np.uint64(1 << 8 * x.dtype.itemsize - 1)
    infinite = sign - np.uint64(1 << precision - 1)
    size, negative = bits & ~sign, bits >= sign
    result = xp.where(bits == sign, _SOME, FINITE).astype(np.uint8)
    result |= xp.where((size == infinite) & ~negative, _PLUS, 0).astype(np.uint8)
    result |= xp.where((size == infinite) & negative, _MINUS, 0).astype(np.uint8)
    result |= xp.where(size > infinite, _NAN, 0).astype(np.uint8)
    return result


def is_negative_zero(code: int) -> bool:
    """Return whether a code is that of -0.0, or of sums of -0.0 alone."""
    return code == NEGATIVE_ZERO


def code_of(number: int | float) -> int:
    """Return the code of one number of Python."""
    if isinstance(number, int):
        return FINITE
    if math.isfinite(number) and (number != 0 or math.copysign(1, number) > 0):
        return FINITE  # a thread that flushes subnormal numbers takes them for 0
    return int(codes(np, np.array([number]))[0])


def special_bits(codes: Any) -> int:
    """Return the bits of infinities and NaN among numbers, and a bit for -0.0; 0 if none is."""
    if bool((codes == FINITE).all()):
        return 0
    bits = int((codes & _PLUS).max() | (codes & _MINUS).max() | (codes & _NAN).max())
    return bits | _SOME * bool((codes == _SOME).any())


def store_special(codes: Any, sums: Any) -> None:
    """Overwrite the sums whose codes are special by the results of IEEE additions in order.

    The sum of inf and -inf is NaN. A sum of -0.0 alone is -0.0; an empty sum is +0.0.
    """
    plus, minus = codes & _PLUS != 0, codes & _MINUS != 0
    sums[plus] = np.inf
    sums[minus] = -np.inf
    sums[(codes & _NAN != 0) | (plus & minus)] = np.nan
    sums[codes == _SOME] *= -1  # they are +0.0


def counts(xp: Any, x: Any) -> Any:
    """Return four counts of each number, int64 [4, ...]; the counts of a sum give its code.

    They count inf, -inf (NaN counts as both), numbers other than -0.0, and all numbers.
    """
    rows, code = xp.empty((4, *x.shape), np.int64), codes(xp, x)
    kinds = _PLUS | _NAN, _MINUS | _NAN, _NOT_NEGATIVE_ZERO, _SOME
    for row, bits in zip(rows, kinds, strict=True):
        row[...] = code & bits != 0
    return rows


def codes_of(xp: Any, sums: Any) -> Any:
    """Return the codes, for ``store_special``, of sums of ``counts``."""
    result = xp.zeros(sums.shape[1:], np.uint8)
    for row, bit in zip(sums, (_PLUS, _MINUS, _NOT_NEGATIVE_ZERO, _SOME), strict=True):
        result |= xp.where(row > 0, bit, 0).astype(np.uint8)
    return result


# ---- arrays, chunk by chunk ----------------------------------------------------------------------

_CHUNK = 1 << 18  # elements of a chunk on the host: they stay in the caches
_GPU_CHUNK = 1 << 23  # elements of a chunk on a GPU: enough to fill it
_CODES = 1 << 22  # codes of columns at a time
_FEWEST = 64  # columns at a time: whole cache lines


def chunks(*group: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the same chunk of several arrays of one size, chunk by chunk.

    Chunks of results are views. If all arrays are matrices, some of them may be columns of a
    larger matrix in C order.
    """
    chunk = _GPU_CHUNK if arrays.is_cuda(group[0]) else _CHUNK
    if any(array.ndim != 2 for array in group) or all(array.flags.c_contiguous for array in group):
        group = tuple(array.reshape(1, -1) for array in group)
    n, inner = group[0].shape
    height = max(1, chunk // max(1, inner))
    for rows in form.chunks(0, n, height):
        for columns in form.chunks(0, inner, chunk):
            where = slice(*rows), slice(*columns)
            yield tuple(array[where] for array in group)


def bands(inner: int, n: int) -> list[slice]:
    """Cut rows [inner] into bands of columns: the codes of ``n`` rows of a band fit in memory."""
    width = min(_CHUNK, max(_FEWEST, _CODES // max(1, n)))
    return [slice(*band) for band in form.chunks(0, inner, width)]


def firsts(x: Any, axis: int | None, *, reverse: bool) -> Any:
    """Return the first elements along an axis, as a view. ``axis`` None: the first of all."""
    end, full = slice(-1, None) if reverse else slice(1), slice(None)
    where = (end if axis in {None, place} else full for place in range(x.ndim))
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
    result = xp.empty(x.shape, np.uint8)
    for chunk, target in chunks(x, result):
        target[...] = codes(xp, chunk)
    return result


def store_codes(codes: Any, sums: Any) -> None:
    """Overwrite ``sums`` as ``store_special`` does, chunk by chunk.

    ``sums`` are contiguous, or columns of a matrix in C order.
    """
    for chunk, target in chunks(codes, sums):
        store_special(chunk, target)
