"""What exact sums of finite numbers do not say: infinities, NaN, and the sign of zero.

Kernels of exact sums add finite numbers. What is special is found and stored beside them. A prefix
has a code, the bitwise or of its elements' codes. So codes are scanned by ``bitwise_or``.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core import arrays, form
from .window import bits_of, format_of

_SOME, _NOT_NEGATIVE_ZERO, _PLUS, _MINUS, _NAN = 1, 2, 4, 8, 16
#: Bits of what is not finite.
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
    found = xp.where(bits == sign, _SOME, FINITE).astype(np.uint8)
    found |= xp.where((size == infinite) & ~negative, _PLUS, 0).astype(np.uint8)
    found |= xp.where((size == infinite) & negative, _MINUS, 0).astype(np.uint8)
    found |= xp.where(size > infinite, _NAN, 0).astype(np.uint8)
    return found


def is_negative_zero(code: int) -> bool:
    """Return whether a code is that of -0.0, or of sums of -0.0 alone."""
    return code == NEGATIVE_ZERO


def code_of(number: int | float) -> int:
    """Return the code of one number of Python."""
    if isinstance(number, int):
        return FINITE
    if math.isfinite(number) and (number != 0 or math.copysign(1, number) > 0):
        return FINITE  # what is 0 for Python may be subnormal, if the thread flushes such numbers
    return int(codes(np, np.array([number]))[0])


def found_special(xp: Any, codes: Any) -> int:
    """Return bits of what is not finite, and another bit if a number is -0.0; 0 if none is."""
    if bool((codes == FINITE).all()):
        return 0
    bits = int((codes & _PLUS).max() | (codes & _MINUS).max() | (codes & _NAN).max())
    return bits | _SOME * bool((codes == _SOME).any())


def store_special(codes: Any, sums: Any) -> None:
    """Store what IEEE additions in order would give over sums whose codes are special.

    The sum of inf and -inf is NaN. A sum of -0.0 alone is -0.0; an empty one is +0.0.
    """
    plus, minus = codes & _PLUS != 0, codes & _MINUS != 0
    sums[plus] = np.inf
    sums[minus] = -np.inf
    sums[(codes & _NAN != 0) | (plus & minus)] = np.nan
    sums[codes == _SOME] *= -1  # they are +0.0


def counts(xp: Any, x: Any) -> Any:
    """Return what is counted so that counts of a sum tell its code: int64 [4, ...].

    These are inf, -inf (NaN counts as both), what is not -0.0, and all numbers.
    """
    found, code = xp.empty((4, *x.shape), np.int64), codes(xp, x)
    for row, bits in zip(
        found, (_PLUS | _NAN, _MINUS | _NAN, _NOT_NEGATIVE_ZERO, _SOME), strict=True
    ):
        row[...] = code & bits != 0
    return found


def codes_of(xp: Any, counted: Any) -> Any:
    """Return the codes of sums of ``counts``, as ``store_special`` takes them."""
    found = xp.zeros(counted.shape[1:], np.uint8)
    for row, bit in zip(counted, (_PLUS, _MINUS, _NOT_NEGATIVE_ZERO, _SOME), strict=True):
        found |= xp.where(row > 0, bit, 0).astype(np.uint8)
    return found


# ---- whole arrays, chunk by chunk ----------------------------------------------------------------

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
    for rows in form.chunks(0, n, height):
        for columns in form.chunks(0, inner, chunk):
            where = slice(*rows), slice(*columns)
            yield tuple(array[where] for array in each)


def bands(inner: int, n: int) -> list[slice]:
    """Cut rows [inner] into columns for which there is memory for the codes of ``n`` rows."""
    width = min(_CHUNK, max(_FEWEST, _CODES // max(1, n)))
    return [slice(*band) for band in form.chunks(0, inner, width)]


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
