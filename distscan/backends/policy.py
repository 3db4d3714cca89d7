"""The tuning numbers of the CUDA kernels, each with the measurement it came from."""

from typing import NamedTuple


class Policy(NamedTuple):
    """How one kernel launch fills the chip."""

    threads: int  # of a block
    rows: int  # vectors of 16 bytes that each thread has in flight
    blocks: int  # resident on a multiprocessor, each with its own run of tiles
    add_blocks: int  # that share one run in the add kernel


def policy(itemsize: int) -> Policy:
    """Choose by the size of the widest element that a kernel holds, in bytes."""
    # 16 one-byte items to a vector, each in a register of its own: fewer rows, or they spill.
    return Policy(threads=256, rows=2 if itemsize == 1 else 4, blocks=4, add_blocks=4)
