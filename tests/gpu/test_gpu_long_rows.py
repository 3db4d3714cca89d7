"""Long rows of totals, in pieces between GPUs and hosts. GPU only."""

import numpy as np
import pytest

import distscan
from distscan.core import dtypes, form, operators
from distscan.engine import cache
from support.cuts import two_cuts
from support.data import exact
from support.forms import FORMS
from support.host import host
from support.maps import COMPOSE, maps
from support.steps import of_size

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

WIDTHS = [2, 1023, 1024, 1025, 5000]


@pytest.fixture
def small(monkeypatch):
    """Pieces of 8 KiB, and no plans of whole rows."""
    monkeypatch.setattr(form, "PIECE", 8192)
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def busy(cp, rng):
    """What keeps the GPU at work for a while, so that all that is queued behind it is late."""
    x = cp.asarray(rng.random((3000, 3000)))
    return lambda: x @ x


def layered(x, exclusive, initial, reverse):
    """Compose one row behind the other."""
    y, before = np.empty_like(x), None if initial is None else np.full_like(x[0], initial)
    for i in reversed(range(len(x))) if reverse else range(len(x)):
        after = x[i] if before is None else COMPOSE.numpy(before, x[i])
        y[i] = after if not exclusive else COMPOSE.identity(x.dtype) if before is None else before
        before = after
    return y


@two_cuts
@pytest.mark.parametrize("form", FORMS)
def test_order_is_kept(form, small, busy, cp, cut, rng):
    form = form | {"initial": form["initial"] and int(maps(rng, 1)[0])}
    for width in WIDTHS:
        mine = cut(11)
        for _ in range(3):
            x = maps(rng, 11 * width).reshape(11, width)
            want = layered(x, **form)[mine]
            shard = cp.asarray(x[mine])
            busy()
            y = distscan.scan(shard, COMPOSE, axis=0, strategy="reduce-scan", **form)
            busy()
            distscan.scan(shard, COMPOSE, axis=0, strategy="reduce-scan", out=shard, **form)
            np.testing.assert_array_equal(host(y), want)
            np.testing.assert_array_equal(host(shard), want)


@pytest.mark.parametrize("op", ["sum", "logaddexp"])
def test_started(op, small, busy, cp, cut, rng):
    """One plan in both ways, again and again, while the GPU has other work."""
    mine = cut(20)
    shape = mine.stop - mine.start, 5000
    plan = distscan.Plan(None, shape, "f", op, axis=0, strategy="reduce-scan", backend="cuda")
    for _ in range(5):
        x = rng.integers(-9, 9, (20, 5000)).astype("f")
        want = operators.BUILTIN[op].numpy.accumulate(x, 0, dtype="d")[mine]
        shard = cp.asarray(x[mine])
        busy()
        plan.start(shard)
        busy()
        waited = plan.wait()
        busy()
        called = plan(shard)
        for y in (waited, called):
            np.testing.assert_allclose(host(y), want, rtol=1e-5, atol=1e-5)


@pytest.mark.one_rank
@pytest.mark.parametrize("codes", ["d", "f", "e", "h", "?"])
def test_pieces_of_a_megabyte(codes, busy, cp, rng):
    """Totals and offsets of two shards, one behind the other; nothing crosses ranks."""
    from distscan.cuda import steps as cuda

    op = operators.BUILTIN["sum" if codes != "h" else "max"]
    types = dtypes.resolve(op, np.dtype(codes))
    inner = int(9.5 * form.longest_piece(types.acc))  # more than have a place on the host
    x = exact(rng, op.name, codes, 6 * inner).reshape(inner, 6).T.copy()
    want = op.numpy.accumulate(x, 0, dtype=types.acc).astype(types.out)
    steps = cuda.ReduceScan(op, types, of_size(3, inner=inner))
    behind = None
    for half in (slice(0, 3), slice(3, 6)):
        shard, out = cp.asarray(x[half].reshape(-1)), steps.empty()
        busy()
        call = steps.begin(shard, out)
        total = np.empty(inner, types.acc)
        for piece in form.Pieces(inner, types.acc):
            total[piece] = call.total(piece)
            call.put(piece, None if behind is None else behind[piece])
        busy()
        steps.finish(call, call.offset)
        np.testing.assert_array_equal(host(out).reshape(3, inner), want[half])
        behind = total
    np.testing.assert_array_equal(behind, op.numpy.reduce(x[3:], 0, dtype=types.acc))


def test_recurrences(small, busy, cp, cut, rng):
    """Structures."""
    n, width = 12, 2000
    a, b = (rng.integers(-2, 3, (n, width)).astype("f") for _ in range(2))
    mine, h = cut(n), np.zeros(width, "f")
    want = np.empty_like(b)
    for i in range(n):
        want[i] = h = a[i] * h + b[i]
    for _ in range(3):
        busy()
        y = distscan.linear_recurrence(cp.asarray(a[mine]), cp.asarray(b[mine]))
        np.testing.assert_array_equal(host(y), want[mine])
