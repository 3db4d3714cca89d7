"""Linear recurrences by the compiled kernels for CPUs: values at every edge, and their bits."""

import itertools

import numpy as np
import pytest

import distscan
from support.cpu import anew, assert_same, bits, compiled_only, levels
from support.exact import BFLOAT16, dtype_of
from support.uses import by_hand, exact

pytestmark = [
    pytest.mark.one_rank,
    compiled_only,
]

NAMES = "float32", "float64", "complex64", "complex128", "float16", "bfloat16"
names = pytest.mark.parametrize("name", NAMES)
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 255, 256, 257, 511, 513, 1023,
         1025, 2048, 4095, 4097, 9001]  # fmt: skip
SHAPES = [(1, 2), (2, 1), (7, 3), (300, 5), (130, 16), (130, 17), (65, 64), (70, 1000), (3, 5000),
          (500, 33)]  # fmt: skip


def draw(rng, name, shape):
    """Factors of size 1 and integers so small that every sum is exact, also in half types."""
    kind = "F" if name.startswith("complex") else "f"
    a, b = exact(rng, shape, kind)
    dtype = dtype_of(name)
    return a.astype(dtype), (b * (rng.random(shape) < 0.3)).astype(dtype)


def factors(rng, a, kind):
    """All factors, a row of them, or one number, and what stands for it in a loop."""
    if kind == "number":
        return a.flat[0], np.full_like(a, a.flat[0])
    if kind == "row":
        return a[0].copy(), np.broadcast_to(a[:1], a.shape)
    return a, a


def expected(a, b, initial, heads, *, reverse):
    """The loop, in the type that accumulates."""
    wide = {"e": "f", "V": "f", "E": "f"}.get(b.dtype.char, b.dtype.char)
    step = -1 if reverse else 1
    starts = np.zeros(len(b), bool) if heads is None else heads
    starts = np.append(starts[1:], False)[::-1] if reverse else starts
    h = by_hand(a.astype(wide)[::step], b.astype(wide)[::step], initial or 0, starts)
    return h[::step].astype(b.dtype)


@names
@pytest.mark.parametrize("reverse", [False, True])
def test_every_size(name, reverse, rng):
    for n in SIZES:
        a, b = draw(rng, name, n)
        for initial, density in itertools.product((None, 3), (None, 0.01, 0.3)):
            heads = None if density is None else rng.random(n) < density
            given, every = factors(rng, a, rng.choice(["all", "number"]))
            h = distscan.linear_recurrence(given, b, initial, reverse=reverse, segments=heads)
            want = expected(every, b, initial, heads, reverse=reverse)
            assert_same(h, want, (n, initial, density))


@names
@pytest.mark.parametrize("reverse", [False, True])
def test_columns(name, reverse, rng, monkeypatch):
    block = int(rng.choice([1 << 10, 1 << 18]))
    with anew(monkeypatch, threads=int(rng.choice([1, 3])), columns_block=block):
        for shape in SHAPES:
            a, b = draw(rng, name, shape)
            for initial, density in itertools.product((None, 3), (None, 0.01, 0.3)):
                heads = None if density is None else rng.random(shape[0]) < density
                given, every = factors(rng, a, rng.choice(["all", "row", "number"]))
                h = distscan.linear_recurrence(given, b, initial, reverse=reverse, segments=heads)
                want = expected(every, b, initial, heads, reverse=reverse)
                assert_same(h, want, (shape, initial, density))


def inexact(rng, name):
    """Yield recurrences of every kind whose states are rounded."""
    dtype = dtype_of(name)
    for shape in (20_001, (700, 3), (90, 700)):
        a, b = rng.uniform(-1, 1, shape), rng.normal(size=shape)
        if dtype.kind == "c":
            a, b = a * np.exp(1j * rng.random(shape)), b * 1j
        n = len(b)
        for heads in (None, rng.random(n) < 0.01):
            options = {"segments": heads, "reverse": bool(rng.random() < 0.5), "initial": 1.1}
            yield a.astype(dtype), b.astype(dtype), options


@names
def test_threads_and_levels_change_no_bit(name, rng, monkeypatch):
    every = list(inexact(rng, name))
    want = [distscan.linear_recurrence(a, b, **options) for a, b, options in every]
    for level, threads in [(level, 1) for level in levels()] + [(None, 2), (None, 5)]:
        with anew(monkeypatch, level=level, threads=threads, streamed=bool(rng.random() < 0.5)):
            for (a, b, options), h in zip(every, want, strict=True):
                got = distscan.linear_recurrence(a, b, **options)
                np.testing.assert_array_equal(bits(got), bits(h), err_msg=f"{level} {threads}")


@names
def test_they_are_the_loop_rounded_otherwise(name, rng):
    for a, b, options in inexact(rng, name):
        wide = "G" if b.dtype.kind == "c" else "g"
        h = distscan.linear_recurrence(a, b, **options).astype(wide)
        heads, reverse = options["segments"], options["reverse"]
        want = expected(a.astype(wide), b.astype(wide), 1.1, heads, reverse=reverse)
        sizes = expected(abs(a.astype(wide)), abs(b.astype(wide)), 1.1, heads, reverse=reverse)
        unit = 2**-8 if b.dtype == BFLOAT16 else np.finfo(b.dtype).eps
        assert np.all(abs(h - want) <= 40 * unit * sizes)


def test_products_of_many_small_factors(rng):
    """They become 0, and leave what they are multiplied with as it is in a loop."""
    for code, shape in itertools.product("fd", (100_000, (30_000, 3))):
        a, b = np.full(shape, 0.9, code), rng.normal(size=shape).astype(code)
        h = distscan.linear_recurrence(a, b, 1e30)
        want, sizes = (by_hand(a.astype("g"), x.astype("g"), 1e30) for x in (b, abs(b)))
        assert np.all(abs(h - want) <= 1000 * np.finfo(code).eps * sizes)  # 1e30 takes 650 steps


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_nan_infinities_and_zeros(name, rng):
    """NaN stays in its segment; the first element is a * 0 + b."""
    for n, reverse in itertools.product((5, 40, 3000), (False, True)):
        for columns in (None, 20):
            shape = n if columns is None else (n, columns)
            a, b = np.ones(shape, name), rng.integers(-3, 4, shape).astype(name)
            heads = rng.random(n) < 0.2
            at = rng.integers(n)
            b[at] = rng.choice([np.nan, np.inf])
            a[heads if not reverse else np.append(heads[1:], False)] = np.inf  # times 0: NaN
            h = distscan.linear_recurrence(a, b, segments=heads, reverse=reverse)
            assert_same(h, expected(a, b, None, heads, reverse=reverse), (n, reverse))
        first = np.array([-0.0, -0.0], name)
        for b, sign in itertools.product((first, np.stack([first] * 3, 1)), (1, -1)):
            h = distscan.linear_recurrence(np.full_like(b, sign), b, reverse=reverse)
            want = expected(np.full_like(b, sign), b, None, None, reverse=reverse)
            np.testing.assert_array_equal(np.signbit(h), np.signbit(want))
