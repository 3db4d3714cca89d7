"""What a process that a rank has forked may do: scan on its own, and speak for nobody."""

import os
from contextlib import nullcontext

import numpy as np
import pytest
from mpi4py import MPI

import distscan


def in_a_fork(work):
    """Run ``work`` in a forked process; return whether it ended as it should."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


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
