"""Reductions of CuPy arrays beside those of scans: bits of floats, and totals of tiles.

``cpu/reductions.py`` has the same for arrays in host memory.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.form import PLAIN
from ..core.operators import BUILTIN, TypedOperator
from . import workspace
from .definitions import definitions
from .kernel import Kernel, launch, side_by_side
from .launches import HostTotal, Reduce
from .policy import VECTOR, per_vector
from .workspace import Workspace, is_capturing

# ---- the bits of floats: exact sums need them before elements become integers --------------------


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


_INFINITE = {4: 0x7F800000, 8: 0x7FF00000}  # the upper 32 bits of infinity, by the size of floats
_TINY = -1042  # a double below 2^_TINY has no bit in its upper 32
_ACC = np.dtype([("lowest", np.uint32), ("largest", np.uint32), ("least", np.uint32)])


@dataclass(frozen=True, eq=False)
class BitRangeOperator(TypedOperator):
    """The operator that finds the bit range of floats of ``size`` bytes.

    See kernels/base/bit_range.cuh.
    """

    size: int = 4

    def decode(self, value: NDArray[Any]) -> BitRange:
        """Return a running value as numbers."""
        lowest, largest, least = (int(value[name]) for name in _ACC.names or ())
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
    result = np.empty_like(b)
    for name, combine in (("lowest", np.minimum), ("largest", np.maximum), ("least", np.minimum)):
        result[name] = combine(a[name], b[name])
    return result


# ---- the totals of tiles of weights, and the search for cuts in them -----------------------------

_DOUBLE = np.dtype(np.float64)
_BLOCKS = 1 << 16  # the most blocks that find cuts


class TilePolicy(NamedTuple):
    """How ``kernels/linear/tile_totals.cuh`` and ``find_cuts.cuh`` are cut.

    H200, sm_90, ``partition`` of 2^26 (and 2^28) float32 into 8, microseconds::

        threads  rows  blocks  tiles  tile_totals   find_cuts
            256     4       6   4096     78 (249)     18 (43)
            256     8       4   4096     78 (247)     18 (44)
            512     4       3   4096     79 (247)     17 (36)
            256     4       6   2048     74 (244)     26 (75)
            256     4       6   8192     87 (255)     14 (27)
            256     4       6  16384    108 (278)     14 (18)
    """

    threads: int = 256
    rows: int = 4  # vectors per thread in flight
    blocks: int = 6  # per multiprocessor


# More tiles take longer to be scanned, by one block; longer tiles take longer to be searched.
MOST_TILES = 4096


def _pinned(count: int) -> NDArray[np.int64]:
    """Allocate pinned memory for ``count`` targets, and after them for as many cuts."""
    memory: NDArray[np.int64] = np.frombuffer(
        cupy.cuda.alloc_pinned_memory(16 * max(count, 8)), np.int64
    )
    return memory


class Buffers:
    """The memory of partitions on one GPU and one stream; one call at a time uses it."""

    def __init__(self) -> None:
        """Allocate nothing yet."""
        self._work: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return 0 if self._work is None else int(self._work.nbytes)

    def work(self, number: int, tiles: int, cuts: int) -> Any:
        """Return the memory for call ``number``, with room for so many tiles and cuts."""
        work = self._work
        if (
            work is None
            or work.round != number >> workspace.BITS
            or work.ends.size < tiles
            or work.cuts.size < 2 * cuts
        ):
            work = self._work = Workspace(
                ends=cupy.empty(max(tiles, MOST_TILES), _DOUBLE),
                arrived=cupy.zeros(1, np.uint32),
                total=HostTotal(_DOUBLE),
                cuts=_pinned(cuts),
            )
        return work


class TileTotals:
    """The running sums of a shard of weights, in float64, at the ends of its tiles.

    Attributes
    ----------
    total
        The sum of all weights. It is not finite if a weight is negative, infinite or NaN, but also
        if a weight is -0.0, or the sum is out of range.
    """

    def __init__(self, x: Any, buffers: Buffers, equal_cuts: int = 0) -> None:
        """Sum the weights ``x`` [n] on the current GPU, on the current stream, and wait.

        ``equal_cuts`` is the number of cuts into equal shares of the total. The GPU finds them
        without waiting for the host; ``cuts`` returns them.
        """
        number, self._stream = next(workspace.calls), cupy.cuda.get_current_stream()
        if is_capturing(self._stream):
            raise RuntimeError("a CUDA graph cannot capture this: the host waits for the weights")
        if x.data.ptr % x.dtype.alignment:
            raise ValueError("weights begins at an address that its type cannot have")
        self.buffers = buffers
        self._x, self.total, self._equal_cuts = cupy.ascontiguousarray(x), 0.0, equal_cuts
        if x.size == 0:
            return
        epoch = number & workspace.LAST
        self._kernels = TileKernels.of(x.dtype, cupy.cuda.Device().id)
        lead = self._x.data.ptr % VECTOR // x.itemsize
        length = self._kernels.length(x.size + lead)
        tiles = self._tiles = -(-(x.size + lead) // length)
        work = self._work = buffers.work(number, tiles, equal_cuts)
        self._weights = {"x": self._x.data.ptr, "n": x.size, "lead": lead, "length": length}
        self._weights["ends"] = work.ends.data.ptr
        if self._stream is not work.last.stream:
            work.last.order(self._stream)
        work.last.recorded = False
        with self._using():
            self._kernels.sum_tiles(
                tiles, self._stream, work.total.pointer, **self._weights,
                arrived=work.arrived.data.ptr, epoch=epoch,
            )  # fmt: skip
            if equal_cuts:
                self._find(0, equal_cuts)
            self.total = float(work.total.wait(epoch, self._stream))

    def cuts(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of elements before each target: those whose middle is below it.

        The targets rise. The middle of an element is the sum of all earlier weights and of half of
        its own weight. For ``equal_cuts`` targets, these must be the ends of equal shares.
        """
        count = targets.size
        if self._x.size == 0 or count == 0:
            return np.zeros(count, np.int64)
        with self._using():
            if count != self._equal_cuts:
                if self._work.cuts.size < 2 * count:
                    self._work.cuts = _pinned(count)
                self._work.cuts[:count].view(_DOUBLE)[...] = targets
                self._find(self._work.cuts.ctypes.data, count)
            self._stream.synchronize()
        cuts: NDArray[np.int64] = self._work.cuts[count : 2 * count].copy()
        return cuts

    def _find(self, targets: int, count: int) -> None:
        """Queue the search for cuts, with targets at an address; 0: those of equal shares."""
        self._kernels.find_cuts(
            min(count, _BLOCKS), self._stream, **self._weights, tiles=self._tiles,
            targets=targets, cuts=self._work.cuts.ctypes.data + 8 * count, count=count,
        )  # fmt: skip

    @contextmanager
    def _using(self) -> Iterator[None]:
        """If the block raises, keep the weights until the queued work has ended."""
        try:
            yield
        except BaseException:
            self._work.keep(self._x, self._work.cuts)
            raise
        finally:
            if self._work.last.at_once:
                self._work.last.record()


