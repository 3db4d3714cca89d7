"""Operators with edges of their own, and the types that each takes; digests of operators."""

import functools
import math
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import distscan
from distscan.core import operators
from distscan.core.fingerprint import fingerprint
from distscan.options import ScanOptions
from support import same_name
from support.arrays import host
from support.cases import CUTS, STRATEGIES, pairs
from support.data import HOST_CODES, truths
from support.operators import SQUARES
from support.processes import everywhere
from support.reference import UFUNCS, check

# ---- operators with edges of their own; the types that each takes; ufuncs that are not built in --

INTEGERS = "?bBhHiIlL"


def apart(rng, code, n):
    """Numbers so far apart that adding exponentials leaves the larger: every order is exact."""
    x = (np.arange(n) + 1) * (32.0 if code == "e" else 128.0)
    return (
        (x + 2048 * rng.random(n) // 1).astype(code) if n == 0 else rng.permutation(x).astype(code)
    )


@pytest.mark.parametrize("code", "efd")
def test_logaddexp_exact(code, strategy, xp, cut, rng):
    check(apart(rng, code, 1003), "logaddexp", xp=xp, cut=cut, strategy=strategy)


@pytest.mark.parametrize("code", INTEGERS + "efd")
def test_logaddexp(code, xp, cut, rng):
    """Real data: within the rounding of a chain of as many steps, in the type NumPy chooses."""
    x = (
        rng.integers(0, 2, 2001)
        if code == "?"
        else rng.integers(0, 99, 2001) / (1 + (code in "efd"))
    )
    x = x.astype(code)
    mine = cut(x.size)
    want = np.logaddexp.accumulate(x, dtype=np.longdouble)[mine]
    for strategy in STRATEGIES:
        y = distscan.scan(xp.asarray(x[mine]), "logaddexp", strategy=strategy)
        assert y.dtype == np.logaddexp.accumulate(x[:0]).dtype
        acc = np.result_type(y.dtype, np.float32)
        bound = 4 * x.size * np.finfo(acc).eps * 100 + np.finfo(y.dtype).eps * np.abs(want)
        assert np.all(np.abs(host(y) - want) <= bound)


@pytest.mark.parametrize("spread", [1, 30, 300])
@pytest.mark.parametrize("code", "fd")
def test_logaddexp_of_wide_ranges(code, spread, xp, cut, rng):
    """GPUs add terms in units of the largest; CPUs combine element by element, and round more."""
    x = (rng.standard_normal(70_001) * spread).astype(code)
    mine = cut(x.size)
    y = host(distscan.scan(xp.asarray(x[mine]), "logaddexp"))
    want = np.logaddexp.accumulate(x, dtype=np.longdouble)[mine]
    most = 400 if xp is np else 40
    assert np.all(np.abs(y - want) <= most * np.finfo(code).eps * np.maximum(1, np.abs(want)))


@pairs(
    group_by="code",
    code="efd",
    strategy=STRATEGIES,
    special=[
        [-np.inf, -np.inf, -np.inf],  # no NaN from inf - inf
        [-np.inf, 3, -np.inf],
        [np.inf, np.inf, -np.inf],
        [-np.inf, np.inf, 3],
        [-np.inf, np.nan, -np.inf],
        [np.inf, np.nan, np.inf],
    ],
)
def test_logaddexp_of_infinities(special, code, strategy, xp, cut):
    x = np.tile(np.array([-np.inf], code), 90)
    x[[20, 40, 60]] = special
    with np.errstate(all="ignore"):
        check(x, "logaddexp", xp=xp, cut=cut, strategy=strategy)


@pytest.mark.parametrize("code", "fd")
def test_logaddexp_of_nan_before_infinities(code, strategy, xp, cut):
    """A NaN stays, also across parts that are infinite as a whole, and as the first value."""
    x = np.zeros(3000, code)
    x[:1500] = -np.inf
    y = distscan.scan(xp.asarray(x[cut(3000)]), "logaddexp", initial=np.nan, strategy=strategy)
    assert np.isnan(host(y)).all()
    x[0] = np.nan
    y = distscan.scan(xp.asarray(x[cut(3000)]), "logaddexp", strategy=strategy)
    assert np.isnan(host(y)).all()


@pytest.mark.parametrize("code", "fd")
def test_the_first_result_of_logaddexp_is_the_first_element(code, xp, comm, rng):
    for n in (1, 100, 3000):
        x = rng.normal(size=n).astype(code)
        x[0] *= 1e-3
        y = distscan.scan(xp.asarray(x), "logaddexp")
        assert comm.rank > 0 or host(y)[0] == x[0]


def test_no_rounding_near_zero(xp, cut):
    """log(exp(-40) + exp(0)) is 4e-18, not 0."""
    x = np.array([-40.0, 0.0])
    mine = cut(2)
    y = distscan.scan(xp.asarray(x[mine]), "logaddexp")
    np.testing.assert_allclose(host(y), np.logaddexp.accumulate(x)[mine], rtol=1e-12)


@pytest.mark.parametrize(
    ("op", "code", "dtype"),
    [("bitwise_xor", "i", "b"), ("bitwise_and", "b", "i"), ("bitwise_or", "H", "l"),
     ("bitwise_xor", "d", "i"), ("bitwise_or", "i", "?"), ("logical_xor", "i", "?"),
     ("logaddexp", "i", "f"), ("logaddexp", "d", "e")],
)  # fmt: skip
def test_dtype(op, code, dtype, strategy, xp, cut, rng):
    x = (
        apart(rng, "e", 99).astype(code)
        if op == "logaddexp"
        else rng.integers(0, 99, 99).astype(code)
    )
    check(x, op, xp=xp, cut=cut, strategy=strategy, dtype=dtype)


@pytest.mark.parametrize("code", "ifD")
def test_truth_as_numbers(code, strategy, xp, cut, rng):
    """As in NumPy, ``out`` takes what it can hold: here 0 and 1."""
    x = truths(rng, "logical_xor", "d", 500)
    check(x, "logical_xor", xp=xp, cut=cut, out=code, strategy=strategy)


def signed(rng, n):
    return rng.choice([-6, 10, 1 << 40, 35, 0, 7], n, p=[0.4, 0.4, 0.1, 0.09, 0.005, 0.005])


def divisors(rng, n):
    return rng.choice([1, 2, 3, 4, -5, 6, 7], n)


def holes(rng, n):
    return np.where(rng.random(n) < 0.5, np.nan, rng.normal(size=n).cumsum())


def floats(rng, n):
    return rng.normal(size=n)


OTHER_UFUNCS = {
    np.gcd: signed,
    np.lcm: divisors,
    np.fmax: holes,
    np.fmin: holes,
    np.copysign: floats,
    np.hypot: floats,
    np.logaddexp2: floats,
}


@pytest.mark.parametrize("op", [*UFUNCS, *OTHER_UFUNCS])
def test_types_are_the_ufuncs(op, comm):
    """The type of the result, or the refusal, of every operator on every type."""
    ufunc = UFUNCS.get(op, op)
    for code in HOST_CODES:
        x = np.zeros(3, code)
        try:
            want = ufunc.accumulate(x[:0]).dtype
        except TypeError:
            name = op if op in UFUNCS else ufunc.__name__
            everywhere(comm, TypeError, f"operator '{name}' does not take {x.dtype}",
                       lambda x=x: distscan.scan(x, op))  # fmt: skip
        else:
            for given in (x, x.astype(x.dtype.newbyteorder())):
                assert distscan.scan(given, op).dtype == want


# ---- ufuncs that are not built in ----------------------------------------------------------------


@pairs(group_by="ufunc", ufunc=OTHER_UFUNCS, n=[0, 1, 30, 20001], strategy=STRATEGIES)
def test_ufuncs(ufunc, n, strategy, cut, rng):
    x = OTHER_UFUNCS[ufunc](rng, n)
    mine, want = cut(n), ufunc.accumulate(x)
    y = distscan.scan(x[mine], ufunc, strategy=strategy)
    assert y.dtype == want.dtype
    # hypot and logaddexp2 round at every step, here in other groups.
    compare = np.testing.assert_array_equal
    if ufunc in (np.hypot, np.logaddexp2):
        compare = functools.partial(np.testing.assert_allclose, rtol=1e-12)
    compare(y, want[mine])
    plan = distscan.Plan(None, y.shape, x.dtype, ufunc, backend="cpu")
    compare(plan(x[mine]), want[mine])


@pytest.mark.parametrize("reverse", [False, True])
def test_ufuncs_in_forms(reverse, cut, rng):
    x, heads = signed(rng, 600), rng.random(600) < 0.02
    check(x, np.gcd, cut=cut, initial=60, exclusive=True, reverse=reverse, segments=heads)
    for axis in (0, 1):
        check(x.reshape(200, 3), np.gcd, cut=cut, axis=axis, reverse=reverse)


def test_ufuncs_made_of_functions(cut, rng):
    x = signed(rng, 300)
    mine = cut(300)
    y = distscan.scan(x[mine], np.frompyfunc(math.gcd, 2, 1))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.gcd.accumulate(x)[mine])


