"""Every operator, type, form and call, however the array is dealt out, against the definition."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.arrays import LAYOUTS, host
from support.cases import CUTS, FORMS, STRATEGIES, pairs, two_cuts
from support.data import CODES, HOST_CODES, OPERATORS, OPS, TYPES, elements, exact, initial_of
from support.reference import CALLS, UFUNCS, check, types_of, wanted


def drawn_form(rng, op, form, acc):
    """A form with an initial value that the type has, if it has one."""
    return form | {"initial": None if form["initial"] is None else initial_of(rng, op, acc)}


def tolerance(op, n, acc):
    """Only exponentials round."""
    return n * np.finfo(acc).eps if op == "logaddexp" else None


@pairs(
    lambda case: case["code"] in TYPES[case["op"]],
    group_by="op",
    indirect=["cut"],
    op=[*OPERATORS],
    code=CODES,
    n=[0, 1, 2, 33, 503, 2049],
    form=FORMS,
    call=CALLS,
    layout=["contiguous", *list(LAYOUTS)[3:]],
    strategy=STRATEGIES,
    cut=CUTS,
)
def test_every_type(op, code, n, form, call, layout, strategy, xp, cut, rng):
    x = elements(rng, op, code, n)
    acc, result = types_of(OPERATORS[op], x.dtype)
    form = drawn_form(rng, op, form, acc)
    check(x, OPERATORS[op], xp=xp, cut=cut, call=call, layout=layout, strategy=strategy,
          close=tolerance(op, n, result), **form)  # fmt: skip


SHAPES = [(50,), (7, 5), (40, 1), (1, 40), (2, 3, 4), (5, 300), (3, 1, 2, 2), (9, 0), (0, 4),
          (4, 0, 3), (11, 6), (5, 4, 3), (2003, 3), (300, 300)]  # fmt: skip


@pairs(
    lambda case: (
        (case["axis"] is None or -len(case["shape"]) <= case["axis"] < len(case["shape"]))
        and case["code"] in TYPES[case["op"]]
    ),
    group_by="shape",
    indirect=["cut"],
    shape=SHAPES,
    axis=[None, 0, 1, 2, -1, -2],
    op=["sum", "compose", "prod", "max", "min", "squares", "logical_xor", "bitwise_or"],
    code="?beLlfdD",
    form=FORMS,
    call=CALLS,
    layout=[*LAYOUTS],
    cut=CUTS,
    strategy=STRATEGIES,
)
def test_every_axis(shape, axis, op, code, form, call, layout, strategy, xp, cut, rng):
    x = elements(rng, op, code, int(np.prod(shape))).reshape(shape)
    form = drawn_form(rng, op, form, types_of(OPERATORS[op], x.dtype)[0])
    check(x, OPERATORS[op], xp=xp, cut=cut, call=call, layout=layout, strategy=strategy, axis=axis,
          **form)  # fmt: skip


# Of x and of the result; those of dtype= accumulate.
OTHER_TYPES = ["id", "Hf", "df", "ie", "?i", "lb", "Fd", "fF", "ef", "eF", "Fe", "f?"]
OUT_TYPES = ["dl", "fb", "Dd", "Ff", "ld", "bh", "?l", "hb", "eb", "de", "Di", "bb", "ff"]


@pytest.mark.parametrize(
    ("codes", "by"),
    [*((codes, "dtype") for codes in OTHER_TYPES), *((codes, "out") for codes in OUT_TYPES)],
)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_other_types_of_sums(codes, by, xp, cut, rng):
    x = rng.integers(0, 2 if codes[0] == "?" else 5, 501).astype(codes[0])
    x = x / 2 if codes[0] in "fd" and by == "out" else x  # fractions are cut at the end
    for strategy in STRATEGIES:
        check(x.astype(codes[0]), xp=xp, cut=cut, strategy=strategy, **{by: codes[1]})


@pairs(
    group_by="op",
    op=[("halves", None, "u4"), ("halves", "u8", "u8"), ("halves", "u8", "u4"),
        ("nibbles", None, "u1"), ("nibbles", "u8", "u2")],
    n=[1, 31, 2049, 40000],
    form=FORMS,
    strategy=STRATEGIES,
)  # fmt: skip
@two_cuts
def test_order_is_kept_in_other_types(op, n, form, strategy, xp, cut, rng):
    """Running values wider than x, results narrower than those."""
    name, dtype, out = op
    x = elements(rng, name, "I" if name == "halves" else "B", n)
    form = drawn_form(rng, name, form, x.dtype)
    check(x, OPERATORS[name], xp=xp, cut=cut, dtype=dtype, out=out, strategy=strategy, **form)


@pytest.mark.parametrize("n", [16384, 50001])
def test_sizes(n, strategy, xp, cut, rng):
    check(exact(rng, "sum", "f", n), xp=xp, cut=cut, call="out", strategy=strategy)


@pairs(
    group_by="op",
    op=[*OPS, "logical_and", "logical_or", "logical_xor"],
    code=HOST_CODES.removeprefix(CODES),
    strategy=STRATEGIES,
)
def test_long_doubles(op, code, strategy, cut, rng):
    check(elements(rng, op, code, 3001), op, cut=cut, strategy=strategy)


@two_cuts
@pairs(
    shape=[(20000, 3), (3, 20000), (60, 30, 40), (3, 3000, 5), (70, 1100)],
    reverse=[False, True],
    strategy=STRATEGIES,
)
def test_many_chunks(shape, reverse, strategy, xp, cut, rng):
    """Of rows, of columns, of both; in place and not."""
    x = elements(rng, "compose", "L", int(np.prod(shape))).reshape(shape)
    for axis in range(len(shape)):
        for call in ("scan", "in place"):
            check(x, OPERATORS["compose"], xp=xp, cut=cut, call=call, axis=axis, reverse=reverse,
                  strategy=strategy)  # fmt: skip


# ---- what only one combination reaches -----------------------------------------------------------


@two_cuts
@pairs(group_by="op", op=["sum", "prod"], code="fdFD", strategy=STRATEGIES)
def test_rounding(op, code, strategy, xp, cut, rng):
    """Real data: as close to the true value as the chain of roundings allows."""
    x = rng.uniform(0.9, 1.1, 5001).astype(code)
    if np.dtype(code).kind == "c":
        x = (x * np.exp(1j * rng.normal(size=x.size))).astype(code)
    mine = cut(x.size)
    y = host(distscan.scan(xp.asarray(x[mine]), op, strategy=strategy))
    wide = np.result_type(code, np.longdouble)
    if op == "sum":
        want, size = np.cumsum(x, dtype=wide), np.cumsum(np.abs(x).astype(wide))
    else:
        want = np.cumprod(x, dtype=wide)
        size = np.abs(want)
    # n roundings of half an ulp each, and four to a complex product.
    bound = x.size * (4 if op == "prod" else 1) * np.finfo(code).eps / 2 * size
    assert np.all(np.abs(y - want[mine]) <= bound[mine])


@two_cuts
@pytest.mark.parametrize("draw", ["signed", "uniform"])
def test_each_prefix_of_float32_is_rounded_once(draw, strategy, cut, rng):
    """CPUs add in float64, which holds these sums; float32 does not."""
    n = 1 << 20
    x = rng.integers(-(2**23), 2**23, n).astype("f")
    x = x if draw == "signed" else rng.random(n, np.float32)  # multiples of 2**-24
    assert (np.cumsum(x) != np.cumsum(x, dtype="d").astype("f")).mean() > 0.3
    check(x, cut=cut, strategy=strategy)


@two_cuts
@pairs(group_by="call", form=FORMS, call=["scan", "in place", "start"], strategy=STRATEGIES)
def test_forms_of_float32(form, call, strategy, cut, rng):
    """The same with an initial value that float32 cannot hold; of segments and axes, too."""
    x, heads = rng.integers(-(2**23), 2**23, 6000).astype("f"), rng.random(6000) < 3e-3
    form = form | {"initial": form["initial"] and 2**30 + 1}
    check(x, cut=cut, call=call, strategy=strategy, **form)
    check(x, cut=cut, call=call, segments=heads, **form)
    for shape, axis in (((2000, 3), 0), ((60, 100), 0), ((60, 100), 1)):
        check(x.reshape(shape), cut=cut, call=call, axis=axis, **form)


def test_out_of_float32_and_back(strategy, cut):
    """As float16 from float32: infinite only where the sum itself is out of the range."""
    check(np.array([3e38, 3e38, -3e38, -3e38, 2e38], "f"), cut=cut, strategy=strategy)
    check(np.array([6e4, 6e4, -6e4, -6e4, 4e4], "e"), cut=cut, strategy=strategy)


@two_cuts
@pairs(group_by="code", form=FORMS, code="efdD", strategy=STRATEGIES)
def test_nan_infinity_and_negative_zero(code, form, strategy, xp, cut):
    """The identity of a sum is -0.0: an empty shard must not turn -0.0 into 0.0."""
    x = np.full(300, complex(-0.0, -0.0) if code == "D" else -0.0, code)
    form = form | {"initial": form["initial"] and x[0].item()}
    check(x, xp=xp, cut=cut, strategy=strategy, signs=True, **form)
    if code == "D":
        return
    x[[100, 200]] = [np.inf, -np.inf]
    check(x, xp=xp, cut=cut, strategy=strategy, signs=True, **form)


@pairs(group_by="op", op=OPS, code="efdFD", strategy=STRATEGIES)
def test_nan_and_infinity(op, code, strategy, xp, cut, rng):
    """Nothing before a NaN is touched; everything behind it is NaN."""
    x = exact(rng, op, code, 400)
    x[[100, 200, 300]] = [np.inf, -np.inf if op == "sum" else np.inf, np.nan]
    mine, want = cut(x.size), wanted(x, op)
    y, want = host(distscan.scan(xp.asarray(x[mine]), op, strategy=strategy)), want[mine]
    if op == "prod" and code in "FD":  # once infinite, parts become NaN by order of association
        early = slice(0, max(0, min(len(y), 100 - mine.start)))
        y, want = y[early], want[early]
    if code in "FD":
        np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
        y, want = y[~np.isnan(want)], want[~np.isnan(want)]
    np.testing.assert_array_equal(y, want)


@pairs(op=["max", "min"], nan=[complex(0, np.nan), complex(np.nan, 5)], strategy=STRATEGIES)
def test_half_a_nan(op, nan, strategy, xp, cut, rng):
    """A complex number is NaN if either part is."""
    x = exact(rng, op, "D", 300)
    x[[120, 121]] = [nan, 99 if op == "max" else -99]
    check(x, op, xp=xp, cut=cut, strategy=strategy)


def test_float16_accumulates_in_float32(strategy, xp, cut):
    """60000 - 60000 + ... leaves float16's range on the way, but no result does."""
    x = np.tile(np.array([60000, 60000, -60000, -60000], "e"), 100)[1:]
    assert np.isfinite(wanted(x)).all()
    check(x, xp=xp, cut=cut, strategy=strategy)


