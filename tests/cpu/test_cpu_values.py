"""Values that need care on CPUs: halves, NaN, infinities, zeros, logarithms, rounded sums."""

import itertools

import numpy as np
import pytest

import distscan
from support.cases import STRATEGIES, pairs
from support.cpu import (
    COMPILED,
    FORMS,
    HALVES,
    anew,
    assert_same,
    bits,
    compiled_only,
    expected,
    is_nan,
    levels,
    scanned,
)
from support.exact import dtype_of

pytestmark = pytest.mark.one_rank


# ---- float16 and bfloat16: every value is read, every result rounded, as NumPy does --------------

names = pytest.mark.parametrize("name", HALVES)


LEVELS = ["numpy", *levels()]


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    with anew(monkeypatch, level=request.param):
        yield request.param


def every(name):
    return np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))


def assert_bits(got, want):
    """NaN keeps its sign, and may have another payload."""
    got, want = got.reshape(-1), want.reshape(-1)
    nan = is_nan(want)
    np.testing.assert_array_equal(is_nan(got), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(want)[~nan])


@pairs(op=["sum", "prod", "max", "min"], name=HALVES, level=LEVELS, indirect=["level"])
def test_every_value(op, name, level):
    """As a row of one element, as a column, alone behind the identity."""
    x = every(name)
    assert_bits(distscan.scan(x[:, None], op, axis=1), x)
    assert_bits(distscan.scan(x[None], op, axis=0), x)
    nan = is_nan(x)
    signs = bits(distscan.scan(x[:, None], op, axis=1))[nan] >> 15
    np.testing.assert_array_equal(signs, bits(x)[nan] >> 15)


@pairs(op=["sum", "prod"], name=HALVES, level=LEVELS, indirect=["level"])
def test_every_rounding(op, name, level, rng):
    """Of pairs: also to subnormal numbers and to infinity; ties go to even."""
    x = every(name)
    ufunc = {"sum": np.add, "prod": np.multiply}[op]
    one = np.array(1, x.dtype)
    near = (bits(x) ^ rng.integers(0, 1 << 11, x.size, np.uint16)).view(x.dtype)
    others = [rng.permutation(x), rng.permutation(x), near, np.full_like(x, one)]
    others += [np.full_like(x, 2.0**-k) for k in (1, 5, 8, 10, 11)]
    for other in others:
        pairs = np.stack([x, other])
        with np.errstate(all="ignore"):
            want = ufunc(x.astype(np.float32), other.astype(np.float32)).astype(x.dtype)
        for got in (
            distscan.scan(pairs, op, axis=0)[1],
            distscan.scan(pairs.T, op, axis=1)[:, 1],
            distscan.scan(np.ascontiguousarray(pairs.T), op, axis=1, reverse=True)[:, 0],
        ):
            assert_bits(got, want)


def test_known_roundings(level):
    for pair, want in [
        ((2048, 1), 2048), ((2048, 3), 2052), ((2050, 1), 2052), ((65504, 15.9), 65504),
        ((65504, 16), np.inf), ((-65504, -16), -np.inf), ((2**-24, 2**-24), 2**-23),
        ((np.inf, -np.inf), np.nan),
    ]:  # fmt: skip
        got = distscan.scan(np.array(pair, np.float16))
        np.testing.assert_array_equal(got, np.array([pair[0], want], np.float16))
    x = np.array([2**-12, 2**-13], np.float16)  # their products are subnormal, or a tie with 0
    got = distscan.scan(np.stack([x, x * 1.5, x], 1), "prod", axis=1)
    want = [[2**-12, 1.5 * 2**-24, 0], [2**-13, 0, 0]]
    np.testing.assert_array_equal(got, np.array(want, np.float64).astype(np.float16))


@names
def test_running_values_are_not_rounded(name, level, rng):
    """They are float32: 4096 ones and more are counted, and each count is rounded once."""
    for n in (300, 4097, 60_001):
        x = np.ones(n, dtype_of(name))
        counts = np.arange(1, n + 1, dtype=np.float32)
        assert_bits(distscan.scan(x), counts.astype(x.dtype))
        np.testing.assert_array_equal(distscan.scan(x, dtype=np.float32), counts)
        flags = rng.random(n) < 0.001
        flags[0] = True
        begins = np.maximum.accumulate(np.where(flags, np.arange(n), 0))
        want = (np.arange(n) - begins + 1).astype(np.float32).astype(x.dtype)
        assert_bits(distscan.scan(x, segments=flags), want)


# ---- NaN, infinities and signed zeros: the bits of NumPy's accumulate ----------------------------

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


@pairs(op=["max", "min"], name=FLOATS, strategy=STRATEGIES)
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
        if name == "bfloat16" and (strategy == "scan-add" or not COMPILED):
            assert is_nan(got[begin:]).all()  # ml_dtypes rounds the running values: it has one NaN
        else:
            assert (bits(got[begin:]) == bits(np.array([value]))).all(), (place, form)
        np.testing.assert_array_equal(bits(got[form["exclusive"] : begin]), bits(free[:place]))


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("name", FLOATS)
def test_the_first_nan_stays(op, name, rng):
    if name == "bfloat16" and not COMPILED:
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


@pairs(op=["max", "min", "sum", "prod"], name=FLOATS, strategy=STRATEGIES)
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


@pairs(
    group_by="op",
    op=["max", "min", "sum", "prod"],
    name=[*FLOATS, *COMPLEX],
    shape=[(3, 70, 41), (1, 400, 8), (1, 3, 2049), (40, 9, 1)],
)
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
        many = chosen.astype(LANES[name]).view(name)
        few = many.copy()  # a new maximum or minimum often, by its real part alone
        few.real = np.sort(rng.integers(0, n, n)) * rng.choice([-1, 1])
        for x in many, few:
            got, want = distscan.scan(x, op, **form), expected(op, x, **form)
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


