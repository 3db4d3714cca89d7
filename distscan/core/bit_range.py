"""The bits of floats: what exact sums need to know of elements before they become integers."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .operators import TypedOperator


class BitRange(NamedTuple):
    """The bits of some numbers: multiples of 2^low, below 2^high in magnitude.

    low and high are 0 if 0 is the only finite number.
    """

    low: int
    high: int
    finite: bool
    negative_zero: bool  # whether any is -0.0


_INFINITE = {4: 0x7F800000, 8: 0x7FF00000}  # the upper 32 bits of infinity, by the size of floats
_TINY = -1042  # a double below 2^_TINY has no bit in its upper 32
_ACC = np.dtype([("lowest", np.uint32), ("largest", np.uint32), ("least", np.uint32)])


@dataclass(frozen=True, eq=False)
class BitRangeOperator(TypedOperator):
    """The operator that finds the bit range of floats of ``size`` bytes.

    See kernels/base/bit_range.cuh.
    """

    size: int = 4

    def decode(self, found: NDArray[Any]) -> BitRange:
        """Return a running value as numbers."""
        lowest, largest, least = (int(found[name]) for name in _ACC.names or ())
        infinite, lowest, tiny = _INFINITE[self.size], lowest + 1, 0
        if self.size == 8:
            tiny, largest = min(largest, 32) + _TINY - 32, largest - 32
        finite, negative_zero = largest < infinite, least == 0
        largest = min(largest, infinite - 1)
        if self.size == 8:
            infinite, largest = infinite << 32, largest << 32
            if lowest >> 31 and lowest != 1 << 31:
                lowest = lowest << 32 & (1 << 63) - 1
        if lowest == 0 or lowest >= infinite:  # all are 0, or not finite
            return BitRange(0, 0, finite, negative_zero)
        high = self._exponent(largest) if largest > 0 else tiny
        return BitRange(self._exponent(lowest) - 1, high, finite, negative_zero)

    def _exponent(self, bits: int) -> int:
        """Return e of the positive float with such bits, which is in [2^(e - 1), 2^e)."""
        return math.frexp(np.array(bits, f"u{self.size}").view(f"f{self.size}"))[1]


@cache
def bit_range_operator(size: int) -> BitRangeOperator:
    """Return the operator for floats of ``size`` bytes, 4 or 8."""
    return BitRangeOperator(
        "bit range",
        _widest,
        "widest(a, b)",
        commutative=True,
        acc=_ACC,
        cuda_type="BitRange",
        size=size,
    )


def _widest(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    found = np.empty_like(b)
    for name, combine in (("lowest", np.minimum), ("largest", np.maximum), ("least", np.minimum)):
        found[name] = combine(a[name], b[name])
    return found
