"""Scans on CPUs of every operator, type and form, at every address, against NumPy's accumulate."""

import itertools

import numpy as np
import pytest

import distscan
from support import cases
from support.cases import STRATEGIES, pairs, pairwise
from support.cpu import (
    CASES,
    COMPLEX,
    FLOATS,
    FORMS,
    HALVES,
    INTEGERS,
    TYPES,
    UFUNCS,
    anew,
    assert_same,
    edges,
    exact,
    expected,
    initial,
    scanned,
    some,
    takes,
)
from support.data import HOST_KEY_TYPES, KEY_TYPES, keys_at
from support.exact import dtype_of

pytestmark = pytest.mark.one_rank


# ---- Every operator and type ---------------------------------------------------------------------

DENSITIES = "none", "all", "first", "last", "second", 0.001, 0.02, 0.5


def result_and_sizes(op, name):
    """Return the type of the result, and sizes around the edges of vectors, tiles and blocks."""
    result = expected(op, np.zeros(0, dtype_of(name))).dtype
    acc = 4 if name in HALVES else 8 if (op, name) == ("sum", "float32") else result.itemsize
    return result, edges(acc, result.itemsize)


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


def with_initial(rng, op, name, form):
    """A form whose initial value, if it has one, is of the operator and the type."""
    return form if form["initial"] is None else form | {"initial": initial(rng, op, name)}