NOT_ASSOCIATIVE = [
    np.subtract, np.divide, np.floor_divide, np.mod, np.fmod, np.power, np.float_power,
    np.left_shift, np.right_shift, np.arctan2, np.heaviside, np.nextafter, np.ldexp,
]  # fmt: skip


@pytest.mark.parametrize(
    ("ufunc", "message"),
    [
        (np.sin, "ufunc 'sin' takes 1 operand; a scan combines two"),
        (np.divmod, "ufunc 'divmod' has 2 results"),
        (np.matmul, "ufunc 'matmul' takes .*; a scan combines elements"),
        (np.less, "ufunc 'less' compares"),
        (np.not_equal, "ufunc 'not_equal' compares"),
        *((ufunc, f"ufunc '{ufunc.__name__}' is not associative") for ufunc in NOT_ASSOCIATIVE),
    ],
)  # fmt: skip
def test_ufuncs_that_are_refused(ufunc, message, comm):
    op = ufunc if comm.rank == comm.size - 1 else "sum"
    text = everywhere(comm, ValueError, message, lambda: distscan.scan(np.ones(4), op))
    assert comm.size == 1 or text.startswith(f"rank {comm.size - 1}: ")


def test_refused_ufuncs_are_not_associative(rng):
    a, b, c = rng.integers(-8, 9, (3, 500)) / 2
    for ufunc in NOT_ASSOCIATIVE[:-1]:  # ldexp takes a float and an integer
        given = (a, b, c)
        if ufunc in (np.left_shift, np.right_shift):
            given = tuple(np.abs(each).astype(int) for each in given)
        with np.errstate(all="ignore"):
            left = ufunc(ufunc(given[0], given[1]), given[2])
            right = ufunc(given[0], ufunc(given[1], given[2]))
        assert np.any(np.isfinite(left) & np.isfinite(right) & (left != right)), ufunc


