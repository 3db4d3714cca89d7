"""Plan: decided once, run many times."""

import gc
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import plan
from distscan.cpu import library
from distscan.engine import shard_scan
from distscan.mpi import agree
from distscan.mpi.exscan import Exscan
from support.cuts import length
from support.data import OPS, exact
from support.host import host
from support.maps import COMPOSE, maps, one_by_one

# ---- right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max", COMPOSE])
def test_other_work_meanwhile(op, planned, xp, comm, rng):
    """Other collectives, of the same communicator too, between start and wait."""
    x = maps(rng, 100 * comm.size)
    mine = slice(100 * comm.rank, 100 * comm.rank + 100)
    want = one_by_one(x) if op is COMPOSE else OPS[op].accumulate(x)
    run = planned(100, np.uint64, op)
    shard = xp.asarray(x[mine])
    run.start(shard)
    comm.Barrier()
    assert comm.allreduce(comm.rank) == sum(range(comm.size))
    np.testing.assert_array_equal(host(distscan.scan(shard, op)), want[mine])
    np.testing.assert_array_equal(host(run.wait()), want[mine])


def test_plans_interleaved(planned, xp, cut, rng):
    a, b = exact(rng, "sum", "l", 500), exact(rng, "max", "d", 700)
    sums = planned(length(cut(500)), "l", "sum")
    maxima = planned(length(cut(700)), "d", "max")
    sums.start(xp.asarray(a[cut(500)]))
    maxima.start(xp.asarray(b[cut(700)]))
    y, z = sums.wait(), maxima.wait()
    np.testing.assert_array_equal(host(y), np.cumsum(a)[cut(500)])
    np.testing.assert_array_equal(host(z), np.maximum.accumulate(b)[cut(700)])
    maxima.start(xp.asarray(b[cut(700)]))
    sums(xp.asarray(a[cut(500)]), y)
    np.testing.assert_array_equal(host(maxima.wait()), np.maximum.accumulate(b)[cut(700)])
    np.testing.assert_array_equal(host(y), np.cumsum(a)[cut(500)])


def test_more_plans_than_mpi_has_room_for_operators(comm, rng):
    """MPI can call 32 Python operators in one process; 40 plans each have one now and then."""
    x = rng.normal(size=comm.size)
    plans = [distscan.Plan(comm, 1, "d", "max", backend="cpu") for _ in range(40)]
    for run in plans:
        assert run(x[comm.rank : comm.rank + 1])[0] == x[: comm.rank + 1].max()


def test_shape_and_type_of_the_result(planned, xp, comm, rng):
    x = rng.integers(-9, 9, (2 * comm.size, 3), dtype="i2")
    mine = slice(2 * comm.rank, 2 * comm.rank + 2)
    run = planned((2, 3), "i2", out_dtype="f")
    y = run(xp.asarray(x[mine]))
    assert (y.shape, y.dtype) == ((6,), np.float32)
    np.testing.assert_array_equal(host(y), np.cumsum(x)[6 * comm.rank :][:6])


def test_what_was_decided_can_be_read(planned, xp, comm):
    run = planned((2, 3), "i2", MPI.SUM)
    assert (run.comm, run.shape, run.size) == (comm, (2, 3), 6)
    assert run.op is distscan.core.operators.BUILTIN["sum"]
    assert (run.types.x, run.types.acc, run.types.out) == (np.int16, np.int64, np.int64)
    several = "scan-add" if xp is np and library.load() is None else "reduce-scan"
    assert run.strategy == ("single-pass" if comm.size == 1 else several)
    assert repr(run) == (
        f"<distscan.Plan: sum of int16[2, 3] to int64, rank {comm.rank} of {comm.size}, "
        f"{run.strategy} on {run.backend}>"
    )


# ---- what a call does not do ---------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max"])
def test_calls_allocate_nothing(op, strategy, comm, rng):
    run = distscan.Plan(comm, 30000, "d", op, strategy=strategy, backend="cpu")
    x = rng.normal(size=30000)
    out = np.empty_like(x)

    def calls():
        for _ in range(10):
            run(x, out)
            run.start(x, out)
            run.wait()

    ours = tracemalloc.Filter(True, f"{Path(plan.__file__).parent}/*", all_frames=True)

    def held():  # on behalf of the package: other threads of the test's process allocate, too
        gc.collect()
        shot = tracemalloc.take_snapshot().filter_traces([ours])
        return sum(trace.size for trace in shot.traces)

    calls()
    tracemalloc.start(8)  # frames
    try:
        calls()
        before = held()
        begin = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        calls()
        peak = tracemalloc.get_traced_memory()[1]
        assert held() - before < 2000
    finally:
        tracemalloc.stop()
    assert peak - begin < x.nbytes / 2  # a chunk at most


def test_calls_agree_on_nothing(planned, xp, comm, monkeypatch):
    """Nothing collective but the exchange, and no plan is made."""

    def refuse(*_, **__):
        raise AssertionError("not in a call")

    watched = type("Watched", (MPI.Intracomm,), {})(comm)
    run = distscan.Plan(watched, 3, "l", backend="cpu" if xp is np else "cuda")
    out = xp.empty(3, "l")
    for name in ("Allreduce", "Iallreduce", "allreduce", "allgather", "bcast", "Barrier"):
        setattr(type(watched), name, refuse)
    monkeypatch.setattr(plan, "make", refuse)
    monkeypatch.setattr(shard_scan, "make", refuse)
    agreements = agree.Agreement(agree.Votes.of(watched)).number
    run(xp.arange(3), out)
    run.start(xp.arange(3), out)
    run.wait()
    assert agree.Agreement(agree.Votes.of(watched)).number == agreements + (
        comm.size > 1
    )  # this one
    np.testing.assert_array_equal(host(out), np.cumsum(np.arange(3)) + 3 * comm.rank)


def test_a_plan_keeps_no_arrays(xp, comm):
    """Neither a Plan nor what scan() remembers."""
    if xp is not np:
        pytest.skip("CuPy arrays take no weak references")

    class Watched(np.ndarray):
        pass

    run = distscan.Plan(comm, 5, "d", backend="cpu")
    x, out = np.arange(5.0).view(Watched), np.empty(5).view(Watched)
    watched = weakref.ref(x), weakref.ref(out)
    run(x, out)
    run.start(x, out)
    run.wait()
    distscan.scan(x, out=out)
    distscan.scan(x)
    del x, out
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_a_plan_that_is_forgotten_between_its_halves(comm):
    """MPI still writes into its buffers."""

    def exchanges():
        gc.collect()
        return {each for each in gc.get_objects() if isinstance(each, Exscan)}

    before = exchanges()
    run = distscan.Plan(comm, 3, "d", backend="cpu")
    run.start(np.ones(3))
    del run
    left = exchanges() - before
    assert len(left) == (comm.size > 1)
    if left:
        offset = left.pop().wait(comm)
        assert comm.rank == 0 or offset == 3 * comm.rank
        assert exchanges() == before


def test_ranks_with_and_without_compiled_kernels(comm, monkeypatch):
    """They choose different strategies, and exchange the same totals."""
    if comm.rank % 2:
        monkeypatch.setenv("DISTSCAN_CPU", "numpy")
    run = distscan.Plan(comm, 1000, "d", backend="cpu")
    np.testing.assert_array_equal(run(np.ones(1000)), np.arange(1, 1001) + 1000 * comm.rank)
