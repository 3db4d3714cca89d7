"""Scans on CPUs of every operator, type and form, at every address, against NumPy's accumulate."""

import itertools

import numpy as np
import pytest

import distscan
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
    takes,
)
from support.cpu_scans import FORMS, anew, assert_same, expected, scanned
from support.keys import HOST_TYPES, keys_at
from support.keys import TYPES as KEY_TYPES
from support.pairs import pairs
from support.strategies import STRATEGIES

pytestmark = pytest.mark.one_rank


# ---- Every operator and type ---------------------------------------------------------------------

cases = pytest.mark.parametrize(("op", "name"), CASES)
every_strategy = pairs(
    lambda case: takes(case["op"], case["name"]),
    op=UFUNCS, name=TYPES, strategy=STRATEGIES,
)  # fmt: skip


@every_strategy
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


# ---- Scans along an axis: rows, and columns of every width ---------------------------------------

WIDTHS = (*range(1, 71), 127, 128, 129, 255, 256, 257, 500, 511, 513, 1024, 2049, 4099)
IN_MEMORY = [(op, name) for op, name in CASES if op in ("sum", "max") and name in (
    "bool", "int8", "int16", "float16", "float32", "float64", "complex64")]  # fmt: skip


def table(rng, op, name, shape, axis, *, reverse):
    """Draw an array whose lines along an axis are exact data, each its own."""
    n = shape[axis]
    lines = [exact(rng, op, name, n, reverse=reverse) for _ in range(min(7, np.prod(shape) // n))]
    others = [extent for i, extent in enumerate(shape) if i != axis % len(shape)]
    chosen = np.array(lines)[rng.integers(0, len(lines), others)]
    return np.ascontiguousarray(np.moveaxis(chosen, -1, axis))


def check(rng, op, name, shape, axis, form, **options):
    given = form if form["initial"] is None else form | {"initial": initial(rng, op, name)}
    x = table(rng, op, name, shape, axis, reverse=form["reverse"])
    want = expected(op, x, axis=axis, **given)
    got = scanned(x, op, dtype=want.dtype, axis=axis, **given, **options)
    assert_same(got, want, (shape, axis, given))
    return x, want, given


@every_strategy
def test_columns(op, name, rng, strategy):
    """Of one block and of several; strips of columns, too."""
    several = 1, 2, 63, 64, 65, 200, 1000
    wide = [(n, inner) for n, inner in itertools.product(several, WIDTHS) if n * inner < 300_000]
    for (n, inner), form in itertools.product(
        rng.permutation(wide)[:12], rng.permutation(forms.FORMS)[:2]
    ):
        shift = int(rng.integers(64)) // 16 * 16
        check(rng, op, name, (n, inner), 0, form, strategy=strategy, shift=shift)


@cases
def test_middle_axes(op, name, rng):
    shapes = (3, 40, 2), (2, 300, 65), (5, 7, 11), (2, 3, 2049), (1, 70, 500), (4, 1, 33)
    for shape, form in some(rng, itertools.product(shapes, forms.FORMS)):
        x, want, given = check(rng, op, name, shape, 1, form)
        result = distscan.scan(x[:, None], op, axis=-2, **given)  # its shape has one more axis
        assert_same(result[:, 0], want, (shape, given))


@cases
def test_rows(op, name, rng):
    """Short rows, several to a block, and rows of several blocks."""
    size = expected(op, np.zeros(0, dtype_of(name))).dtype.itemsize
    block = 2**17 // size
    lengths = *range(1, 20), 63, 64, 65, 127, 128, 129, 1000, 2049
    shapes = [(300 if n < 200 else 9, n) for n in lengths]
    shapes += [(3, block - 1), (2, block), (2, block + 1), (3, 2 * block + 77), (5, block // 2)]
    chosen = some(rng, itertools.product(shapes, forms.FORMS))
    for shape, form in chosen[: len(chosen) // 2]:
        check(rng, op, name, shape, -1, form, shift=int(rng.integers(64)) // 16 * 16)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("op", "name"), IN_MEMORY)
def test_memory_of_lines(op, name, axis, rng, monkeypatch):
    """Past the caches, from strided views, in place."""
    for shape, form in some(
        rng, itertools.product([(70, 33, 65), (3, 500, 7), (9, 2, 1031)], forms.FORMS)
    ):
        with anew(monkeypatch, streamed=True):
            x, want, given = check(rng, op, name, shape, axis, form, shift=16)
        for view in (np.repeat(x, 2, -1)[..., ::2], np.asfortranarray(x), x[::-1].copy()[::-1]):
            got = distscan.scan(view, op, axis=axis, **given)
            assert_same(np.ascontiguousarray(got), want, (shape, given))
        if want.dtype == x.dtype:
            assert distscan.scan(x, op, axis=axis, out=x, **given) is x
            assert_same(x, want, (shape, given))


# ---- Segments, by flags and by keys, of every density --------------------------------------------

DENSITIES = "none", "all", "first", "last", "second", 0.001, 0.02, 0.5


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


@pairs(
    lambda case: takes(case["op"], case["name"]),
    op=UFUNCS, name=TYPES, strategy=("reduce-scan", "single-pass"),
)  # fmt: skip
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


@pytest.mark.parametrize("keys", [*KEY_TYPES, *HOST_TYPES, "U3"])
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
def test_memory_of_segments(name, density, rng, monkeypatch):
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


# ---- Arrays at any address: bytes around the results stay as they are ----------------------------

# Each pair of sizes, of a running value and of a result, and of each kind of them.
SIZES_OF_VALUES = [("sum", name) for name in (
    "int8", "uint32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128")] + [
    ("max", "int8"), ("max", "uint16"), ("min", "float32"), ("max", "complex128"), ("max", "bool"),
    ("prod", "complex64"), ("bitwise_xor", "uint8")]  # fmt: skip
cases_of_sizes = pytest.mark.parametrize(("op", "name"), SIZES_OF_VALUES)


def sizes(op, name):
    result = expected(op, np.zeros(0, dtype_of(name))).dtype
    acc = 4 if name in HALVES else 8 if (op, name) == ("sum", "float32") else result.itemsize
    return result, edges(acc, result.itemsize)


@pytest.mark.parametrize("streamed", [False, True], ids=["cached", "streamed"])
@cases_of_sizes
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


@cases_of_sizes
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


@cases_of_sizes
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


@cases_of_sizes
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


@cases_of_sizes
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
