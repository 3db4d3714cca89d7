"""How a global array is cut into shards, one a rank."""

from collections.abc import Callable

import pytest
from mpi4py import MPI

Cut = Callable[[int], slice]

# Every cut among few ranks, the one with the most in it among many: the paths are the same.
CUTS = ["holes", "uneven", "first", "last"][: {2: 4, 3: 4, 4: 2}.get(MPI.COMM_WORLD.size, 1)]
if MPI.COMM_WORLD.size == 1:
    CUTS = ["whole"]

# For tests of many forms: empty shards between others, and among few ranks shards of any length.
two_cuts = pytest.mark.parametrize(
    "cut", CUTS[: 2 if MPI.COMM_WORLD.size < 4 else 1], indirect=True
)
one_cut = pytest.mark.parametrize("cut", CUTS[:1], indirect=True)


# For tests that take long where many ranks share few cores.
few_ranks = pytest.mark.skipif(
    MPI.COMM_WORLD.size > 4, reason="it takes long where 8 ranks share two cores"
)


def length(mine: slice) -> int:
    """How many elements this rank's slice has."""
    return mine.stop - mine.start
