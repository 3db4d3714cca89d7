"""The windows of floats by compiled kernels, beside a loop over exact fractions."""

import math

import numpy as np
import pytest

from distscan.core.dtypes import Types
from distscan.core.form import Extents, Form
from distscan.cpu import library, reductions, sweeps
from distscan.fsum.window import Window
from distscan.fsum.words import ONE_WORD, fixed_sum
from support.cpu_data import dtype_of
from support.cpu_scans import anew, levels
from support.exact import FORMATS

pytestmark = [
    pytest.mark.one_rank,
    pytest.mark.skipif(library.load() is None, reason="no compiled kernels"),
]

names = pytest.mark.parametrize("name", list(FORMATS))
SPECIAL = {"-0.0": 1, "inf": 4, "-inf": 8, "nan": 16}


def expected(x):
    """The window and what is special, element by element."""
    lows, highs, special = [], [], 0
    for number in map(float, x.reshape(-1)):
        special |= SPECIAL.get(str(number), 0)
        if math.isfinite(number) and number != 0:
            numerator, denominator = abs(number).as_integer_ratio()
            down = denominator.bit_length() - 1
            lows.append((numerator & -numerator).bit_length() - 1 - down)
            highs.append(numerator.bit_length() - down)
    if not lows:
        return Window(0, 0, x.size), special
    return Window(min(lows), max(highs), x.size), special


def all_kinds(rng, name, count):
    """Draw any bits: subnormal numbers, infinities and NaN among them."""
    dtype = dtype_of(name)
    unsigned = f"u{dtype.itemsize}"
    most = np.iinfo(unsigned).max
    return rng.integers(0, most, count, unsigned, endpoint=True).view(dtype)


def narrow(rng, name, count):
    """Draw numbers with few bits, some of which are 0, and powers of 2."""
    x = np.ldexp(rng.integers(-7, 8, count).astype(float), int(rng.integers(-12, 9)))
    return x.astype(np.float32).astype(dtype_of(name))


@names
def test_windows(name, rng, monkeypatch):
    for level in levels():
        with anew(monkeypatch, level=level):
            for count in (0, 1, 2, 7, 8, 31, 33, 64, 100, 2047, 2048, 5001):
                for draw in (all_kinds, narrow):
                    x = draw(rng, name, count)
                    assert reductions.find_window(x, 1) == expected(x), (level, count, draw)


@names
def test_every_place(name, rng):
    """One element alone decides, wherever it is."""
    precision, least, end = FORMATS[name]
    numbers = [2.0**least, 2.0 ** (end - 1), 3 * 2.0**least, 1 + 2.0 ** (1 - precision)]
    numbers += [2.0 ** (least + precision - 1), math.inf, -math.inf, math.nan, -0.0]
    for number in numbers:
        for size in (1, 40, 3000):
            x = np.zeros(size, dtype_of(name))
            x[rng.integers(size)] = number
            assert reductions.find_window(x, 1) == expected(x), (number, size)
            x = np.where(x == 0, x.dtype.type(1), x)
            assert reductions.find_window(x, 1) == expected(x), (number, size)


@names
def test_every_number(name):
    """Every number of 16 bits for itself; of others, every power of 2."""
    dtype = dtype_of(name)
    if dtype.itemsize == 2:
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype)[::7]
    else:
        x = np.ldexp(np.ones(2200, dtype), np.arange(-1100, 1100).clip(-1074, 127))
    for i in range(len(x)):
        assert reductions.find_window(x[i : i + 1].copy(), 1) == expected(x[i : i + 1]), x[i]


@names
def test_threads(name, rng, monkeypatch):
    monkeypatch.setattr(reductions, "PART", 1 << 12)
    x = all_kinds(rng, name, 20_000)
    for most in (1, 2, 5):
        assert reductions.find_window(x, most) == expected(x)


def test_layouts():
    x = np.arange(12.0).reshape(3, 4)
    want = Window(0, 4, 12), 0
    assert reductions.find_window(x, 1) == reductions.find_window(x.T, 1) == want
    unaligned = np.empty(97, np.uint8)[1:].view(float)
    for other in (x[:, ::2], x.astype(">f8"), unaligned, x.astype(int), x.astype(complex)):
        assert reductions.find_window(other, 1) is None


# From these exponents on, a check may be in doubt of numbers that are inside.
_IN_DOUBT = {"float64": 971}


@names
@pytest.mark.parametrize("inner", [1, 3])
def test_elements_outside_of_a_named_window(name, inner, rng, monkeypatch):
    """Of the reduction, and of the scan, by kernels that check what they add."""
    dtype = dtype_of(name)
    for level in levels():
        with anew(monkeypatch, level=level):
            for count in (1, 2, 31, 257, 5001):
                for draw in (all_kinds, narrow):
                    x = draw(rng, name, count * inner)
                    found, special = expected(x)
                    low, high = found.low + rng.integers(-1, 2), found.high + rng.integers(-1, 2)
                    low, high = int(low), max(int(high), int(low) + 1)
                    op = fixed_sum(-10, ONE_WORD, 1, (low, high), print)
                    form = Form(Extents(length=count, inner=inner))
                    given = {"totals": True, "threads": 1}
                    swept = sweeps.make(op, Types(dtype, ONE_WORD, dtype), form, **given)
                    want = special >= 4 or (
                        not found.is_empty and (found.low < low or found.high > high)
                    )
                    swept.reduce(x, None)
                    seen = swept.window_violated
                    swept.scan(x, np.empty_like(x), None, None)
                    assert seen == swept.window_violated
                    assert seen >= want, (level, count, draw, low, high)
                    if low < _IN_DOUBT.get(name, 104):
                        assert seen == want, (level, count, draw, low, high)
