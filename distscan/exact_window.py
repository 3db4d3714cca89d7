"""The window of exact sums: the bits that the elements of all ranks need, and what is special."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import plan_cache
from .core import arrays
from .core.bit_range import BitRange
from .core.fixed import Window, magnitudes
from .core.fixed_sum import Check, FixedSum, that_holds
from .core.special import (
    FINITE,
    NEGATIVE_ZERO,
    NOT_FINITE,
    code_of,
    codes,
    found_special,
    is_negative_zero,
)
from .cpu import windows
from .exact_check import check_window
from .exact_special import chunks, has_negative_zero
from .mpi.communicators import Comm
from .mpi.largest import largest

_NONE = 1 << 20  # stands for an exponent where there is none: beyond those of all numbers


class Agreed(NamedTuple):
    """What all ranks know."""

    window: Window  # of all elements, and of ``initial``
    special: bool  # whether a result may be infinite, NaN or -0.0
    words: FixedSum | None  # None: kernels do not hold the sums, or a rank has none


class Own(NamedTuple):
    """What one rank knows of its elements."""

    window: Window
    special: int  # codes of core/special.py: what is not finite, and -0.0 where it matters
    compiled: bool  # whether kernels take its arrays
    types: tuple[np.dtype[Any], np.dtype[Any]]  # of the elements, and of the results
    check: Check | None  # of elements that were not looked at yet


# ---- one rank ------------------------------------------------------------------------------------


def window_of(x: Any, threads: int = 1) -> tuple[Window, int]:
    """Return the window of the elements of an array, and what is special among them.

    ``threads`` is the most threads that look. Kernels look where there are any.
    """
    if x.dtype.kind == "c":
        (real, special), (imag, other) = window_of(x.real, threads), window_of(x.imag, threads)
        return real.joined(imag), special | other
    if x.size > 0 and x.dtype.kind not in "biu":
        found = _on_gpu(x) if arrays.is_cuda(x) else windows.find(x, threads)
        if found is not None:
            return found
    xp, window, special = arrays.namespace(x), Window(0, 0, 0), 0
    for (chunk,) in chunks(x):
        window = window.joined(Window.of(xp, magnitudes(xp, chunk)))
        special |= found_special(xp, codes(xp, chunk))
    return window, special


@lru_cache(maxsize=64)  # always the same function, so that cached plans are found
def check_of(limits: tuple[int, int], name: str = "x") -> Check:
    """Return the function that raises ValueError if elements are beyond the caller's window."""

    def check(x: Any) -> None:
        window, special = window_of(x)
        check_window(name, window, limits, finite=not special & NOT_FINITE)

    return check


def _on_gpu(x: Any) -> tuple[Window, int] | None:
    """Return the same by a kernel; None if numbers are not finite, which it does not leave out."""
    from .cuda.bit_range import BitRangeOf  # noqa: PLC0415 - a CPU job need not have CuPy

    x = arrays.namespace(x).ascontiguousarray(x).reshape(-1)
    key = "bit range", arrays.gpu(x), arrays.stream(x), x.dtype, x.size
    kept, kind = plan_cache.taken(key)
    kept = kept or BitRangeOf(x.dtype, x.size)
    found: BitRange = kept(x)
    plan_cache.put_back(key, kept, kind)
    if not found.finite:
        return None
    return Window(found.low, found.high, x.size), NEGATIVE_ZERO * found.negative_zero


def without_zeros(special: int, starts: Any, initial: Any) -> int:
    """Return what is special, without -0.0 if no sum can be -0.0.

    Only a sum whose elements all are -0.0 is. So the first element must be. ``starts`` are the
    first elements of all scans; None: they are not known.
    """
    if special & NEGATIVE_ZERO:
        can_be = initial is None or is_negative_zero(code_of(initial))
        if not can_be or (starts is not None and not has_negative_zero(starts)):
            special &= ~NEGATIVE_ZERO
    return special


# ---- all ranks -----------------------------------------------------------------------------------


def agree(
    comm: Comm, own: Own, number: int | float, limits: tuple[int, int] | None, most: int
) -> Agreed:
    """Agree on a window that holds the elements of all ranks; collective.

    ``number`` comes before the first element. ``limits`` are those that the caller has named.
    ``most`` is the number of elements of one sum, if all ranks have as many as this one.
    """
    low, high = own.window[:2] if limits is None else limits
    if own.window.is_empty:
        low, high = _NONE, -_NONE
    negative, high, most, not_compiled, special = largest(
        comm, [-low, high, most, not own.compiled, own.special != 0]
    )
    low = -negative
    window = Window(low, high, most) if low < high else Window(0, 0, most)
    window = window.joined(Window.of_one(number))
    words = None if not_compiled else that_holds(window, *own.types, own.check)
    return Agreed(window, bool(special) or code_of(number) != FINITE, words)
