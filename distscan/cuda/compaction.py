"""Compaction on CuPy arrays: some elements are kept, in order. Nothing here uses MPI."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.arrays import contiguous
from ..core.operators import Predicate
from . import workspace
from .definitions import predicate_body, type_name
from .kernel import Kernel, launch
from .launches import HostTotal
from .policy import SHARED, sm_count
from .workspace import Workspace, is_capturing, zeros

# ---- tuning numbers --------------------------------------------------------------------------

_LANES = 32
# Not tuned: compact() of [2^20, 64] float32, half kept, took 92 us on an H200. A copy of as many
# bytes takes 98.
GATHER_THREADS = 256
GATHER_AT_ONCE = 4  # loads of a thread that are on their way together
GATHER_BLOCKS = 8  # per multiprocessor


class CompactPolicy(NamedTuple):
    """How ``kernels/linear/compact.cuh`` is cut: tiles of ``threads * rows * items`` elements."""

    threads: int  # that move elements
    rows: int  # vectors of the mask per thread; at most 32 / items
    items: int  # bytes of the mask per vector: 8 or 16
    stages: int  # tiles in shared memory
    reducers: int  # warps; one more warp is the loader
    look_ahead_warps: int  # warps

    @property
    def tile(self) -> int:
        """Elements per tile."""
        return self.threads * self.rows * self.items

    def stage(self, size: int, *, masked: bool) -> int:
        """Return the bytes of a stage: elements of ``size`` bytes, the mask, a bit for each."""
        return self.tile * size + 16 + masked * (self.tile + 16) + self.tile // 8


@functools.lru_cache(maxsize=256)
def compact_policy(size: int, n: int, arch: str, sm_count: int, *, masked: bool) -> CompactPolicy:
    """Return the policy for ``n`` elements of ``size`` bytes.

    ``masked`` is whether a mask is read, too. ``arch`` is a compute capability, such as "90".

    H200, sm_90, 2^26 float32 and a random mask, microseconds of the kernel; a copy of x takes 139::

                                                    kept: half  1/16  all
        threads  rows  items  stages  reducers  look-ahead warps
            256     3      8       7         4         1   132   107  160
            256     3      8       7         4         2   146   117  174
            256     3      8       7         4         3   161   132  190
            256     3      8       7         8         2   142   117  173
            256     2      8      10         4         2   147   129  170
            256     4      8       5         4         2   152   119  179
            256     1     16      10         4         2   150   130  171
            384     2      8       7         6         2   146   119  175
            512     2      8       5         8         2   157   126  185
    """
    shared = SHARED.get(arch, 99) * 1024 - 256
    # A tile takes about 32 KiB, and there are at least 6 of them, or as many as fit.
    items = 16 if size <= 2 else 8
    each = items * (size + masked)  # bytes that a thread reads for one row
    threads = 128 if shared < 6 * 256 * each else 256
    rows = max(1, min(32 // items, (32 << 10) // (threads * each)))

    def cut(rows: int) -> CompactPolicy:
        policy = CompactPolicy(threads, rows, items, 0, threads // 64, look_ahead_warps=1)
        beside = 72 + threads // _LANES * 8  # bytes of a stage's barriers and counts
        stage = policy.stage(size, masked=masked) + beside
        return policy._replace(stages=min(shared // stage, 12))

    while rows > 1 and cut(rows).stages < 6:
        rows -= 1

    # With few tiles, the last wave leaves multiprocessors idle.
    def waves(rows: int) -> int:
        return -(-n // (threads * items * rows * sm_count))

    if waves(rows) < 8:
        rows = min({rows, 1, min(2, rows)}, key=lambda r: (waves(r) * r, -r))
    return cut(rows)


# ---- the call --------------------------------------------------------------------------------

_MOST = 16  # the most workspaces that are kept between calls
# The types that stand for all types of their size, in bytes.
_UNITS = {
    1: "unsigned char",
    2: "unsigned short",
    4: "unsigned int",
    8: "unsigned long long",
    16: "Bytes16",
}


class Selection(NamedTuple):
    """The source and the condition of a compaction, for the macros of ``kernels/compact.cu``."""

    source: str
    dtype: str  # the name of the type of the elements
    size: int  # bytes of an element
    predicate: Predicate | None = None

    @property
    def masked(self) -> bool:
        """Whether a mask selects, not a predicate."""
        return self.predicate is None


class Compact(Kernel):
    """The kernel of ``kernels/linear/compact.cuh``, for shards of up to ``most`` elements."""

    def __init__(self, selection: Selection, policy: CompactPolicy, most: int) -> None:
        """Compile, and allocate a total for each tile."""
        predicate = (
            "return true;" if selection.predicate is None else predicate_body(selection.predicate)
        )
        macros = {
            "DISTSCAN_SOURCE": selection.source,
            "DISTSCAN_X": selection.dtype,
            "DISTSCAN_T": "float" if selection.dtype in {"half", "bfloat16"} else selection.dtype,
            "predicate.h": predicate,
            **{f"DISTSCAN_{name.upper()}": value for name, value in policy._asdict().items()},
        }
        threads = policy.threads + (policy.reducers + policy.look_ahead_warps + 1) * _LANES
        shared = policy.stages * policy.stage(selection.size, masked=selection.masked)
        super().__init__("compact", macros, np.dtype(np.int64), threads, shared)
        self._tile, self._most_blocks = policy.tile, sm_count()
        tiles = -(-most // policy.tile)
        self.most = tiles * policy.tile
        self._totals = zeros(tiles, np.uint64)
        self._draws = zeros(1, np.uint64)
        self.nbytes = int(self._totals.nbytes)
        # Structures inside the arguments: to set them sets the arguments.
        self._shard, self._work = self.arguments.shard, self.arguments.work
        self._work.totals.words, self._work.totals.stride = self._totals.data.ptr, tiles
        self._work.draws = self._draws.data.ptr
        self._count = self._work.total
        self._count.stride = 1

    def prepare(self, n: int, x: Any, mask: Any, y: Any) -> None:
        """Set all arguments but the epoch and the count, for ``n`` elements."""
        arguments, shard = self.arguments, self._shard
        for name, array in (("x", x), ("mask", mask), ("y", y)):
            setattr(arguments, name, 0 if array is None else array.data.ptr)
        shard.n, shard.tiles = n, -(-n // self._tile)
        self.blocks = min(shard.tiles, self._most_blocks)

    def set_count(self, count: int, epoch: int) -> None:
        """Set the address for the count of elements, 0 for none; and the epoch."""
        self._count.words, self._work.epoch = count, epoch


class Gather(Kernel):
    """The kernel of ``kernels/linear/gather.cuh``."""

    def __init__(self, unit: int, index: np.dtype[Any]) -> None:
        """Compile the kernel that moves ``unit`` bytes at once."""
        macros = {
            "DISTSCAN_X": _UNITS[unit],
            "DISTSCAN_INDEX": _UNITS[index.itemsize],
            "DISTSCAN_THREADS": GATHER_THREADS,
            "DISTSCAN_AT_ONCE": GATHER_AT_ONCE,
        }
        super().__init__("gather", macros, np.dtype(np.int64), GATHER_THREADS)
        self._unit, self._most_blocks = unit, GATHER_BLOCKS * sm_count()

    def prepare(self, x: Any, index: Any, y: Any, count: int) -> None:
        """Set all arguments: row i of ``y`` [count, ...] becomes row ``index[i]`` of ``x``."""
        arguments, length = self.arguments, y.nbytes // count // self._unit
        arguments.x, arguments.index, arguments.y = x.data.ptr, index.data.ptr, y.data.ptr
        arguments.count, arguments.row.length = count, length
        arguments.row.reciprocal = min((1 << 64) // length, (1 << 64) - 1)
        blocks = -(-count * length // (GATHER_THREADS * GATHER_AT_ONCE))
        self.blocks = min(blocks, self._most_blocks)


class Compactor:
    """The kernels that compact arrays on one GPU, and their memory. One call at a time uses it.

    The GPU that is current when it is made must be current when it is used. Work is queued on the
    current stream, after all earlier use on other streams.
    """

    def __init__(self) -> None:
        """Make no kernel yet: each one is made when it is first needed."""
        next(workspace.calls)  # raises in a process that was forked
        self._arch, self._sm_count = cupy.cuda.Device().compute_capability, sm_count()
        self._works: dict[Any, Workspace] = {}
        self._gathers: dict[Any, Gather] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return sum(work.nbytes for work in self._works.values())

    def compact(self, arrays: list[Any], mask: Any) -> tuple[list[Any], int]:
        """Return the rows of arrays [n, ...] where ``mask`` [n] is True, and their number."""
        n = mask.size
        if n == 0:
            return [array.copy() for array in arrays], 0
        _refuse_capture()
        mask, *arrays = map(contiguous, (mask, *arrays))
        units = [_unit(array) for array in arrays]
        buffers: list[Any] = [None] * len(arrays)
        index = None
        calls = []  # the first one finds the count
        if None in units:
            index = cupy.empty(n, np.uint32 if n <= 1 << 32 else np.uint64)
            selection = Selection("Indices", _UNITS[index.itemsize], index.itemsize)
            calls.append(self._queue(selection, None, mask, index))
        for i, (x, unit) in enumerate(zip(arrays, units, strict=True)):
            if unit is not None:
                buffers[i] = cupy.empty(x.shape, x.dtype)
                selection = Selection("Masked", _UNITS[unit], unit)
                calls.append(self._queue(selection, x, mask, buffers[i], counts=not calls))
        count = calls[0]()
        results = [
            self._rows(x, index, count) if buffer is None else _trim(buffer, count)
            for x, buffer in zip(arrays, buffers, strict=True)
        ]
        return results, count

    def select(self, x: Any, predicate: Predicate) -> tuple[Any, int]:
        """Return the elements of ``x`` [n] that ``predicate`` keeps, and their number."""
        selection = Selection("Selected", type_name(x.dtype), x.itemsize, predicate)
        predicate_body(predicate)  # raises if there is none
        if x.size == 0:
            return x.copy(), 0
        _refuse_capture()
        x = contiguous(x)
        if x.data.ptr % x.dtype.alignment:
            x = x.copy()
        y = cupy.empty(x.shape, x.dtype)
        count = self._queue(selection, x, None, y)()
        return _trim(y, count), count

    def _queue(
        self, selection: Selection, x: Any, mask: Any, y: Any, *, counts: bool = True
    ) -> Callable[[], int]:
        """Queue a compaction into ``y`` [n]. Return a function that waits for the count.

        If ``counts`` is False, the function must not be called.
        """
        n, stream, number = len(y), cupy.cuda.get_current_stream(), next(workspace.calls)
        policy = compact_policy(
            selection.size, n, self._arch, self._sm_count, masked=selection.masked
        )
        work = self._works.pop((selection, policy), None)
        if work is None or work.scan.most < n or work.round != number >> workspace.BITS:
            kernel = Compact(selection, policy, 1 << (n - 1).bit_length())
            work = Workspace(scan=kernel, total=HostTotal(np.dtype(np.int64)))
        self._works[selection, policy] = (
            work  # last in the dict: the first is the least recently used
        )
        while len(self._works) > _MOST:
            del self._works[next(iter(self._works))]
        kernel, epoch = work.scan, number & workspace.LAST
        if stream is not work.last.stream:
            work.last.order(stream)
        work.last.recorded = False
        kernel.prepare(n, x, mask, y)
        kernel.set_count(work.total.pointer if counts else 0, epoch)
        try:
            launch(kernel, stream)
        finally:
            if work.last.at_once:
                work.last.record()
        return lambda: int(work.total.wait(epoch, stream))

    def _rows(self, x: Any, index: Any, count: int) -> Any:
        """Return the rows of ``x`` [n, ...] with the first ``count`` indices."""
        y = cupy.empty((count, *x.shape[1:]), x.dtype)
        if y.nbytes > 0:
            width = y.nbytes // count
            unit = math.gcd(16, width, x.data.ptr)
            key = unit, index.dtype
            if key not in self._gathers:
                self._gathers[key] = Gather(*key)
            self._gathers[key].prepare(x, index, y, count)
            launch(self._gathers[key], cupy.cuda.get_current_stream())
        return y


def _refuse_capture() -> None:
    if is_capturing(cupy.cuda.get_current_stream()):
        raise RuntimeError("a CUDA graph cannot capture this: the host waits for the count")


def _unit(x: Any) -> int | None:
    """Return the bytes of a row of ``x`` [n, ...] if the kernel moves rows as elements."""
    width = x.nbytes // x.shape[0]
    return width if width in _UNITS and x.data.ptr % width == 0 else None


def _trim(buffer: Any, count: int) -> Any:
    """Return the first ``count`` rows: a copy if these are less than a quarter of the buffer."""
    rows = buffer[:count]
    return rows.copy() if 4 * count < len(buffer) else rows