# ---- operators that change the elements as they are read -----------------------------------------

# By a Python function, and not commutative: no combination of elements is read twice.
LATEST_DOUBLE = distscan.Operator(
    "latest double",
    numpy=lambda a, b: np.where(b != 0, b, a),
    cuda="b != 0 ? b : a",
    identity=0,
    load=lambda x: 2 * x,
    cuda_load="return x + x;",
)


def test_half_types_are_loaded_in_float32(xp, cut, rng):
    x = rng.integers(0, 2, 50).astype("e") * np.float16(300)  # whose square is infinite in half
    y = distscan.scan(xp.asarray(x[cut(50)]), SQUARES, dtype="f")
    np.testing.assert_array_equal(host(y), np.cumsum(x.astype("f") ** 2)[cut(50)])


@pairs(reverse=[False, True], exclusive=[False, True], segmented=[False, True])
def test_initial_and_totals_are_not_loaded(reverse, exclusive, segmented, xp, cut, rng):
    x, heads = rng.integers(0, 3, 3001), rng.random(3001) < 0.01
    check(x, LATEST_DOUBLE, xp=xp, cut=cut, initial=7, reverse=reverse, exclusive=exclusive,
          segments=heads if segmented else None)  # fmt: skip


@pairs(
    group_by="shape",
    indirect=["cut"],
    shape=[(40, 7), (40, 1500), (3, 20, 5000)],
    code="ifd",
    reverse=[False, True],
    exclusive=[False, True],
    call=["scan", "out", "in place"],
    layout=["contiguous", "wider rows", "backwards"],
    strategy=STRATEGIES,
    cut=CUTS,
)
def test_columns_are_loaded(shape, code, reverse, exclusive, call, layout, strategy, xp, cut, rng):
    """Loaded elements lie in a buffer of some columns, results in an array of all columns."""
    x = rng.integers(0, 5, shape).astype(code)
    check(x, SQUARES, xp=xp, cut=cut, axis=-2, call=call, layout=layout, strategy=strategy,
          reverse=reverse, exclusive=exclusive)  # fmt: skip


