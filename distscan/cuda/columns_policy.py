"""The tuning numbers of the kernels that scan down columns, and what they come from.

NVIDIA H200, 1 GiB of random numbers on the wider side: ``python launch/tune_axes.py``.
"""

import math
from typing import NamedTuple

from ..core.dtypes import Types
from .policy import SHARED, VECTOR

_LANES = 32  # of a warp
_SECTOR = 32  # bytes: the least that memory writes without reading it first
_STATIC = 47 << 10  # bytes of shared memory that need not be asked for


class ColumnsPolicy(NamedTuple):
    """How ``kernels/columns/scan.cuh`` and ``reduce.cuh`` are cut: see ``strip.cuh`` there."""

    threads: int  # that scan
    rows: int  # of a slice; odd: lanes that walk down slices meet in few banks
    items: int  # elements of a vector
    columns: int  # a power of 2, at least those of a strip
    stages: int  # tiles in shared memory
    reducers: int  # warps; one more publishes what they find
    look_ahead_warps: int  # warps
    loaders: int  # warps
    panel: int  # strips whose tiles are drawn together
    group: int  # tiles that pass on one total, too
    reads: int  # totals that a lane of a look-ahead warp reads at once
    staged: str  # whether results go to memory by way of the stages


class Strips(NamedTuple):
    """How a row is cut into strips."""

    width: int  # vectors; lanes side by side
    number: int
    split: bool = False  # whether neighbours share sectors
    even: bool = True  # whether the last is about as wide as the others


class _Sharing(NamedTuple):
    """Who waits for whom: a part of ``ColumnsPolicy``."""

    look_ahead_warps: int
    loaders: int
    panel: int
    group: int
    reads: int


