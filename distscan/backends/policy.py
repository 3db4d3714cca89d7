"""The tuning numbers of the CUDA kernels, each with the measurement it came from.

Measured on one NVIDIA H200 by ``python launch/tune.py``: the scan kernel of scan-add, 1 GiB on its
wider side, medians; a copy of 1 GiB takes 510 us. Rows and blocks from 2 to 4 and 128 to 512
threads lie within 5 % of these, except where a line says otherwise.
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
    if narrowest == 1:
        # 16 items to a vector, a register each: 1318 us; 1 row 1390 to 1649, 4 rows 1969; 3 blocks
        # (1242) spill on sm_90.
        return Policy(threads=256, rows=2, blocks=2, add_blocks=8)
    if narrowest == 2:
        # 722 us; 1 row 808 to 1225; 4 blocks (661) spill on sm_80.
        return Policy(threads=256, rows=2, blocks=3, add_blocks=8)
    if scanned == 16:
        # complex128: 584 us; more blocks than 3 spill (695 and up).
        return Policy(threads=256, rows=2, blocks=3, add_blocks=8)
    # float32 586 us, float64 585; 3 blocks or 512 threads 577 to 586, 4 rows 602 to 613. Widened
    # elements would like more in flight, but 4 rows spill on sm_120: int8 to int64 443 us (378),
    # float16 in float32 505 (469).
    return Policy(threads=256, rows=2, blocks=4, add_blocks=8)
