"""Segments on CPUs, by flags and by keys, of every density, against NumPy's accumulate."""

import itertools

import numpy as np
import pytest

import distscan
from support import forms
from support.cpu_data import CASES, HALVES, dtype_of, edges, exact, initial, some
from support.cpu_scans import FORMS, anew, assert_same, expected, scanned
from support.keys import HOST_TYPES, TYPES, keys_at

pytestmark = pytest.mark.one_rank

DENSITIES = "none", "all", "first", "last", "second", 0.001, 0.02, 0.5
STRATEGIES = "reduce-scan", "single-pass"
cases = pytest.mark.parametrize(("op", "name"), CASES)


def heads(rng, density, n):
    flags = np.zeros(n, bool)
    if density == "all":
        flags[:] = True
    elif density == "first":
        flags[:1] = True
    elif density == "last":
        flags[-1:] = True
    elif density == "second":
        flags[1:2] = True
    elif density != "none":
        flags = rng.random(n) < density
    return flags


@pytest.mark.parametrize("strategy", STRATEGIES)
@cases
def test_flags(op, name, strategy, rng):
    result = expected(op, np.zeros(0, dtype_of(name))).dtype
    acc = 4 if name in HALVES else 8 if (op, name) == ("sum", "float32") else result.itemsize
    every = itertools.product(edges(acc, result.itemsize), DENSITIES, forms.FORMS)
    chosen = some(rng, every)
    for n, density, form in chosen[: len(chosen) // 6]:
        x = exact(rng, op, name, n, reverse=form["reverse"])
        given = form if form["initial"] is None else form | {"initial": initial(rng, op, name)}
        flags = heads(rng, density, n)
        want = expected(op, x, heads=flags, **given)
        shift = int(rng.integers(64)) // 16 * 16
        got = scanned(x, op, dtype=result, heads=flags, strategy=strategy, shift=shift, **given)
        assert_same(got, want, (n, density, given))


@pytest.mark.parametrize("density", DENSITIES)
def test_bytes_of_flags(density, rng):
    """Each byte but 0 flags a head; flags may lie anywhere, in any order."""
    for n, form in itertools.product((1, 65, 5000, 50_000), FORMS):
        x = exact(rng, "sum", "int32", n)
        flags = heads(rng, density, n)
        want = expected("sum", x, heads=flags, **form)
        odd = (flags * rng.choice([1, 2, 128, 255], n)).astype(np.uint8).view(bool)
        shifted = np.concatenate([[True], flags])[1:]
        strided = np.repeat(flags, 2)[::2]
        backwards = flags[::-1].copy()[::-1]
        for given in (odd, shifted, strided, backwards):
            assert_same(distscan.scan(x, segments=given, **form), want, (n, form))


@pytest.mark.parametrize("keys", [*TYPES, *HOST_TYPES, "U3"])
def test_keys(keys, rng):
    """A segment begins where the key changes."""
    for n, density, form in some(rng, itertools.product((1, 64, 5000, 90_000), DENSITIES, FORMS)):
        x = exact(rng, "sum", "float32", n)
        flags = heads(rng, density, n)
        given = np.cumsum(flags).astype("U3") if keys == "U3" else keys_at(rng, flags, keys)
        begins = np.ones(n, bool)
        begins[1:] = given[1:] != given[:-1]
        want = expected("sum", x, heads=begins, **form)
        assert_same(distscan.scan(x, segments=given, **form), want, (n, density, form))


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("name", ["int8", "float16", "float32", "int64", "complex128"])
def test_memory(name, density, rng, monkeypatch):
    """Past the caches at any address, from strided and swapped input, in place."""
    op = "max" if name == "int8" else "sum"
    for n, form in itertools.product((65, 3000, 40_001), FORMS):
        x = exact(rng, op, name, n, reverse=form["reverse"])
        flags = heads(rng, density, n)
        want = expected(op, x, heads=flags, **form)
        with anew(monkeypatch, streamed=True):
            shift = int(rng.integers(64))
            got = scanned(x, op, dtype=want.dtype, heads=flags, shift=shift, **form)
        assert_same(got, want, (n, shift, form))
        for given in (np.repeat(x, 2)[::2], x.astype(x.dtype.newbyteorder("S"))):
            assert_same(distscan.scan(given, op, segments=flags, **form), want, (n, form))
        distscan.scan(x, op, segments=flags, out=x, **form)
        assert_same(x, want, (n, form))
