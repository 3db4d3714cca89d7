"""The tuning numbers of the kernels, and the measurements that they come from.

The tables give microseconds on one NVIDIA H200 (sm_90). The wider of input and output is 1 GiB of
random numbers, unless a table gives a size. ``python launch/tools/tune.py --policies`` repeats
them.
"""

from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from ..fsum.words import ONE_WORD, TWO_WORDS
from .definitions import is_log_sum, type_name

# ---- exact sums ------------------------------------------------------------------------------


def is_fixed(types: Types) -> bool:
    """Return whether floats are added as integers: ``Fixed`` of kernels/base/fixed.cuh."""
    return types.acc == TWO_WORDS or (types.acc == ONE_WORD and types.x.kind not in "biu")


def fixed_shape(types: Types, form: Form, arch: str, items: int) -> tuple[int, int, int]:
    """Return the threads, rows and items of a tile of exact sums; ``items`` fill a vector.

    Beside 7 reducers, 2 look-ahead warps and the loader, 14 warps are the most that have 80
    registers. A lane takes two vectors at once: so it takes half as many shuffles. H200, sm_90,
    2^28 elements, microseconds; ``wide`` has elements of two words::

        threads  reducers  look-ahead warps  rows  items  float32  the same, wide  float64
        sums of two words
            448         7                 2     2   8, 4      876            1165     1558
            512         8                 2     2   8, 4      838            1133     1493  spills
            512         8                 3     2   8, 4      863            1135     1563  spills
            480         5                 3     2   8, 4      875
            384         6                 3     2   8, 4      901                     1743
            512         4                 3     4   4, 2      939                     1759
            256         4                 3  4, 6   4, 2     1212                     2159
        sums of one word
            448         7                 2  2, 4   8, 2      559                     1063
            384         6                 2  2, 4   8, 2      566                     1080
            256         4                 2     6   4, 2      599                     1061
        a sum of floats                                       550                     1091

    The same shapes are the best, or nearly so, where reducers check elements: 10 of them beside 320
    threads take 16 us less for float32 in one word. A pass over the elements takes 200 us of
    float16, 290 of float32 and 540 of float64::

        threads  reducers  rows   items  sums      float16  float32  float64
            448         7  2, 4    8, 2  one word               553     1065
            448         7  2, 4    8, 2  checked                657     1066
            448         7     2    8, 4  two words              877     1280
            448         7     2    8, 4  checked                935     1401
            448         7     2    8, 4  wide                  1150     1502
            448         7     2    8, 4  checked               1228     1550
            256         4     2      16  one word      505
            256         4     2      16  checked       752
            256         8     2      16  one word      515  spills
            256         8     2      16  checked       583  spills
            192         6     2      16  one word      585
            192         6     2      16  checked       673
    """
    two = types.acc == TWO_WORDS
    if arch != "90":
        return 256, 1 if types.out.itemsize < 4 else 2 if two else 4, min(items, 8)
    if types.out.itemsize < 4:  # more registers: they are rounded twice
        return 256, 2, 8 if two else 16
    if two:
        return 448, 1 if form.exclusive or form.reverse else 2, min(2 * items, 8)
    return (448, 4, items) if types.out.itemsize == 8 else (448, 2, 8)


def fixed_reducers(threads: int) -> int:
    """Return the number of reducers beside so many threads that scan."""
    return 7 if threads == 448 else 4


# ---- scans -----------------------------------------------------------------------------------

# The shared memory that one block may use, in KiB, by compute capability (CUDA C++ Programming
# Guide, table of technical specifications). Other compute capabilities have at least 99.
SHARED = {"80": 163, "87": 163, "90": 227, "100": 227, "103": 227, "110": 227}
VECTOR = 16  # bytes per access


