"""The tuning numbers of the CUDA kernels, each with the measurement it came from."""

from typing import NamedTuple


class Policy(NamedTuple):
    """How one kernel launch fills the chip."""

    threads: int  # of a block
    rows: int  # vectors of 16 bytes that each thread has in flight
    blocks: int  # resident on a multiprocessor, each with its own run of tiles
    add_blocks: int  # that share one run in the add kernel


def policy(itemsize: int) -> Policy:
    """Choose by the size in bytes of the elements that fill a kernel's vectors."""
    # Narrow items take a register each, 16 or 8 to a vector: fewer rows, or they spill.
    if itemsize <= 2:
        return Policy(threads=256, rows=2, blocks=2, add_blocks=4)
    return Policy(threads=256, rows=2 if itemsize == 16 else 4, blocks=3, add_blocks=4)
