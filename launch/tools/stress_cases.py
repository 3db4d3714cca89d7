"""The cases of launch/tools/stress.py: forms of scans, random data, and NumPy's results."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np

import distscan

LARGE = 1 << 17  # elements; larger cases are rare, because their results take long to compute
ROWS = (1, 2, 3, 4, 5, 16, 31, 33, 64, 100, 257, 1000)  # elements of a row


def _compose(earlier: Any, later: Any) -> Any:
    """Compose two maps v -> m v + c, mod 2^32; m is the upper half of an element, c the lower."""
    low = 0xFFFFFFFF
    m = (earlier >> 32) * (later >> 32) & low
    return m << 32 | ((later >> 32) * (earlier & low) + (later & low) & low)


# These operators are not commutative, so that exchanged operands give wrong results.
COMPOSE = distscan.Operator(
    "compose",
    numpy=_compose,
    cuda="unsigned int am = a >> 32, ac = a, bm = b >> 32, bc = b;\n"
    "return ((T)(bm * am) << 32) | (unsigned int)(bm * ac + bc);",
    identity=1 << 32,
)
LATEST = distscan.Operator(
    "latest", numpy=lambda a, b: np.where(b != 0, b, a), cuda="b != 0 ? b : a", identity=0
)
COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "logical_xor": np.logical_xor, "bitwise_xor": np.bitwise_xor, "fsum": np.add,
    "compose": COMPOSE.numpy, "latest": LATEST.numpy,
}  # fmt: skip
OWN = {"compose": COMPOSE, "latest": LATEST}
COARSE = 2.0**60  # elements of "fsum" are integers, or multiples of it: together two words
# The operator, the type of x, the type of the result.
TYPES = [line.split() for line in (
    "sum ? l", "sum b l", "sum i l", "sum i i", "sum l l", "sum f f", "sum f d", "sum d d",
    "sum e e", "prod i l", "prod i i", "prod l l", "prod b l", "max i i", "max b b", "max l l",
    "max f f", "max d d", "max e e", "max ? ?", "min i i", "min f f", "logical_xor ? ?",
    "bitwise_xor i i", "compose L L", "compose L L", "latest i i", "latest l l",
    "fsum f f", "fsum f d", "fsum d d",
)]  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The arguments of a scan, without the size and the data."""

    op: str
    x: str
    out: str
    exclusive: bool
    reverse: bool
    initial: int | None
    axis: int | None
    segments: str | None  # "flags", "keys"
    strategy: str
    recurrence: bool

    @property
    def operator(self) -> Any:
        """The argument ``op`` of ``scan``."""
        return OWN.get(self.op, self.op)

    @property
    def segments_dtype(self) -> str | None:
        """The type of the segments."""
        return {"flags": "?", "keys": "i", None: None}[self.segments]


def draw_form(rng: np.random.Generator, ranks: int) -> Form:
    """Draw the arguments of a scan."""
    op, x, out = TYPES[rng.integers(len(TYPES))]
    axis, segments, strategies = None, None, ["auto", "reduce-scan"]
    layout = rng.random()
    if layout < 0.3:
        axis = int(rng.integers(2))
    elif layout < 0.55:
        segments = str(rng.choice(["flags", "keys"]))
    else:
        strategies.append("scan-add")
    if ranks == 1:
        strategies += ["auto", "single-pass"]
    if op == "fsum":
        strategies = [name for name in strategies if name != "scan-add"]
    recurrence = bool(rng.random() < 0.06)
    if recurrence:
        op, x, segments, axis = "sum", str(rng.choice(["f", "d"])), None, 0
        out = x
    initial = {"compose": 5 << 32 | 7, "logical_xor": 1}.get(op, 9)
    return Form(
        op, x, out,
        exclusive=not recurrence and bool(rng.random() < 0.35),
        reverse=bool(rng.random() < 0.35),
        initial=initial if rng.random() < 0.35 else None,
        axis=axis,
        segments=segments,
        strategy=str(rng.choice(strategies)),
        recurrence=recurrence,
    )  # fmt: skip


# ---- NumPy's results -----------------------------------------------------------------------