def columns_policy(
    types: Types, inner: int, arch: str, sm_count: int
) -> tuple[ColumnsPolicy, Strips]:
    """Choose for rows of ``inner`` elements.

    sm_90, 1 GiB float32, microseconds: with slices of 9 vectors in place of 11 4 to 10 % more;
    [2^24, 16] 593, by way of the stages 624. Rows that vectors do not divide, by rows of a slice:
    [2^22, 63] 737 with 43, 802 with 33; [2^18, 1001] 791 and 822; [2^14, 16383] 1080 and 952.
    """
    size, acc = max(types.x.itemsize, types.out.itemsize), types.acc.itemsize
    items = math.gcd(inner, max(VECTOR // max(size, acc, 4), 1))
    strips = _cut(types, inner, items, sm_count)
    columns = 1 << (strips.width * items - 1).bit_length()
    sharing = _share(types, columns, strips, arch, sm_count)
    known = acc * (columns + _LANES * -(-columns // _LANES)) + 8  # bytes, of each strip of a panel
    while sharing.panel > 1 and sharing.panel * known > 8 << 10:
        sharing = sharing._replace(panel=sharing.panel // 2)

    threads = 256 if acc <= 16 else 128  # structures take more registers
    warps = threads // _LANES
    most = (SHARED.get(arch, 99) - 1) << 10  # bytes
    # Barriers, totals, what comes before; of one stage.
    beside = 192 + acc * (threads * items + (warps + 2) * columns)

    def stages(rows: int) -> int:
        part = _LANES // strips.width * rows * pitch_of(types, inner, items, strips)
        static, every = (room - sharing.panel * known for room in (_STATIC, most))
        return int(min(static // beside, every // (warps * part + 16 + beside), 12))

    rows = {1: 33, 2: 33, 4: 33, 8: 21, 16: 11}.get(items * size, 5)
    if items * size == 4 and strips.split and strips.number < sm_count // 2:
        rows = 43
    if types.x.itemsize < 4 and items > 1:
        rows = min(rows, 17)  # each takes registers of its own when it is unpacked
    if sharing.loaders > 1:
        rows = min(rows, 11)
    while stages(rows) < 4 and rows > 3:
        rows -= 2
    staged = strips.number == 1 and inner * size < 64 and types.x.itemsize == types.out.itemsize
    return ColumnsPolicy(
        threads, rows, items, columns, stages(rows), reducers=4, staged=str(staged).lower(),
        **sharing._asdict(),
    ), strips  # fmt: skip


def _alone(strips: int, sm_count: int) -> bool:
    """Whether at most three blocks share a strip: few to wait for, so fetch more."""
    return 3 * strips > sm_count


def _cut(types: Types, inner: int, items: int, sm_count: int) -> Strips:
    """Cut rows into strips, so that most lanes have work.

    sm_90, 1 GiB float32, microseconds: [2^22, 64] in strips of 128 bytes 620, of 256 777; [2^20,
    256] 644 and 704; [2.6e6, 100] of 80 bytes 740, of 112 761, of 144 944. float64: [2^13,
    2^14] of 256 bytes 578, of 128 676; [2^19, 2^8] of 128 656.
    """
    vector, row = items * types.x.itemsize, inner * types.x.itemsize  # bytes
    if types.x.itemsize >= 4:
        strip = 128
        long = types.x.itemsize == 8 and row >= 2048
        if long and _alone(row // 256, sm_count) == _alone(row // 128, sm_count):
            strip = 256
    else:
        strip = 128 if row >= 384 else 64 if row >= 128 else 32 if row >= 64 else 64
    vectors, most = inner // items, max(min(strip // vector, _LANES), 1)
    if vectors <= most:
        return Strips(vectors, 1)

    def used(width: int) -> tuple[float, int]:
        """Of lanes, times of the vectors' places, times of what memory moves, at worst."""
        lanes, places = _LANES // width * width, -(-vectors // width) * width
        return lanes * vectors / places / (1 + _SECTOR / (width * vector)), width

    width = max(range(max(most // 2, 1), most + 1), key=used)
    split = row % _SECTOR > 0 or width * vector % _SECTOR > 0
    number = -(-vectors // width)
    return Strips(width, number, split, even=vectors > 0.95 * number * width)


def _share(types: Types, columns: int, strips: Strips, arch: str, sm_count: int) -> _Sharing:
    """Choose who waits for whom.

    sm_90, 1 GiB float32, microseconds. Strips that share sectors, in panels of 1, 4 and 16: [2^18,
    1001] 1269, 972, 905; [2.6e6, 100] 1125, 798, 801. Others: [2^18, 2^10] 682, 670, 635;
    [2^17, 2^11] 633 and, of 16 with 2 loaders, 600; [2^14, 2^14] 650, 625, 694; [2^21, 2^7] 644,
    656, 658. Groups: [2^24, 16] 593, of 8 tiles 605, of 32 625; [2^23, 32] of 8 598, of 16 627,
    reading 4 totals at once 618; [2^18, 1001] reading 4 851, 8 791. float64: [2^21, 63] in panels
    of 1, 2, 4 719, 713, 805; [2^18, 500] of 1 and 16 774, 690; [2^21, 50], 5 strips, of 1 and 2
    601, 1001: panels of other sizes do not keep step; [5 * 2^18, 100], nor do such strips, 947,
    697.
    """
    acc, each = types.acc.itemsize, strips.number / sm_count  # strips to a block
    reads = 4 if acc <= 8 else 2
    most = 8 if acc <= 4 and columns >= _LANES else reads
    together = 16 if strips.number > 8 or not strips.even else 1
    if strips.split:
        sharing = _Sharing(2, 1, 16 if acc <= 4 else together, 16, most)
    elif each > 7 / 8:
        sharing = _Sharing(1, 2, 4 if each > 7 / 2 else 2 if each > 7 / 4 else 1, 64, reads)
    elif _alone(strips.number, sm_count):
        sharing = _Sharing(1, 2, 16, 16, reads)
    elif strips.number <= 2 and columns >= _LANES:  # a lane reads many totals
        sharing = _Sharing(2, 1, 1, 8, most)
    else:
        sharing = _Sharing(2, 1, together, 16, reads)
    if columns < _LANES and (arch != "90" or types.x.itemsize < 4):  # parts of a group
        sharing = sharing._replace(reads=sharing.reads // 2)
    return sharing


def pitch_of(types: Types, inner: int, items: int, strips: Strips) -> int:
    """How many bytes the rows of a tile lie apart in shared memory: see ``columns/strip.cuh``.

    As in global memory, but for multiples of 16; and with room for vectors that stick out.
    """
    size, row = strips.width * items * types.x.itemsize, inner * types.x.itemsize
    return size if strips.number == 1 else size + 16 + (row - size) % 16


class ThreadPolicy(NamedTuple):
    """How ``kernels/columns/thread_per_column.cuh`` is cut."""

    threads: int
    rows: int  # under way at once
    items: int  # elements of a vector
    blocks: int  # per multiprocessor


def thread_policy(types: Types, inner: int, columns: int, sm_count: int) -> ThreadPolicy | None:
    """Choose for ``columns`` of all scans, ``inner`` side by side; None where they are too few.

    sm_90, 1 GiB float32, microseconds: [64, 2^11, 2^11] along the middle axis 549, where the other
    kernel takes 600; [2^10, 2^9, 2^9] 575 and 740; [2^20, 4, 64] 518 and 1060.
    """
    size = max(types.x.itemsize, types.out.itemsize)
    items = math.gcd(inner, max(VECTOR // max(size, types.acc.itemsize, 4), 1))
    if columns // items < 192 * sm_count or inner * size < 64:
        return None
    return ThreadPolicy(128, 8, items, 4 if types.acc.itemsize <= 16 else 2)
