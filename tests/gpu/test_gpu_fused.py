"""Strategy "fused": the GPUs of a node exchange totals themselves. Needs a GPU for each rank."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import RankError
from support.arrays import host
from support.data import OPERATORS, elements

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

SIZE = MPI.COMM_WORLD.size
KINDS = ["sum l", "sum f", "sum D", "max b", "sum e", "logaddexp f", "compose L", "nibbles B",
         "logical_or ?", "prod d"]  # fmt: skip
SIZES = [1, 1000, 70_000, 3_000_000]


@pytest.fixture(autouse=True)
def _a_gpu_for_each_rank(cp):
    if not 1 < SIZE <= cp.cuda.runtime.getDeviceCount():
        pytest.skip("needs several ranks, and a GPU for each")


def cut(rng, n, comm):
    """Deal out n elements: every rank has some."""
    ends = np.sort(rng.choice(np.arange(1, n), comm.size - 1, replace=False)) if n > 1 else []
    ends = [0, *ends, n]
    return slice(ends[comm.rank], ends[comm.rank + 1])


def on_one_rank(x, op, **options):
    return distscan.scan(x, op=op, comm=MPI.COMM_SELF, **options)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_values(kind, n, cp, comm, rng):
    """In every form, with new data in each of some calls, into poisoned memory and in place."""
    name, code = kind.split()
    op = OPERATORS.get(name, name)
    first = elements(rng, name, code, 1)[0]
    for options in ({}, {"exclusive": True, "initial": first}, {"reverse": True}):
        mine = cut(rng, n + SIZE, comm)
        length = mine.stop - mine.start
        plan = distscan.Plan(comm, length, code, op=op, strategy="fused", **options)
        assert plan.strategy == "fused"
        x, out = cp.empty(length, code), cp.empty(length, plan.types.out)
        for turn in range(4):
            shards = elements(rng, name, code, n + SIZE)
            want = on_one_rank(shards, op, **options)[mine]
            x.set(shards[mine])
            out.view(np.uint8)[...] = 0xA5
            result = plan(x, x if turn == 3 and x.dtype == out.dtype else out)
            if name == "logaddexp":
                np.testing.assert_allclose(host(result), want, rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(host(result), want)
        plan.close()


def test_ranks_that_run_ahead(cp, comm, rng):
    """Each rank in turn is late; the others queue several calls meanwhile."""
    n, calls = 5000, 40
    plan = distscan.Plan(comm, n, "l", strategy="fused")
    shards = rng.integers(0, 100, (calls, SIZE, n))
    want = np.cumsum(shards.reshape(calls, -1), axis=1).reshape(shards.shape)[:, comm.rank]
    xs = cp.asarray(shards[:, comm.rank])
    outs = cp.full((calls, n), -1, "l")
    for i in range(calls):
        if i % 5 == 0 and i // 5 % SIZE == comm.rank:
            time.sleep(0.02)
        plan(xs[i], outs[i])
    np.testing.assert_array_equal(host(outs), want)
    plan.close()


def test_a_refused_call(cp, comm, rng):
    """Its rank raises at once. Later ranks raise in a later call; then all go on."""
    n = 1000
    plan = distscan.Plan(comm, n, "l", strategy="fused")
    shards = rng.integers(0, 100, SIZE * n)
    want = np.cumsum(shards).reshape(SIZE, n)[comm.rank]
    x = cp.asarray(shards.reshape(SIZE, n)[comm.rank])
    out = cp.full(n, -1, "l")
    if comm.rank == 0:
        with pytest.raises(TypeError):
            plan(x.astype("f"), out)
    else:
        plan(x, out)
        assert (host(out) == -1).all()
        with pytest.raises(RankError, match="call 1 of this plan"):
            plan(x, out)
        np.testing.assert_array_equal(host(out), want)
    if comm.rank == 0:
        plan(x, out)
    for _ in range(5):
        np.testing.assert_array_equal(host(plan(x)), want)
    plan.close()


@pytest.mark.parametrize("asks", ["check", "close"])
def test_a_rank_that_does_not_come_in_time(asks, cp, comm, rng, monkeypatch):
    """Later ranks learn of it by ``check``; or every rank by ``close``."""
    monkeypatch.setenv("DISTSCAN_WAIT", "0.2")
    n = 1000
    plan = distscan.Plan(comm, n, "l", strategy="fused")
    x = cp.asarray(rng.integers(0, 100, n))
    out = cp.full(n, -1, "l")
    if comm.rank == 0:
        time.sleep(1)
    plan(x, out)
    cp.cuda.Device().synchronize()
    late = comm.rank > 0
    assert (host(out) == -1).all() == late
    if asks == "close":
        with pytest.raises(RankError, match="did not call in time"):
            plan.close()
        return
    if late:
        with pytest.raises(RankError, match="did not call in time"):
            plan.check()
    plan.close()


def test_a_graph(cp, comm, rng):
    """Replays with new data, among calls outside of the graph."""
    n = 100_000
    plan = distscan.Plan(comm, n, "l", strategy="fused")
    with cp.cuda.Stream(non_blocking=True) as stream:
        x, out = cp.zeros(n, "l"), cp.empty(n, "l")
        stream.begin_capture()
        plan(x, out)
        plan(out, out)
        graph = stream.end_capture()
        for turn in range(50):
            shards = rng.integers(0, 100, SIZE * n)
            once = np.cumsum(shards)
            x.set(shards.reshape(SIZE, n)[comm.rank])
            if turn % 3 == 0:
                plan(x, out)
                stream.synchronize()
                np.testing.assert_array_equal(host(out), once.reshape(SIZE, n)[comm.rank])
            graph.launch(stream)
            stream.synchronize()
            want = np.cumsum(once).reshape(SIZE, n)[comm.rank]
            np.testing.assert_array_equal(host(out), want)
    plan.close()


def test_many_plans(cp, comm, rng):
    """Side by side, and one after the other, without a leak."""
    n = 100
    x = cp.asarray(rng.integers(0, 100, n))
    offset = comm.scan(int(x.sum())) - int(x.sum())
    plans = [distscan.Plan(comm, n, "l", strategy="fused") for _ in range(8)]
    for plan in plans:
        np.testing.assert_array_equal(host(plan(x)), np.cumsum(host(x)) + offset)
    for plan in plans:
        plan.close()
    free = None
    for turn in range(60):
        plan = distscan.Plan(comm, n, "l", strategy="fused")
        plan(x)
        plan.close()
        if turn == 20:
            free = cp.cuda.runtime.memGetInfo()[0]
    comm.Barrier()
    assert abs(cp.cuda.runtime.memGetInfo()[0] - free) < 64 << 20


def test_refused_plans(cp, comm):
    for arguments, options in [
        ((0 if comm.rank == 0 else 5, "l"), {}),
        ((5, "l"), {"segments": True}),
        (((5, 3), "l"), {"axis": 0}),
        ((5, "d"), {"op": "fsum"}),
        ((5, "d"), {"agree": True}),
    ]:
        with pytest.raises(ValueError, match="fused"):
            distscan.Plan(comm, *arguments, strategy="fused", **options)
    with pytest.raises(ValueError, match="fused"):
        distscan.scan(cp.arange(5), strategy="fused")
