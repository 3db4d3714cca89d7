"""Calls on one rank that repeat the last one, among others: what is kept of a call must not be used
for a call that differs."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.arrays import host

pytestmark = pytest.mark.timeout(120)

STEPS = 150
POISON = -77


def draw(xp, rng, n):
    return xp.asarray(rng.integers(-1000, 1000, n))


@pytest.mark.parametrize("n", [0, 5, 300_000])
@pytest.mark.parametrize("options", [{}, {"exclusive": True, "initial": 3}, {"reverse": True}])
def test_calls_of_a_plan(n, options, xp, rng):
    """Pairs of arrays in turn, in place, without ``out``, refused, and in two halves."""
    backend = "cpu" if xp is np else "cuda"
    plan = distscan.Plan(MPI.COMM_SELF, n, np.int64, backend=backend, **options)
    pairs = [(draw(xp, rng, n), xp.empty(n, np.int64)) for _ in range(3)]
    pair = pairs[0]
    for _ in range(STEPS):
        if rng.random() < 0.4:
            pair = pairs[rng.integers(3)]
        x, out = pair
        x[...] = draw(xp, rng, n)
        out[...] = POISON
        want = scanned(host(x), **options)
        way = rng.choice(["call"] * 6 + ["in place", "new", "refused", "halves", "foreign"])
        if way == "refused":
            with pytest.raises(TypeError):
                plan(x, out.astype(np.float32))
            assert (host(out) == POISON).all()
            continue
        if way == "halves":
            plan.start(x, out)
            result = plan.wait()
        elif way == "foreign":  # of another call's memory, which is freed
            result = plan(x.copy(), out)
        else:
            result = plan(x, {"in place": x, "new": None}.get(way, out))
        assert (host(result) == want).all(), way
    plan.close()


@pytest.mark.parametrize("n", [0, 5, 300_000])
@pytest.mark.parametrize("options", [{}, {"exclusive": True, "initial": 3}, {"reverse": True}])
def test_calls_of_scan(n, options, xp, rng):
    """Arrays of one kind: the same, others, strided, and those that share memory."""
    long = xp.empty(2 * n + 8, np.int64)
    arrays = {
        "same": (xp.empty(n, np.int64), xp.empty(n, np.int64)),
        "other": (xp.empty(n, np.int64), xp.empty(n, np.int64)),
        "shifted": (long[:n], long[3 : n + 3]),
        "strided": (long[: 2 * n : 2], xp.empty(n, np.int64)),
        "into strides": (xp.empty(n, np.int64), long[: 2 * n : 2]),
        "upside down": (long[:n][::-1], xp.empty(n, np.int64)),
    }
    how = "same"
    for _ in range(STEPS):
        if rng.random() < 0.4:
            how = rng.choice(list(arrays))
        x, out = arrays[how]
        if xp is np:
            x.flags.writeable = True
        out[...] = POISON
        x[...] = draw(xp, rng, n)
        want = scanned(host(x), **options)
        if xp is np and how == "same" and rng.random() < 0.2:
            out.flags.writeable = False
            with pytest.raises(ValueError, match="read-only"):
                distscan.scan(x, out=out, comm=MPI.COMM_SELF, **options)
            out.flags.writeable = True
            assert (out == POISON).all()
            continue
        given = list(x) if xp is np and n == 5 and rng.random() < 0.2 else x
        assert distscan.scan(given, out=out, comm=MPI.COMM_SELF, **options) is out
        assert (host(out) == want).all(), how


def test_a_call_that_sees_an_element_outside_of_the_window(xp, rng):
    backend = "cpu" if xp is np else "cuda"
    window = {"op": "fsum", "window": (0, 8), "initial": 0.0, "backend": backend}
    plan = distscan.Plan(MPI.COMM_SELF, 1000, np.float64, **window)
    x, out = xp.asarray(rng.integers(0, 255, 1000).astype(float)), xp.empty(1000)
    for element, fits in [(1.0, True), (1.0, True), (256.0, False), (2.0, True), (0.5, False)]:
        x[500] = element
        if fits:
            assert (host(plan(x, out)) == np.cumsum(host(x))).all()
        else:
            with pytest.raises(ValueError, match="window"):
                plan(x, out)


def scanned(x, *, exclusive=False, initial=0, reverse=False):
    x = x[::-1] if reverse else x
    y = np.cumsum(x, dtype=np.int64) + initial
    if exclusive:
        y = y - x
    return y[::-1] if reverse else y
