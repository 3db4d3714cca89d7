"""Scans on CPUs of every operator and type, against NumPy's accumulate."""

import itertools

import numpy as np
import pytest

import distscan
from distscan.core import dtypes, operators
from distscan.cpu import compiled, library
from support import forms
from support.cpu_data import (
    CASES,
    COMPLEX,
    FLOATS,
    HALVES,
    INTEGERS,
    TYPES,
    UFUNCS,
    dtype_of,
    edges,
    exact,
    initial,
    some,
)
from support.cpu_scans import FORMS, assert_same, expected, scanned

pytestmark = pytest.mark.one_rank

cases = pytest.mark.parametrize(("op", "name"), CASES)


def has_kernel(op, *types):
    return compiled.find(operators.BUILTIN[op], dtypes.Types(*map(dtype_of, types))) is not None


@pytest.mark.skipif(library.load() is None, reason="no compiled kernels")
def test_which_kernels_there_are():
    """Else NumPy would do their work, and all tests would pass."""
    wide = {"int64": ["bool", *INTEGERS[::2]], "uint64": INTEGERS[1::2]}
    for op, name in CASES:
        alike = name == "bool" or (name not in HALVES and not op.startswith("logical"))
        assert has_kernel(op, name, name, name) == alike, (op, name)
        if name in HALVES and not op.startswith("logical"):
            assert has_kernel(op, name, "float32", name) == (op in ("sum", "prod", "max", "min"))
    for op, (acc, narrow) in itertools.product(("sum", "prod"), wide.items()):
        assert all(has_kernel(op, name, acc, acc) for name in narrow)
    assert has_kernel("sum", "float32", "float64", "float32")
    assert has_kernel("sum", "float32", "float64", "float64")
    for name in ("float32", "float64"):
        assert has_kernel("logaddexp", name, name, name)
    assert not has_kernel("logaddexp", "float16", "float32", "float16")  # NumPy converts


@cases
def test_sizes_and_forms(op, name, rng, strategy):
    result = expected(op, np.zeros(0, dtype_of(name))).dtype
    acc = 4 if name in HALVES else 8 if (op, name) == ("sum", "float32") else result.itemsize
    for n, form in some(rng, itertools.product(edges(acc, result.itemsize), forms.FORMS)):
        x = exact(rng, op, name, n, reverse=form["reverse"])
        given = form if form["initial"] is None else form | {"initial": initial(rng, op, name)}
        got = scanned(x, op, dtype=result, strategy=strategy, **given)
        assert_same(got, expected(op, x, **given), (n, given))


@cases
def test_the_type_of_the_result(op, name, rng):
    x = exact(rng, op, name, 5000)
    assert_same(distscan.scan(x, op), expected(op, x))


def small(rng, op, name, n):
    """Numbers whose scans every type holds: from 0 to 100."""
    few = rng.integers(0, n, 3 if op == "prod" else 100)
    x = np.full(n, op == "prod", dtype_of(name))
    x[few] = 2 if op == "prod" else 1 if op == "sum" else rng.integers(0, 100, few.size)
    return x


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "bitwise_or"])
def test_dtype_and_out(op, name, rng):
    known = ("bool", *INTEGERS) if op == "bitwise_or" else TYPES
    if name not in known:
        pytest.skip("the operator does not take it")
    for other, n in some(rng, itertools.product(known, (1, 70, 9000, 140_000))):
        if name in COMPLEX and other not in COMPLEX:
            continue
        x, dtype = small(rng, op, name, n), dtype_of(other)
        form = FORMS[rng.integers(4)] | {"initial": 1}
        want = expected(op, x, dtype=dtype, **form)
        assert_same(distscan.scan(x, op, dtype=dtype, **form), want, (other, n, form))
        if other != "bool" and op != "bitwise_or":
            want = expected(op, x, **form).astype(dtype)
            assert_same(scanned(x, op, dtype=dtype, **form), want, (other, n, form))


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("name", [*INTEGERS[2:], "float16", *FLOATS, *COMPLEX])
def test_other_byte_orders(op, name, rng):
    for n in some(rng, (1, 9, 700, 40_000)):
        x = exact(rng, op, name, n)
        want = expected(op, x)
        swapped = x.astype(x.dtype.newbyteorder())
        assert_same(distscan.scan(swapped, op), want)
        out = np.empty(n, want.dtype.newbyteorder())
        assert distscan.scan(x, op, out=out) is out
        assert_same(out.astype(want.dtype), want)
        form = {"exclusive": True, "reverse": True}
        assert_same(distscan.scan(swapped, op, **form), expected(op, x, **form))


@pytest.mark.parametrize("op", UFUNCS)
def test_bools_of_any_byte(op, rng):
    """NumPy takes each byte but 0 for true."""
    for n, form in some(rng, itertools.product((1, 63, 64, 65, 3000, 140_000), FORMS)):
        truth = exact(rng, op, "bool", n, reverse=form["reverse"])
        x = (truth * rng.choice([1, 2, 128, 255], n)).astype(np.uint8).view(bool)
        want = expected(op, truth, **form)
        assert_same(scanned(x, op, dtype=want.dtype, **form), want, (n, form))
        assert_same(scanned(x, op, dtype=bool, **form), want.astype(bool), (n, form))
