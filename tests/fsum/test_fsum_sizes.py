"""``fsum``: sizes at the edges of warps, tiles and chunks, and every form of larger arrays."""

from itertools import accumulate, product
from math import ldexp

import numpy as np
import pytest

import distscan
from support.cuts import one_cut
from support.exact import same, scanned
from support.forms import FORMS
from support.host import host
from support.seed import drawn, drawn_among_many

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
@pytest.mark.parametrize(
    ("n", "name", "width"), drawn_among_many(product(SIZES, ("float32", "float64"), WIDTHS))
)
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
CASES = list(product(FORMS, ARRAYS, WIDTHS, ("float32", "float64")))


@one_cut
@pytest.mark.parametrize("case", drawn_among_many(drawn(CASES)), ids=CASES.index)
def test_forms(case, xp, cut, rng):
    """Of arrays as long as several tiles; also with infinities, NaN and -0 near the end."""
    (form, (shape, axis, often), width, name), specials = case, rng.integers(2) * 9
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
