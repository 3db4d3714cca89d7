"""Plans used again and again, on several streams, beside other kernels. GPU only."""

import importlib
import time
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core import operators
from distscan.core.form import Extents
from distscan.engine import shard_scan
from distscan.options import RunOptions, ScanOptions
from support import hold
from support.data import exact
from support.host import host
from support.steps import whole
from support.tiles import geometry, typed

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank, pytest.mark.timeout(120)]

INPUTS = 7


@pytest.fixture
def inputs(cp, rng):
    """A function of n: pairs of n numbers and their sums, on the GPU, whose work is done."""

    def draw(n, code="i"):
        found = []
        for _ in range(INPUTS):
            x = exact(rng, "sum", code, n)
            found.append((cp.asarray(x), cp.asarray(np.cumsum(x, dtype=code))))
        cp.cuda.Device().synchronize()
        return found

    return draw


def sizes(strategy, code="i"):
    """Of one tile, of some, and of so many that rings go round and blocks draw several times."""
    tile, blocks, stages = geometry(typed(3 * code), strategy)
    return 100, 5 * tile + 3, (stages + 2) * blocks * tile - 1


@pytest.mark.parametrize("first", [1, (1 << 30) - 500])
@pytest.mark.parametrize("size", range(3))
def test_a_thousand_calls(size, first, strategy, cp, inputs, rng, monkeypatch):
    """New data, offsets and addresses each time; the calls' epochs wrap in between."""
    from distscan.cuda import workspace

    monkeypatch.setattr(workspace, "calls", workspace.numbers(first))
    n = sizes(strategy)[size]
    steps = shard_scan.make(
        Extents(length=n), np.dtype("i"), cp.cuda.Device().id,
        ScanOptions(operators.BUILTIN["sum"], dtype=np.dtype("i")), RunOptions(strategy=strategy),
        ranks=1,
    ).steps  # fmt: skip
    pairs, last = inputs(n), []
    x, out, wrong = cp.empty(n + 4, "i"), cp.empty(n + 4, "i"), cp.zeros((), "l")
    totals = [int(want[-1]) for _, want in pairs]
    for turn in range(1000):
        data, want = pairs[turn % INPUTS]
        shard = x[turn % 3 :][:n]
        shard[...] = data
        target = shard if turn % 11 == 0 else out[turn % 4 :][:n]
        offset = None if turn % 3 == 0 else np.int32(rng.integers(-(2**31), 2**31))
        call = whole(steps, shard, target, None if offset is None else np.array(offset))
        wrong += (target != (want if offset is None else want + offset)).any()
        last.append(call.empty or int(call.total()) == totals[turn % INPUTS])
    assert int(wrong) == 0
    assert all(last)


def test_one_plan_on_two_streams(strategy, cp, inputs):
    """A plan has one workspace: its later use waits for the earlier one, whatever the streams."""
    n = sizes(strategy)[2]
    plan = distscan.Plan(MPI.COMM_SELF, n, "i", out_dtype="i", strategy=strategy, backend="cuda")
    pairs, outs = inputs(n), [cp.empty(n, "i") for _ in range(30)]
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    busy = [cp.zeros(1 << 24, "i") for _ in streams]
    cp.cuda.Device().synchronize()
    for turn, out in enumerate(outs):
        with streams[turn % 2]:
            for _ in range(turn % 5):
                busy[turn % 2] += 1
            plan(pairs[turn % INPUTS][0], out)
    cp.cuda.Device().synchronize()
    assert all(bool((out == pairs[i % INPUTS][1]).all()) for i, out in enumerate(outs))


