"""Calls that a CUDA graph has captured, and those that none can. GPU only."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.engine import cache
from support.host import host
from support.maps import maps

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank, pytest.mark.timeout(120)]

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


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_replay_is_right(form, dropped, cp, rng):
    """With new data; beside direct calls of the plan; and after the plan is gone."""
    shape, options = FORMS[form]
    plan = distscan.Plan(MPI.COMM_SELF, shape, "i", out_dtype="i", backend="cuda", **options)
    x, out = cp.zeros(shape, "i"), cp.zeros(plan.out_shape, "i")
    other = cp.asarray(rng.integers(0, 100, shape).astype("i"))
    direct = cp.zeros(plan.out_shape, "i")
    wanted = plan(other).copy()
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        assert plan(x, out) is out
        graph = stream.end_capture()
    again = None if dropped else plan
    del plan
    for turn in range(20):
        given = rng.integers(0, 100, shape).astype("i")
        with stream:
            x.set(given)
            out.fill(-1)
            for _ in range(1 + turn % 2):
                graph.launch(stream)
            if again is not None:
                again(other, direct)
        stream.synchronize()
        flat = given if options.get("axis") is not None else given.reshape(-1)
        axis = options.get("axis", 0)
        if options.get("reverse"):
            want = np.cumsum(flat[::-1], dtype="i")[::-1]
        elif options.get("exclusive"):
            want = np.cumsum(flat, dtype="i") - flat + 5
        else:
            want = np.cumsum(flat, axis=axis, dtype="i")
        np.testing.assert_array_equal(host(out), want)
        if again is not None:
            assert bool((direct == wanted).all())


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
        given, heads = rng.integers(0, 100, n), rng.random(n) < 0.01
        heads[0] = True
        with stream:
            x.set(given.astype("i"))
            marks.set((heads if keys == "?" else np.cumsum(heads)).astype(keys))
            graph.launch(stream)
        stream.synchronize()
        sums = np.cumsum(given)
        begin = np.maximum.accumulate(np.where(heads, np.arange(n), 0))
        np.testing.assert_array_equal(host(out), sums - sums[begin] + given[begin])


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
            given = maps(rng, n).astype("i")
            x.set(given)
            graph.launch(stream)
            stream.synchronize()
            np.testing.assert_array_equal(host(out), np.cumsum(given, dtype="i"))
            distscan.scan(x, comm=MPI.COMM_SELF, dtype="i")


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
