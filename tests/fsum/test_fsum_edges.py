"""``fsum``: every layout, kind and type; sizes at the edges of warps, tiles and chunks."""

from functools import partial
from itertools import accumulate, product
from math import ldexp

import ml_dtypes
import numpy as np
import pytest

import distscan
from support.arrays import Foreign, host
from support.cases import FORMS, forms, one_cut, pairs, two_cuts
from support.exact import finite_bits, same, scanned
from support.processes import everywhere
from support.reference import CALLS, check

# ---- ``fsum``: arrays of every layout, kind and type, into results of others; what is refused ----

# ---- layouts -------------------------------------------------------------------------------------


@one_cut
@forms
def test_overlaps(form, xp, cut, rng):
    """``out`` lies over ``x``: one element before it, one after it, or the other way round."""
    x, mine = finite_bits(rng, "float64", 301), cut(301)
    want, n = scanned(x, "float64", **form)[mine], len(x[mine])
    for of, into in ((slice(n), slice(1, None)), (slice(1, None), slice(n)), (slice(n), None)):
        memory = xp.zeros(n + 1)
        memory[of] = xp.asarray(x[mine])
        out = memory[of][::-1] if into is None else memory[into]
        distscan.scan(memory[of], "fsum", out=out, **form)
        assert same(host(out), want)


@one_cut
@forms
def test_segments_in_memory_of_out(form, xp, cut, rng):
    """Keys that the results overwrite are read before."""
    x, mine = finite_bits(rng, "float64", 301), cut(301)
    heads = np.arange(301) % 7 == 0
    keys = xp.asarray(np.cumsum(heads)[mine].astype(np.float64))
    distscan.scan(xp.asarray(x[mine]), "fsum", segments=keys, out=keys, **form)
    assert same(host(keys), scanned(x, "float64", heads=heads, **form)[mine])


# ---- kinds of arrays -----------------------------------------------------------------------------


def lists(x):
    return x.tolist()


def dlpack(x):
    return Foreign(x)


def subclass(x):
    return x.view(np.recarray)


def torch(x):
    return pytest.importorskip("torch").from_numpy(x)


@one_cut
@pytest.mark.parametrize("kind", [lists, tuple, dlpack, subclass, torch])
def test_kinds(kind, cut, rng):
    """As ``scan`` takes and returns them."""
    x, mine = finite_bits(rng, "float64", 301), cut(301)
    y = distscan.scan(kind(x[mine].copy()), "fsum")
    assert isinstance(
        y, Foreign if kind is dlpack else type(kind(x)) if kind is torch else np.ndarray
    )
    assert same(y.array if kind is dlpack else y, scanned(x, "float64")[mine])


@pytest.mark.one_rank
def test_scalars():
    for x in (0.1, np.float64(0.1), np.array(0.1)):
        assert same(distscan.scan(x, "fsum"), np.array([0.1]))
    assert same(distscan.scan([], "fsum"), np.array([]))


# ---- types ---------------------------------------------------------------------------------------


@two_cuts
@pytest.mark.parametrize("code", "?bBhHiIlLqQ")
def test_integers(code, xp, cut, rng):
    """Of all widths, with the least and the largest among them."""
    x = rng.random(301) < 0.5
    if code != "?":
        limits = np.iinfo(code)
        x = rng.integers(limits.min, limits.max, 301, code, endpoint=True)
        x[rng.integers(301, size=60)] = rng.choice(np.array([limits.min, limits.max], code), 60)
    for call, result in product(CALLS, ("float16", "float32", "float64")):
        into = "out" if call == "out" else "dtype"
        check(x, "fsum", xp=xp, cut=cut, call=call, **{into: result})


@two_cuts
@pairs(group_by="axis", form=FORMS, axis=[None, 0, 1])
def test_complex_with_specials_in_one_part(form, axis, xp, cut, rng):
    """The other part does not see them."""
    x, mine = np.empty((31, 7), "D"), cut(31)
    x.real, x.imag = finite_bits(rng, "float64", 2 * x.size).reshape(2, 31, 7)
    part = x.imag if form["reverse"] else x.real
    for value in (np.inf, -np.inf, np.nan, -0.0):
        part[rng.random(part.shape) < 0.05] = value
    flat = mine if axis is not None else slice(mine.start * 7, mine.stop * 7)
    y = distscan.scan(xp.asarray(x[mine]), "fsum", axis=axis, **form)
    assert same(host(y), scanned(x, "float64", axis=axis, **form)[flat])
    given = form | {"initial": complex(-0.0, np.inf)}
    y = distscan.scan(xp.asarray(x[mine]), "fsum", axis=axis, dtype="F", **given)
    assert same(host(y), scanned(x, "float32", axis=axis, **given)[flat])


