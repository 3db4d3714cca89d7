"""The tuning numbers of the kernels, and the measurements that they come from.

NVIDIA H200, 1 GiB of random numbers on the wider side: ``python launch/tune.py``.
"""

import math
from typing import NamedTuple

import numpy as np

from ..dtypes import Types
from ..forms import Form
from ..operators import Operator

# What one block may have of shared memory, in KiB, by compute capability (CUDA C++ Programming
# Guide, table of technical specifications); 99 for what is not listed.
_SHARED = {"80": 163, "87": 163, "90": 227, "100": 227, "103": 227, "110": 227}
_VECTOR = 16  # bytes per access


class ScanPolicy(NamedTuple):
    """How ``kernels/scan.cuh`` is cut: tiles of ``threads * rows`` vectors."""

    threads: int  # that scan
    rows: int  # vectors per thread
    slots: int  # tiles in shared memory
    reducers: int  # warps; one more fetches
    gatherers: int  # warps


class ShortPolicy(NamedTuple):
    """How ``kernels/short.cuh`` is cut: a tile of ``threads * rows`` vectors for each block."""

    threads: int  # that scan; one more warp gathers
    rows: int  # vectors per thread
    blocks: int  # per multiprocessor


class TextbookPolicy(NamedTuple):
    """How ``kernels/textbook.cuh`` is put together and cut: tiles of ``threads * rows`` vectors."""

    block_scan: str  # a struct of kernels/block_scans
    chain: str = "Rounds"  # of kernels/chains; this one gives floats the same bits on every run
    threads: int = 256
    rows: int = 5  # vectors per thread; odd

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor must have registers for."""
        return max(512 // self.threads, 1)


class ReducePolicy(NamedTuple):
    """How ``kernels/reduce.cuh`` is cut."""

    threads: int
    rows: int  # vectors per lane in flight
    blocks: int  # per multiprocessor


ADD_THREADS = 256  # a vector each: a copy in this form runs at the speed of the driver's


def scan_policy(types: Types, form: Form, arch: str, n: int, processors: int) -> ScanPolicy:
    """Choose for ``n`` elements on a GPU of ``arch``, a compute capability such as "90".

    sm_90, 1 GiB, policy (256, 6, 9, 4, 2): float32 533 us, float64 532, complex64 530, uint16 min
    538; with other rows or threads 528 to 620, with fewer slots 550 to 600. complex128
    (256, 6, 9, 4, 3) 565; with a gatherer less 690, one more 680. int8 max (256, 5, 11, 4, 2) 543,
    int8 to int64 (384, 8, 12, 4, 2) 303, int32 to int64 415. Rows (256, 6, 9, 8, 2): float32 537
    to 549, float64 593 to 645; segments 596 and 625; with 4 reducers 690 to 830. Other
    architectures take the same shape, as far as it fits.
    """
    shared = _SHARED.get(arch, 99) * 1024 - 256
    size, widening = types.out.itemsize, types.out.itemsize // types.x.itemsize
    items = max(_VECTOR // max(types.x.itemsize, size), 1)
    # A thread holds its row's running values in registers, all rows at once; what narrow integers
    # run in 32 bits is held packed.
    packed = types.acc.kind in "iu" and types.x.itemsize < types.acc.itemsize == 4
    flagged = form.segmented or form.outer > 1  # flags beside the values
    room = 64 if not packed else 80 if arch in _SHARED else 24
    most = 8 if widening > 1 else 6
    if types.acc.itemsize < 4 and (form.exclusive or form.reverse):
        room = 32  # a register holds one byte
    running = types.acc.itemsize
    if flagged:
        room, most = min(room, 48), 6
        running += max(types.acc.alignment, 4)
    words = items * max(types.acc.itemsize // 4, 1)
    rows = min(most, room // words)
    threads = 384 if widening >= 8 and arch in _SHARED else 256
    if flagged and items == 16:
        threads, rows = 128, 4  # such vectors and their flags take more registers
    row = threads * items * (types.x.itemsize + form.segmented)  # bytes; a flag is one
    beside = 112 + (threads // 16 + 2) * running  # barriers and totals of a slot

    def slots(rows: int) -> int:
        return int(min(shared // (row * rows + beside), 12))

    while slots(rows) < 6:
        rows -= 1

    # Few tiles: a size that leaves no multiprocessor idle in the last round, the larger of equals;
    # for none that of one element, or an empty shard would compile a kernel of its own.
    def rounds(rows: int) -> int:
        return -(-max(n, 1) // (threads * items * rows * processors))

    if rounds(rows) < 16:
        choice = {rows, *(r for r in (2, 4) if r < rows)}
        if rows == 6 and words <= 4 and arch in _SHARED:
            choice.add(8)  # 2^20 float32: one tile for each of 132 multiprocessors
        rows = min(choice, key=lambda r: (rounds(r) * r, -r))
    reducers = {256: 8, 384: 6}.get(threads, 4) if flagged else 4  # as many stretches for each
    return ScanPolicy(threads, rows, slots(rows), reducers, gatherers=3 if running > 8 else 2)


def short_policy(types: Types, form: Form, n: int, processors: int) -> ShortPolicy | None:
    """Choose for ``n`` elements, if they are few enough to be in registers all at once.

    sm_90, float32: 2^10 2.9 us, 2^16 4.8, 2^18 5.4, 2^20 7.2, 2^21 9.7; ``kernels/scan.cuh`` takes
    5.8, 7.6, 8.2, 9.8, 12.1. Best are half as many tiles as multiprocessors: with 256 threads and
    1, 2, 4, 8 rows 2^18 take 5.9, 5.5, 5.4, 5.6. 2^20 with 512 threads and 4 rows 7.1; with 2 tiles
    to a multiprocessor 7.4 to 7.7, with 4 of them 8.2 to 8.4. 2^20 was timed with 4 rows of totals
    read at once (with 9 it takes 7.4); it reads 5.
    """
    if form.segmented or form.outer > 1:
        return None
    threads, items = 256, max(_VECTOR // max(types.x.itemsize, types.out.itemsize), 1)
    row = threads * items * processors  # elements, of a tile on each multiprocessor
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
    few = types.acc.names or (form.segmented and arch not in _SHARED)
    if types.x.itemsize == 1 and widening == 4 and arch in _SHARED and not form.segmented:
        return ReducePolicy(threads=512, rows=8, blocks=2)
    return ReducePolicy(threads=256, rows=4, blocks=2 if few else blocks)


class ColumnsPolicy(NamedTuple):
    """How ``kernels/columns.cuh`` and ``columns_reduce.cuh`` are cut: see ``kernels/strip.cuh``."""

    threads: int  # that scan
    rows: int  # of a slice; odd: lanes that walk down slices meet in few banks
    items: int  # elements of a vector
    columns: int  # a power of 2, at least those of a strip
    slots: int  # tiles in shared memory
    reducers: int  # warps; one more publishes what they find
    gatherers: int  # warps
    couriers: int  # warps
    group: int  # tiles that pass on one total, too
    reads: int  # totals that a lane of a gatherer reads at once
    staged: str  # whether results go to memory by way of the slots


class Strips(NamedTuple):
    """How a row is cut into strips."""

    width: int  # vectors; lanes side by side
    number: int


_LANES = 32  # of a warp
_STATIC = 47 << 10  # bytes of shared memory that need not be asked for


def columns_policy(
    types: Types, inner: int, arch: str, processors: int
) -> tuple[ColumnsPolicy, Strips]:
    """Choose for rows of ``inner`` elements.

    sm_90, 1 GiB float32, microseconds: [2^24, 16] in strips of 64 bytes, which is one, 593, in
    groups of 8 tiles 605, of 32 625, by way of the slots 624; [2^23, 32] in groups of 8 598, of 16
    627, reading 4 totals at once 618; [2^22, 64] in strips of 128 bytes 620, of 256 777; [2^20,
    256] of 128 bytes 644, reading 8 totals 657, with 2 couriers and a gatherer 716; with slices of
    9 vectors in place of 11 4 to 10 % more; [2^14, 2^14] 649, in groups of 16 659. float64: [2^13,
    2^14] in strips of 256 bytes 585, of 128 676; [2^17, 2^10] of 128, with 2 couriers and a
    gatherer, 615, else 665; [2^19, 2^8] 656, of 128 673.
    """

    def alone(strips: int) -> bool:
        """Whether blocks have strips for themselves or nearly: few to wait for, so fetch more."""
        return 3 * strips > processors

    size = max(types.x.itemsize, types.out.itemsize)
    items = math.gcd(inner, max(_VECTOR // max(size, types.acc.itemsize, 4), 1))
    row = inner * types.x.itemsize  # bytes
    if types.x.itemsize >= 4:
        strip = min(row, 128)
        if types.x.itemsize == 8 and row >= 2048 and alone(row // 256) == alone(row // 128):
            strip = 256
    else:
        strip = 128 if row >= 384 else 64 if row >= 128 else 32 if row >= 64 else 64
    if row % strip == 0:
        width = strip // (items * types.x.itemsize)
    else:  # as many even ones
        width = -(-inner // (items * -(-row // strip)))
    width = max(min(width, _LANES, inner // items), 1)
    strips = Strips(width, -(-inner // (width * items)))
    pitch = pitch_of(types, inner, items, strips)
    columns = 1 << (width * items - 1).bit_length()
    acc = types.acc.itemsize
    threads = 256 if acc <= 16 else 128  # structures take more registers
    warps = threads // _LANES
    # Barriers, totals, what comes before; of one slot.
    beside = 192 + acc * (threads * items + (warps + 2) * columns + columns + _LANES)

    def slots(rows: int) -> int:
        stretch = _LANES // width * rows * pitch
        dynamic = _SHARED.get(arch, 99) * 1024 - 1024
        return int(min(_STATIC // beside, dynamic // (warps * stretch + 16 + beside), 12))

    rows = {1: 33, 2: 33, 4: 33, 8: 21, 16: 11}.get(items * size, 5)
    if types.x.itemsize < 4 and items > 1:
        rows = min(rows, 17)  # each takes registers of its own when it is unpacked
    shared = strips.number <= 2 and columns >= _LANES  # many tiles, and a lane reads all of them
    gatherers, couriers, group = 2, 1, 8 if shared else 16
    if alone(strips.number):
        gatherers, couriers, group, rows = 1, 2, 64, min(rows, 11)
    while slots(rows) < 4 and rows > 3:
        rows -= 2
    staged = strips.number == 1 and inner * size < 64 and types.x.itemsize == types.out.itemsize
    reads = 8 if shared and acc <= 4 else 4 if acc <= 8 else 2
    if columns < _LANES and (arch != "90" or types.x.itemsize < 4):  # parts of a group
        reads //= 2
    policy = ColumnsPolicy(
        threads, rows, items, columns, slots(rows), 4, gatherers, couriers,
        group, reads, str(staged).lower(),
    )  # fmt: skip
    return policy, strips


def pitch_of(types: Types, inner: int, items: int, strips: Strips) -> int:
    """How many bytes the rows of a tile lie apart in shared memory: see ``kernels/strip.cuh``.

    As in global memory, but for multiples of 16; and with room for vectors that stick out.
    """
    size, row = strips.width * items * types.x.itemsize, inner * types.x.itemsize
    return size if strips.number == 1 else size + 16 + (row - size) % 16


class WalkPolicy(NamedTuple):
    """How ``kernels/walk.cuh`` is cut."""

    threads: int
    rows: int  # under way at once
    items: int  # elements of a vector
    blocks: int  # per multiprocessor


def walk_policy(types: Types, inner: int, columns: int, processors: int) -> WalkPolicy | None:
    """Choose for ``columns`` of all scans, ``inner`` side by side; None where they are too few.

    sm_90, 1 GiB float32, microseconds: [64, 2^11, 2^11] along the middle axis 549, where the other
    kernel takes 600; [2^10, 2^9, 2^9] 575 and 740; [2^20, 4, 64] 518 and 1060.
    """
    size = max(types.x.itemsize, types.out.itemsize)
    items = math.gcd(inner, max(_VECTOR // max(size, types.acc.itemsize, 4), 1))
    if columns // items < 192 * processors or inner * size < 64:
        return None
    return WalkPolicy(128, 8, items, 4 if types.acc.itemsize <= 16 else 2)
