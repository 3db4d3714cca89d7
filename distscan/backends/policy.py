"""The tuning numbers of the kernels, and the measurements that they come from.

NVIDIA H200, 1 GiB of random numbers on the wider side: ``python launch/tune.py``.
"""

from typing import NamedTuple

from ..dtypes import Types
from ..forms import Form

# What one block may have of shared memory, in KiB, by compute capability (CUDA C++ Programming
# Guide, table of technical specifications); 99 for what is not listed.
_SHARED = {"80": 163, "87": 163, "90": 227, "100": 227, "103": 227, "110": 227}
_VECTOR = 16  # bytes per access


class ScanPolicy(NamedTuple):
    """How ``kernels/scan.cuh`` is cut: tiles of ``threads * rows`` vectors."""

    threads: int  # that scan; seven warps more fetch, reduce and gather
    rows: int  # vectors per thread
    slots: int  # tiles in shared memory


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

    sm_90, 1 GiB, policy (256, 6, 9): float32 538 us, float64 544, complex128 690, uint16 min 534;
    with other rows or threads 533 to 620, with fewer slots 550 to 600. int8 max (256, 5, 11) 588,
    int8 to int64 (384, 8, 12) 329 to 355. Other architectures take the same shape, as far as it
    fits.
    """
    shared = _SHARED.get(arch, 99) * 1024 - 128
    size, widening = types.out.itemsize, types.out.itemsize // types.x.itemsize
    items = max(_VECTOR // max(types.x.itemsize, size), 1)
    # A thread holds its row's running values in registers, all rows at once; what narrow integers
    # run in 32 bits is held packed.
    packed = types.acc.kind in "iu" and types.x.itemsize < types.acc.itemsize == 4
    room = 64 if not packed else 80 if arch in _SHARED else 32
    most = 8 if widening > 1 else 6
    if types.acc.itemsize < 4 and (form.exclusive or form.reverse):
        room = 32  # a register holds one byte
    running = types.acc.itemsize
    if form.segmented or form.outer > 1:  # flags beside the values
        room, most = min(room, 64 if packed else 48), 6
        running += max(types.acc.alignment, 4)
    words = items * max(types.acc.itemsize // 4, 1)
    rows = min(most, room // words)
    threads = 384 if widening >= 8 else 256
    row = threads * items * (types.x.itemsize + form.segmented)  # bytes; a flag is one
    beside = 96 + (threads // 16 + 1) * running  # barriers and totals of a slot

    def slots(rows: int) -> int:
        return int(min(shared // (row * rows + beside), 12))

    while slots(rows) < 6:
        rows -= 1

    # Few tiles: a size that leaves no multiprocessor idle in the last round, the larger of equals.
    def rounds(rows: int) -> int:
        return -(-n // (threads * items * rows * processors))

    if rounds(rows) < 16:
        choice = {rows, *(r for r in (2, 4) if r < rows)}
        if rows == 6 and words <= 4 and arch in _SHARED:
            choice.add(8)  # 2^20 float32: one tile for each of 132 multiprocessors
        rows = min(choice, key=lambda r: (rounds(r) * r, -r))
    return ScanPolicy(threads, rows, slots(rows))


def reduce_policy(types: Types, arch: str) -> ReducePolicy:
    """Choose for ``arch``."""
    # float32 254 us, int8 max 328; 512 threads, 8 rows or 8 blocks 253 to 260, int8 304 to 348.
    # Widened elements take more registers: int8 to int64 spills at 3 blocks on sm_100 and sm_120.
    widening = types.acc.itemsize // types.x.itemsize
    return ReducePolicy(
        threads=256, rows=4, blocks=4 if widening <= 1 else 3 if widening < 8 else 2
    )