@one_cut
@pytest.mark.parametrize("form", [{}, {"reverse": True}, {"exclusive": True}])
def test_zeros(form, xp, cut, rng):
    """A sum is -0 only of -0 alone; the empty sum is +0."""
    for often in (0.0, 0.02, 1.0):
        x = np.where(rng.random(301) < often, 0.0, -0.0)
        for initial in (None, 0.0, -0.0, 0):
            given = form | {"initial": initial}
            y = distscan.scan(xp.asarray(x[cut(301)]), "fsum", **given)
            assert same(host(y), scanned(x, "float64", **given)[cut(301)])


@one_cut
def test_beyond_the_range_and_back(xp, cut):
    """Sums are infinite beyond the largest float, and finite again where exact ones are."""
    most = float(np.finfo("d").max)
    x = np.array([most, most, most, -most, -most, 5e-324, -most, -most, -most, -most, most])
    assert same(host(distscan.scan(xp.asarray(x[cut(11)]), "fsum")), scanned(x, "float64")[cut(11)])
    want = [most, np.inf, np.inf, np.inf, most, most, 5e-324, -most, -np.inf, -np.inf, -np.inf]
    assert scanned(x, "float64").tolist() == want


@one_cut
def test_errstate(xp, cut, rng):
    """Nothing is a floating-point fault, whatever is asked of NumPy."""
    x = finite_bits(rng, "float64", 301)
    x[:4] = np.nan, np.inf, -np.inf, -0.0
    for result in ("float16", "float64"):
        with np.errstate(all="raise"):
            y = distscan.scan(xp.asarray(x[::-1][cut(301)].copy()), "fsum", dtype=result)
        assert same(host(y), scanned(x[::-1], result)[cut(301)])


REFUSED = {
    "longdouble": (np.ones(3, "g"), {}, "x is float128|x is longdouble"),
    "clongdouble": (np.ones(3, "G"), {}, "x is complex256|x is clongdouble"),
    "object": (np.array([1, 2.5], object), {}, "x is object"),
    "large": ([2**70, 1], {}, "x is object"),
    "dates": (np.zeros(3, "M8[s]"), {}, "x is datetime64"),
    "structure": (np.zeros(3, "f8,f8"), {}, "fsum adds integers, and floats"),
    "float8": (np.zeros(3, ml_dtypes.float8_e4m3fn), {}, "x is float8"),
    "into-longdouble": (np.ones(3), {"dtype": "g"}, "dtype is"),
    "into-integers": (np.ones(3), {"dtype": "i4"}, "dtype is int32; fsum rounds to floats"),
    "into-bool": (np.ones(3), {"out": np.zeros(3, "?")}, "out is bool; fsum rounds to floats"),
    "into-real": (np.ones(3, "F"), {"dtype": "f"}, "the imaginary parts would be lost"),
    "into-real-out": (np.ones(3, "D"), {"out": np.zeros(3)}, "the imaginary parts would be lost"),
    "masked": (np.ma.array([1.0, 2.0], mask=[0, 1]), {}, "x is a masked array"),
    "initial": (np.ones(3), {"initial": np.longdouble(1) / 3}, "initial is"),
}

TOO_LARGE = "fsum takes integers up to the largest float64, just below 2\\^1024: divide initial"


@pytest.mark.parametrize("code", "efdDi")
def test_initial_beyond_float64(code, comm):
    """Python's integers have any size; the error has no room for so many digits."""
    x = np.ones(3, code)
    for initial in (1 << 1024, -(1 << 1024), (1 << 1024) - 1, 1 << 20_000):
        text = f"initial is an integer of {initial.bit_length()} bits; {TOO_LARGE}"
        everywhere(comm, ValueError, text, partial(distscan.scan, x, "fsum", initial=initial))


