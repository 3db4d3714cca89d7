"""``fsum``: every prefix is the exact sum, rounded once, whatever the ranks and the cuts."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.addends import mixed, normal
from support.cuts import two_cuts
from support.exact import dtype_of, same, scanned
from support.forms import forms
from support.host import host
from support.patterns import finite_bits


def cancelling(rng, name, n):
    """Each number comes with its opposite, somewhere."""
    x = finite_bits(rng, name, n)
    x[n // 2 :] = -x[: n - n // 2]
    return rng.permutation(x)


def ties(rng, name, n):
    """Sums half-way between two floats, and next to half-way."""
    dtype = dtype_of(name)
    ulp = {"float16": -10, "bfloat16": -7, "float32": -23, "float64": -52}[name]
    small = np.array([2.0 ** (ulp - 1), -(2.0 ** (ulp - 1)), 2.0**ulp, 2.0 ** (2 * ulp), 1.0, -1.0])
    return rng.choice(small, n).astype(dtype)


DATA = [finite_bits, normal, cancelling, ties, mixed]


@forms
@two_cuts
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_forms(form, data, name, xp, cut, rng):
    n = 301
    x, mine = data(rng, name, n), cut(n)
    form = form | {"initial": form["initial"] and float(rng.standard_normal())}
    y = distscan.scan(xp.asarray(x[mine]), "fsum", **form)
    assert same(host(y), scanned(x, name, **form)[mine])


@two_cuts
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("data", DATA)
def test_narrow_types(name, data, cut, rng):
    x, mine = data(rng, name, 301), cut(301)
    assert same(distscan.scan(x[mine], "fsum"), scanned(x, name)[mine])


@forms
@two_cuts
@pytest.mark.parametrize("data", [finite_bits, mixed])
@pytest.mark.parametrize("often", [0.0, 0.1, 1.0])
def test_segments(form, data, often, xp, cut, rng):
    n = 301
    x, mine, heads = data(rng, "float64", n), cut(n), rng.random(n) < often
    heads[0] = True
    keys = np.cumsum(heads) % 7
    for flags in (heads, keys):
        y = distscan.scan(xp.asarray(x[mine]), "fsum", segments=xp.asarray(flags[mine]), **form)
        assert same(host(y), scanned(x, "float64", heads=heads, **form)[mine])


@two_cuts
@pytest.mark.parametrize("out", ["float16", "float32", "float64"])
@pytest.mark.parametrize("data", [finite_bits, ties])
def test_one_rounding(out, data, xp, cut, rng):
    """Elements enter exactly; the sum is rounded to the type of the result."""
    x, mine = data(rng, "float64", 301), cut(301)
    want = scanned(x, out)[mine]
    shard = xp.asarray(x[mine])
    assert same(host(distscan.scan(shard, "fsum", dtype=out)), want)
    y = xp.full(len(shard), np.nan, out)
    assert distscan.scan(shard, "fsum", out=y) is y
    assert same(host(y), want)


@two_cuts
@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "int64"])
def test_integers(name, xp, cut, rng):
    mine, dtype = cut(301), np.dtype(name)
    x = rng.integers(0, 256, (301, dtype.itemsize), np.uint8).view(dtype).reshape(301)
    x = x != 0 if name == "bool" else x
    assert same(host(distscan.scan(xp.asarray(x[mine]), "fsum")), scanned(x, "float64")[mine])


@two_cuts
@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex(name, xp, cut, rng):
    part = "float32" if name == "complex64" else "float64"
    x, mine = np.empty(301, name), cut(301)
    x.real, x.imag = mixed(rng, part, 301), finite_bits(rng, part, 301)
    y = host(distscan.scan(xp.asarray(x[mine]), "fsum", initial=1 - 2j))
    assert same(y, scanned(x, part, initial=1 - 2j)[mine])


@forms
@two_cuts
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes(form, axis, xp, cut, rng):
    shape, mine = (23, 5, 7), cut(23)
    x = finite_bits(rng, "float32", np.prod(shape)).reshape(shape)
    x[rng.random(shape) < 0.05] = np.inf
    x[rng.random(shape) < 0.05] = -np.inf
    y = host(distscan.scan(xp.asarray(x[mine]), "fsum", axis=axis, **form))
    assert same(y, scanned(x, "float32", axis=axis, **form)[mine])


@two_cuts
def test_in_place(xp, cut, rng):
    x, mine = mixed(rng, "float64", 301), cut(301)
    shard = xp.asarray(x[mine].copy())
    assert distscan.scan(shard, "fsum", out=shard) is shard
    assert same(host(shard), scanned(x, "float64")[mine])


@two_cuts
def test_window(xp, cut, rng):
    """Data on a common grid; what lies outside of it is an error on every rank."""
    x, mine = rng.integers(-(2**20), 2**20, 301) / 2.0**10, cut(301)
    shard = xp.asarray(x[mine])
    want = scanned(x, "float64")[mine]
    assert same(host(distscan.scan(shard, "fsum", window=(-10, 11))), want)
    assert same(host(distscan.scan(shard, "fsum", window=(-60, 70))), want)
    for window in ((-9, 11), (-10, 9)):
        with pytest.raises(ValueError, match="beyond window="):
            distscan.scan(shard, "fsum", window=window)
    with pytest.raises(ValueError, match="not finite"):
        distscan.scan(xp.asarray(mixed(rng, "float64", 301)[mine]), "fsum", window=(-99, 99))
    with pytest.raises(ValueError, match="beyond window="):
        distscan.scan(shard, "fsum", window=(-10, 11), initial=2.0**11)


WRONG = {
    "strategy": ({"strategy": "scan-add"}, ValueError, "fsum takes 'reduce-scan'"),
    "unknown": ({"strategy": "none"}, ValueError, "unknown strategy"),
    "dtype": ({"dtype": "i8"}, TypeError, "fsum rounds to floats"),
    "initial": ({"initial": "x"}, TypeError, "initial is"),
    "initials": ({"initial": [1, 2]}, ValueError, "one value"),
    "complex": ({"initial": 1j}, TypeError, "initial is"),
    "window": ({"window": 3}, TypeError, "two integers"),
    "order": ({"window": (3, 2)}, ValueError, "low must be below high"),
    "out": ({"out": np.empty(3)}, ValueError, "out has shape"),
    "axis": ({"axis": 2}, ValueError, "axis 2"),
    "text": ({"x": np.array(["a"])}, TypeError, "fsum adds"),
    "None": ({"x": None}, TypeError, "x is None"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case):
    given, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        distscan.scan(**({"x": np.ones(5), "op": "fsum"} | given))


def test_window_of_another_operator():
    with pytest.raises(ValueError, match="window= goes with"):
        distscan.scan(np.ones(5), window=(0, 1))


def test_bits_are_always_the_same(xp, comm, rng):
    """Random cuts, both strategies, and the mirrored reverse: one value."""
    x = finite_bits(rng, "float64", 2000)
    want = distscan.scan(x, "fsum", comm=MPI.COMM_SELF).tobytes()
    for i in range(10):
        ends = np.sort(rng.integers(0, 2001, comm.size - 1))
        ends = np.concatenate([[0], ends, [2000]])
        mine = slice(*ends[comm.rank : comm.rank + 2].tolist())
        shard = xp.asarray(x[mine])
        strategy = "reduce-scan" if i % 2 or comm.size > 1 else "single-pass"
        found = comm.allgather(host(distscan.scan(shard, "fsum", strategy=strategy)))
        assert np.concatenate(found).tobytes() == want
        mirrored = distscan.scan(xp.asarray(x[::-1][mine]), "fsum", reverse=True)
        assert np.concatenate(comm.allgather(host(mirrored)))[::-1].tobytes() == want
