"""Sums and products of float32 and complex64: CPUs accumulate in twice the width, round once."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from conftest import two_cuts

import distscan
from distscan import dtypes, exchange, forms, local, operators
from distscan.backends import chunked, cpu
from distscan.forms import Total
from distscan.scan import run

SUM = operators.BUILTIN["sum"]
WIDE = {"f": np.dtype("d"), "F": np.dtype("D")}
FORMS = [
    {},
    {"exclusive": True},
    {"reverse": True},
    {"initial": 2**30 + 1},  # which float32 cannot hold
    {"exclusive": True, "initial": 2**30 + 1, "reverse": True},
]


def drawn(rng, shape, code="f"):
    """Numbers whose sums float64 holds exactly and float32 does not."""
    x = rng.integers(-(2**23), 2**23, shape).astype(code)
    return x + 1j * rng.integers(-(2**23), 2**23, shape).astype("f") if code == "F" else x


def rounded(x, *, axis=None, **form):
    """The exact sums, rounded once."""
    sums = reference.scan(np.add, x, axis=axis, acc=WIDE[x.dtype.char], identity=0, **form)
    return sums.astype(x.dtype)


@two_cuts
@pytest.mark.parametrize("draw", ["signed", "uniform"])
def test_each_prefix_is_rounded_once(draw, strategy, cut, rng):
    x = drawn(rng, 1 << 20) if draw == "signed" else rng.random(1 << 20, np.float32)
    exact = np.cumsum(x, dtype="d")  # also of the uniform ones: multiples of 2**-24
    assert (np.cumsum(x) != exact.astype("f")).mean() > 0.3
    mine = cut(x.size)
    y = distscan.scan(x[mine], strategy=strategy)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, exact.astype("f")[mine])


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("code", "fF")
@two_cuts
def test_forms(code, form, strategy, cut, rng):
    x = drawn(rng, 20011, code)
    mine, want = cut(x.size), rounded(x, **form)
    for dtype in (None, code):
        y = distscan.scan(x[mine], dtype=dtype, strategy=strategy, **form)
        np.testing.assert_array_equal(y, want[mine])
    y = x[mine].copy()
    assert distscan.cumsum(y, out=y, strategy=strategy, **form) is y
    np.testing.assert_array_equal(y, want[mine])
    plan = distscan.Plan(None, y.shape, x.dtype, strategy=strategy, backend="cpu", **form)
    assert (plan.types.acc, plan.types.out) == (WIDE[code], x.dtype)
    np.testing.assert_array_equal(plan(x[mine]), want[mine])
    plan.start(x[mine])
    np.testing.assert_array_equal(plan.wait(), want[mine])


@pytest.mark.parametrize("form", FORMS, ids=str)
@two_cuts
def test_segments(form, cut, rng):
    x, heads = drawn(rng, 20011), rng.random(20011) < 3e-4
    mine, want = cut(x.size), rounded(x, heads=heads, **form)
    y = distscan.scan(x[mine], segments=heads[mine], **form)
    np.testing.assert_array_equal(y, want[mine])


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(2003, 3), (300, 300)])
@two_cuts
def test_axes(shape, axis, form, cut, rng):
    x = drawn(rng, shape)
    mine, want = cut(shape[0]), rounded(x, axis=axis, **form)
    np.testing.assert_array_equal(distscan.scan(x[mine], axis=axis, **form), want[mine])


@two_cuts
def test_products(strategy, cut, rng):
    x = rng.uniform(0.5, 2, 20011).astype("f")
    x[1::2] = 1 / x[:-1:2]  # each takes back the one before it, but for its rounding
    want = np.cumprod(x, dtype="d").astype("f")
    assert (np.cumprod(x) != want).mean() > 0.3
    mine = cut(x.size)
    y = distscan.cumprod(x[mine], strategy=strategy)
    np.testing.assert_array_max_ulp(y, want[mine], 1)
    z = np.exp(1j * rng.uniform(0, 6, 20011)).astype("F")
    want = np.cumprod(z, dtype="D")
    y = distscan.cumprod(z[mine], strategy=strategy)
    assert y.dtype == z.dtype
    assert (np.abs(y - want[mine]) <= 2.0**-24 * 1.5 * np.abs(want[mine])).all()


def test_out_of_float32_and_back(strategy, cut):
    """As float16 from float32: infinite only where the sum itself is out of the range."""
    x = np.array([3e38, 3e38, -3e38, -3e38, 2e38], "f")
    mine = cut(5)
    y = distscan.scan(x[mine], strategy=strategy)
    want = np.cumsum(x, dtype="d")
    want[1] = np.inf
    np.testing.assert_array_equal(y, want.astype("f")[mine])


@pytest.mark.parametrize("code", "fF")
def test_corners(code, strategy, cut):
    mine = cut(300)
    x = np.full(300, -0.0, code)
    if code == "F":
        x.imag = -0.0
    y = distscan.scan(x[mine], strategy=strategy)
    assert np.signbit(y.real).all()
    assert np.signbit(y.imag).all() or code == "f"
    x[[100, 200]] = [np.inf, -np.inf]
    with np.errstate(invalid="ignore"):
        want = np.cumsum(x)[mine]
    y = distscan.scan(x[mine], strategy=strategy)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(np.signbit(y.real[:1]), np.signbit(want.real[:1]))


# ---- what is wide, and what is not ---------------------------------------------------------


def test_types():
    def acc(op, *types):
        return dtypes.resolve(op, *types, wide=True).acc

    for op, operator in operators.BUILTIN.items():
        if not op.startswith(("bitwise", "logical")):
            assert acc(operator, "f") == ("d" if op in ("sum", "prod") else "f")
            assert dtypes.resolve(operator, "f").acc == "f"
    assert acc(SUM, "F") == "D"
    assert acc(SUM, "e") == "f"
    assert acc(SUM, "l", "f") == "d"
    assert acc(SUM, "l", None, "f") == "d"
    assert acc(SUM, "f", "f", "d") == "d"
    assert acc(SUM, "f", "e", "f") == "f"
    assert acc(SUM, "b") == np.cumsum(np.zeros(0, "b")).dtype
    assert acc(distscan.Operator("plus", np.add), "f") == "f"
    assert dtypes.resolve(SUM, "F", wide=True).out == "F"


def test_no_buffer_by_default(comm, cut, rng):
    strategies = {
        code: distscan.Plan(None, 9, code, backend="cpu").strategy for code in ("f", "d", "e")
    }
    several = {"f": "reduce-scan", "d": "scan-add", "e": "reduce-scan"}
    assert strategies == (several if comm.size > 1 else dict.fromkeys("fde", "single-pass"))


# ---- ranks whose running value is narrower, as on GPUs -------------------------------------


@pytest.fixture
def narrow(comm, monkeypatch):
    """This rank's GPU, or None: every second rank has one, whose steps NumPy does."""

    def steps(kind):
        def make(op, types, n, form, textbook):
            assert types.acc == types.out
            return kind(op, types, n, form)

        return make

    kinds = {kind.__name__: steps(kind) for kind in (cpu.ScanAdd, cpu.ReduceScan, cpu.SinglePass)}
    fake = SimpleNamespace(**kinds)
    monkeypatch.setitem(sys.modules, "distscan.backends.cuda", fake)
    monkeypatch.setattr("distscan.backends.cuda", fake, raising=False)
    return 0 if comm.rank % 2 else None


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("shape", [(20011,), (203, 7), (9, 140_000)])
@pytest.mark.parametrize("code", "fF")
def test_with_narrower_ranks(code, shape, form, narrow, comm, cut, rng):
    """They agree; totals meet in the wider type, so that what is wide is right, to the last bit."""
    x = drawn(rng, shape, code)
    mine = cut(shape[0])
    for low, high in comm.allgather((mine.start, mine.stop))[1::2]:
        x[low:high] = np.rint(x[low:high] * 2.0**-18)  # whose sums float32 holds
    sums = np.cumsum if not form.get("reverse") else lambda x, *a: np.cumsum(x[::-1], *a)[::-1]
    exact = sums(x.astype(WIDE[code]), 0) + form.get("initial", 0)
    if form.get("exclusive"):
        exact -= x
    given = dict(form, axis=0 if len(shape) > 1 else None, ranks=comm.size, strategy="reduce-scan")
    given["initial"] = local.initial_bytes(form.get("initial"), SUM, x.dtype)
    plan = local.make((mine.stop - mine.start, *shape[1:]), x.dtype, narrow, SUM, **given)
    assert plan.types.acc == (WIDE[code] if narrow is None else code)
    assert len(set(comm.allgather(plan.terms.key))) == 1
    y = np.zeros_like(x[mine])
    run(comm, plan, x[mine], y, lambda: None)
    if narrow is None:
        np.testing.assert_array_equal(y, exact.astype(code)[mine])
    else:
        longest = 2 + min(len(y), chunked.CHUNK)  # chain of roundings
        assert (np.abs(y - exact[mine]) <= longest * 2.0**-24 * np.abs(exact).max()).all()


