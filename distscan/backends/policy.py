"""The tuning numbers of the kernels, and the measurements that they come from.

NVIDIA H200, 1 GiB of random numbers on the wider side: ``python launch/tune.py``.
"""

from typing import NamedTuple

from ..dtypes import Types

# What one block may have of shared memory, in KiB, by compute capability (CUDA C++ Programming
# Guide, table of technical specifications); 99 for what is not listed.
_SHARED = {"80": 163, "87": 163, "90": 227, "100": 227, "103": 227, "110": 227}
_BESIDE = 2560  # bytes of shared memory for barriers and totals
_VECTOR = 16  # bytes per access


class ScanPolicy(NamedTuple):
    """How ``kernels/scan.cuh`` is cut: tiles of ``threads * rows`` vectors."""

    threads: int  # that scan; seven warps more fetch, reduce and gather
    rows: int  # vectors per thread
    slots: int  # tiles in shared memory


class ReducePolicy(NamedTuple):
    """How ``kernels/reduce.cuh`` is cut."""

    threads: int
    rows: int  # vectors per lane in flight
    blocks: int  # per multiprocessor


ADD_THREADS = 256  # a vector each: a copy in this form runs at the speed of the driver's


def scan_policy(types: Types, arch: str) -> ScanPolicy:
    """Choose for ``arch``, a compute capability such as "90"."""
    shared = _SHARED.get(arch, 99) * 1024 - _BESIDE
    size, widening = types.out.itemsize, types.out.itemsize // types.x.itemsize
    rows = 8 if widening > 1 else 7 if size == 16 else 6
    items = max(_VECTOR // max(types.x.itemsize, size), 1)
    for threads in (384, 256, 128) if widening >= 8 else (256, 128):
        slots = shared // (threads * rows * items * types.x.itemsize + 16)
        if slots >= 6:
            break
    return ScanPolicy(threads, rows, min(slots, 12))


def reduce_policy(types: Types, arch: str) -> ReducePolicy:
    """Choose for ``arch``."""
    return ReducePolicy(threads=256, rows=4, blocks=4)