def per_vector(*dtypes: np.dtype[Any]) -> int:
    """Return how many elements of the widest of these types, or of their fields, fill a vector."""
    return int(max(VECTOR // widest(*dtypes), 1))


def items_of(types: Types) -> int:
    """Return how many elements a lane takes at once: as many as fill a vector, fewer if large.

    It is a power of 2.
    """
    words = -(-types.acc.itemsize // 4)
    most = 1 << (max(64 // words, 1).bit_length() - 1)
    return min(per_vector(types.x, types.out), most if types.x.names else VECTOR)


def widest(*dtypes: np.dtype[Any]) -> int:
    """Return the bytes of the widest field of some types; a number is one field."""
    return max(
        max((t[name].itemsize for name in t.names or ()), default=t.itemsize) for t in dtypes
    )


class ScanPolicy(NamedTuple):
    """How ``kernels/linear/scan.cuh`` is cut: tiles of ``threads * rows * items`` elements."""

    threads: int  # that scan
    rows: int  # vectors per thread
    items: int  # elements per vector
    stages: int  # tiles in shared memory
    reducers: int  # warps; one more warp is the loader
    look_ahead_warps: int  # warps
    levels: int  # of totals: 2, if groups of tiles have totals, too


_LARGE = 16  # bytes: is_large of kernels/base/types.cuh
_LEAST_STAGES = 3  # of the scan: as many as look-ahead warps, each of which ends in a stage
ADD_THREADS = 256  # one vector per thread: a copy in this form is as fast as the driver's


def scan_policy(types: Types, form: Form, arch: str, n: int, sm_count: int) -> ScanPolicy:
    """Return the policy for ``n`` elements on a GPU of ``arch``, a compute capability as "90".

    H200, sm_90, 1 GiB, 1-D scans (a blank was not recorded)::

        type                                 threads  rows  stages  microseconds
        float32                                  256     6       9  533
        float64                                  256     6       9  532
        complex64                                256     6       9  530
        uint16, min                              256     6       9  538
        these four, other rows or threads                           528 to 620
        these four, fewer stages                                    550 to 600
        complex128                               256     6       9  565
        complex128, one look-ahead warp less                        690
        complex128, one look-ahead warp more                        680
        int8, max                                256     5      11  543
        int8 to int64                            384     8      12  311
        int8 to int64                            256                348
        int8 to int64 of 2^23, H100              384     8      12   32.0
        int8 to int64 of 2^23, H100              384     4      12   36.0
        int16 to int64                           256     8      12  361
        int32 to int64                           256     8      12  418
        float32 to bool, logical_xor             256     8       7  341
        float32 to bool, logical_xor             256     6          357
        int64 to bool, logical_xor               256     8       7  310
        int64 to bool, logical_xor               256     6          336

        logaddexp of 2^26 float32, 4 reducers    256     6          374
        logaddexp of 2^26 float32, 4 reducers    384     6          294
        logaddexp of 2^26 float32, 6 reducers    384     6          274
        logaddexp of 2^26 float32, 4 reducers    512     4          295

        linear_recurrence of 2^26 float32        256     4       7  220
        the same, other rows, threads, reducers                     222 to 405
        4 x 4 matrices, 2^20, 4 items per vector 128     2       2   80
        the same                                 128     1       5   86
        the same                                  96     2       3   83
        the same, 2 items                        192     2       3   85
        the same, other shapes                                       85 to 183

    Other architectures take the same shape, as far as it fits.

    H200, sm_90, 1 GiB, many short scans: rows of 5 elements, and segments of 64 elements::

                                                               microseconds
        type                      items  threads  rows  rows of 5  segments of 64
        float32, 8 reducers                  256     6        546  600
        float64, 8 reducers                  256     6        652  634
        float16, 8 reducers                  256     6        724  783
        these three, 4 reducers              256     6  690 to 830 in all
        int32 to int64                4      256     3        488  494
        int32 to int64                4      256     4        502  554
        int32 to int64                2      256     6        545  550
        int8 to int64                 4      256     3             440
        int8 to int64                 4      256     4             505
        int8 to int64                 2      256     6             516
        int8, max                    16      256     3       1580  1631
        int8, max                    16      128     4             3055
        int8, max, rows of 16384     16      128     4       3750
    """
    threads, rows, items = _scan_shape(types, form, arch)
    running, reducers = types.acc.itemsize, 6 if threads == 384 and is_log_sum(types.acc) else 4
    look_ahead_warps = 3 if running > 8 else 2
    if is_fixed(types) and not _flagged(form):
        reducers, look_ahead_warps = fixed_reducers(threads), 2
    if form.keys is not None:
        items = keyed_items(form.keys, items)
    if _flagged(form):
        running += max(types.acc.alignment, 4)
        reducers = min(threads // 32, 8)  # every reducer has the same number of warp tiles
    shared = SHARED.get(arch, 99) * 1024 - 256
    fields = len(types.x.names or " ")
    others = 96 + 16 * fields + (threads // 16 + 2) * running  # a stage's barriers and totals

    def stages(rows: int) -> int:
        stage = threads * rows * items * (types.x.itemsize + beside(form))
        stage += bits_bytes(types, form, threads, rows, items)
        stage += up_to_bytes(types, form, threads, rows)
        return int(min(shared // (stage + others), 12))

    large = _is_large(types)
    while rows > 1 and stages(rows) < (2 if large else 6):
        rows -= 1
    while items > 1 and stages(rows) < (2 if large else _LEAST_STAGES):  # little shared memory
        items //= 2

    # With few tiles, the last wave leaves multiprocessors idle. So choose the rows for which all
    # waves take the least time together; of equals, the larger number. A tile takes the time of
    # its rows, and of about one more. An empty shard has the policy of one element: else it would
    # need another kernel.
    def waves(rows: int) -> int:
        return -(-max(n, 1) // (threads * items * rows * sm_count))

    if waves(rows) < 16:
        choice = {rows, *(r for r in (1, 2, 4) if r < rows and (r > 1 or large))}
        if rows == 6 and items * max(types.acc.itemsize // 4, 1) <= 4 and arch in SHARED:
            choice.add(8)  # 2^20 float32 are then one tile for each of 132 multiprocessors
        rows = min(choice, key=lambda r: (waves(r) * (r + 1), -r))
    levels = _levels(types, form, -(-n // (threads * rows * items)))
    look_ahead_warps = min(3 if levels == 2 else look_ahead_warps, stages(rows))
    return ScanPolicy(threads, rows, items, stages(rows), reducers, look_ahead_warps, levels)


def _levels(types: Types, form: Form, tiles: int) -> int:
    """Return the levels of totals: 2 of few tiles. A look-ahead warp reads 32 groups of 32 tiles.

    One H100, from a CUDA graph, data that was not used before, microseconds::

        elements                     tiles  look-ahead warps  one level  two levels
        2^21, float64                  512                 2       21.2        19.1
        2^21, float64                  512                 3       20.4        18.9
        2^22, float64                 1024                 2       28.9
        2^22, float64                 1024                 3                   28.1
        2^23, float64                 2048                 3       53.4        55.3
        2^22, float32                  512                 3       18.7        17.5
        2^26, float32                10923                 3        185         203
        2^21, float32 by int32 keys                        3       15.2        13.8
        6 x 2^20, int8 to int64       1024                 3       25.2        26.3

    Exact sums and large structures were not measured.
    """
    others = (is_fixed(types) and not _flagged(form)) or _is_large(types)
    widens = types.out.itemsize > types.x.itemsize
    return 1 if others or widens or tiles > 32 * 32 else 2


def evict_first(moved: int) -> bool:
    """Return whether elements leave the L2 cache before results, if a scan moves so many bytes.

    Else the cache is full of elements that were read, and results wait until these are evicted.
    Results of this size are still there for a next kernel. One H100, 50 MiB, from a CUDA graph::

        float64 elements x 2^20    2   2.5     3     4     5     6     7    10    16    64
        moved, of the cache      .64    .8   .96  1.28   1.6  1.92  2.24   3.2   5.1    20
        us, evict_first no      14.0  22.3  27.1  33.2  37.3  43.5  49.1  65.8  98.2   366
        us, evict_first yes     15.9  20.6  23.8  29.0  35.1  41.6  48.3  64.8  99.1   375
    """
    cache = int(cupy.cuda.Device().attributes["L2CacheSize"])
    return 3 * cache <= 4 * moved <= 12 * cache


def keyed_items(keys: np.dtype[Any], items: int) -> int:
    """Return the elements per vector of a tile with keys, from those of a tile with flags.

    A thread compares at most 64 bytes of keys at a time. H200, sm_90, float32 by int32 keys in runs
    of 64, microseconds::

        threads  rows  items  reducers  2^22  2^24  2^28
            256     4      4         8  25.2  61.6   784
            256     2      4         8  27.0  75.6  1021
            512     2      4         8  30.5  78.7  1013
        by flags                        22.2  51.8   602
        a copy of as many bytes         15.1  50.5   761

    With bits that reducers left for the scanners: 23.9, 67.9, 902 in the first shape; 24.5, 62.8,
    808 with 3 rows; more in all others.
    """
    while items * keys.itemsize > 64:
        items //= 2
    return items


def beside(form: Form) -> int:
    """Return the bytes of the flag or key that a kernel reads beside each element."""
    return int(form.segmented) if form.keys is None else form.keys.itemsize


def bits_bytes(types: Types, form: Form, threads: int, rows: int, items: int) -> int:
    """Return the bytes of a stage that hold the bits of a tile's heads, written by reducers."""
    packs = form.segmented and form.keys is None and packs_flags(types, items)
    return threads * rows * items // 8 * packs


def up_to_bytes(types: Types, form: Form, threads: int, rows: int) -> int:
    """Return the bytes of a stage that hold combinations, written by reducers for the scanners.

    Only large structures have them: see linear/large_tile.cuh.
    """
    if not _is_large(types):
        return 0
    return threads * rows * (-(-types.acc.itemsize // 4) + _flagged(form)) * 4


def _is_large(types: Types) -> bool:
    """Return whether elements are structures of more than 16 bytes in registers."""
    return types.x.names is not None and types.acc.itemsize > _LARGE


def packs_flags(types: Types, items: int) -> bool:
    """Return ``PACKS`` of linear/flagged_items.cuh: whether a stage has room for its flags' bits.

    Reducers then pack the flags into bits. H200, sm_90, segments of 64, microseconds::

        type            elements  packed by reducers  found by scanners
        int8, max       2^30                    1631               1740
        uint16, min     2^29                     864                898
        float16, sum    2^29                     782                814
    """
    return items == max(VECTOR // types.x.itemsize, 1) and items >= 8


def _flagged(form: Form) -> bool:
    """Return whether each value has a flag: the head of a segment, or the start of a row."""
    return form.segmented or form.extents.outer > 1


def _scan_shape(types: Types, form: Form, arch: str) -> tuple[int, int, int]:
    """Return the threads, rows and items of a tile, for shards of many tiles."""
    size, widening = types.out.itemsize, types.out.itemsize // types.x.itemsize
    items, threads = items_of(types), 256 if types.acc.itemsize <= 16 else 128
    # A thread holds the running values of all its rows in registers. Narrow integers that
    # accumulate in 32 bits are held packed.
    packed = types.acc.kind in "iu" and types.x.itemsize < types.acc.itemsize == 4
    if is_fixed(types) and not _flagged(form):
        return fixed_shape(types, form, arch, items)
    room = 64 if not packed else 80 if arch in SHARED else 24  # words of registers
    most = 6 if widening == 1 else 8
    if types.acc.itemsize < 4 and (form.exclusive or form.reverse):
        room = 32  # each byte takes a register of its own
    if _flagged(form):
        # Few registers: the compiler uses more of them there.
        few = int(arch) > 90 or (int(arch) < 90 and types.acc == TWO_WORDS)
        if items == 16 and (types.acc.itemsize < 4 or few):
            return 128, 4, items
        room = 24 if few else 48 if items >= 8 else 32
        most = 8 if widening > 1 and size <= 8 else 6
        if widening > 1 and size == 8:
            items, room = 4, 24  # two stores per vector, but half the shuffles per element
    elif (widening >= 8 and arch in SHARED) or (is_log_sum(types.acc) and types.acc.itemsize == 8):
        threads = 384
    words = max(types.acc.itemsize // 4, 1)
    while types.x.names and items > 1 and items * words > room:
        items //= 2
    if _is_large(types):  # one row is in registers at a time
        return threads, 2, items
    return threads, max(min(most, room // (items * words)), 1), items


# ---- reductions ------------------------------------------------------------------------------


class ReducePolicy(NamedTuple):
    """How ``kernels/linear/reduce.cuh`` is cut."""

    threads: int
    rows: int  # vectors per lane in flight
    items: int  # elements per vector
    blocks: int  # per multiprocessor


def reduce_policy(op: Operator, types: Types, form: Form, arch: str) -> ReducePolicy:
    """Return the policy for an operator, its types and form, on a GPU of ``arch``.

    H200, sm_90, 1 GiB::

        type                                threads  rows  blocks  microseconds
        float32                                 256     4       4  254
        float32                                         8          252 to 260
        float32                                 512                252 to 260
        float32                                                 8  252 to 260
        float32, next rows loaded ahead                            252 to 260
        float32, other caching                                     252 to 260
        float32, bulk copies                                       252 to 260
        float32, launched back to back                          2  249
        float32, launched alone                                 2  264
        int8, max                               512     8       2  258
        int8, max                               256     4       3  280
        int8, max                               256     8       2  277
        int8, max                               256     8       4  263

    Some forms get fewer blocks, because they use more registers: int8 to int64 (it spills at 3
    blocks on sm_100 and sm_120), logaddexp in float64, structures, and flags. Flags are not
    measured.
    """
    policy = _reduce_policy(op, types, form, arch)
    if form.keys is None:
        return policy
    # A thread holds at most 128 bytes of items and keys in flight.
    vector = policy.items * (types.x.itemsize + form.keys.itemsize)
    rows, blocks = max(1, min(policy.rows, 128 // vector)), 3 if vector < 32 else 2
    return policy._replace(rows=rows, blocks=min(policy.blocks, blocks))


def _reduce_policy(op: Operator, types: Types, form: Form, arch: str) -> ReducePolicy:
    """Return the policy of a reduction without the keys of segments."""
    widening = types.acc.itemsize // types.x.itemsize
    long = op.numpy is np.logaddexp and types.acc.itemsize > 4
    blocks = 4 if widening <= 1 and not long else 3 if widening < 8 else 2
    few = types.acc.names or (form.segmented and arch not in SHARED)
    if types.x.itemsize == 1 and widening == 4 and arch in SHARED and not form.segmented:
        return ReducePolicy(threads=512, rows=8, items=VECTOR, blocks=2)
    items = min(items_of(types), per_vector(types.x)) if types.x.names else per_vector(types.x)
    rows = min(4, max(128 // (items * types.x.itemsize), 1)) if types.x.names else 4
    if types.acc.itemsize > 16:
        blocks = 1
    return ReducePolicy(256, rows, items, blocks=min(blocks, 2) if few else blocks)


# ---- few elements ----------------------------------------------------------------------------


class ShortPolicy(NamedTuple):
    """How ``kernels/linear/scan_short.cuh`` is cut: ``threads * rows`` vectors per block."""

    threads: int  # that scan; one more warp looks ahead
    rows: int  # vectors per thread
    items: int  # elements per vector


def short_policy(types: Types, form: Form, n: int, sm_count: int) -> ShortPolicy | None:
    """Return the policy for ``n`` elements, or None if they do not fit in registers all at once.

    H200, sm_90, float32, microseconds::

        elements         2^10  2^16  2^18  2^20  2^21
        this kernel       2.9   4.8   5.4   7.2   9.7
        scan.cuh          5.8   7.6   8.2   9.8  12.1

    It is fastest with half as many tiles as multiprocessors::

        elements  threads  rows  microseconds
        2^18          256     1  5.9
        2^18          256     2  5.5
        2^18          256     4  5.4
        2^18          256     8  5.6

    2^20 was timed with 4 rows of totals read at once (7.4 with 9 rows). The kernel reads 5 now.

    A block of more threads beats two blocks. H100, from a CUDA graph, on data in the cache::

        elements       threads  rows  blocks per multiprocessor  microseconds
        2^20, float64      256     8                          2  8.0
        2^20, float64      512     8                          1  7.5
        2^21, float32      256     8                          2  7.1
        2^21, float32      512     8                          1  6.9
        2^21, float16      256     4                          2  5.7
        2^21, float16      512     4                          1  5.5
    """
    if form.segmented or form.extents.outer > 1 or types.acc.itemsize > 16:
        return None
    items = items_of(types)
    row = 256 * items * sm_count  # elements, of a tile on each multiprocessor
    words = (items + 1) * max(types.acc.itemsize // 4, 1)  # of one thread: its row and its total
    for rows in (1, 2, 4, 8):
        most = rows == 8 or 2 * rows * words > 48
        if n <= row * rows // 2 or (most and n <= 2 * row * rows):
            return ShortPolicy(256 if n <= row * rows else 512, rows, items)
        if most:
            break
    return None


# ---- one kernel for the reduction, the exchange between GPUs, and the scan ---------------------


class FusedPolicy(NamedTuple):
    """How ``kernels/linear/fused.cuh`` is cut: tiles of ``threads * rows * items`` elements."""

    threads: int  # that scan; two more warps fetch, and find the offset
    rows: int  # vectors per thread
    items: int  # elements per vector
    stages: int  # tiles in shared memory
    at_once: int  # tiles that are fetched at once
    tiles: int  # of a block, at most


_FUSED_STAGES = 16
_FUSED_AT_ONCE = 72 << 10  # bytes that a block fetches at once


def fused_policy(types: Types, form: Form, arch: str, n: int, sm_count: int) -> FusedPolicy | None:
    """Return the policy for ``n`` elements; None if two kernels are faster.

    ``types`` are those in registers. Two H200, from a CUDA graph, microseconds::

        float32               2^10  2^16  2^20  2^22  2^24  2^25  2^26  2^27
        reduction, then scan   6.9   8.1  12.0  19.1  64.8   115   212   402
        this kernel            4.9   5.6   6.7  11.5  52.1   106   206   410
        3 n at a copy's speed  1.8   2.0   3.6   8.6  49.8    97   191

        one H200              16 MiB      64 MiB      256 MiB of the wider of input and output
        float64               20.1, 12.7  65.1, 53.1  210, 208
        int8 to int64         16.6, 11.4  35.2, 28.8  102, 103
        int8, max             23.9, 16.2  71.6, 55.7  220, 212
        float16               20.2, 13.6  65.2, 52.2  212, 206
        logaddexp, float32    35.4, 21.4   116, 70.3  385, 232

    The shapes are those of ``scan_policy``. Others, on one H200::

        float32               2^20  2^22  2^24  2^26
        256 threads, 8 rows    6.6  11.1  54.3   208
        256 threads, 6 rows    7.3  12.3  53.0   207
        256 threads, 4 rows    7.0  13.0  53.5   207
        512 threads, 4 rows    6.5  11.3  55.2   209
        512 threads, 2 rows    6.7  13.4  54.4   209

    Fetches of all stages at once take 1 us longer from 2^24 on, and 48 KiB at once 5 us at 2^26.
    Tiles that are dealt out by turns, not in runs, take 2 % less at 2^26 and more at 2^24, without
    the totals that this needs. Other priorities in L2, for elements or results, gain 1 us at most,
    and lose up to 10.
    """
    if types.acc.itemsize > _LARGE:
        return None
    threads, rows, items = _scan_shape(types, form, arch)
    tiles = 256 if is_log_sum(types.acc) else 128  # a reduction of its own takes long there
    totals = tiles * threads // 32 * types.acc.itemsize
    shared = SHARED.get(arch, 99) * 1024 - 1024 - totals

    def waves(rows: int) -> int:
        return -(-n // (threads * items * rows * sm_count))

    if waves(rows) < 16:
        choice = {rows, *(r for r in (1, 2, 4) if r < rows)}
        if rows == 6 and items * types.acc.itemsize <= 16 > types.acc.itemsize and arch in SHARED:
            choice.add(8)
        rows = min(choice, key=lambda r: (waves(r) * (r + 1), -r))
    if waves(rows) > tiles:
        return None
    tile = threads * rows * items * types.x.itemsize
    stages = min(shared // (tile + VECTOR), _FUSED_STAGES)
    at_once = min(-(-_FUSED_AT_ONCE // tile), stages)
    return FusedPolicy(threads, rows, items, int(stages), int(at_once), tiles)


# ---- the choice of the kernel and of its tiles -----------------------------------------------

_LANES = 32


class LaunchConfig(NamedTuple):
    """A kernel that scans, with its tuning numbers and the numbers of its launch."""

    entry: str
    policy: dict[str, int | str]
    tile: int  # elements per tile
    threads: int  # per block
    shared: int  # bytes of dynamic shared memory
    blocks: int  # the most blocks of a launch
    words: int = 1  # status words per 4 bytes of a tile's total


def scan_config(types: Types, n: int, form: Form) -> LaunchConfig:
    """Configure ``kernels/scan.cu``, or for few elements ``kernels/scan_short.cu``."""
    n *= form.extents.outer
    short = short_policy(types, form, n, sm_count())
    if short is not None:
        tile = short.threads * short.rows * short.items
        threads = short.threads + _LANES
        return LaunchConfig("scan_short", short._asdict(), tile, threads, 0, sm_count())
    arch = cupy.cuda.Device().compute_capability
    scan = scan_policy(types, form, arch, n, sm_count())
    tile = scan.threads * scan.rows * scan.items
    stage = tile * types.x.itemsize + 16 * len(types.x.names or " ")
    if form.segmented:
        stage += tile * beside(form) + 16
        stage += bits_bytes(types, form, scan.threads, scan.rows, scan.items)
    policy: dict[str, int | str] = scan._asdict()
    rows = form.extents.outer > 1
    policy["source"] = "FlaggedItems" if form.segmented else "RowItems" if rows else "Items"
    if form.keys is not None:
        policy["source"] = f"KeyedBy<{type_name(form.keys)}>::Items"
    policy["first"] = str((form.segmented or rows) and form.seed is not None).lower()
    stage += up_to_bytes(types, form, scan.threads, scan.rows)
    shared = scan.stages * stage
    threads = scan.threads + (scan.reducers + scan.look_ahead_warps + 1) * _LANES
    return LaunchConfig("scan", policy, tile, threads, shared, sm_count())


def fused_config(types: Types, n: int, form: Form) -> LaunchConfig | None:
    """Configure ``kernels/fused.cu``; None if a shard takes two kernels."""
    arch = cupy.cuda.Device().compute_capability
    fused = fused_policy(types, form, arch, n, sm_count())
    if fused is None:
        return None
    tile = fused.threads * fused.rows * fused.items
    stages = min(fused.stages, -(-n // (tile * sm_count())))
    shared = stages * (tile * types.x.itemsize + VECTOR)
    threads = fused.threads + 2 * _LANES
    return LaunchConfig("fused", fused._asdict(), tile, threads, shared, sm_count())


def sm_count() -> int:
    """Return the number of multiprocessors of the current GPU."""
    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])
