"""A plan is used by one call at a time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.host import host


def test_start_and_wait_come_in_turns(planned, xp, comm):
    run = planned(2, "l")
    x = xp.arange(2)
    with pytest.raises(RuntimeError, match="not started"):
        run.wait()
    run.start(x)
    for again in (run.start, run):
        with pytest.raises(RuntimeError, match="was started"):
            again(x)
    np.testing.assert_array_equal(host(run.wait()), [comm.rank, comm.rank + 1])
    with pytest.raises(RuntimeError, match="not started"):
        run.wait()
    np.testing.assert_array_equal(host(run(x)), [comm.rank, comm.rank + 1])


def test_a_use_inside_another_is_refused():
    """As by a signal's handler, or by the operator; both the outer call and the plan go on."""
    inside = []

    def combine(a, b):
        for use in (lambda: run(x), lambda: run.start(x), run.wait, run.close):
            if len(inside) < 4:
                with pytest.raises(RuntimeError, match="in use by this thread") as raised:
                    use()
                inside.append(raised)
        return a + b

    op = distscan.Operator("uses its plan", combine)
    run, x = distscan.Plan(MPI.COMM_SELF, 3, "l", op, backend="cpu"), np.arange(3)
    for _ in range(2):
        np.testing.assert_array_equal(run(x), [0, 1, 3])
    assert len(inside) == 4


def test_threads_use_a_plan_one_after_the_other():
    within, go_on, seen = Event(), Event(), []

    def combine(a, b):
        seen.append(float(b.flat[0]))
        within.set()
        assert go_on.wait(60)
        return a + b

    op = distscan.Operator("waits", combine)
    run = distscan.Plan(MPI.COMM_SELF, 2, "d", op, backend="cpu")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, np.array([1.0, 2.0]))
        assert within.wait(60)
        second = pool.submit(run, np.array([10.0, 20.0]))
        assert seen == [2.0]
        go_on.set()
        np.testing.assert_array_equal(first.result(), [1, 3])
        np.testing.assert_array_equal(second.result(), [10, 30])
    assert seen == [2.0, 20.0]


def test_a_closed_plan_is_refused_and_closed_again_in_silence(comm):
    run = distscan.Plan(comm, 2, "d", backend="cpu")
    for _ in range(2):
        run.close()
    for use in (run, run.start):
        with pytest.raises(RuntimeError, match="closed"):
            use(np.ones(2))
    with pytest.raises(RuntimeError, match="closed"):
        run.wait()
