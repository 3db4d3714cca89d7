"""Ufuncs that are not built in, against their accumulate; and those that are refused."""

import functools
import math

import numpy as np
import pytest

import distscan
from distscan import plan_cache
from distscan.core import operators
from support import reference
from support.data import HOST_CODES
from support.together import everywhere


def signed(rng, n):
    return rng.choice([-6, 10, 1 << 40, 35, 0, 7], n, p=[0.4, 0.4, 0.1, 0.09, 0.005, 0.005])


def divisors(rng, n):
    return rng.choice([1, 2, 3, 4, -5, 6, 7], n)


def holes(rng, n):
    return np.where(rng.random(n) < 0.5, np.nan, rng.normal(size=n).cumsum())


def floats(rng, n):
    return rng.normal(size=n)


UFUNCS = {
    np.gcd: signed,
    np.lcm: divisors,
    np.fmax: holes,
    np.fmin: holes,
    np.copysign: floats,
    np.hypot: floats,
    np.logaddexp2: floats,
}
every_ufunc = pytest.mark.parametrize("ufunc", UFUNCS)


@every_ufunc
@pytest.mark.parametrize("n", [0, 1, 30, 20001])
def test_ufuncs(ufunc, n, strategy, cut, rng):
    x = UFUNCS[ufunc](rng, n)
    mine, want = cut(n), ufunc.accumulate(x)
    y = distscan.scan(x[mine], ufunc, strategy=strategy)
    assert y.dtype == want.dtype
    # hypot and logaddexp2 round at every step, here in other groups.
    compare = np.testing.assert_array_equal
    if ufunc in (np.hypot, np.logaddexp2):
        compare = functools.partial(np.testing.assert_allclose, rtol=1e-12)
    compare(y, want[mine])
    plan = distscan.Plan(None, y.shape, x.dtype, ufunc, backend="cpu")
    assert plan.op is operators.resolve(ufunc)
    compare(plan(x[mine]), want[mine])


@pytest.mark.parametrize("reverse", [False, True])
def test_ufuncs_in_forms(reverse, cut, rng):
    x, heads = signed(rng, 600), rng.random(600) < 0.02
    mine = cut(600)
    want = reference.scan(np.gcd, x, initial=60, exclusive=True, reverse=reverse, heads=heads)
    y = distscan.scan(
        x[mine], np.gcd, initial=60, exclusive=True, reverse=reverse, segments=heads[mine]
    )
    np.testing.assert_array_equal(y, want[mine])
    table = x.reshape(200, 3)
    mine = cut(200)
    for axis in (0, 1):
        want = reference.scan(np.gcd, table, axis=axis, reverse=reverse)
        y = distscan.scan(table[mine], np.gcd, axis=axis, reverse=reverse)
        np.testing.assert_array_equal(y, want[mine])


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


def test_ufuncs_find_their_plan_again(comm):
    distscan.scan(np.arange(5), np.gcd)
    plan = plan_cache.everything()[-1]
    distscan.scan(np.arange(5), np.gcd)
    assert plan_cache.everything()[-1] is plan


def test_ufuncs_made_of_functions(cut, rng):
    x = signed(rng, 300)
    mine = cut(300)
    y = distscan.scan(x[mine], np.frompyfunc(math.gcd, 2, 1))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.gcd.accumulate(x)[mine])


@pytest.mark.parametrize(
    ("ufunc", "message"),
    [
        (np.sin, "ufunc 'sin' takes 1 operand; a scan combines two"),
        (np.divmod, "ufunc 'divmod' has 2 results"),
        (np.matmul, "ufunc 'matmul' takes .*; a scan combines elements"),
        (np.less, "ufunc 'less' compares"),
        (np.not_equal, "ufunc 'not_equal' compares"),
        *(
            (ufunc, f"ufunc '{ufunc.__name__}' is not associative")
            for ufunc in (np.subtract, np.divide, np.floor_divide, np.mod, np.fmod, np.power,
                          np.float_power, np.left_shift, np.right_shift, np.arctan2,
                          np.heaviside, np.nextafter, np.ldexp)
        ),
    ],
)  # fmt: skip
def test_ufuncs_that_are_refused(ufunc, message, comm):
    op = ufunc if comm.rank == comm.size - 1 else "sum"
    text = everywhere(comm, ValueError, message, lambda: distscan.scan(np.ones(4), op))
    assert comm.size == 1 or text.startswith(f"rank {comm.size - 1}: ")


def test_refused_ufuncs_are_not_associative(rng):
    a, b, c = rng.integers(-8, 9, (3, 500)) / 2
    for ufunc in operators._NOT_ASSOCIATIVE - {np.ldexp}:  # which takes a float and an integer
        given = (a, b, c)
        if ufunc in (np.left_shift, np.right_shift):
            given = tuple(np.abs(each).astype(int) for each in given)
        with np.errstate(all="ignore"):
            left = ufunc(ufunc(given[0], given[1]), given[2])
            right = ufunc(given[0], ufunc(given[1], given[2]))
        assert np.any(np.isfinite(left) & np.isfinite(right) & (left != right)), ufunc


def test_ufuncs_without_a_cuda_form():
    definitions = pytest.importorskip("distscan.cuda.definitions", exc_type=ImportError)
    with pytest.raises(TypeError, match="operator 'gcd' has no CUDA form"):
        definitions.body(operators.resolve(np.gcd))