@pytest.mark.parametrize("shape", [(9,), (9, 5)])
def test_rows_among_gpus_alone(shape, narrow, comm):
    """Rows of totals are exchanged as GPUs have them, unless some rank may have none."""

    def exchanged(gpu, *, alike):
        axis = 0 if len(shape) > 1 else None
        return local.make(shape, np.dtype("f"), gpu, SUM, axis=axis, strategy="reduce-scan",
                          ranks=comm.size, alike=alike).exscan._messages[0].total.dtype  # fmt: skip

    assert exchanged(0, alike=False) == exchanged(None, alike=False) == np.float64
    assert exchanged(None, alike=True) == np.float64
    assert exchanged(0, alike=True) == (np.float32 if len(shape) > 1 else np.float64)


@pytest.mark.parametrize("op", [SUM, distscan.Operator("plus", np.add)], ids=lambda op: op.name)
@pytest.mark.parametrize("shape", [(), (5,)])
def test_offsets_of_narrower_ranks(op, shape, comm):
    """They are rounded, or infinite, without a warning; whoever combines them."""
    form = forms.Form(inner=shape[0] if shape else 1)
    exscan = exchange.Exscan(op, np.dtype("D"), form, seeds=np.dtype("F"))
    for value in (2**30 + 1j, 3e38 - 1j):
        total = np.full(shape, value, "D")
        with np.errstate(all="raise"):
            offset = exscan(comm, Total(total))
        if comm.rank:
            with np.errstate(over="ignore"):
                want = (comm.rank * total).astype("F")
            assert offset.dtype == "F"
            np.testing.assert_array_equal(offset, want)
    assert offset is None or comm.rank < 2 or np.isinf(offset.real).all()
