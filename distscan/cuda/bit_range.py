"""The bits of the elements of a CuPy array, by the kernel that reduces shards.

Exact sums need to know them before elements become integers.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.form import PLAIN
from ..core.operators import TypedOperator
from . import workspace
from .kernel import launch
from .launches import HostTotal, Reduce
from .workspace import is_capturing


class BitRange(NamedTuple):
    """The bits of some numbers: multiples of 2^low, below 2^high in magnitude.

    low and high are 0 if 0 is the only finite number.
    """

    low: int
    high: int
    finite: bool
    negative_zero: bool  # whether any is -0.0


class BitRangeOf:
    """The bits of arrays of one type and length, on the GPU and the stream that are current."""

    def __init__(self, dtype: np.dtype[Any], n: int) -> None:
        """Compile the kernel, and allocate its memory, for arrays [n] of floats."""
        self._op = bit_range_operator(max(dtype.itemsize, 4))
        types = Types(dtype, self._op.acc, dtype)
        self._reduce, self._total = Reduce(self._op, types, n, PLAIN), HostTotal(types.acc)
        self._round = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return self._reduce.nbytes + self._total.nbytes

    def __call__(self, x: Any) -> BitRange:
        """Return the bit range of ``x`` [n], contiguous; the host waits for it."""
        number, stream = next(workspace.calls), cupy.cuda.get_current_stream()
        if is_capturing(stream):
            raise RuntimeError("a CUDA graph cannot capture an exact sum: the host waits for bits")
        if number >> workspace.BITS != self._round:  # epochs repeat
            self._round, self._total = number >> workspace.BITS, HostTotal(self._op.acc)
        epoch = number & workspace.LAST
        self._reduce.prepare(x, self._total.pointer, epoch)
        launch(self._reduce, stream)
        return self._op.decode(self._total.wait(epoch, stream))


# ---- the operator of the kernel ------------------------------------------------------------------

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
