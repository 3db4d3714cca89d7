"""Sums of float32 on CPUs, which accumulate in float64; floating-point faults pass in silence."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import distscan
from distscan.core import dtypes, operators
from distscan.core.form import Extents
from distscan.cpu import chunked, library
from distscan.cpu import steps as cpu
from distscan.engine import shard_scan
from distscan.engine.array_scan import run
from distscan.mpi.agree import Agreement, Votes
from distscan.mpi.exscan import Exscan
from distscan.options import RunOptions, ScanOptions
from support import reference
from support.arrays import host
from support.cases import STRATEGIES, one_cut, pairs
from support.steps import Known

# ---- sums of float32: CPUs accumulate in float64 and round once ----------------------------------

SUM = operators.BUILTIN["sum"]
FORMS = [
    {},
    {"exclusive": True},
    {"reverse": True},
    {"initial": 2**30 + 1},  # which float32 cannot hold
    {"exclusive": True, "initial": 2**30 + 1, "reverse": True},
]


def drawn(rng, shape):
    """Numbers whose sums float64 holds exactly and float32 does not."""
    return rng.integers(-(2**23), 2**23, shape).astype("f")


# ---- what is wide, and what is not ---------------------------------------------------------


def test_types():
    def acc(op, *types):
        return dtypes.resolve(op, *types, wide=True).acc

    for op, operator in operators.BUILTIN.items():
        if not op.startswith(("bitwise", "logical")):
            assert acc(operator, "f") == ("d" if op == "sum" else "f")
            assert dtypes.resolve(operator, "f").acc == "f"
    assert acc(SUM, "F") == "F"
    assert acc(SUM, "e") == "f"
    assert acc(SUM, "l", "f") == "d"
    assert acc(SUM, "l", None, "f") == "d"
    assert acc(SUM, "f", "f", "d") == "d"
    assert acc(SUM, "f", "e", "f") == "f"
    assert acc(SUM, "b") == np.cumsum(np.zeros(0, "b")).dtype
    assert acc(distscan.Operator("plus", np.add), "f") == "f"
    assert dtypes.resolve(SUM, "f", wide=True).out == "f"


def test_no_buffer_by_default(comm):
    def strategy(code, op):
        return distscan.Plan(None, 9, code, op, backend="cpu").strategy

    if comm.size == 1:
        assert strategy("e", "sum") == "single-pass"
        return
    assert (
        strategy("f", "sum") == strategy("e", "sum") == strategy("e", "logaddexp") == "reduce-scan"
    )
    assert strategy("g", "sum") == "scan-add"  # by NumPy
    for op in ("sum", "logaddexp"):
        assert strategy("d", op) == ("reduce-scan" if library.load() else "scan-add")


# ---- ranks whose running value is narrower, as on GPUs -------------------------------------


@pytest.fixture
def narrow(comm, monkeypatch):
    """This rank's GPU, or None: every second rank has one, whose steps NumPy does."""

    def steps(kind):
        def make(op, types, form):
            assert types.acc == types.out
            return kind(op, types, form, threads=1)

        return make

    kinds = {kind.__name__: steps(kind) for kind in (cpu.ScanAdd, cpu.ReduceScan, cpu.SinglePass)}
    fake = SimpleNamespace(**kinds)
    monkeypatch.setitem(sys.modules, "distscan.cuda.steps", fake)
    monkeypatch.setattr("distscan.cuda.steps", fake, raising=False)
    return 0 if comm.rank % 2 else None


@pytest.mark.parametrize("form", FORMS)
def test_with_narrower_ranks(form, narrow, comm, cut, rng):
    """They agree; totals meet in float64, so that on CPUs every result is right to the last bit."""
    x = drawn(rng, 20011)
    mine = cut(x.size)
    for low, high in comm.allgather((mine.start, mine.stop))[1::2]:
        x[low:high] = np.rint(x[low:high] * 2.0**-18)  # whose sums float32 holds
    exact = reference.scan(np.add, x, acc=np.dtype("d"), identity=0, **form)
    options, extents = ScanOptions(SUM, **form), Extents(length=mine.stop - mine.start)
    run_options = RunOptions(strategy="reduce-scan")
    plan = shard_scan.make(extents, x.dtype, narrow, options, run_options, ranks=comm.size)
    assert plan.types.acc == ("d" if narrow is None else "f")
    assert len(set(comm.allgather(plan.terms.key))) == 1
    y = np.zeros_like(x[mine])
    with Agreement(Votes.of(comm)) as call:
        run(plan, call, x[mine], y)
    if narrow is None:
        np.testing.assert_array_equal(y, exact.astype("f")[mine])
    else:
        longest = 2 + min(len(y), chunked.CHUNK)  # chain of roundings
        assert (np.abs(y - exact[mine]) <= longest * 2.0**-24 * np.abs(exact).max()).all()


