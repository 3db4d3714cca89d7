"""NaN, infinities and signed zeros in scans on CPUs: to the bit what NumPy's accumulate gives."""

import itertools

import numpy as np
import pytest

import distscan
from distscan.cpu import library
from support.cpu_data import HALVES, dtype_of
from support.cpu_scans import FORMS, anew, assert_same, bits, expected, is_nan, scanned

pytestmark = pytest.mark.one_rank

FLOATS = "float16", "bfloat16", "float32", "float64"
COMPLEX = "complex64", "complex128"
LANES = {"complex64": "float32", "complex128": "float64"}
QUIET = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC0_0000, "float64": 0x7FF8 << 48}


def nan(name, payload=0, *, negative=False):
    """A quiet NaN of a float type."""
    dtype = dtype_of(name)
    pattern = QUIET[name] + payload + (negative << (8 * dtype.itemsize - 1))
    return np.array(pattern, f"u{dtype.itemsize}").view(dtype)[()]


def positions(name):
    """The first and the last element of a vector, of a tile and of a block, and those around."""
    size = dtype_of(name).itemsize
    vector = 16 if name in HALVES else 64 // size
    tile, block = 2048 // size, 2**17 // (4 if name in HALVES else size)
    ends = (end + d for end in (0, vector, tile, block, 2 * block) for d in (-1, 0, 1))
    n = 2 * block + tile + 5
    return n, sorted({i for i in ends if i >= 0} | {n - 1, n - vector, block + tile, vector // 2})


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("name", FLOATS)
def test_nan_stays(op, name, rng, strategy):
    """All results from a NaN on have its bits: its sign and its payload."""
    n, places = positions(name)
    x = rng.normal(size=n).astype(np.float32).astype(dtype_of(name))
    clean = {reverse: expected(op, x, reverse=reverse) for reverse in (False, True)}
    for place, form in itertools.product(places, FORMS[:: 1 if strategy == "single-pass" else 3]):
        value = nan(name, 5, negative=place % 2 == 1)
        y, reverse = x.copy(), form["reverse"]
        y[n - 1 - place if reverse else place] = value
        got = scanned(y, op, dtype=y.dtype, strategy=strategy, **form)
        got, free = (got[::-1], clean[True][::-1]) if reverse else (got, clean[False])
        begin = place + form["exclusive"]
        if name == "bfloat16" and (strategy == "scan-add" or library.load() is None):
            assert is_nan(got[begin:]).all()  # ml_dtypes rounds the running values: it has one NaN
        else:
            assert (bits(got[begin:]) == bits(np.array([value]))).all(), (place, form)
        np.testing.assert_array_equal(bits(got[form["exclusive"] : begin]), bits(free[:place]))


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("name", FLOATS)
def test_the_first_nan_stays(op, name, rng):
    if name == "bfloat16" and library.load() is None:
        pytest.skip("ml_dtypes has one NaN")
    n, places = positions(name)
    x = rng.normal(size=n).astype(np.float32).astype(dtype_of(name))
    for (first, second), reverse in itertools.product(itertools.pairwise(places), (False, True)):
        y = x.copy()
        in_order = y[::-1] if reverse else y
        in_order[second], in_order[first] = nan(name, 1), nan(name, 2, negative=True)
        got = distscan.scan(y, op, reverse=reverse)
        got = got[::-1] if reverse else got
        assert (bits(got[first:]) == bits(in_order[first : first + 1])).all(), (first, second)


@pytest.mark.parametrize("op", ["max", "min", "sum", "prod"])
@pytest.mark.parametrize("name", FLOATS)
def test_initial_nan(op, name, rng, strategy):
    n, _ = positions(name)
    x = np.ones(n, dtype_of(name))
    for form in FORMS:
        assert is_nan(distscan.scan(x, op, initial=np.nan, strategy=strategy, **form)).all()
        flags = np.zeros(n, bool)
        flags[n // 2] = True
        if strategy != "scan-add":
            assert is_nan(distscan.scan(x, op, initial=np.nan, segments=flags, **form)).all()


@pytest.mark.parametrize("op", ["max", "min", "sum", "prod"])
@pytest.mark.parametrize("name", FLOATS)
def test_nan_ends_with_its_segment(op, name, rng):
    n, places = positions(name)
    for place, form in itertools.product(places, FORMS):
        x = np.ones(n, dtype_of(name))
        x[place] = np.nan
        flags = rng.random(n) < 0.01
        flags[place + 1 : place + 2] = rng.random() < 0.5
        want = expected(op, x, heads=flags, **form)
        assert_same(distscan.scan(x, op, segments=flags, **form), want, (place, form))


@pytest.mark.parametrize("op", ["max", "min", "sum", "prod"])
@pytest.mark.parametrize("name", [*FLOATS, *COMPLEX])
@pytest.mark.parametrize("shape", [(3, 70, 41), (1, 400, 8), (1, 3, 2049), (40, 9, 1)])
def test_columns(op, name, shape, rng):
    """NaN in some lines stays in these; it does so next to vectors without NaN, too."""
    x = (
        rng.integers(-1, 2, shape).astype(dtype_of(name))
        if op in ("max", "min")
        else np.ones(shape, dtype_of(name))
    )
    x[rng.random(shape) < 0.003] = np.nan
    for form in FORMS:
        want = expected(op, x, axis=1, **form)
        assert_same(distscan.scan(x, op, axis=1, **form), want, form)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("name", COMPLEX)
def test_order_of_complex_numbers(op, name, rng):
    """Real parts first, then imaginary parts; a NaN in either part stays, with the other part."""
    values = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan]
    for n, form in itertools.product((2, 3, 4, 9, 100, 20_000), FORMS):
        weights = [1, 1, 1, 1, 0.001, 0.001, 10 / n**1.5]
        chosen = rng.choice(values, 2 * n, p=np.array(weights) / np.sum(weights))
        x = chosen.astype(LANES[name]).view(name)
        want = expected(op, x, **form)
        got = distscan.scan(x, op, **form)
        lanes = got.view(LANES[name]), want.view(LANES[name])
        np.testing.assert_array_equal(*lanes, err_msg=str((n, form)))


@pytest.mark.parametrize("name", COMPLEX)
def test_infinite_complex_products(name, rng):
    """By the textbook rule: (inf + 0i) * (1 + 1i) = inf + inf i, but inf * 0 is NaN."""
    parts = [0, -0.0, 1, -1, 2, 0.5, np.inf, -np.inf, np.nan]
    x = rng.choice(parts, (3000, 4)).astype(LANES[name]).view(name)  # 3000 pairs
    want = expected("prod", x, axis=1).view(LANES[name])
    got = distscan.scan(x, "prod", axis=1).view(LANES[name])
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.parametrize("name", COMPLEX)
def test_one_infinity_in_complex_products(name, rng):
    """Elements before it are as without it: no identity comes between that makes them NaN."""
    unit = (1j ** rng.integers(0, 4, 20_000)).round().astype(name)
    for place in (0, 1, 3, 4, 7, 8, 255, 256, 8191, 8192, 16_384, 19_999):
        for reverse in (False, True):
            x = unit.copy()
            x[place] = complex(np.inf, 0)
            got = distscan.scan(x, "prod", reverse=reverse)
            clean = distscan.scan(unit, "prod", reverse=reverse)
            before = slice(place + 1, None) if reverse else slice(place)
            np.testing.assert_array_equal(got[before], clean[before])
            assert not np.isfinite(got[: place + 1] if reverse else got[place:]).any()
            if place == (got.size - 1 if reverse else 0):
                assert_same(got[[place]], x[[place]])


@pytest.mark.parametrize("name", [*FLOATS, *COMPLEX])
def test_sums_of_negative_zeros(name, strategy):
    """They are -0.0; an exclusive scan begins with 0.0."""
    n, _ = positions(name)
    x = np.zeros(n, dtype_of(name))
    bits(x)[...] = bits(-x if name not in COMPLEX else np.full(1, complex(-0.0, -0.0), name))[0]
    for reverse in (False, True):
        got = distscan.scan(x, strategy=strategy, reverse=reverse)
        np.testing.assert_array_equal(bits(got), bits(x))
        got = distscan.scan(x, exclusive=True, strategy=strategy, reverse=reverse)
        assert not bits(got).any()
        got = distscan.scan(x, initial=x[0], exclusive=True, strategy=strategy, reverse=reverse)
        np.testing.assert_array_equal(bits(got), bits(x))
    columns = x[: n // 70 * 70].reshape(-1, 70)
    np.testing.assert_array_equal(bits(distscan.scan(columns, axis=0)), bits(columns))
    np.testing.assert_array_equal(bits(distscan.scan(columns, axis=1)), bits(columns))


@pytest.mark.parametrize("name", FLOATS)
def test_signed_zeros_of_maxima(name, rng):
    """0.0 and -0.0 are equal: the results are zeros, and stay inside the array's own."""
    n, _ = positions(name)
    x = np.where(rng.random(n) < 0.5, 0.0, -0.0).astype(dtype_of(name))
    for op, form in itertools.product(("max", "min"), FORMS):
        got = distscan.scan(x, op, initial=0.0, **form)
        assert not got.any()


@pytest.mark.parametrize("streamed", [False, True], ids=["cached", "streamed"])
@pytest.mark.parametrize("name", FLOATS)
def test_infinities(name, streamed, rng, monkeypatch):
    """inf - inf is NaN from there on; and maxima of infinities are infinite."""
    n, places = positions(name)
    with anew(monkeypatch, streamed=streamed):
        for place in places[:-1]:
            x = np.zeros(n, dtype_of(name))
            x[place], x[n - 1] = np.inf, -np.inf
            for op in ("sum", "max", "min"):
                for form in FORMS:
                    want = expected(op, x, **form)
                    assert_same(scanned(x, op, dtype=x.dtype, **form), want, (op, place, form))


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("name", [*FLOATS, *COMPLEX])
def test_nan_that_is_replaced(op, name, rng, monkeypatch, strategy):
    """The bits of the scan of an array without NaN, in which 0 or 1 stands in its place."""
    instead, scan = (0, distscan.nancumsum) if op == "sum" else (1, distscan.nancumprod)
    dtype = dtype_of(name)
    shapes = [((n,), None) for n in (1, 2, 15, 64, 65, 2049, 70_001)] + [
        ((9, 5), 1), ((700, 3), 0), ((130, 70), 0)]  # fmt: skip
    for (shape, axis), form in itertools.product(shapes, FORMS):
        x = (1 + rng.normal(size=shape) * 0.01).astype(dtype)
        for share in (0.05, 1.0):
            at = rng.random(shape) < share
            y, want = x.copy(), x.copy()
            y[at], want[at] = np.nan, instead
            if name in COMPLEX:
                y[at] = rng.choice([complex(1, np.nan), complex(np.nan, np.inf)], at.sum())
            options = form | {"axis": axis, "strategy": strategy}
            with anew(monkeypatch, threads=int(rng.choice([1, 3]))):
                got = scan(y, **options)
                np.testing.assert_array_equal(
                    bits(got), bits(distscan.scan(want, op, **options)), err_msg=f"{shape} {form}"
                )
                if axis is None and strategy != "scan-add":
                    given = form | {"segments": rng.random(shape) < 0.1}
                    got, want_ = scan(y, **given), distscan.scan(want, op, **given)
                    np.testing.assert_array_equal(bits(got), bits(want_))
            np.testing.assert_array_equal(bits(scan(y[..., ::-1], **options)),
                                          bits(scan(y[..., ::-1].copy(), **options)))  # fmt: skip