@pytest.mark.parametrize("code", "edD")
def test_exclusive_sums_begin_with_zero(code, xp, cut):
    """With 0.0, as NumPy's add has it; -0.0 equals it, but would be printed."""
    check(np.ones(9, code), xp=xp, cut=cut, exclusive=True, signs=True)


def test_same_bits_again(strategy, xp, cut, rng):
    mine = xp.asarray(rng.normal(size=30011).astype("f")[cut(30011)])
    first, second = (host(distscan.scan(mine, strategy=strategy)).tobytes() for _ in range(2))
    assert first == second


def test_an_exclusive_scan_is_the_inclusive_one_moved(rng):
    """To the last bit, also where float64 rounds."""
    x = rng.random(20000)
    y = distscan.scan(x, comm=MPI.COMM_SELF)
    z = distscan.scan(x, comm=MPI.COMM_SELF, exclusive=True)
    np.testing.assert_array_equal(z[1:], y[:-1])


SPELLINGS = {
    "sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN, "bitwise_and": MPI.BAND,
    "bitwise_or": MPI.BOR, "bitwise_xor": MPI.BXOR, "logical_and": MPI.LAND,
    "logical_or": MPI.LOR, "logical_xor": MPI.LXOR,
}  # fmt: skip
NAMED = {"sum": distscan.cumsum, "prod": distscan.cumprod, "max": distscan.cummax,
         "min": distscan.cummin}  # fmt: skip


@pytest.mark.parametrize("op", SPELLINGS)
def test_every_spelling(op, cut, rng):
    """Of a name, NumPy's and MPI's; and a function of the operator's own."""
    x = rng.integers(0, 1 << 40, 77)
    mine, want = cut(x.size), wanted(x, op)
    for spelling in (op, UFUNCS[op], SPELLINGS[op]):
        np.testing.assert_array_equal(distscan.scan(x[mine], spelling), want[mine])
    if op in NAMED:
        y = x[mine].copy()
        assert NAMED[op](y, out=y) is y
        np.testing.assert_array_equal(y, want[mine])


def test_other_communicators(comm, rng):
    """A part of the ranks, in another order; and one rank alone."""
    x = exact(rng, "sum", "d", 100)
    start, stop = comm.rank * 100 // comm.size, (comm.rank + 1) * 100 // comm.size
    backwards = comm.Split(0, -comm.rank)
    y = distscan.scan(x[::-1][100 - stop : 100 - start], comm=backwards)
    np.testing.assert_array_equal(y, np.cumsum(x[::-1])[100 - stop : 100 - start])
    backwards.Free()
    np.testing.assert_array_equal(distscan.scan(x, comm=MPI.COMM_SELF), np.cumsum(x))
