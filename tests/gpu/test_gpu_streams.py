"""Plans on several streams, in CUDA graphs, and on a GPU that processes share."""

import importlib
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core import dtypes, operators
from distscan.core.form import Extents
from distscan.engine import cache, shard_scan
from distscan.options import RunOptions, ScanOptions
from support import gpu
from support.arrays import host
from support.data import exact
from support.gpu import geometry, typed
from support.operators import maps
from support.steps import of_size, whole

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


# ---- Plans used again and again, on several streams, beside other kernels ------------------------

INPUTS = 7


@pytest.fixture
def inputs(cp, rng):
    """A function of n: pairs of n numbers and their sums, on the GPU, whose work is done."""

    def draw(n, code="i"):
        pairs = []
        for _ in range(INPUTS):
            x = exact(rng, "sum", code, n)
            pairs.append((cp.asarray(x), cp.asarray(np.cumsum(x, dtype=code))))
        cp.cuda.Device().synchronize()
        return pairs

    return draw


def sizes(strategy, code="i"):
    """Of one tile, of some, and of so many that rings go round and blocks draw several times."""
    tile, blocks, stages = geometry(typed(3 * code), strategy)
    return 100, 5 * tile + 3, (stages + 2) * blocks * tile - 1


@pytest.mark.one_rank
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


@pytest.mark.one_rank
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


@pytest.mark.one_rank
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
        for plan, stream, data, out in zip(plans, streams, pairs, outs, strict=True):
            with stream:
                plan(data[turn % INPUTS][0], out[turn % INPUTS])
    cp.cuda.Device().synchronize()
    for data, out in zip(pairs, outs, strict=True):
        assert all(bool((y == want).all()) for y, (_, want) in zip(out, data, strict=True))


@pytest.mark.one_rank
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


@pytest.mark.one_rank
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
def held_up(cp, seconds):
    """Another kernel keeps every second multiprocessor, for no longer than that."""
    attributes = cp.cuda.Device().attributes
    stream = cp.cuda.Stream(non_blocking=True)
    blocks, shared = (
        attributes["MultiProcessorCount"] // 2,
        attributes["MaxSharedMemoryPerBlockOptin"],
    )
    other = gpu.Held(stream, blocks, shared, seconds)
    try:
        yield
    finally:
        other.release()
        stream.synchronize()


@pytest.mark.one_rank
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
        with held_up(cp, seconds=3):
            pass
        stream.synchronize()
        with held_up(cp, seconds=3):
            begin = time.monotonic()
            plan(x, out)
            stream.synchronize()
            took = time.monotonic() - begin
    assert bool((out == want).all())
    assert took < 2, "it waited until the other kernel ended"


# ---- Calls that a CUDA graph has captured, and those that none can -------------------------------

FORMS = {
    "long": ((1 << 22) + 3, {}),
    "short": (1 << 15, {}),
    "one": (1, {}),
    "columns": ((1 << 12, 1 << 10), {"axis": 0}),
    "walk": ((64, 300, 4096), {"axis": 1}),
    "rows": ((1 << 10, 1 << 12), {"axis": 1}),
    "reverse": ((1 << 20) + 1, {"reverse": True}),
    "exclusive": ((1 << 20) + 1, {"exclusive": True, "initial": 5}),
}


@pytest.mark.one_rank
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_replay_is_right(form, dropped, cp, rng):
    """With new data; beside direct calls of the plan; and after the plan is gone."""
    shape, options = FORMS[form]
    plan = distscan.Plan(MPI.COMM_SELF, shape, "i", out_dtype="i", backend="cuda", **options)
    x, out = cp.zeros(shape, "i"), cp.zeros(plan.out_shape, "i")
    other = cp.asarray(rng.integers(0, 100, shape).astype("i"))
    direct = cp.zeros(plan.out_shape, "i")
    expected = plan(other).copy()
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        assert plan(x, out) is out
        graph = stream.end_capture()
    direct_plan = None if dropped else plan
    del plan
    for turn in range(20):
        numbers = rng.integers(0, 100, shape).astype("i")
        with stream:
            x.set(numbers)
            out.fill(-1)
            for _ in range(1 + turn % 2):
                graph.launch(stream)
            if direct_plan is not None:
                direct_plan(other, direct)
        stream.synchronize()
        flat = numbers if options.get("axis") is not None else numbers.reshape(-1)
        axis = options.get("axis", 0)
        if options.get("reverse"):
            want = np.cumsum(flat[::-1], dtype="i")[::-1]
        elif options.get("exclusive"):
            want = np.cumsum(flat, dtype="i") - flat + 5
        else:
            want = np.cumsum(flat, axis=axis, dtype="i")
        np.testing.assert_array_equal(host(out), want)
        if direct_plan is not None:
            assert bool((direct == expected).all())


@pytest.mark.one_rank
@pytest.mark.parametrize("keys", ["?", "i", "d", "F"])
def test_segments(keys, cp, rng):
    """By flags, by keys, and by keys that no kernel compares."""
    n = 100_003
    plan = distscan.Plan(MPI.COMM_SELF, n, "i", out_dtype="i", segments=keys, backend="cuda")
    x, out, marks = cp.zeros(n, "i"), cp.zeros(n, "i"), cp.zeros(n, keys)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        plan(x, out, marks)
        graph = stream.end_capture()
    for _ in range(5):
        numbers, heads = rng.integers(0, 100, n), rng.random(n) < 0.01
        heads[0] = True
        with stream:
            x.set(numbers.astype("i"))
            marks.set((heads if keys == "?" else np.cumsum(heads)).astype(keys))
            graph.launch(stream)
        stream.synchronize()
        sums = np.cumsum(numbers)
        begin = np.maximum.accumulate(np.where(heads, np.arange(n), 0))
        np.testing.assert_array_equal(host(out), sums - sums[begin] + numbers[begin])


