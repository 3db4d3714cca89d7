"""Random inputs whose scans are exact in every order of association, and NumPy's answer.

Exact data lets a test ask for equality: one dropped or exchanged element shows. None of it is
constant, so a wrong order of elements shows too.
"""

from typing import Any

import numpy as np

from support.exact import BFLOAT16
from support.operators import COMPOSE, HALVES, NIBBLES, SQUARES, maps
from support.reference import UFUNCS

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


# ---- inputs of bitwise and of logical operators, whose scans change all along --------------------


def bits(rng, op, code, n):
    """Elements whose scan changes all along: AND and OR meet a new bit now and then."""
    dtype = np.dtype(code)
    if code == "?":
        x = rng.random(n) < (0.5 if op == "bitwise_xor" else 1 / (n + 1))
        return ~x if op == "bitwise_and" else x
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, n, dtype, endpoint=True)
    if op == "bitwise_xor":
        return x
    one = (np.uint64(1) << rng.integers(0, 8 * dtype.itemsize, n, np.uint64)).astype(dtype)
    rare = np.where(rng.random(n) < 8 * dtype.itemsize / (n + 1), one, dtype.type(0))
    return ~rare if op == "bitwise_and" else rare


def truths(rng, op, code, n):
    """Numbers that are rarely false (AND) or true (OR); true ones may have all low bits zero, or
    all but the last, and false ones a sign.
    """
    dtype, zeros = np.dtype(code), [0]
    if dtype.kind in "fc":
        tiny = np.finfo(dtype).smallest_subnormal
        some, zeros = [0.5, np.nan, np.inf, 256, tiny, -tiny], [0.0, -0.0]
        if dtype.kind == "c":
            some, zeros = [1j, complex(0, np.nan), -tiny * 1j, *some], [0, complex(-0.0, -0.0)]
    else:
        low, high = (0, 1) if code == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        some = [1, 1 << (high.bit_length() - 1), low or 1, high]
    false = rng.random(n) < {"logical_and": 1 / (n + 1), "logical_or": 1 - 1 / (n + 1)}.get(op, 0.5)
    return np.where(
        false, rng.choice(np.array(zeros, dtype), n), rng.choice(np.array(some, dtype), n)
    )


# ---- keys of segments, of every type -------------------------------------------------------------


# Those that kernels compare on GPUs and CPUs; on CPUs only, or not at all.
KEY_TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
HOST_KEY_TYPES = [BFLOAT16, np.dtype("M8[s]"), np.dtype("m8[ns]"), np.dtype(">i4"), np.dtype(">f8"),
              np.dtype("g"), np.dtype("F")]  # fmt: skip


def keys_of(rng, n, density, dtype):
    """Keys [n] that change at random places."""
    return keys_at(rng, rng.random(n) < density, dtype)


def keys_at(rng, heads, dtype):
    """Keys that change where heads are; among floats are zeros of both signs, and NaN."""
    dtype, n = np.dtype(dtype), heads.size
    values = rng.permutation(5).astype("i8")[(np.cumsum(heads) * 2 + 1) % 5]
    if dtype.kind in "mM":
        values[values == 4] = np.iinfo("i8").min  # NaT
        return values.view(dtype)
    keys = values.astype(dtype)
    if dtype.kind in "iu":
        return keys * dtype.type(51 if dtype.itemsize == 1 else 13107)
    signs = np.where(rng.random(n) < 0.5, -0.0, 0.0).astype(dtype)
    keys = np.where(values == 0, signs, keys)
    keys[values == 4] = np.nan
    return keys