@pytest.mark.parametrize("gpu", [None, 0])
@pytest.mark.parametrize("beyond", [(), (1,), (3,), (3, 4), (0, 3)])
def test_shards_of_any_length_agree(beyond, gpu, narrow, comm):
    for axis in (None, *range(len(beyond) + 1)):
        shapes = [(n, *beyond) for n in (0, 1, 2, 7)]
        every = [Extents.of(shape, axis) for shape in shapes]
        given = np.dtype("f"), gpu, ScanOptions(SUM), RunOptions()
        plans = [shard_scan.make(each, *given, ranks=comm.size) for each in every]
        assert len({plan.terms.key for plan in plans}) == 1


def test_rows_with_narrower_ranks(narrow, comm):
    """Rows of totals are exchanged as each rank has them: CPUs and GPUs do not agree on a type."""
    given = np.dtype("f"), narrow, ScanOptions(SUM), RunOptions()
    plan = shard_scan.make(Extents.of((9, 5), 0), *given, ranks=comm.size)
    agreement = Agreement(Votes.of(comm))
    agreement.same = plan.terms
    if comm.size == 1:
        agreement.settle()
    else:
        with pytest.raises(distscan.DisagreementError, match="the dtype of totals"):
            agreement.settle()


@pytest.mark.parametrize("op", [SUM, distscan.Operator("plus", np.add)])
def test_offsets_of_narrower_ranks(op, comm):
    """They are rounded, or infinite, without a warning; whoever combines them."""
    exscan = Exscan(op, np.dtype("d"), seeds=np.dtype("f"))
    for value in (2.0**30 + 1, 3e38):
        total = np.array(value)
        with np.errstate(all="raise"):
            offset = exscan(comm, Known(total))
        if comm.rank:
            with np.errstate(over="ignore"):
                want = (comm.rank * total).astype("f")
            assert offset.dtype == "f"
            np.testing.assert_array_equal(offset, want)
    assert offset is None or comm.rank < 2 or np.isinf(offset)


# ---- np.errstate and warnings: floating-point faults pass in silence, whatever is asked of NumPy -

WILD = np.array(
    [1e308, 1e308, -np.inf, np.inf, np.nan, 5e-324, 1e-310, -1e308, 0.0, 1e20, 3.5, -2.0]
)
STRUCTURE = np.dtype([("p", "f4"), ("q", "f8")])


def drawn_errors(rng, n):
    """Draw finite numbers, large and tiny, then wild ones among them."""
    x = rng.choice([1.0, -1.0], n) * 10.0 ** rng.integers(-320, 308, n)
    return np.where(rng.random(n) < 3 / (n + 1), rng.choice(WILD, n), x)


def then(a, b):
    made = np.empty_like(b)
    made["p"] = a["p"] * b["p"]
    made["q"] = a["q"] * b["p"] + b["q"]
    return made


OWN = operators.Operator("own", lambda a, b: a * b, "a * b", identity=1)
MAPS = operators.Operator("maps", then, identity=(1, 0))


def silent(call):
    """What a call returns is the same, bit for bit, whatever NumPy is to do about faults."""
    with np.errstate(all="ignore"):
        want = call()
    for what in ("raise", "warn", "call"):  # warnings are errors in these tests
        with np.errstate(all=what, call=lambda *_: pytest.fail("called")):
            got = call()
            assert np.geterr()["over"] == what
        np.testing.assert_array_equal(host(got), host(want))


@one_cut
@pairs(
    group_by="strategy",
    op=[op for op in operators.BUILTIN if not op.startswith("bitwise")] + ["own"],
    n=[40, 9000],
    strategy=STRATEGIES,
)
def test_scan(op, n, strategy, xp, cut, rng):
    given, op = drawn_errors(rng, n)[cut(n)], OWN if op == "own" else op
    for code in "dfe" if op is not OWN else "d":
        with np.errstate(all="ignore"):
            x = xp.asarray(given.astype(code))
        first = 1e300 if code == "d" and not str(op).startswith("logical") else 1
        for form in ({}, {"exclusive": True, "initial": first}):
            silent(lambda x=x, form=form: distscan.scan(x, op, strategy=strategy, **form))
    heads = xp.asarray(rng.random(n)[cut(n)] < 0.05)
    silent(lambda: distscan.scan(x, op, segments=heads))
    silent(lambda: distscan.scan(x, op, reverse=True))


