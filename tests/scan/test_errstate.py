"""np.errstate and warnings: floating-point faults pass in silence, whatever is asked of NumPy."""

import numpy as np
import pytest

import distscan
from distscan.core import operators
from support.cuts import one_cut
from support.host import host

WILD = np.array(
    [1e308, 1e308, -np.inf, np.inf, np.nan, 5e-324, 1e-310, -1e308, 0.0, 1e20, 3.5, -2.0]
)
STRUCTURE = np.dtype([("p", "f4"), ("q", "f8")])


def drawn(rng, n):
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
@pytest.mark.parametrize("n", [40, 9000])
@pytest.mark.parametrize(
    "op", [op for op in operators.BUILTIN if not op.startswith("bitwise")] + ["own"]
)
def test_scan(op, n, strategy, xp, cut, rng):
    given, op = drawn(rng, n)[cut(n)], OWN if op == "own" else op
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
    x = xp.asarray(drawn(rng, shape[0] * shape[1]).reshape(shape)[mine])
    silent(lambda: distscan.scan(x, "prod", axis=0))
    silent(lambda: distscan.scan(x, axis=1, exclusive=True))


@one_cut
@pytest.mark.parametrize("out", "efbiBL?")
def test_narrower_results(out, strategy, xp, cut, rng):
    """What a type cannot hold is rounded or infinite; and as an integer, whatever it is."""
    given = drawn(rng, 9000)[cut(9000)]
    x, y = xp.asarray(given), xp.zeros(given.size, out)
    silent(lambda: distscan.scan(x, out=y, strategy=strategy).copy())
    silent(lambda: distscan.scan(x, "max", dtype=out, strategy=strategy))
    silent(lambda: distscan.scan(x[:50], dtype="f", out=y[:50], strategy=strategy).copy())


@one_cut
def test_initial_values(xp, cut, rng):
    x = xp.asarray(drawn(rng, 40)[cut(40)].astype("d"))
    silent(lambda: distscan.scan(x, initial=np.float64(1e308)))
    silent(lambda: distscan.scan(x, dtype="f", initial=1e300))
    silent(lambda: distscan.scan(x, dtype="f", initial=np.float64(1e-300)))


@one_cut
def test_integers(strategy, xp, cut, rng):
    x = rng.integers(np.iinfo("l").min, np.iinfo("l").max, 9000)[cut(9000)]
    silent(lambda: distscan.scan(xp.asarray(x), "prod", strategy=strategy))


@one_cut
def test_complex(strategy, xp, cut, rng):
    x = np.stack([drawn(rng, 900), drawn(rng, 900)], -1).view("D")[cut(900), 0]
    for op in ("sum", "prod", "max"):
        silent(lambda op=op: distscan.scan(xp.asarray(x), op, strategy=strategy))


@one_cut
def test_structures(strategy, cut, rng):
    x = np.empty(9000, STRUCTURE)
    with np.errstate(all="ignore"):
        x["p"], x["q"] = drawn(rng, 9000), drawn(rng, 9000)
    mine = cut(9000)
    silent(lambda: distscan.scan(x[mine], MAPS, strategy=strategy)["q"])


@one_cut
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_plan(op, strategy, comm, cut, rng):
    x = drawn(rng, 9000)[cut(9000)]
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
    x = xp.asarray(drawn(rng, 900)[cut(900)])
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "nancumsum",
                 "nancumprod", "cumulative_sum", "cumulative_prod"):  # fmt: skip
        silent(lambda name=name: getattr(distscan, name)(x))


@one_cut
@pytest.mark.parametrize("code", "fde")
def test_recurrences(code, xp, cut, rng):
    mine = cut(900)
    with np.errstate(all="ignore"):
        a, b = (xp.asarray(drawn(rng, 900)[mine].astype(code)) for _ in range(2))
    for initial in (None, 2.0, np.float64(1e300)):
        silent(lambda initial=initial: distscan.linear_recurrence(a, b, initial))


def test_initial_rows_of_long_doubles(cut):
    """Beyond the range of doubles."""
    a, row = np.full((9, 2), 0.5, "g")[cut(9)], np.full(2, np.finfo("g").max)
    silent(lambda: distscan.linear_recurrence(a, a, initial=row))


@one_cut
def test_compact_and_partition(xp, cut, rng):
    x = drawn(rng, 900)
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