@two_cuts
def test_largest_initial(xp, cut):
    """The largest integer that float64 has still counts as an element."""
    x, most = np.full(11, -(2.0**1023)), int(np.finfo("d").max)
    for initial in (most, -most):
        y = distscan.scan(xp.asarray(x[cut(11)]), "fsum", initial=initial)
        assert same(host(y), scanned(x, "float64", initial=initial)[cut(11)])


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, comm):
    x, given, text = REFUSED[case]
    everywhere(comm, TypeError, text, lambda: distscan.scan(x, "fsum", **given))


# ---- ``fsum``: sizes at the edges of warps, tiles and chunks, and every form of larger arrays ----

SIZES = [0, 1, 2, 3, 31, 32, 33, 127, 128, 129, 8191, 8192, 8193, *(2**17 + i for i in (-1, 0, 1))]
# Bits of elements: the sums of the largest size fill one word or two, or need more.
WIDTHS = {"one-word": 45, "two-words": 109, "four-words": 200}


def wholes(rng, n, bits):
    """Integers of 24 bits, somewhere in so many."""
    places = rng.integers(0, bits - 23, n).tolist()
    some = rng.integers(-(2**24), 2**24, n, endpoint=True).tolist()
    return [whole << place for whole, place in zip(some, places, strict=True)]


def nearest(whole, low, name):
    """whole * 2^low, rounded to a type.

    NumPy rounds 60 bits. If others were cut off, the last of these is 1, so that none is half-way.
    """
    size = abs(whole)
    off = max(size.bit_length() - 60, 0)
    cut = size >> off | (size & (1 << off) - 1 > 0)
    return ldexp(float(np.int64(cut if whole > 0 else -cut).astype(name)), low + off)


@one_cut
@pairs(group_by="width", n=SIZES, name=["float32", "float64"], width=WIDTHS)
def test_sizes(n, name, width, xp, cut, rng):
    """Exact sums by Python's integers; odd sizes are exclusive, from the end, and start at 3."""
    bits, mine = WIDTHS[width], cut(n)
    low = -bits // 2
    elements = wholes(rng, n, bits)
    x = np.array([ldexp(each, low) for each in elements]).astype(name)
    form, sums = {}, list(accumulate(elements))
    if n % 2 == 1:
        form = {"exclusive": True, "reverse": True, "initial": ldexp(3, low)}
        sums = list(accumulate(elements[:0:-1], initial=3))[::-1]
    y = distscan.scan(xp.asarray(x[mine]), "fsum", **form)
    want = np.array([nearest(each, low, name) for each in sums[mine]], name)
    assert same(host(y), want)


# A shape, an axis, and how often segments begin.
ARRAYS = [
    ((9000,), None, 0.0),
    ((9000,), None, 0.01),
    ((9000,), None, 0.5),
    ((1800, 5), 0, 0.0),
    ((160, 57), 0, 0.0),
    ((5, 1900), 1, 0.0),
    ((1300, 7), 1, 0.0),
    ((20, 20, 21), 1, 0.0),
]


@one_cut
@pairs(group_by="array", array=ARRAYS, form=FORMS, width=WIDTHS, name=["float32", "float64"])
def test_forms(array, form, width, name, xp, cut, rng):
    """Of arrays as long as several tiles; also with infinities, NaN and -0 near the end."""
    (shape, axis, often), specials = array, rng.integers(2) * 9
    n, mine = int(np.prod(shape)), cut(shape[0])
    x = np.array([ldexp(each, -100) for each in wholes(rng, n, WIDTHS[width])]).astype(name)
    x[rng.integers(n - n // 4, n, specials)] = rng.choice([np.inf, -np.inf, np.nan, -0.0], specials)
    x, given = x.reshape(shape), {"axis": axis, **form}
    heads = None
    if often > 0:
        heads = rng.random(n) < often
        keys = np.cumsum(heads).astype("i")
        given["segments"] = xp.asarray(heads[mine] if specials else keys[mine])
    y = distscan.scan(xp.asarray(x[mine]), "fsum", **given)
    assert same(host(y), scanned(x, name, axis=axis, heads=heads, **form)[mine])
