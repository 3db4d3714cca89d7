"""The tuning numbers of the kernels, and the measurements that they come from.

NVIDIA H200, 1 GiB of random numbers on the wider side: ``python launch/tune.py --policies``.
"""

from typing import Any, NamedTuple

import numpy as np

from ..core.dtypes import Types
from ..core.forms import Form
from ..core.operators import Operator

# What one block may have of shared memory, in KiB, by compute capability (CUDA C++ Programming
# Guide, table of technical specifications); 99 for what is not listed.
SHARED = {"80": 163, "87": 163, "90": 227, "100": 227, "103": 227, "110": 227}
VECTOR = 16  # bytes per access


def per_vector(*dtypes: np.dtype[Any]) -> int:
    """How many elements of the widest of some types fill a vector."""
    return int(max(VECTOR // max(dtype.itemsize for dtype in dtypes), 1))


class ScanPolicy(NamedTuple):
    """How ``kernels/linear/scan.cuh`` is cut: tiles of ``threads * rows * items`` elements."""

    threads: int  # that scan
    rows: int  # vectors per thread
    items: int  # elements per vector
    stages: int  # tiles in shared memory
    reducers: int  # warps; one more fetches
    look_ahead_warps: int  # warps


class ShortPolicy(NamedTuple):
    """How ``kernels/linear/scan_short.cuh`` is cut: each block has ``threads * rows`` vectors."""

    threads: int  # that scan; one more warp gathers
    rows: int  # vectors per thread
    blocks: int  # per multiprocessor


class TextbookPolicy(NamedTuple):
    """How ``kernels/textbook`` is put together and cut: tiles of ``threads * rows`` vectors."""

    block_scan: str  # a struct of kernels/block_scans
    # A struct of kernels/textbook/chains; this one gives floats the same bits on every run.
    chain: str = "LooksAhead"
    threads: int = 256
    rows: int = 5  # vectors per thread; odd

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor must have registers for."""
        return max(512 // self.threads, 1)


class ReducePolicy(NamedTuple):
    """How ``kernels/linear/reduce.cuh`` is cut."""

    threads: int
    rows: int  # vectors per lane in flight
    blocks: int  # per multiprocessor


ADD_THREADS = 256  # a vector each: a copy in this form runs at the speed of the driver's


def scan_policy(types: Types, form: Form, arch: str, n: int, sm_count: int) -> ScanPolicy:
    """Choose for ``n`` elements on a GPU of ``arch``, a compute capability such as "90".

    sm_90, 1 GiB, threads, rows and stages 256, 6, 9: float32 533 us, float64 532, complex64 530,
    uint16 min 538; with other rows or threads 528 to 620, with fewer stages 550 to 600. complex128
    565; with a look-ahead warp less 690, one more 680. int8 max (256, 5, 11) 543, int8 to int64
    (384, 8, 12) 311, with 256 threads 348; int16 to int64 (256, 8, 12) 361, int32 to int64 418;
    narrower results, by logical_xor of float32 (256, 8, 7) 341, with 6 rows 357, of int64 310 and
    336. Other architectures take the same shape, as far as it fits.

    Rows of 5 and segments of 64, 8 reducers, threads and rows 256, 6: float32 546 and 600, float64
    652 and 634, float16 724 and 783; with 4 reducers 690 to 830. int32 to int64 with 4 items
    (256, 3) 488 and 494, (256, 4) 502 and 554, with 2 (256, 6) 545 and 550; int8 to int64 segments
    440, 505, 516. int8 max (256, 3) 1580 and 1631, (128, 4) 3750 (rows of 16384) and 3055.
    """
    threads, rows, items = _scan_shape(types, form, arch)
    running, reducers = types.acc.itemsize, 4
    if _flagged(form):
        running += max(types.acc.alignment, 4)
        reducers = min(threads // 32, 8)  # as many warp tiles for each
    shared = SHARED.get(arch, 99) * 1024 - 256
    row = threads * items * (types.x.itemsize + form.segmented)  # bytes; a flag is one
    if form.segmented:
        row += threads * items // 8 * packs_flags(types, items)
    beside = 112 + (threads // 16 + 2) * running  # barriers and totals of a stage

    def stages(rows: int) -> int:
        return int(min(shared // (row * rows + beside), 12))

    while stages(rows) < 6:
        rows -= 1

    # Few tiles: a size that leaves no multiprocessor idle in the last round, the larger of equals;
    # for none that of one element, or an empty shard would compile a kernel of its own.
    def rounds(rows: int) -> int:
        return -(-max(n, 1) // (threads * items * rows * sm_count))

    if rounds(rows) < 16:
        choice = {rows, *(r for r in (2, 4) if r < rows)}
        if rows == 6 and items * max(types.acc.itemsize // 4, 1) <= 4 and arch in SHARED:
            choice.add(8)  # 2^20 float32: one tile for each of 132 multiprocessors
        rows = min(choice, key=lambda r: (rounds(r) * r, -r))
    return ScanPolicy(
        threads, rows, items, stages(rows), reducers, look_ahead_warps=3 if running > 8 else 2
    )


def packs_flags(types: Types, items: int) -> bool:
    """``PACKS`` of linear/flagged_items.cuh: whether a stage has room for its flags' bits, too.

    sm_90, 2^30 int8 max, 2^29 uint16 min and float16 sum, segments of 64: 1631, 864, 782 us; where
    scanners find the bits of the flags themselves 1740, 898, 814.
    """
    return items == max(VECTOR // types.x.itemsize, 1) and items >= 8


def _flagged(form: Form) -> bool:
    """Whether flags lie beside the values: of segments, or of where rows start."""
    return form.segmented or form.outer > 1


def _scan_shape(types: Types, form: Form, arch: str) -> tuple[int, int, int]:
    """Threads, rows and items of the tiles of many elements."""
    size, widening = types.out.itemsize, types.out.itemsize // types.x.itemsize
    items, threads = per_vector(types.x, types.out), 256
    # A thread holds its row's running values in registers, all rows at once; what narrow integers
    # run in 32 bits is held packed.
    packed = types.acc.kind in "iu" and types.x.itemsize < types.acc.itemsize == 4
    room = 64 if not packed else 80 if arch in SHARED else 24  # for so many words
    most = 6 if widening == 1 else 8
    if types.acc.itemsize < 4 and (form.exclusive or form.reverse):
        room = 32  # a register holds one byte
    if _flagged(form):
        few = int(arch) > 90  # registers: the compiler takes more of them there
        if items == 16 and (types.acc.itemsize < 4 or few):
            return 128, 4, items
        room = 24 if few else 48 if items >= 8 else 32
        most = 8 if widening > 1 and size <= 8 else 6
        if widening > 1 and size == 8:
            items, room = 4, 24  # stored by two accesses, and half the shuffles for an element
    elif widening >= 8 and arch in SHARED:
        threads = 384
    return threads, min(most, room // (items * max(types.acc.itemsize // 4, 1))), items


def short_policy(types: Types, form: Form, n: int, sm_count: int) -> ShortPolicy | None:
    """Choose for ``n`` elements, if they are few enough to be in registers all at once.

    sm_90, float32: 2^10 2.9 us, 2^16 4.8, 2^18 5.4, 2^20 7.2, 2^21 9.7; ``linear/scan.cuh`` takes
    5.8, 7.6, 8.2, 9.8, 12.1. Best are half as many tiles as multiprocessors: with 256 threads and
    1, 2, 4, 8 rows 2^18 take 5.9, 5.5, 5.4, 5.6. 2^20 with 512 threads and 4 rows 7.1; with 2 tiles
    to a multiprocessor 7.4 to 7.7, with 4 of them 8.2 to 8.4. 2^20 was timed with 4 rows of totals
    read at once (with 9 it takes 7.4); it reads 5.
    """
    if form.segmented or form.outer > 1:
        return None
    threads, items = 256, per_vector(types.x, types.out)
    row = threads * items * sm_count  # elements, of a tile on each multiprocessor
    words = (items + 1) * max(types.acc.itemsize // 4, 1)  # of a thread's row, and its total
    for rows in (1, 2, 4, 8):
        most = rows == 8 or 2 * rows * words > 48
        if n <= row * rows // 2 or (most and n <= 2 * row * rows):
            return ShortPolicy(threads, rows, blocks=1 if n <= row * rows else 2)
        if most:
            break
    return None


def reduce_policy(op: Operator, types: Types, form: Form, arch: str) -> ReducePolicy:
    """Choose for ``arch``."""
    # float32 254 us; 8 rows, 512 threads, 8 blocks, the next rows loaded ahead, other
    # caching, bulk copies 252 to 260. 2 blocks: 249 one launch behind the other, but 264 alone.
    # int8 max 258 us, with 256 threads, 4 rows and 3 blocks 280; with 256, 8, 2 or 4 277, 263.
    # Widened elements take more registers: int8 to int64 spills at 3 blocks on sm_100 and sm_120.
    # So do logaddexp in float64, and structures; and flags, where nothing is measured.
    widening = types.acc.itemsize // types.x.itemsize
    long = op.numpy is np.logaddexp and types.acc.itemsize > 4
    blocks = 4 if widening <= 1 and not long else 3 if widening < 8 else 2
    few = types.acc.names or (form.segmented and arch not in SHARED)
    if types.x.itemsize == 1 and widening == 4 and arch in SHARED and not form.segmented:
        return ReducePolicy(threads=512, rows=8, blocks=2)
    return ReducePolicy(threads=256, rows=4, blocks=2 if few else blocks)