class TileKernels:
    """The two kernels for weights of one type on one GPU. Threads take turns with the arguments."""

    @side_by_side()
    def __init__(self, dtype: np.dtype[Any]) -> None:
        policy, types = TilePolicy(), Types(dtype, _DOUBLE, _DOUBLE)
        macros = definitions(BUILTIN["sum"], types, PLAIN, **policy._asdict())
        self._sum = Kernel("tile_totals", macros, _DOUBLE, policy.threads)
        self._find = Kernel("find_cuts", macros, _DOUBLE, policy.threads)
        self._step = policy.threads * policy.rows * per_vector(dtype)  # elements
        self._lock = threading.Lock()

    @staticmethod
    @cache
    def of(dtype: np.dtype[Any], gpu: int) -> "TileKernels":
        """Return the kernels for a type on the current GPU, whose number is ``gpu``."""
        return TileKernels(dtype)

    def length(self, n: int) -> int:
        """Return the elements of a tile, for ``n`` elements."""
        return -(-n // (self._step * MOST_TILES)) * self._step

    def sum_tiles(self, tiles: int, stream: Any, total: int, **arguments: int) -> None:
        """Queue the kernel that sums; the total goes to the address ``total``."""
        with self._lock:
            self._sum.arguments.total.words, self._sum.arguments.total.stride = total, 1
            self._launch(self._sum, tiles, stream, arguments)

    def find_cuts(self, blocks: int, stream: Any, **arguments: int) -> None:
        """Queue the kernel that finds cuts."""
        with self._lock:
            self._launch(self._find, blocks, stream, arguments)

    @staticmethod
    def _launch(kernel: Kernel, blocks: int, stream: Any, arguments: dict[str, int]) -> None:
        kernel.blocks = blocks
        for name, value in arguments.items():
            setattr(kernel.arguments, name, value)
        launch(kernel, stream)
