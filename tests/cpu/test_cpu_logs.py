"""logcumsumexp by the compiled kernels for CPUs: its errors, and values that no sum reaches."""

import itertools

import numpy as np
import pytest

import distscan
from distscan.cpu import library
from support.cpu_data import dtype_of
from support.cpu_scans import FORMS, anew, assert_same

pytestmark = [
    pytest.mark.one_rank,
    pytest.mark.skipif(library.load() is None, reason="no compiled kernels"),
]
names = pytest.mark.parametrize("name", ["float32", "float64"])
ODD = (np.inf, -np.inf, np.nan, 0.0, -0.0, 5.0, -1e30, 1e30)


def exact(x, axis=0):
    """The scan in long double, and how far a float may be from it: the error of y in these units.

    An error of y is a relative error of the sum; above 1, y is rounded, too.
    """
    with np.errstate(all="ignore"):
        y = np.logaddexp.accumulate(x.astype("g"), axis)
    return y, np.maximum(1, abs(y)) * np.finfo(x.dtype).eps


@names
def test_pairs(name, rng):
    """Two elements, of every size and distance; in columns, the second is combined directly."""
    x = rng.normal(size=(2, 60_000)) * rng.choice([1e-30, 1e-3, 1, 10, 1000], 60_000)
    x[1, ::2] = x[0, ::2] + rng.exponential(size=30_000) * rng.choice([-700, -30, 0.01, 80], 30_000)
    x = x.astype(dtype_of(name))
    want, units = exact(x)
    assert np.all(abs(distscan.logcumsumexp(x, axis=0) - want) <= 2 * units)


@names
@pytest.mark.parametrize("n", [1, 7, 64, 513, 5000, 70_001])
@pytest.mark.parametrize("extent", [0.01, 1, 30, 80, 300, 10_000])
def test_ranges(name, n, extent, rng, monkeypatch):
    """Random, rising and falling; NumPy's errors, of thousands of steps, would not pass."""
    rising = np.linspace(-extent, extent, n)
    for given in (rng.uniform(-extent, extent, n), rising, rising[::-1]):
        x = given.astype(dtype_of(name))
        for reverse in (False, True):
            want, units = exact(x[::-1] if reverse else x)
            with anew(monkeypatch, threads=int(rng.choice([1, 3]))):
                y = distscan.logcumsumexp(x, reverse=reverse)
            assert np.all(abs((y[::-1] if reverse else y) - want) <= 16 * units)
            assert y[-1 if reverse else 0] == x[-1 if reverse else 0]


@names
def test_values_that_no_sum_reaches(name, rng):
    """Infinities, NaN and zeros: as NumPy has them, in rows, columns and long scans."""
    dtype = dtype_of(name)
    pairs = np.array(list(itertools.product(ODD, ODD)), dtype).T
    with np.errstate(all="ignore"):
        want = np.logaddexp.accumulate(pairs, 0)
    assert_same(distscan.logcumsumexp(pairs, axis=0), want)
    assert_same(distscan.logcumsumexp(pairs.T.copy(), axis=1), want.T)
    for n, value in itertools.product((40, 3000, 70_001), (np.inf, -np.inf, np.nan)):
        for place in (0, n // 2, n - 1, rng.integers(n)):
            x = rng.normal(size=n).astype(dtype)
            x[place] = value
            y, (want, units) = distscan.logcumsumexp(x), exact(x)
            odd = ~np.isfinite(want)
            np.testing.assert_array_equal(y[odd], want[odd].astype(dtype))
            assert np.all(abs(y[~odd] - want[~odd]) <= 16 * units[~odd])
        every = np.full(n, value, dtype)
        assert_same(distscan.logcumsumexp(every), every)


@names
def test_nan_after_larger_elements(name, rng):
    """Until the NaN, results are as without it; it may lie in any lane, one or more vectors on."""
    dtype = dtype_of(name)
    for large, n, reverse in itertools.product((np.inf, 1000, 1e30), (60, 2100), (False, True)):
        for place in rng.integers(0, n - 1, 40):
            x = rng.normal(size=n).astype(dtype)
            x[place], x[rng.integers(place + 1, n)] = large, np.nan
            y = distscan.logcumsumexp(x[::-1] if reverse else x, reverse=reverse)
            want, units = exact(x)
            y, odd = y[::-1] if reverse else y, ~np.isfinite(want)
            assert_same(y[odd], want[odd].astype(dtype))
            assert np.all(abs(y[~odd] - want[~odd]) <= 16 * units[~odd])


@names
def test_every_form(name, rng):
    """Rows, columns and segments, from both ends, with a first value."""
    dtype = dtype_of(name)
    for shape, axis in (((9, 5), 1), ((20, 300), 1), ((300, 3), 0), ((300, 20), 0), ((3000,), 0)):
        x = rng.normal(size=shape).astype(dtype) * 20
        for form in FORMS:
            step = slice(None, None, -1 if form["reverse"] else 1)
            lines = np.moveaxis(x, axis, 0)[step]
            lines = np.concatenate([np.full_like(lines[:1], 3), lines])
            want, units = exact(lines)
            kept = slice(0, -1) if form["exclusive"] else slice(1, None)
            y = distscan.logcumsumexp(x, axis, initial=3, **form)
            y = np.moveaxis(y, axis, 0)[step]
            assert np.all(abs(y - want[kept]) <= 16 * units[kept])
    x, heads = rng.normal(size=5000).astype(dtype) * 20, rng.random(5000) < 0.01
    y, begins = distscan.logcumsumexp(x, segments=heads), [0, *np.flatnonzero(heads), 5000]
    for low, high in itertools.pairwise(sorted(set(begins))):
        want, units = exact(x[low:high])
        assert np.all(abs(y[low:high] - want) <= 16 * units)
