"""The tuning numbers of the kernels that compact."""

import functools
from typing import NamedTuple

from .policy import SHARED

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