def scanned(combine: Callable[..., Any], x: Any, heads: Any) -> Any:
    """Scan x [n, ...] along its first axis, in segments that begin at ``heads`` [n].

    The elements are arranged in sqrt(n) rows. All rows are scanned at once; then each row continues
    from the end of the row before.
    """
    n = len(x)
    width = isqrt(max(n - 1, 0)) + 1
    more = -n % width
    begins = np.concatenate([heads, np.ones(more, bool)]).reshape(-1, width)
    rows = np.concatenate([x, np.zeros((more, *x.shape[1:]), x.dtype)])
    columns = rows.reshape(len(begins), width, *x.shape[1:]).swapaxes(0, 1).copy()
    ones = (1,) * (x.ndim - 1)
    for i in range(1, width):
        begin = begins[:, i].reshape(-1, *ones)
        columns[i] = np.where(begin, columns[i], combine(columns[i - 1], columns[i]))
    rows, begun = columns.swapaxes(0, 1).copy(), np.logical_or.accumulate(begins, axis=1)
    for row, before, begin in zip(rows[1:], rows[:-1], begun[1:], strict=True):
        row[...] = np.where(begin.reshape(-1, *ones), row, combine(before[-1:], row))
    return rows.reshape(n + more, *x.shape[1:])[:n]


def identity(op: str, dtype: np.dtype[Any]) -> Any:
    """Return the identity of an operator, with which an exclusive scan begins."""
    if op in ("max", "min"):
        if dtype.kind == "f":
            return -np.inf if op == "max" else np.inf
        limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return limits[op == "min"]
    return {"prod": 1, "compose": 1 << 32}.get(op, 0)


def expected(form: Form, x: Any, segments: Any = None) -> Any:
    """Return the scan of the global array, computed by NumPy alone."""
    out, exact = np.dtype(form.out), form.op == "fsum"
    acc = np.dtype("l" if exact else "f" if out == np.float16 else out)
    x = x.reshape(-1) if form.axis is None else np.moveaxis(x, form.axis, 0)
    if exact:
        fine = np.fmod(x, x.dtype.type(COARSE))
        x = np.stack([(x - fine) / x.dtype.type(COARSE), fine], axis=-1)
    x = x.astype(acc)
    heads = np.zeros(len(x), bool)
    if form.segments == "flags":
        heads |= segments
    elif form.segments == "keys":
        heads[1:] = segments[1:] != segments[:-1]
    heads[:1] = True
    if form.reverse:
        x, heads = x[::-1], np.append(heads[1:], True)[: len(heads)][::-1]
    combine = COMBINE[form.op]
    with np.errstate(all="ignore"):
        if isinstance(combine, np.ufunc) and form.segments is None:
            y = combine.accumulate(x, axis=0, dtype=acc)
        else:
            y = scanned(combine, x, heads)
        first = identity(form.op, acc) if form.initial is None else form.initial
        if form.initial is not None or form.exclusive:
            first = np.array([0, first]) if exact else first
            begin = np.full(y.shape, first, acc)
            y = combine(begin, y).astype(acc)
            if form.exclusive:
                y[1:] = y[:-1].copy()
                y[heads] = first
        y = (y[::-1] if form.reverse else y).astype(out)
        if exact:  # both are exact, and their sum is rounded once
            y = y[..., 0] * out.type(COARSE) + y[..., 1]
    return np.ascontiguousarray(y if form.axis is None else np.moveaxis(y, 0, form.axis))


def recurred(form: Form, a: Any, b: Any) -> Any:
    """Return the linear recurrence of the global arrays."""

    def then(earlier: Any, later: Any) -> Any:
        factor = later[..., 0]
        composed = [earlier[..., 0] * factor, factor * earlier[..., 1] + later[..., 1]]
        return np.stack(composed, axis=-1)

    maps = np.stack([a, b], axis=-1)
    maps = maps[::-1] if form.reverse else maps
    y = scanned(then, maps, np.arange(len(maps)) == 0)
    y = y[..., 1] + y[..., 0] * (form.initial or 0)
    return np.ascontiguousarray(y[::-1] if form.reverse else y)


# ---- random data ---------------------------------------------------------------------------


