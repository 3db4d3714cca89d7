"""The totals of tiles of weights on a GPU, and the search for cuts in them."""

import threading
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.form import PLAIN
from ..core.operators import BUILTIN
from . import epochs
from .definitions import definitions
from .kernel import Kernel, launch
from .launches import HostTotal
from .policy import VECTOR, per_vector
from .workspace import LastUse, is_capturing, releases

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


class TileTotals:
    """The running sums of a shard of weights, in float64, at the ends of its tiles.

    Attributes
    ----------
    total
        The sum of all weights. It is not finite if a weight is negative, infinite or NaN, but also
        if a weight is -0.0, or the sum is out of range.
    """

    def __init__(self, x: Any) -> None:
        """Sum the weights ``x`` [n] on the current GPU, on the current stream, and wait."""
        epoch, self._stream = next(epochs.calls) & epochs.LAST, cupy.cuda.get_current_stream()
        if is_capturing(self._stream):
            raise RuntimeError("a CUDA graph cannot capture this: the host waits for the weights")
        if x.data.ptr % x.dtype.alignment:
            raise ValueError("weights begins at an address that its type cannot have")
        self._x, self.total = cupy.ascontiguousarray(x), 0.0
        if x.size == 0:
            return
        self._kernels = TileKernels.of(x.dtype, cupy.cuda.Device().id)
        lead = self._x.data.ptr % VECTOR // x.itemsize
        length = self._kernels.length(x.size + lead)
        tiles = -(-(x.size + lead) // length)
        self._weights = {"x": self._x.data.ptr, "n": x.size, "lead": lead, "length": length}
        self._ends, arrived = cupy.empty(tiles, _DOUBLE), cupy.zeros(1, np.uint32)
        total = HostTotal(_DOUBLE)
        try:
            self._kernels.sum_tiles(
                tiles, self._stream, total.pointer, **self._weights,
                ends=self._ends.data.ptr, arrived=arrived.data.ptr, epoch=epoch,
            )  # fmt: skip
            self.total = float(total.wait(epoch, self._stream))
        except BaseException:
            releases.add(LastUse(), [self._x, self._ends, arrived, total])
            raise

    def cuts(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of elements before each target: those whose middle is below it.

        The targets rise. The middle of an element is the sum of all earlier weights and of half of
        its own.
        """
        count = targets.size
        if self._x.size == 0 or count == 0:
            return np.zeros(count, np.int64)
        pinned = cupy.cuda.alloc_pinned_memory(16 * count)
        sent = np.frombuffer(pinned, _DOUBLE, count)
        found: NDArray[np.int64] = np.frombuffer(pinned, np.int64, count, 8 * count)
        sent[...] = targets
        try:
            self._kernels.find_cuts(
                min(count, _BLOCKS), self._stream, **self._weights,
                ends=self._ends.data.ptr, tiles=self._ends.size,
                targets=pinned.ptr, cuts=pinned.ptr + 8 * count, count=count,
            )  # fmt: skip
            self._stream.synchronize()
        except BaseException:
            releases.add(LastUse(), [self._x, self._ends, pinned])
            raise
        return found.copy()


class TileKernels:
    """The two kernels for weights of one type on one GPU. Threads take turns with the arguments."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        policy, types = TilePolicy(), Types(dtype, _DOUBLE, _DOUBLE)
        given = definitions(BUILTIN["sum"], types, PLAIN, **policy._asdict())
        self._sum = Kernel("tile_totals", given, _DOUBLE, policy.threads)
        self._find = Kernel("find_cuts", given, _DOUBLE, policy.threads)
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
