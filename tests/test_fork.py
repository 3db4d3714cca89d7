"""What a process that a rank has forked may do: scan on its own, and speak for nobody."""

from contextlib import nullcontext

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.forked import ended, forked


def in_a_fork(work):
    """Run ``work`` in a forked process; return whether it ended as it should."""
    return ended(forked(work)) == 0


def test_its_own_scan_is_right(comm):
    def work():
        y = distscan.scan(np.arange(5), comm=MPI.COMM_SELF)
        assert (y == [0, 1, 3, 6, 10]).all()

    distscan.scan(np.arange(5), comm=MPI.COMM_SELF)
    assert in_a_fork(work)


def test_it_is_no_rank(comm):
    def work():
        refused = pytest.raises(RuntimeError, match="forked") if comm.size > 1 else nullcontext()
        with refused:
            distscan.scan(np.arange(5), comm=comm)

    assert in_a_fork(work)
    distscan.scan(np.arange(5), comm=comm)


@pytest.mark.gpu
@pytest.mark.one_rank
def test_it_has_no_gpu(cp):
    """CUDA refuses what the forked process uses of its parent's; new plans are refused by name."""
    x = cp.arange(1000)
    plan = distscan.Plan(MPI.COMM_SELF, x.shape, x.dtype, backend="cuda")

    refused = r"forked|initialization"

    def work():
        with pytest.raises(RuntimeError, match=refused):
            plan(x)
        with pytest.raises(RuntimeError, match=refused):
            distscan.scan(x, comm=MPI.COMM_SELF)
        with pytest.raises(RuntimeError, match=refused):
            distscan.scan(x[:500], comm=MPI.COMM_SELF)
        y = distscan.scan(np.arange(5), comm=MPI.COMM_SELF)
        assert (y == [0, 1, 3, 6, 10]).all()

    for call in (plan, lambda x: distscan.scan(x, comm=MPI.COMM_SELF)):
        np.testing.assert_array_equal(call(x).get(), np.cumsum(np.arange(1000)))
    assert in_a_fork(work)
    np.testing.assert_array_equal(plan(x).get(), np.cumsum(np.arange(1000)))
