"""Random inputs whose scans are exact in every order of association, and NumPy's answer.

Exact data lets a test ask for equality: one dropped or exchanged element shows. None of it is
constant, so a wrong order of elements shows too.
"""

import numpy as np

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