@pairs(group_by="op", op=["sum", "prod"], name=[*FLOATS, *COMPLEX], strategy=STRATEGIES)
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


# ---- logcumsumexp: its errors, and values that no sum reaches ------------------------------------

log_names = pytest.mark.parametrize("name", ["float32", "float64"])
ODD = (np.inf, -np.inf, np.nan, 0.0, -0.0, 5.0, -1e30, 1e30)


def exact_logs(x, axis=0):
    """The scan in long double, and how far a float may be from it: the error of y in these units.

    An error of y is a relative error of the sum; above 1, y is rounded, too.
    """
    with np.errstate(all="ignore"):
        y = np.logaddexp.accumulate(x.astype("g"), axis)
    return y, np.maximum(1, abs(y)) * np.finfo(x.dtype).eps


@compiled_only
@log_names
def test_pairs(name, rng):
    """Two elements, of every size and distance; in columns, the second is combined directly."""
    x = rng.normal(size=(2, 60_000)) * rng.choice([1e-30, 1e-3, 1, 10, 1000], 60_000)
    x[1, ::2] = x[0, ::2] + rng.exponential(size=30_000) * rng.choice([-700, -30, 0.01, 80], 30_000)
    x = x.astype(dtype_of(name))
    want, units = exact_logs(x)
    assert np.all(abs(distscan.logcumsumexp(x, axis=0) - want) <= 2 * units)


@compiled_only
@pairs(
    group_by="name",
    name=["float32", "float64"],
    n=[1, 7, 64, 513, 5000, 70_001],
    extent=[0.01, 1, 30, 80, 300, 10_000],
)
def test_ranges(name, n, extent, rng, monkeypatch):
    """Random, rising and falling; NumPy's errors, of thousands of steps, would not pass."""
    rising = np.linspace(-extent, extent, n)
    for given in (rng.uniform(-extent, extent, n), rising, rising[::-1]):
        x = given.astype(dtype_of(name))
        for reverse in (False, True):
            want, units = exact_logs(x[::-1] if reverse else x)
            with anew(monkeypatch, threads=int(rng.choice([1, 3]))):
                y = distscan.logcumsumexp(x, reverse=reverse)
            assert np.all(abs((y[::-1] if reverse else y) - want) <= 16 * units)
            assert y[-1 if reverse else 0] == x[-1 if reverse else 0]


@compiled_only
@log_names
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
            y, (want, units) = distscan.logcumsumexp(x), exact_logs(x)
            odd = ~np.isfinite(want)
            np.testing.assert_array_equal(y[odd], want[odd].astype(dtype))
            assert np.all(abs(y[~odd] - want[~odd]) <= 16 * units[~odd])
        every = np.full(n, value, dtype)
        assert_same(distscan.logcumsumexp(every), every)


@compiled_only
@log_names
def test_nan_after_larger_elements(name, rng):
    """Until the NaN, results are as without it; it may lie in any lane, one or more vectors on."""
    dtype = dtype_of(name)
    for large, n, reverse in itertools.product((np.inf, 1000, 1e30), (60, 2100), (False, True)):
        for place in rng.integers(0, n - 1, 40):
            x = rng.normal(size=n).astype(dtype)
            x[place], x[rng.integers(place + 1, n)] = large, np.nan
            y = distscan.logcumsumexp(x[::-1] if reverse else x, reverse=reverse)
            want, units = exact_logs(x)
            y, odd = y[::-1] if reverse else y, ~np.isfinite(want)
            assert_same(y[odd], want[odd].astype(dtype))
            assert np.all(abs(y[~odd] - want[~odd]) <= 16 * units[~odd])


@compiled_only
@log_names
def test_every_form(name, rng):
    """Rows, columns and segments, from both ends, with a first value."""
    dtype = dtype_of(name)
    for shape, axis in (((9, 5), 1), ((20, 300), 1), ((300, 3), 0), ((300, 20), 0), ((3000,), 0)):
        x = rng.normal(size=shape).astype(dtype) * 20
        for form in FORMS:
            step = slice(None, None, -1 if form["reverse"] else 1)
            lines = np.moveaxis(x, axis, 0)[step]
            lines = np.concatenate([np.full_like(lines[:1], 3), lines])
            want, units = exact_logs(lines)
            kept = slice(0, -1) if form["exclusive"] else slice(1, None)
            y = distscan.logcumsumexp(x, axis, initial=3, **form)
            y = np.moveaxis(y, axis, 0)[step]
            assert np.all(abs(y - want[kept]) <= 16 * units[kept])
    x, heads = rng.normal(size=5000).astype(dtype) * 20, rng.random(5000) < 0.01
    y, begins = distscan.logcumsumexp(x, segments=heads), [0, *np.flatnonzero(heads), 5000]
    for low, high in itertools.pairwise(sorted(set(begins))):
        want, units = exact_logs(x[low:high])
        assert np.all(abs(y[low:high] - want) <= 16 * units)


# ---- Rounding errors stay inside the bounds of their chains of operations ------------------------

SIZES = 5, 100, 5000, 20_000, 300_001


def longest_chain(n, vector, block):
    """Roundings behind one result: in its vector, over the vectors of its block, over blocks."""
    return 8 + min(n, block) / vector + n / block


@pairs(
    group_by="name",
    n=SIZES,
    form=FORMS,
    name=["float32", "float64", "complex64", "complex128", "float16"],
)
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


@pairs(group_by="name", n=SIZES, form=FORMS, name=["float32", "float64", "complex64", "complex128"])
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