@pytest.mark.parametrize(
    ("load", "error"),
    [(lambda x: x[:0], "returned shape"), (lambda x: x + 1j, "returned complex128"),
     (lambda x: x.fill(0), "read-only|writes into"), (lambda x: None, "returned")],
)  # fmt: skip
@pytest.mark.parametrize("base", ["sum", "latest"])
def test_faults_of_load(load, error, base, cut):
    op = replace({"sum": SQUARES, "latest": LATEST_DOUBLE}[base], load=load)
    with pytest.raises((TypeError, ValueError), match=error):
        distscan.scan(np.ones(100)[cut(100)], op)


def test_arguments():
    with pytest.raises(TypeError, match="load= must be a function"):
        distscan.Operator("x", np.add, load="x")
    with pytest.raises(TypeError, match="cuda_load= must be text"):
        distscan.Operator("x", np.add, cuda_load=1)
    assert operators.unloaded(SQUARES) is operators.BUILTIN["sum"]
    assert operators.unloaded(LATEST_DOUBLE) is LATEST_DOUBLE


# ---- the digest of an operator tells those of one name apart, and is the same in each process ----


def described(op):
    return ScanOptions.parse(op=op).terms()["the operator"]


@pytest.mark.one_rank
def test_operators_of_one_name():
    every = [same_name.FIRST, *same_name.OTHERS.values()]
    for one, other in combinations(every, 2):
        assert described(one) != described(other)
    assert all(described(op).startswith("mine, ") for op in every)
    assert described(same_name.VERSION).startswith("mine, version 2, ")


@pytest.mark.one_rank
def test_names_of_one_operator():
    assert described(np.add) == described("sum") == "sum"
    assert described(np.gcd) == described(np.gcd)
    assert ScanOptions.parse(op=np.str_("fsum")).terms()["the operator"] == "fsum"


Pair = namedtuple("Pair", "a b")
TABLE = {"c": [1, {"x", "y", "z"}], "d": np.arange(5)}


class Adds:
    def __init__(self, more):
        self.more, self.me = more, self

    def __call__(self, a, b):
        return a + b + self.more


def looks_up(a, b):
    def inner(x):
        return x + TABLE["c"][0]

    return inner(a) + b


VALUES = [
    looks_up,
    functools.partial(looks_up, b=3),
    functools.partial(looks_up, b=4),
    Adds(1),
    Adds(2),
    Adds(1).__call__,
    np.vectorize(looks_up),
    np.vectorize(lambda a, b: a),
    functools.lru_cache(looks_up),
    np.logaddexp2,
    np.union1d,
    [1, 1.0, True, "1", b"1", None, 1j],
    {"b": 1, "a": {3, "4"}},
    Pair(1, "x"),
    np.float32(0.1),
    np.array([1, "a", None], object),
    np.zeros(3, ">i4"),
    np.zeros(3, "<i4"),
    np.dtype([("a", "f4")]),
    Path("a"),
    np.random.default_rng(3),
    (lambda: (yield)),
    os,
]


def prints():
    return [fingerprint({"it": value}) for value in VALUES]


@pytest.mark.one_rank
def test_values():
    assert len(set(prints())) == len(VALUES)
    assert prints() == prints()


@pytest.mark.one_rank
def test_another_process():
    """Python's own hashes differ there, and so do all addresses."""
    code = "import scan.test_operators as t; print(*t.prints())"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, text=True, timeout=60,
                         capture_output=True, check=True)  # fmt: skip
    assert run.stdout.split() == prints()


@pytest.mark.one_rank
def test_what_cannot_be_digested():
    """It counts by its kind: ``version`` tells such operators apart."""
    cells = [iter([1]), iter([1, 2])]
    one, other = (distscan.Operator("o", lambda a, b, c=cell: a, identity=0) for cell in cells)
    assert described(one) != described(other)  # pickle takes these apart
    file = Path(__file__)
    with file.open() as first, file.open("rb", 0) as second:
        assert fingerprint({"it": first}) == fingerprint({"it": first})
        assert fingerprint({"it": first}) != fingerprint({"it": second})


@pytest.mark.one_rank
@pytest.mark.parametrize("version", [1, b"1"])
def test_versions_are_text(version):
    with pytest.raises(TypeError, match="version= must be text"):
        distscan.Operator("o", np.add, version=version)