@pytest.mark.one_rank
def test_scan_itself(cp, rng):
    """Behind a call of the same kind, which has made what the captured one uses."""
    n = 1 << 20
    x, out = cp.zeros(n, "i"), cp.zeros(n, "i")
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        distscan.scan(x, comm=MPI.COMM_SELF, dtype="i", out=out)
        stream.synchronize()
        stream.begin_capture()
        distscan.scan(x, comm=MPI.COMM_SELF, dtype="i", out=out)
        graph = stream.end_capture()
        for _ in range(5):
            numbers = maps(rng, n).astype("i")
            x.set(numbers)
            graph.launch(stream)
            stream.synchronize()
            np.testing.assert_array_equal(host(out), np.cumsum(numbers, dtype="i"))
            distscan.scan(x, comm=MPI.COMM_SELF, dtype="i")


@pytest.mark.one_rank
@pytest.mark.parametrize("strategy", ["scan-add", "reduce-scan"])
def test_what_waits_on_the_host_is_refused(strategy, cp):
    plan = distscan.Plan(MPI.COMM_SELF, 1000, "i", strategy=strategy, backend="cuda")
    x, out = cp.ones(1000, "i"), cp.zeros(1000, "l")
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="a CUDA graph cannot capture"):
            plan(x, out)
        stream.end_capture()
        plan(x, out)  # as before
    stream.synchronize()
    np.testing.assert_array_equal(host(out), np.arange(1, 1001))


@pytest.mark.one_rank
def test_a_plan_is_not_made_inside(cp):
    cache.clear()
    stream = cp.cuda.Stream(non_blocking=True)
    x = cp.ones(1000, "i")
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        for make in (
            lambda: distscan.Plan(MPI.COMM_SELF, 1000, "i", backend="cuda"),
            lambda: distscan.scan(x, comm=MPI.COMM_SELF),
        ):
            with pytest.raises(RuntimeError, match="before the capture"):
                make()
        stream.end_capture()


@pytest.mark.one_rank
def test_away_from_a_stream_that_is_captured(cp):
    """What that was given before cannot be waited for until the capture ends."""
    stream, other = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    x, out = cp.ones(1000, "i"), cp.zeros(1000, "l")
    cp.cuda.Device().synchronize()
    with stream:
        plan = distscan.Plan(MPI.COMM_SELF, 1000, "i", backend="cuda")
        plan(x, out)
        stream.begin_capture()
    with other, pytest.raises(RuntimeError, match="is being captured"):
        plan(x, out)
    with stream:
        stream.end_capture()
    with other:
        out.fill(0)
        plan(x, out)
    other.synchronize()
    np.testing.assert_array_equal(host(out), np.arange(1, 1001))


# ---- A GPU that processes share: a kernel that waits may be switched out at any moment ---------

SECONDS = 5  # for each length of the exchange


@pytest.fixture
def hog(cp):
    """Another process takes the GPU again and again: the stress test's neighbour."""
    script = Path(__file__).parents[2] / "launch" / "tools" / "stress_device.py"
    command = [sys.executable, str(script), str(cp.cuda.Device().id)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        time.sleep(5)  # it starts CUDA
        yield
        assert process.poll() is None, "it ended early"
        process.stdin.close()


@pytest.mark.alone
@pytest.mark.one_rank
@pytest.mark.parametrize("n", [1 << 18, 1 << 23])
def test_offsets_in_time(n, hog, cp, rng):
    """An offset that the host knows to be in time is taken, whenever the kernel looks for it."""
    from distscan.cuda import steps as cuda

    x = cp.asarray(rng.integers(0, 100, n, np.int32))
    want, out = cp.cumsum(x, dtype=np.int32), cp.empty(n, np.int32)
    steps = cuda.ReduceScan(
        operators.BUILTIN["sum"], dtypes.Types(*[np.dtype("i")] * 3), of_size(n)
    )
    for pause in (0, 100e-6, 300e-6):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            out.fill(-1)
            cp.cuda.Device().synchronize()
            steps.too_late = 0  # or nothing would be launched ahead any more
            call = steps.begin(x, out, overlap=True)
            call.total()
            begin = time.perf_counter()
            while time.perf_counter() - begin < pause:
                pass
            steps.finish(call, None)
            assert bool((out == want).all())


@pytest.mark.alone
def test_ranks_share_one(comm, rng):
    """Without MPS, kernels of two ranks take turns."""
    import cupy as cp

    if comm.size == 1:
        pytest.skip("one rank shares with nobody")
    n = 1 << 20
    x = rng.integers(0, 100, (comm.size, n), np.int32)
    want = np.cumsum(x.reshape(-1), dtype=np.int32).reshape(x.shape)[comm.rank]
    with cp.cuda.Device(0):
        shard, want, out = cp.asarray(x[comm.rank]), cp.asarray(want), cp.empty(n, np.int32)
        plan = distscan.Plan(comm, n, "i", out_dtype="i", strategy="reduce-scan", backend="cuda")
        wrong = 0
        for _ in range(500):
            out.fill(-1)
            plan._scan.steps.too_late = 0  # or nothing would be launched ahead any more
            plan(shard, out)
            wrong += not bool((out == want).all())
    assert comm.allreduce(wrong, MPI.SUM) == 0