@pairs(
    lambda case: (
        takes(case["op"], case["name"])
        and not (case["segmented"] and case["strategy"] == "scan-add")
    ),
    group_by="op",
    op=UFUNCS,
    name=TYPES,
    strategy=STRATEGIES,
    segmented=[False, True],
)
def test_sizes_and_forms(op, name, strategy, segmented, rng):
    result, sizes = result_and_sizes(op, name)
    x = exact(rng, op, name, 5000)
    assert_same(distscan.scan(x, op), expected(op, x))
    chosen = some(rng, itertools.product(sizes, DENSITIES if segmented else [None], cases.FORMS))
    for n, density, form in chosen[: len(chosen) // 6 if segmented else None]:
        x = exact(rng, op, name, n, reverse=form["reverse"])
        options = with_initial(rng, op, name, form)
        if segmented:
            options = options | {"heads": heads(rng, density, n)}
        want = expected(op, x, **options)
        shift = int(rng.integers(64)) // 16 * 16
        got = scanned(x, op, dtype=result, strategy=strategy, shift=shift, **options)
        assert_same(got, want, (n, density, form))


def small(rng, op, name, n):
    """Numbers whose scans every type holds: from 0 to 100."""
    few = rng.integers(0, n, 3 if op == "prod" else 100)
    x = np.full(n, op == "prod", dtype_of(name))
    x[few] = 2 if op == "prod" else 1 if op == "sum" else rng.integers(0, 100, few.size)
    return x


def converts(case, name):
    """Whether an operator takes both types, and no imaginary part is lost."""
    integers = ("bool", *INTEGERS)
    if case["op"] == "bitwise_or" and not {name, case["other"]} <= {*integers}:
        return False
    return name not in COMPLEX or case["other"] in COMPLEX


@pytest.mark.parametrize("name", TYPES)
def test_dtype_and_out(name, rng):
    """Each type of elements with each type of results."""
    every = pairwise(
        {"op": ["sum", "prod", "max", "min", "bitwise_or"], "other": TYPES,
         "n": [1, 70, 9000, 140_000], "form": FORMS},
        lambda case: converts(case, name),
    )  # fmt: skip
    for case in every:
        op, other, n, form = case.values()
        form = form | {"initial": 1}
        x, dtype = small(rng, op, name, n), dtype_of(other)
        want = expected(op, x, dtype=dtype, **form)
        assert_same(distscan.scan(x, op, dtype=dtype, **form), want, case)
        if other != "bool" and op != "bitwise_or":
            want = expected(op, x, **form).astype(dtype)
            assert_same(scanned(x, op, dtype=dtype, **form), want, case)


@pairs(group_by="op", op=["sum", "max"], name=[*INTEGERS[2:], "float16", *FLOATS, *COMPLEX])
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
    form = with_initial(rng, op, name, form)
    x = table(rng, op, name, shape, axis, reverse=form["reverse"])
    want = expected(op, x, axis=axis, **form)
    got = scanned(x, op, dtype=want.dtype, axis=axis, **form, **options)
    assert_same(got, want, (shape, axis, form))
    return x, want, form


def columns(rng, _):
    """Draw shapes of one block and of several; strips of columns, too."""
    heights = 1, 2, 63, 64, 65, 200, 1000
    shapes = [(n, inner) for n, inner in itertools.product(heights, WIDTHS) if n * inner < 300_000]
    return rng.permutation(shapes)[:12]


def middle_axes(rng, _):
    return (3, 40, 2), (2, 300, 65), (5, 7, 11), (2, 3, 2049), (1, 70, 500), (4, 1, 33)


def rows(rng, itemsize):
    """Draw shapes of short rows, several to a block, and of rows of several blocks."""
    block = 2**17 // itemsize
    lengths = *range(1, 20), 63, 64, 65, 127, 128, 129, 1000, 2049
    shapes = [(300 if n < 200 else 9, n) for n in lengths]
    shapes += [(3, block - 1), (2, block), (2, block + 1), (3, 2 * block + 77), (5, block // 2)]
    return rng.permutation(shapes)[:16]


AXES = {columns: 0, middle_axes: 1, rows: -1}


@pairs(
    lambda case: takes(case["op"], case["name"]),
    group_by="op",
    op=UFUNCS,
    name=TYPES,
    strategy=STRATEGIES,
    shapes=AXES,
)
def test_axes(op, name, strategy, shapes, rng):
    axis, itemsize = AXES[shapes], result_and_sizes(op, name)[0].itemsize
    for shape in shapes(rng, itemsize):
        for form in rng.permutation(cases.FORMS)[:2]:
            shift = int(rng.integers(64)) // 16 * 16
            x, want, options = check(
                rng, op, name, tuple(shape), axis, form, strategy=strategy, shift=shift
            )
        if shapes is middle_axes:
            result = distscan.scan(x[:, None], op, axis=-2, **options)  # one more axis
            assert_same(result[:, 0], want, (shape, options))


@pytest.mark.parametrize(("op", "name"), IN_MEMORY)
def test_memory_of_lines(op, name, rng, monkeypatch):
    """Past the caches, from strided views, in place."""
    shapes = (70, 33, 65), (3, 500, 7), (9, 2, 1031)
    for axis, shape, form in some(rng, itertools.product((0, 1, 2), shapes, cases.FORMS)):
        with anew(monkeypatch, streamed=True):
            x, want, options = check(rng, op, name, shape, axis, form, shift=16)
        for view in (np.repeat(x, 2, -1)[..., ::2], np.asfortranarray(x), x[::-1].copy()[::-1]):
            got = distscan.scan(view, op, axis=axis, **options)
            assert_same(np.ascontiguousarray(got), want, (shape, options))
        if want.dtype == x.dtype:
            assert distscan.scan(x, op, axis=axis, out=x, **options) is x
            assert_same(x, want, (shape, options))


# ---- Segments, by flags and by keys, of every density --------------------------------------------


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
        for marks in (odd, shifted, strided, backwards):
            assert_same(distscan.scan(x, segments=marks, **form), want, (n, form))


@pytest.mark.parametrize("keys", [*KEY_TYPES, *HOST_KEY_TYPES, "U3"])
def test_keys(keys, rng):
    """A segment begins where the key changes."""
    for n, density, form in some(rng, itertools.product((1, 64, 5000, 90_000), DENSITIES, FORMS)):
        x = exact(rng, "sum", "float32", n)
        flags = heads(rng, density, n)
        marks = np.cumsum(flags).astype("U3") if keys == "U3" else keys_at(rng, flags, keys)
        begins = np.ones(n, bool)
        begins[1:] = marks[1:] != marks[:-1]
        want = expected("sum", x, heads=begins, **form)
        assert_same(distscan.scan(x, segments=marks, **form), want, (n, density, form))


@pytest.mark.parametrize("name", ["int8", "float16", "float32", "int64", "complex128"])
def test_memory_of_segments(name, rng, monkeypatch):
    """Past the caches at any address, from strided and swapped input, in place."""
    op = "max" if name == "int8" else "sum"
    for case in pairwise({"density": DENSITIES, "n": [65, 3000, 40_001], "form": FORMS}):
        density, n, form = case.values()
        x = exact(rng, op, name, n, reverse=form["reverse"])
        flags = heads(rng, density, n)
        want = expected(op, x, heads=flags, **form)
        with anew(monkeypatch, streamed=True):
            shift = int(rng.integers(64))
            got = scanned(x, op, dtype=want.dtype, heads=flags, shift=shift, **form)
        assert_same(got, want, (n, shift, form))
        for view in (np.repeat(x, 2)[::2], x.astype(x.dtype.newbyteorder("S"))):
            assert_same(distscan.scan(view, op, segments=flags, **form), want, (n, form))
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


@pytest.mark.parametrize("streamed", [False, True], ids=["cached", "streamed"])
@cases_of_sizes
def test_results_at_any_address(op, name, streamed, rng, monkeypatch):
    """Also past the caches; bytes around the results stay as they are."""
    result, every = result_and_sizes(op, name)
    with anew(monkeypatch, streamed=streamed):
        for n, form in some(rng, itertools.product(every, cases.FORMS)):
            x = exact(rng, op, name, n, reverse=form["reverse"])
            options = with_initial(rng, op, name, form)
            want = expected(op, x, **options)
            for shift in rng.integers(0, 64, 2):  # bytes
                for aligned in (shift // result.itemsize * result.itemsize, shift):
                    got = scanned(x, op, dtype=result, shift=int(aligned), **options)
                    assert_same(got, want, (n, aligned, options))


@cases_of_sizes
def test_input_at_any_address(op, name, rng):
    _, every = result_and_sizes(op, name)
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


# The places of the input and of the result among n + 1 elements.
OVERLAPS = [
    (slice(1, None), slice(1, None)),
    (slice(1, None), slice(-1)),
    (slice(-1), slice(1, None)),
]


@pairs(
    lambda case: (
        (case["op"], case["name"]) in SIZES_OF_VALUES
        and result_and_sizes(case["op"], case["name"])[0] == dtype_of(case["name"])
    ),
    group_by="op",
    op=UFUNCS,
    name=TYPES,
    strategy=STRATEGIES,
)
def test_results_in_the_memory_of_the_input(op, name, strategy, rng):
    """Over the input, one element further or one element before."""
    every = itertools.product(result_and_sizes(op, name)[1], FORMS, OVERLAPS)
    for n, form, (source, target) in some(rng, every):
        x = exact(rng, op, name, n, reverse=form["reverse"])
        memory = np.concatenate([x[:1], x]) if n > 0 else np.zeros(1, x.dtype)
        first = memory[:1].tobytes()
        memory[source] = x
        out = memory[target]
        assert distscan.scan(memory[source], op, out=out, strategy=strategy, **form) is out
        assert_same(out, expected(op, x, **form), (n, form, target))
        if source == target:
            assert memory[:1].tobytes() == first


@cases_of_sizes
def test_strided_views(op, name, rng):
    result, every = result_and_sizes(op, name)
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
