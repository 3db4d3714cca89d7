"""The window of exact sums: the bits that the elements of all ranks need, and what is special."""

from typing import Any, NamedTuple

import numpy as np

from . import plan_cache
from .core import arrays
from .core.bit_range import BitRange
from .core.fixed import Window
from .core.fixed_sum import FixedSum, that_holds
from .core.special import FINITE, NEGATIVE_ZERO, code_of, is_negative_zero
from .exact_shard import Shard
from .mpi.communicators import Comm
from .mpi.largest import largest

_NONE = 1 << 20  # stands for an exponent where there is none: beyond those of all numbers


class Own(NamedTuple):
    """What one rank knows of its elements."""

    window: Window
    special: int  # codes of core/special.py: what is not finite, and -0.0 where it matters
    compiled: bool  # whether kernels take its arrays
    types: tuple[np.dtype[Any], np.dtype[Any]]  # of the elements, and of the results


class Agreed(NamedTuple):
    """What all ranks know."""

    window: Window  # of all elements, and of ``initial``
    special: bool  # whether a result may be infinite, NaN or -0.0
    op: FixedSum | None  # None: kernels do not hold the sums, or a rank has none


def own_window(shard: Shard, x: Any, initial: Any, *, compiled: bool) -> Own:
    """Return what a rank knows of its elements ``x``, which ``shard`` scans; local."""
    window, special = _found(shard, x) if compiled else shard.window()
    if special & NEGATIVE_ZERO and not _begins_with_negative_zero(shard, initial):
        special &= ~NEGATIVE_ZERO
    return Own(window, special, compiled, (x.dtype, shard.dtype))


def _begins_with_negative_zero(shard: Shard, initial: Any) -> bool:
    """Return whether a sum may be -0.0. Only a sum whose elements all are -0.0 is."""
    if initial is not None and not is_negative_zero(code_of(initial)):
        return False
    return not shard.is_one_scan or is_negative_zero(shard.first_code())


def _found(shard: Shard, x: Any) -> tuple[Window, int]:
    """Return the window of floats, by kernels, and what is special among them."""
    if x.size == 0 or not arrays.is_cuda(x):
        return shard.window()
    found = _range_on_gpu(arrays.namespace(x).ascontiguousarray(x).reshape(-1))
    if not found.finite:
        return shard.window()
    return Window(found.low, found.high, x.size), NEGATIVE_ZERO * found.negative_zero


def _range_on_gpu(x: Any) -> BitRange:
    from .cuda.bit_range import BitRangeOf  # noqa: PLC0415 - a CPU job need not have CuPy

    key = "bit range", arrays.gpu(x), arrays.stream(x), x.dtype, x.size
    kept, kind = plan_cache.taken(key)
    kept = kept or BitRangeOf(x.dtype, x.size)
    found: BitRange = kept(x)
    plan_cache.put_back(key, kept, kind)
    return found


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
    op = None if not_compiled else that_holds(window, *own.types)
    return Agreed(window, bool(special) or code_of(number) != FINITE, op)
