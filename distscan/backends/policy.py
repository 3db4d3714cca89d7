"""The tuning numbers of the CUDA kernels, each with the measurement it came from.

Measured on one NVIDIA H200, 1 GiB on the wider side of the scan kernel, medians; a copy of 1 GiB
takes 515 us. Rows and blocks from 2 to 4 and 128 to 512 threads lie within 5 % of these, except
where a line says otherwise.
"""

from typing import NamedTuple

from ..dtypes import Types


class Policy(NamedTuple):
    """How one kernel launch fills the chip."""

    threads: int  # of a block
    rows: int  # vectors of 16 bytes that each thread has in flight
    blocks: int  # resident on a multiprocessor, each with its own run of tiles
    add_blocks: int  # that share one run in the add kernel: 1 to 8 take 565 to 590 us


def policy(types: Types) -> Policy:
    """Choose by the sizes of the elements."""
    scanned = max(types.x.itemsize, types.acc.itemsize)
    narrowest = min(scanned, max(types.acc.itemsize, types.out.itemsize))
    if narrowest <= 2:
        # 16 or 8 items to a vector, a register each. One byte: 3 blocks spill (1242 us), 4 rows
        # too (1969). Two: 3 blocks (739) and 4 (680) spill on sm_120.
        return Policy(threads=256, rows=2, blocks=2, add_blocks=8)
    if scanned == 16:
        # complex128: 588 us; more blocks than 3 spill (695 and up).
        return Policy(threads=256, rows=2, blocks=3, add_blocks=8)
    # float32: 588 us, 4 rows 602 to 613. float64 604, complex64 587. Narrow loads would like more
    # in flight, but 4 rows spill on sm_120: int8 to int64 456 (378), float16 in float32 505 (469).
    return Policy(threads=256, rows=2, blocks=4, add_blocks=8)
