"""Random inputs whose scans are exact in every order of association, and NumPy's answer.

Exact data lets a test ask for equality: one dropped or exchanged element shows. None of it is
constant, so a wrong order of elements shows too.
"""

from typing import Any

import numpy as np

from support.logic import bits, truths
from support.maps import COMPOSE, HALVES, NIBBLES, maps
from support.reference import UFUNCS
from support.squares import SQUARES

OPS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
CODES = "?bBhHiIlLefdFD"  # every type that both backends have
HOST_CODES = CODES + "gG"  # and those of the host alone


def exact(rng: np.random.Generator, op: str, dtype: str, n: int) -> np.ndarray:
    """Draw n elements; no partial result of their scan is rounded in the accumulating type."""
    kind = np.dtype(dtype).kind
    native = np.dtype(dtype).newbyteorder("=")
    if kind == "b":
        # Rare changes: a running maximum or minimum of coin flips is constant at once.
        return (rng.random(n) < 1 / (n + 1)) ^ (op == "min")
    if kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, n, native, endpoint=True).astype(dtype)
    if op == "sum":
        x = rng.integers(-8, 9, n).astype(dtype)
        return (x + 1j * rng.integers(-8, 9, n)).astype(dtype) if kind == "c" else x
    if op == "prod":
        if kind == "c":
            return (1j ** rng.integers(0, 4, n)).round().astype(dtype)
        # Doubling and halving in turns keeps the product between 1/2 and 2.
        factor = np.where(np.arange(n) % 2, 0.5, 2.0) * rng.choice([-1.0, 1.0], n)
        return factor.astype(dtype)
    x = rng.normal(size=n).astype(dtype)
    return (x + 1j * rng.integers(-8, 9, n)).astype(dtype) if kind == "c" else x


def expected(op: str, x: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """NumPy's scan of the whole, of exact data."""
    if op in ("sum", "prod"):
        call = np.cumsum if op == "sum" else np.cumprod
        dtype = np.dtype(dtype) if dtype is not None else call(x[:0]).dtype
        if dtype == np.float16:  # it accumulates in float32 here, and is rounded once
            return call(x, dtype=np.float32).astype(np.float16)
        return call(x, dtype=dtype)
    return OPS[op].accumulate(x, dtype=dtype)


# ---- elements for every operator -----------------------------------------------------------------

OPERATORS = {**{name: name for name in UFUNCS}, "compose": COMPOSE, "halves": HALVES,
             "nibbles": NIBBLES, "squares": SQUARES}  # fmt: skip
MAPS = {"compose": 32, "halves": 16, "nibbles": 4}  # bits each way
TYPES = {
    "compose": "L",
    "halves": "IL",
    "nibbles": "BHL",
    "squares": "bhilfd",
    "logaddexp": "efd",
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), "?bBhHiIlL"),
    **dict.fromkeys(("sum", "prod", "max", "min"), CODES),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), CODES),
}


def elements(rng: np.random.Generator, op: str, code: str, n: int) -> np.ndarray:
    """Draw n elements of a type; their scan is exact, but for logaddexp, and changes all along."""
    if op in MAPS:
        return maps(rng, n, MAPS[op]).astype(code)
    if op == "logaddexp":
        return rng.normal(size=n).astype(code)
    if op == "squares":
        return rng.integers(-9, 9, n).astype(code)
    if op.startswith("bitwise"):
        return bits(rng, op, code, n)
    if op.startswith("logical"):
        return truths(rng, op, code, n)
    return exact(rng, op, code, n)


def initial_of(rng: np.random.Generator, op: str, acc: np.dtype) -> Any:
    """Draw a number of Python that comes before the first element."""
    if op in MAPS:
        return int(maps(rng, 1, MAPS[op])[0])
    if acc.kind == "b":
        return bool(rng.integers(2))
    return acc.type(rng.integers(0 if acc.kind == "u" else -5, 6)).item()