@pytest.mark.parametrize("priority", [0, -1])
def test_two_plans_at_the_same_time(priority, strategy, cp, inputs):
    """Blocks of two scans share the chip in any mixture, and neither waits for the other."""
    pairs, plans, streams, outs = [], [], [], []
    for n, each in zip(sizes(strategy)[1:], (0, priority), strict=True):
        pairs.append(inputs(n))
        plans.append(
            distscan.Plan(MPI.COMM_SELF, n, "i", out_dtype="i", strategy=strategy, backend="cuda")
        )
        streams.append(cp.cuda.Stream(non_blocking=True, priority=each))
        outs.append([cp.zeros(n, "i") for _ in range(INPUTS)])
    cp.cuda.Device().synchronize()
    for turn in range(300):
        for plan, stream, given, out in zip(plans, streams, pairs, outs, strict=True):
            with stream:
                plan(given[turn % INPUTS][0], out[turn % INPUTS])
    cp.cuda.Device().synchronize()
    for given, out in zip(pairs, outs, strict=True):
        assert all(bool((y == want).all()) for y, (_, want) in zip(out, given, strict=True))


def test_same_bits_on_every_run(strategy, cp, rng):
    """Floats that round at every step; alone, and beside work that moves the blocks about."""
    n = sizes(strategy, "f")[2]
    x, other = cp.asarray(rng.normal(size=n).astype("f")), cp.cuda.Stream(non_blocking=True)
    busy = cp.zeros(1 << 24, "i")
    plan = distscan.Plan(MPI.COMM_SELF, n, "f", strategy=strategy, backend="cuda")
    first = plan(x).view("I")
    cp.cuda.Device().synchronize()
    for run in range(20):
        with other:
            for _ in range(run % 4):
                busy += 1
        assert bool((plan(x).view("I") == first).all()), run
    np.testing.assert_allclose(
        host(first).view("f"), np.cumsum(host(x), dtype="d"), rtol=0, atol=1e-7 * n
    )


def test_interrupted_behind_a_launch(cp, monkeypatch):
    """The next stream waits for a call that an interrupt has kept from its end."""
    steps = importlib.import_module("distscan.cuda.steps")
    n, streams = 1 << 24, [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
    x, out, busy = cp.ones(n, "i"), cp.zeros(n, "i"), cp.empty(1 << 28, "b")
    plan = distscan.Plan(MPI.COMM_SELF, n, "i", out_dtype="i", backend="cuda")
    cp.cuda.Device().synchronize()
    for stream in streams[:2]:  # from the second stream on, uses end with an event
        with stream:
            plan(x, out)
    launch = steps.launch

    def interrupted(*args):
        launch(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "launch", interrupted)
    with streams[1]:
        for _ in range(50):
            busy.fill(1)  # so that the scan waits
        with pytest.raises(KeyboardInterrupt):
            plan(x, out)
    monkeypatch.setattr(steps, "launch", launch)
    last = plan._scan.steps.work.last
    assert not last.recorded
    with streams[2]:
        plan(x, out)
        streams[2].synchronize()
    assert streams[1].done
    np.testing.assert_array_equal(out.get(), np.arange(1, n + 1))


@contextmanager
def held(cp, seconds):
    """Another kernel keeps every second multiprocessor, for no longer than that."""
    attributes = cp.cuda.Device().attributes
    stream = cp.cuda.Stream(non_blocking=True)
    blocks, shared = (
        attributes["MultiProcessorCount"] // 2,
        attributes["MaxSharedMemoryPerBlockOptin"],
    )
    other = hold.Held(stream, blocks, shared, seconds)
    try:
        yield
    finally:
        other.release()
        stream.synchronize()


@pytest.mark.alone
def test_beside_a_kernel_that_does_not_end(strategy, cp, inputs):
    """Not every block can start: those that have must not wait for those that have not."""
    n = sizes(strategy)[2]
    plan = distscan.Plan(MPI.COMM_SELF, n, "i", out_dtype="i", strategy=strategy, backend="cuda")
    (x, want), *_ = inputs(n)
    stream = cp.cuda.Stream(non_blocking=True)
    out = cp.zeros(n, "i")
    with stream:
        plan(x, out)  # loads its kernels, which could wait for the other kernel
        out[...] = 0
        with held(cp, seconds=3):
            pass
        stream.synchronize()
        with held(cp, seconds=3):
            begin = time.monotonic()
            plan(x, out)
            stream.synchronize()
            took = time.monotonic() - begin
    assert bool((out == want).all())
    assert took < 2, "it waited until the other kernel ended"
