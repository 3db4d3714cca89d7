"""The oracle of exact sums itself, against other ways to round and to add."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from support.campaigns import NAMES, between, hard, patterns
from support.cases import SEED
from support.exact import FORMATS, dtype_of, prefixes, rounded, same, scanned

pytestmark = pytest.mark.one_rank
names = pytest.mark.parametrize("name", NAMES)


def check(strategy, test, examples=200):
    """Test what the run's seed draws."""
    seed(SEED)(
        settings(max_examples=examples, database=None, deadline=None)(given(strategy)(test))
    )()


def test_as_python_divides():
    """Fractions to float64: Python's integers divide with one rounding."""

    def test(value):
        try:
            want = value.numerator / value.denominator
        except OverflowError:
            want = math.inf if value > 0 else -math.inf
        assert rounded(value, "float64") == want

    wholes = st.integers(-(2**70), 2**70)
    powers = st.integers(-1160, 1040).map(lambda power: Fraction(2) ** power)
    divisors = st.sampled_from([1, 3, 2**53 + 1])
    check(st.builds(lambda a, b, c: a * b / c, wholes, powers, divisors), test)


@pytest.mark.parametrize(("code", "name"), [("e", "float16"), ("f", "float32")])
def test_as_struct_packs(code, name):
    """float64 to narrower types."""

    def test(number):
        try:
            (want,) = struct.unpack(code, struct.pack(code, number))
        except OverflowError:
            want = math.copysign(math.inf, number)
        assert rounded(Fraction(number), name) == want

    _, lowest, end = FORMATS[name]
    check(patterns("float64") | between("float64", lowest - 20, end + 1), test)


@names
def test_as_numpy_casts(name):
    """float32, which no cast rounds twice, to all types."""

    def test(number):
        with np.errstate(over="ignore"):
            assert rounded(Fraction(number), name) == np.float32(number).astype(dtype_of(name))

    _, lowest, end = FORMATS[name]
    limits = max(lowest - 9, -149), min(end + 1, 128)
    check(patterns("float32") | between("float32", *limits), test)


@names
def test_half_way(name):
    """Between two floats: the even one; a little off, the nearer one; half-way beyond all, inf."""
    precision, lowest, end = FORMATS[name]
    size = 8 * dtype_of(name).itemsize
    infinite = (1 << size - precision) - 1 << precision - 1  # the bits of infinity

    def fraction(bits):
        if bits == infinite:
            return Fraction(2) ** end
        return Fraction(float(np.array(bits, f"u{size // 8}").view(dtype_of(name))))

    def test(drawn):
        bits, sign = drawn
        low, high = fraction(bits), fraction(bits + 1)
        half, little = (low + high) / 2, Fraction(2) ** (lowest - 3000)
        wants = [low, high if bits % 2 else low, high]
        for value, want in zip((half - little, half, half + little), wants, strict=True):
            number = math.inf if want == Fraction(2) ** end else float(want)
            assert rounded(sign * value, name) == sign * number

    near = st.sampled_from([0, 1, infinite - 2, infinite - 1])
    check(st.tuples(near | st.integers(0, infinite - 1), st.sampled_from([1, -1])), test)


def test_one_rounding():
    """Through float64, 1 + 2^-24 + 2^-80 would be rounded twice, and be 1."""
    x = [1.0, 2.0**-24, 2.0**-80]
    assert prefixes(x, "float32").tolist() == [1, 1, 1 + 2.0**-23]


def test_as_math_fsum():
    def test(x):
        for i, found in enumerate(prefixes(x, "float64").tolist()):
            try:
                want = math.fsum(x[: i + 1])
            except OverflowError:  # of fsum's own intermediate sums
                continue
            assert found == want

    check(hard("float64", "float64", 12), test)


def test_as_ieee_adds(rng):
    """Sums that no type rounds, with signs of zeros and what is not finite, in every form."""
    for _ in range(300):
        n = int(rng.integers(8))
        x = rng.choice([-0.0, -0.0, -0.0, 0.0, 1.0, -1.0, 7.0, np.inf, -np.inf, np.nan], n)
        initial = rng.choice([-0.0, 0.0, -3.0, np.inf])
        heads = rng.random(n) < 0.3
        with np.errstate(invalid="ignore"):
            assert same(prefixes(x, "float64"), np.add.accumulate(x))
            after = np.add.accumulate([initial, *x])
            given = {"initial": float(initial)}
            assert same(prefixes(x, "float64", **given), after[1:])
            assert same(prefixes(x, "float64", **given, exclusive=True), after[:-1])
            assert same(scanned(x, "float64", reverse=True), np.add.accumulate(x[::-1])[::-1])
            pieces = np.split(x, np.flatnonzero(heads))
            want = np.concatenate([np.add.accumulate(piece) for piece in pieces])
            assert same(prefixes(x, "float64", heads=heads), want)
            back = np.concatenate([np.add.accumulate(piece[::-1])[::-1] for piece in pieces])
            assert same(scanned(x, "float64", heads=heads, reverse=True), back)
    assert same(prefixes([1.0, -0.0], "float64", exclusive=True), np.array([0.0, 1.0]))


def test_axes(rng):
    x = rng.integers(-9, 9, (3, 4, 5)).astype(np.float32)
    for axis in range(3):
        assert same(scanned(x, "float32", axis=axis), np.cumsum(x, axis))
    z = x + 1j * x[::-1]
    assert same(scanned(z, "float32", initial=2 - 1j), np.cumsum(z) + (2 - 1j))


def test_same():
    """It tells zeros of different signs, types and shapes apart; NaN is NaN."""
    x = np.array([0.0, np.nan, 1.0])
    assert same(x, x.copy())
    assert not same(x, np.array([-0.0, np.nan, 1.0]))
    assert not same(x, x.astype(np.float32))
    assert not same(x, x[:2])
    assert not same(x, np.array([0.0, 1.0, 1.0]))
    assert not same(x + 0j, np.conj(x + 0j))
