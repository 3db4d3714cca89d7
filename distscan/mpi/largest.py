"""The largest of each of some numbers, over all ranks."""

import numpy as np

from .api import MPI
from .communicators import Comm


def largest(comm: Comm, numbers: list[int]) -> list[int]:
    """Return the largest of each number of 64 bits over all ranks; collective: ``MPI_Allreduce``.

    >>> largest(MPI.COMM_SELF, [3, -1])
    [3, -1]
    """
    found = np.array(numbers, np.int64)
    if comm.size > 1:
        comm.Allreduce(MPI.IN_PLACE, [MPI.buffer(found), found.size, MPI.INT64_T], MPI.MAX)
    return [int(number) for number in found]
