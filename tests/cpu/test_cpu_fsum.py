"""Exact sums on CPUs: the window of floats, and sums of integers of one word or two."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import distscan
from distscan.core.dtypes import Types
from distscan.core.form import Extents, Form
from distscan.cpu import compiled, library, reductions, sweeps
from distscan.fsum.window import Window
from distscan.fsum.words import ONE_WORD, TWO_WORDS, fixed_sum
from support import cases
from support.cases import pairs
from support.cpu import FORMS, anew, ends, levels
from support.exact import FORMATS, dtype_of, prefixes, rounded, same

pytestmark = [
    pytest.mark.one_rank,
    pytest.mark.skipif(library.load() is None, reason="no compiled kernels"),
]


# ---- Exact sums: floats as integers of one word or two, each sum rounded once --------------------

FLOATS = "float16", "bfloat16", "float32", "float64"
kernels = pytest.mark.parametrize(
    ("name", "acc", "result"),
    [(x, acc, out) for acc in (ONE_WORD, TWO_WORDS) for x in FLOATS for out in FLOATS],
)
accs = pytest.mark.parametrize("acc", [ONE_WORD, TWO_WORDS])


def drawn(rng, name, acc, shape, lowest, *, some_zeros=0.1):
    """Draw floats of a type that are multiples of 2^lowest, and whose sums fit ``acc``."""
    precision, least, end = FORMATS[name]
    count = max(2, math.prod(shape if isinstance(shape, tuple) else (shape,)))
    room = 8 * acc.itemsize - 2 - count.bit_length()
    floor = max(lowest, least)
    top = min(lowest + room, end, floor + 200)
    bits = rng.integers(1, max(2, min(precision, top - floor) + 1), shape)  # of each significand
    whole = np.floor(np.ldexp(1 + rng.random(shape), np.minimum(bits, 52) - 1))
    exponent = floor + np.floor(rng.random(shape) * (top - floor - bits + 1)).astype(int)
    x = np.ldexp(whole, exponent) * rng.choice([-1.0, 1.0], shape)
    x[rng.random(shape) < some_zeros] = rng.choice([0.0, -0.0])
    narrow = x.astype(dtype_of(name))
    assert (narrow.astype(np.float64) == x).all()
    return narrow


def lines(x, axis):
    """View the lines that are scanned as [lines, n]."""
    return x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])


def expected(x, result, axis, form, initial=None, heads=None):
    """The exact sums, rounded once; zeros are +0: the sign of zeros is the business of others."""
    numbers = lines(x, axis)
    numbers = np.where(np.isfinite(numbers.astype(np.float64)), numbers, 0)
    if form["reverse"]:
        numbers, heads = numbers[:, ::-1], None if heads is None else ends(heads)[::-1]
    options = {"initial": initial, "exclusive": form["exclusive"], "heads": heads}
    found = np.array([prefixes(line + line.dtype.type(0), result, **options) for line in numbers])
    if form["reverse"]:
        found = found[:, ::-1]
    if axis is None:
        return found.reshape(x.shape if x.ndim == 1 else -1)
    moved = np.moveaxis(x, axis, -1).shape
    return np.moveaxis(found.reshape(moved), -1, axis)


def check(x, result, acc, lowest, *, axis=None, form=FORMS[0], initial=None, heads=None, **given):
    op = fixed_sum(lowest, acc)
    assert sweeps.adds_exactly(x.dtype, dtype_of(result))
    got = distscan.scan(
        x,
        op,
        axis=axis,
        dtype=dtype_of(result),
        initial=None if initial is None else op.encode(initial),
        segments=given.pop("keys", heads),
        **form,
        **given,
    )
    want = expected(x, result, axis, form, initial, heads)
    assert same(got, want), (x.shape, axis, form, initial, lowest)
    return got


def random_form(rng):
    return FORMS[rng.integers(4)]


@kernels
def test_shapes(name, acc, result, rng, monkeypatch):
    """Rows and columns of all lengths around registers and blocks, by one thread and by three."""
    monkeypatch.setattr(compiled, "BLOCK", 1 << 12)
    monkeypatch.setattr(compiled, "_COLUMNS_BLOCK", 1 << 12)
    monkeypatch.setattr(compiled, "_FEWEST_ROWS", 8)
    monkeypatch.setattr(compiled, "_THREAD", 1)
    shapes = [((n,), None) for n in (1, 7, 8, 9, 31, 255, 256, 257, 1030)]
    shapes += [((5, 3), 1), ((70, 9), 1), ((3, 700), 1), ((40, 3), 0), ((20, 70), 0)]
    shapes += [((3, 20, 5), 1), ((9, 300), 0), ((2, 3), 0), ((50, 1), 0)]
    for shape, axis in shapes:
        lowest = int(rng.integers(-30, 1))
        x = drawn(rng, name, acc, shape, lowest)
        initial = rng.choice([None, -3.0, 0.0])
        with anew(monkeypatch, threads=int(rng.choice([1, 3]))):
            check(x, result, acc, lowest, axis=axis, form=random_form(rng), initial=initial)


@kernels
def test_segments(name, acc, result, rng, monkeypatch):
    """By flags and by keys, in one step and in two."""
    monkeypatch.setattr(compiled, "BLOCK", 1 << 11)
    monkeypatch.setattr(compiled, "_THREAD", 1)
    x = drawn(rng, name, acc, 700, -9)
    for density, threads in itertools.product((0, 0.005, 0.3), (1, 3)):
        heads = rng.random(x.size) < density
        keys = np.cumsum(heads, dtype=np.int32)
        by = rng.choice(["flags", "keys"])
        initial = rng.choice([None, 2.5])
        strategy = str(rng.choice(["single-pass", "reduce-scan"]))
        with anew(monkeypatch, threads=threads):
            options = {"form": random_form(rng), "initial": initial, "strategy": strategy}
            if by == "keys":
                options["keys"] = keys
            check(x, result, acc, -9, heads=heads, **options)


def ties(rng, precision, top):
    """Integers up to 2^top of both signs: halfway between two floats, and next to it."""
    for length in range(1, top):
        half = 1 << max(0, length - precision - 1)
        even = 1 << length | int(rng.integers(2)) * 2 * half
        for number in (even, even | half, (2 << length) - 1):
            for near in (number - 1, number, number + 1, number + half // 3):
                yield from (near, -near)


def parts(number):
    """Integers with this sum, of at most 50 bits up to a power of 2."""
    sign, size = (-1 if number < 0 else 1), abs(number)
    return [sign * (size & ((1 << 50) - 1) << at) for at in (0, 50, 100)]


@accs
@pytest.mark.parametrize("result", FLOATS)
def test_rounding(result, acc, rng):
    """Ties, and numbers next to ties, of both signs and of every length."""
    precision, least, _ = FORMATS[result]
    places = (0, -20, least, max(least - 40, -1074), 1023 - 90, -1074)
    for lowest in cases.sample(places, 3):
        top = min(8 * acc.itemsize - 3, 1022 - lowest)
        sums = [number for number in ties(rng, precision, top) if abs(number) < 1 << top]
        # From 0 to a sum and back again. A sum takes several floats of 53 bits.
        steps = [part for each in sums for part in (*parts(each), *parts(-each))]
        x = np.array([math.ldexp(float(step), lowest) for step in steps])
        check(x, result, acc, lowest)


@accs
def test_subnormal_results(acc, rng):
    """Sums below the normal numbers of a type, and below its lowest bit, are rounded once."""
    for name, result in itertools.product(FLOATS, FLOATS):
        least = FORMATS[result][1]
        for lowest in (least - 30, least - 3, least, least + 2):
            if lowest < FORMATS[name][1]:
                continue
            x = drawn(rng, name, acc, 400, lowest)
            check(x, result, acc, lowest, form=random_form(rng))
            near = np.ldexp(rng.integers(-9, 9, 300).astype(float), lowest)
            narrow = near.astype(dtype_of(name))
            if (narrow.astype(float) == near).all():
                check(narrow, result, acc, lowest)


@accs
@pytest.mark.parametrize("result", FLOATS)
def test_overflow(result, acc):
    """A sum beyond the range is infinite, and finite again where it comes back."""
    end = FORMATS[result][2]
    most = np.ldexp(1.0, end - 1)
    x = np.array([most, most * (1 - 2.0**-12), most * 2.0**-12, -most, -most, -most, most, most])
    x = np.concatenate([x, -x, x])
    check(x, result, acc, end - 30)


@pairs(name=FLOATS, acc=[ONE_WORD, TWO_WORDS], result=FLOATS)
def test_not_finite_is_zero(name, acc, result, rng):
    x = drawn(rng, name, acc, 300, -4)
    x[::7] = np.array([np.inf, -np.inf, np.nan])[rng.integers(0, 3, x[::7].size)]
    check(x, result, acc, -4)


@accs
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_levels(name, acc, rng, monkeypatch):
    """Each level gives the sums of the first one, which are right."""
    for result, lowest in itertools.product(FLOATS, (-9, -150, -140)):
        x = drawn(rng, name, acc, 600, lowest if name == "float64" else max(lowest, -149))
        heads = rng.random(x.size) < 0.02
        for y, axis, flags in ((x, None, None), (x.reshape(-1, 30), 0, None), (x, None, heads)):
            form, want = random_form(rng), None
            for level in levels():
                with anew(monkeypatch, level=level):
                    if want is None:
                        want = check(y, result, acc, lowest, axis=axis, form=form, heads=flags)
                    options = {"axis": axis, "dtype": dtype_of(result), "segments": flags, **form}
                    got = distscan.scan(y, fixed_sum(lowest, acc), **options)
                assert same(got, want), (level, result, lowest, axis)


@accs
def test_layouts(acc, rng, monkeypatch):
    """Arrays that kernels do not take as they are: strided, of another byte order, not aligned."""
    monkeypatch.setattr(compiled, "BLOCK", 1 << 12)
    for name, result in itertools.product(("float32", "float64"), ("float32", "float64")):
        for shape, axis in (((900,), None), ((7, 40), 1), ((60, 9), 0)):
            x = drawn(rng, name, acc, shape, -20)
            form = random_form(rng)
            want = check(x, result, acc, -20, axis=axis, form=form)
            off = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(shape)
            off[...] = x
            for view in (np.repeat(x, 2, -1)[..., ::2], x.astype(x.dtype.newbyteorder()), off):
                assert same(check(view, result, acc, -20, axis=axis, form=form), want)
            out = np.repeat(np.empty(shape, result), 2, -1)[..., ::2]
            distscan.scan(x, fixed_sum(-20, acc), axis=axis, out=out, dtype=result, **form)
            assert same(out, want)


@accs
def test_long(acc, rng, monkeypatch):
    """Blocks of their usual size, results past the caches, in place, and in several threads."""
    x = drawn(rng, "float32", acc, 300_000, -12)
    sums = list(itertools.accumulate(int(math.ldexp(float(each), 12)) for each in x))
    want = [rounded(Fraction(each, 1 << 12), "float32") for each in sums[-50:]]
    for threads, streamed, strategy in itertools.product(
        (1, 3), (False, True), ("single-pass", "reduce-scan")
    ):
        with anew(monkeypatch, threads=threads, streamed=streamed):
            got = distscan.scan(x, fixed_sum(-12, acc), strategy=strategy)
            back = distscan.scan(x[::-1].copy(), fixed_sum(-12, acc), reverse=True)
            y = x.copy()
            distscan.scan(y, fixed_sum(-12, acc), out=y)
        assert (back[::-1] == got).all()
        assert (y == got).all()
        assert got[-50:].tolist() == want


# ---- The windows of floats by compiled kernels, beside a loop over exact fractions ---------------

names = pytest.mark.parametrize("name", list(FORMATS))
SPECIAL = {"-0.0": 1, "inf": 4, "-inf": 8, "nan": 16}


def expected_window(x):
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
                    assert reductions.find_window(x, 1) == expected_window(x), (level, count, draw)


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
            assert reductions.find_window(x, 1) == expected_window(x), (number, size)
            x = np.where(x == 0, x.dtype.type(1), x)
            assert reductions.find_window(x, 1) == expected_window(x), (number, size)


@names
def test_every_number(name):
    """Every number of 16 bits for itself; of others, every power of 2."""
    dtype = dtype_of(name)
    if dtype.itemsize == 2:
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype)[::7]
    else:
        x = np.ldexp(np.ones(2200, dtype), np.arange(-1100, 1100).clip(-1074, 127))
    for i in range(len(x)):
        assert reductions.find_window(x[i : i + 1].copy(), 1) == expected_window(x[i : i + 1]), x[i]


@names
def test_threads(name, rng, monkeypatch):
    monkeypatch.setattr(reductions, "PART", 1 << 12)
    x = all_kinds(rng, name, 20_000)
    for most in (1, 2, 5):
        assert reductions.find_window(x, most) == expected_window(x)


def test_layouts_of_windows():
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
                    found, special = expected_window(x)
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
