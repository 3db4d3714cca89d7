"""The recipe for dask in docs/formats.rst: blocks are scanned by distscan, in dask's threads."""

import numpy as np
import pytest
from mpi4py import MPI

array = pytest.importorskip("dask.array", reason="no dask")
import dask  # noqa: E402

import distscan  # noqa: E402

pytestmark = pytest.mark.one_rank


def block_sums(block, axis, dtype):
    return distscan.scan(block, axis=axis, dtype=dtype, comm=MPI.COMM_SELF, threads=1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_recipe(axis, rng):
    values = rng.integers(-99, 99, (60, 40, 50))
    x = array.from_array(values, chunks=(7, 20, 11))
    with dask.config.set(scheduler="threads", num_workers=4):
        y = array.reductions.cumreduction(block_sums, np.add, 0, x, axis=axis, dtype=x.dtype)
        np.testing.assert_array_equal(y, values.cumsum(axis))
