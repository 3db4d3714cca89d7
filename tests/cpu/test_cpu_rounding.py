"""Rounding errors of scans on CPUs stay inside the bounds of their chains of operations."""

import numpy as np
import pytest

import distscan
from support.cpu_data import dtype_of
from support.cpu_scans import FORMS

pytestmark = pytest.mark.one_rank

SIZES = 5, 100, 5000, 20_000, 300_001


def longest_chain(n, vector, block):
    """Roundings behind one result: in its vector, over the vectors of its block, over blocks."""
    return 8 + min(n, block) / vector + n / block


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "complex128", "float16"])
def test_sums(name, form, n, rng):
    dtype = dtype_of(name)
    parts = rng.normal(size=(2, n))
    x = (parts[0] + 1j * parts[1] if dtype.kind == "c" else parts[0]).astype(dtype)
    got = distscan.scan(x, **form)
    results = [(got.real, x.real), (got.imag, x.imag)] if dtype.kind == "c" else [(got, x)]
    result = {"float16": 2.0**-11, "float32": 2.0**-24}.get(name, 0)
    unit = {"float16": 2.0**-24, "complex64": 2.0**-24}.get(name, 2.0**-53)
    bound = unit * longest_chain(n, 4, 8192)
    for part, terms in results:
        order = slice(None, None, -1 if form["reverse"] else 1)
        exact, most = (np.cumsum(t.astype(np.longdouble)[order]) for t in (terms, abs(terms)))
        found = part.astype(np.longdouble)[order]
        if form["exclusive"]:
            found, exact, most = found[1:], exact[:-1], most[:-1]
        assert (abs(found - exact) <= result * abs(exact) * 1.001 + bound * most).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "complex128"])
def test_products(name, form, n, rng):
    """Of numbers near 1 in magnitude, so that none of the products overflows."""
    dtype = dtype_of(name)
    x = np.exp(rng.normal(size=n) * 0.01) * rng.choice([-1, 1], n)
    if dtype.kind == "c":
        x = np.exp(2j * np.pi * rng.random(n))
    x = x.astype(dtype)
    order = slice(None, None, -1 if form["reverse"] else 1)
    exact = np.cumprod(x[order].astype(np.clongdouble))
    found = distscan.scan(x, "prod", **form)[order].astype(np.clongdouble)
    if form["exclusive"]:
        found, exact = found[1:], exact[:-1]
    unit = 2.0**-24 if name in ("float32", "complex64") else 2.0**-53
    chain = longest_chain(n, 4, 8192) * (3 if dtype.kind == "c" else 1) + n * 1e-3
    assert (abs(found - exact) <= abs(exact) * np.expm1(chain * unit)).all()