def values(rng: np.random.Generator, form: Form, shape: tuple[int, ...]) -> Any:
    """Draw elements that change many of the later results. Only ``fsum`` rounds any of these."""
    dtype, n = np.dtype(form.x), prod(shape)
    if form.op in ("max", "min"):
        if dtype.kind == "b":
            return (rng.random(shape) < 2 / (n + 1)) ^ (form.op == "min")
        span = {"b": 200, "e": 1000}.get(form.x, 1 << 20)
        x = np.arange(n) * span // max(n, 1) - span // 2 + rng.integers(0, span // 8, n)
        x = x[::-1] if form.reverse else x
        return (x if form.op == "max" else -x).astype(dtype).reshape(shape)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if form.op == "fsum":
        x = rng.integers(-(2**23), 2**23, shape).astype(dtype)
        # float32 sums of both would be rounded to float64, and once more.
        return np.where(rng.random(shape) < 0.5 * (form.out == "d"), x * dtype.type(COARSE), x)
    if dtype.kind == "f":
        return rng.integers(-8, 9, shape).astype(dtype)
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if form.op == "latest":
        x[rng.random(shape) < 0.98] = 0
    return x | {"prod": dtype.type(1), "compose": 1 << 32}.get(form.op, dtype.type(0))


def draw_size(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a number of elements from 2^low to 2^high: any, or near a power of 2, or very few."""
    if low == 0 and rng.random() < 0.15:
        return int(rng.integers(6))
    power = 1 << int(rng.integers(low, high + 1))
    return min(power + int(rng.choice([-1, 0, 1, rng.integers(power)])), 1 << high)


class Data(NamedTuple):
    """One rank's part of an input, and the expected result.

    In a recurrence, ``segments`` holds the factors.
    """

    x: Any
    segments: Any
    want: Any


class Case:
    """A form, a size, and random data."""

    def __init__(
        self, form: Form, seed: list[int], largest: int, *, large: bool, ranks: int, rank: int
    ) -> None:
        rng = np.random.default_rng(seed)
        small = min(LARGE.bit_length() - 1, largest)
        low, high = (small, largest) if large and not form.recurrence else (0, small)
        shape: tuple[int, ...] = (draw_size(rng, low, high),)
        if form.axis is not None or (form.segments is None and rng.random() < 0.2):
            rows = int(rng.choice(ROWS)), int(rng.choice(ROWS[:7]))
            rows = rows[: 2 if form.axis == 1 and rng.random() < 0.5 else 1]
            shape = (shape[0] // prod(rows), *rows)
        self.form, self.seed, self.global_shape = form, seed, shape
        cuts = np.sort(rng.integers(0, shape[0] + 1, ranks - 1))
        if rng.random() < 0.2:  # one rank has everything
            cuts = np.where(np.arange(ranks - 1) < rng.integers(ranks), 0, shape[0])
        low, high = ([0, *map(int, cuts), shape[0]])[rank : rank + 2]
        self.shape = (high - low, *shape[1:])
        self.data = [self._draw(rng, low, high) for _ in range(2 if prod(shape) <= LARGE else 1)]

    def _draw(self, rng: np.random.Generator, low: int, high: int) -> Data:
        """Draw the global array, and return the rows low..high of it."""
        form, n = self.form, self.global_shape[0]
        x, segments = values(rng, form, self.global_shape), None
        if form.segments is not None:
            segments = rng.random(n) < rng.choice([0.5, 1 / 64, 1 / 5000])
            if form.segments == "keys":
                segments = np.cumsum(segments).astype("i")
        elif form.recurrence:
            segments = rng.choice(np.array([-1, 0, 1, 1, 1], form.x), self.global_shape)
        want = recurred(form, segments, x) if form.recurrence else expected(form, x, segments)
        inner = prod(self.global_shape[1:]) if want.ndim == 1 else 1
        part = want[low * inner : high * inner]
        if segments is not None:
            segments = segments[low:high].copy()
        return Data(x[low:high].copy(), segments, part)

    @property
    def nbytes(self) -> int:
        """The bytes of the global result."""
        return prod(self.global_shape) * np.dtype(self.form.out).itemsize

    @property
    def in_place(self) -> bool:
        """Whether the result fits into the memory of the input."""
        return self.form.x == self.form.out and self.data[0].want.shape == self.shape

    def __repr__(self) -> str:
        return f"case {self.seed} of shape {self.shape} out of {self.global_shape}, {self.form}"
