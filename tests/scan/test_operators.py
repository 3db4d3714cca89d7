"""Operators with edges of their own; the types that each takes; ufuncs that are not built in."""

import functools
import math

import numpy as np
import pytest

import distscan
from support.data import HOST_CODES
from support.host import host
from support.logic import truths
from support.reference import UFUNCS, check
from support.together import everywhere

LOGICAL = ["logical_and", "logical_or", "logical_xor"]
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
def test_logaddexp(code, strategy, xp, cut, rng):
    """Real data: within the rounding of a chain of as many steps, in the type NumPy chooses."""
    x = (
        rng.integers(0, 2, 2001)
        if code == "?"
        else rng.integers(0, 99, 2001) / (1 + (code in "efd"))
    )
    x = x.astype(code)
    mine = cut(x.size)
    y = distscan.scan(xp.asarray(x[mine]), "logaddexp", strategy=strategy)
    assert y.dtype == np.logaddexp.accumulate(x[:0]).dtype
    want = np.logaddexp.accumulate(x, dtype=np.longdouble)[mine]
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


@pytest.mark.parametrize("code", "efd")
@pytest.mark.parametrize(
    "special",
    [
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
    mine = cut(x.size)
    out = xp.zeros(mine.stop - mine.start, code)
    distscan.scan(xp.asarray(x[mine]), np.logical_xor, out=out, strategy=strategy)
    np.testing.assert_array_equal(host(out), np.logical_xor.accumulate(x)[mine])


@pytest.mark.parametrize("op", UFUNCS)
def test_types_are_the_ufuncs(op, comm):
    """The type of the result, or the refusal, of every operator on every type."""
    for code in HOST_CODES:
        x = np.zeros(3, code)
        try:
            want = UFUNCS[op].accumulate(x[:0]).dtype
        except TypeError:
            everywhere(comm, TypeError, f"operator '{op}' does not take {x.dtype}",
                       lambda x=x: distscan.scan(x, op))  # fmt: skip
        else:
            for given in (x, x.astype(x.dtype.newbyteorder())):
                assert distscan.scan(given, op).dtype == want


@pytest.mark.parametrize("op", LOGICAL)
@pytest.mark.parametrize("code", "gG")
def test_truth_of_long_doubles(op, code, strategy, cut, rng):
    check(truths(rng, op, code, 3001), op, cut=cut, strategy=strategy)


# ---- ufuncs that are not built in ----------------------------------------------------------------


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
every_ufunc = pytest.mark.parametrize("ufunc", OTHER_UFUNCS)


@every_ufunc
@pytest.mark.parametrize("n", [0, 1, 30, 20001])
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


@every_ufunc
@pytest.mark.parametrize("code", HOST_CODES)
def test_types_of_ufuncs(ufunc, code, comm):
    try:
        want = ufunc.accumulate(np.zeros(0, code)).dtype
    except TypeError:
        everywhere(comm, TypeError, f"operator '{ufunc.__name__}' does not take {np.dtype(code)}",
                   lambda: distscan.scan(np.zeros(3, code), ufunc))  # fmt: skip
    else:
        assert distscan.scan(np.zeros(3, code), ufunc).dtype == want


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
