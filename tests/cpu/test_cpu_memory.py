"""Scans on CPUs at any address: what they read, what they write, and what they leave alone."""

import itertools

import numpy as np
import pytest

import distscan
from support import forms
from support.cpu_data import HALVES, dtype_of, edges, exact, initial, some
from support.cpu_scans import FORMS, anew, assert_same, expected, scanned

pytestmark = pytest.mark.one_rank

# Each pair of sizes, of a running value and of a result, and of each kind of them.
CASES = [("sum", name) for name in ("int8", "uint32", "int64", "float16", "bfloat16", "float32",
         "float64", "complex64", "complex128")] + [
    ("max", "int8"), ("max", "uint16"), ("min", "float32"), ("max", "complex128"), ("max", "bool"),
    ("prod", "complex64"), ("bitwise_xor", "uint8")]  # fmt: skip
cases = pytest.mark.parametrize(("op", "name"), CASES)


def sizes(op, name):
    result = expected(op, np.zeros(0, dtype_of(name))).dtype
    acc = 4 if name in HALVES else 8 if (op, name) == ("sum", "float32") else result.itemsize
    return result, edges(acc, result.itemsize)


@pytest.mark.parametrize("streamed", [False, True], ids=["cached", "streamed"])
@cases
def test_results_at_any_address(op, name, streamed, rng, monkeypatch):
    """Also past the caches; bytes around the results stay as they are."""
    result, every = sizes(op, name)
    with anew(monkeypatch, streamed=streamed):
        for n, form in some(rng, itertools.product(every, forms.FORMS)):
            x = exact(rng, op, name, n, reverse=form["reverse"])
            given = form if form["initial"] is None else form | {"initial": initial(rng, op, name)}
            want = expected(op, x, **given)
            for shift in rng.integers(0, 64, 2):  # bytes
                for aligned in (shift // result.itemsize * result.itemsize, shift):
                    got = scanned(x, op, dtype=result, shift=int(aligned), **given)
                    assert_same(got, want, (n, aligned, given))


@cases
def test_input_at_any_address(op, name, rng):
    _, every = sizes(op, name)
    dtype = dtype_of(name)
    for n, form in some(rng, itertools.product(every, FORMS)):
        x = exact(rng, op, name, n, reverse=form["reverse"])
        want = expected(op, x, **form)
        for shift in (1, dtype.itemsize, int(rng.integers(64))):
            memory = np.zeros(shift + x.nbytes, np.uint8)
            shifted = memory[shift:].view(dtype)
            shifted[...] = x
            assert_same(distscan.scan(shifted, op, **form), want, (n, shift, form))
        read_only = np.frombuffer(b"\xff" + x.tobytes(), dtype, n, 1)
        assert_same(distscan.scan(read_only, op, **form), want, (n, form))


@cases
def test_in_place(op, name, rng, strategy):
    result, every = sizes(op, name)
    if result != dtype_of(name):
        pytest.skip("the result has another type")
    for n, form in some(rng, itertools.product(every, FORMS)):
        x = exact(rng, op, name, n, reverse=form["reverse"])
        want = expected(op, x, **form)
        memory = np.concatenate([x, x[:1], x])
        whole = memory[n + 1 - (n == 0) :]
        assert distscan.scan(whole, op, out=whole, strategy=strategy, **form) is whole
        assert_same(whole, want, (n, form))
        assert memory[: n + 1].tobytes() == np.concatenate([x, x[:1]]).tobytes()


@cases
def test_parts_of_the_same_memory(op, name, rng):
    """Results over the input, one element further or one element before."""
    result, every = sizes(op, name)
    if result != dtype_of(name):
        pytest.skip("the result has another type")
    for n, form in some(rng, itertools.product(every, FORMS)):
        x = exact(rng, op, name, n, reverse=form["reverse"])
        want = expected(op, x, **form)
        for source, target in ((slice(1, None), slice(-1)), (slice(-1), slice(1, None))):
            memory = np.empty(n + 1, x.dtype)
            memory[source] = x
            distscan.scan(memory[source], op, out=memory[target], **form)
            assert_same(memory[target], want, (n, form, target))


@cases
def test_strided_views(op, name, rng):
    result, every = sizes(op, name)
    for n, form in some(rng, itertools.product(every, FORMS)):
        x = exact(rng, op, name, n, reverse=form["reverse"])
        want = expected(op, x, **form)
        views = {"every second": np.repeat(x, 2)[::2], "from the end": x[::-1].copy()[::-1]}
        for what, view in views.items():
            assert_same(distscan.scan(view, op, **form), want, (n, what, form))
            memory = np.zeros(2 * n + 1, result)
            out = memory[1::2] if what == "every second" else memory[:n][::-1]
            assert distscan.scan(view, op, out=out, **form) is out
            assert_same(np.ascontiguousarray(out), want, (n, what, form))
            others = memory[::2] if what == "every second" else memory[n:]
            assert not others.any()