@one_cut
@pytest.mark.parametrize("shape", [(40, 3), (3, 40), (40, 700), (2, 9000)])
def test_axes(shape, strategy, xp, cut, rng):
    mine = cut(shape[0])
    x = xp.asarray(drawn_errors(rng, shape[0] * shape[1]).reshape(shape)[mine])
    silent(lambda: distscan.scan(x, "prod", axis=0))
    silent(lambda: distscan.scan(x, axis=1, exclusive=True))


@one_cut
@pytest.mark.parametrize("out", "efbiBL?")
def test_narrower_results(out, strategy, xp, cut, rng):
    """What a type cannot hold is rounded or infinite; and as an integer, whatever it is."""
    given = drawn_errors(rng, 9000)[cut(9000)]
    x, y = xp.asarray(given), xp.zeros(given.size, out)
    silent(lambda: distscan.scan(x, out=y, strategy=strategy).copy())
    silent(lambda: distscan.scan(x, "max", dtype=out, strategy=strategy))
    silent(lambda: distscan.scan(x[:50], dtype="f", out=y[:50], strategy=strategy).copy())


@one_cut
def test_initial_values(xp, cut, rng):
    x = xp.asarray(drawn_errors(rng, 40)[cut(40)].astype("d"))
    silent(lambda: distscan.scan(x, initial=np.float64(1e308)))
    silent(lambda: distscan.scan(x, dtype="f", initial=1e300))
    silent(lambda: distscan.scan(x, dtype="f", initial=np.float64(1e-300)))


@one_cut
def test_integers(strategy, xp, cut, rng):
    x = rng.integers(np.iinfo("l").min, np.iinfo("l").max, 9000)[cut(9000)]
    silent(lambda: distscan.scan(xp.asarray(x), "prod", strategy=strategy))


@one_cut
def test_complex(strategy, xp, cut, rng):
    x = np.stack([drawn_errors(rng, 900), drawn_errors(rng, 900)], -1).view("D")[cut(900), 0]
    for op in ("sum", "prod", "max"):
        silent(lambda op=op: distscan.scan(xp.asarray(x), op, strategy=strategy))


@one_cut
def test_structures(strategy, cut, rng):
    x = np.empty(9000, STRUCTURE)
    with np.errstate(all="ignore"):
        x["p"], x["q"] = drawn_errors(rng, 9000), drawn_errors(rng, 9000)
    mine = cut(9000)
    silent(lambda: distscan.scan(x[mine], MAPS, strategy=strategy)["q"])


@one_cut
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_plan(op, strategy, comm, cut, rng):
    x = drawn_errors(rng, 9000)[cut(9000)]
    plan = distscan.Plan(comm, x.size, "d", op, strategy=strategy, out_dtype="f", backend="cpu")
    silent(lambda: plan(x))

    def halves():
        plan.start(x)
        return plan.wait()

    silent(halves)
    silent(lambda: distscan.Plan(comm, x.size, "d", op, initial=1e300, out_dtype="f",
                                 exclusive=True, backend="cpu")(x))  # fmt: skip


@one_cut
def test_names(xp, cut, rng):
    x = xp.asarray(drawn_errors(rng, 900)[cut(900)])
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "nancumsum",
                 "nancumprod", "cumulative_sum", "cumulative_prod"):  # fmt: skip
        silent(lambda name=name: getattr(distscan, name)(x))


@one_cut
@pytest.mark.parametrize("code", "fde")
def test_recurrences(code, xp, cut, rng):
    mine = cut(900)
    with np.errstate(all="ignore"):
        a, b = (xp.asarray(drawn_errors(rng, 900)[mine].astype(code)) for _ in range(2))
    for initial in (None, 2.0, np.float64(1e300)):
        silent(lambda initial=initial: distscan.linear_recurrence(a, b, initial))


def test_initial_rows_of_long_doubles(cut):
    """Beyond the range of doubles."""
    a, row = np.full((9, 2), 0.5, "g")[cut(9)], np.full(2, np.finfo("g").max)
    silent(lambda: distscan.linear_recurrence(a, a, initial=row))


@one_cut
def test_compact_and_partition(xp, cut, rng):
    x = drawn_errors(rng, 900)
    mine, kept = cut(900), x > 0
    silent(lambda: distscan.compact(xp.asarray(x[mine]), xp.asarray(kept[mine]))[0])
    with np.errstate(all="ignore"):
        weights = np.abs(np.where(np.isfinite(x), x, 0)) * 1e-5
        tiny = weights * 1e-310
    for given in (weights, tiny):
        silent(lambda own=given[mine]: distscan.partition(xp.asarray(own), 3))
    if xp is np:
        long = weights.astype(np.longdouble)[mine] / 3
        silent(lambda: distscan.partition(long, 3))
