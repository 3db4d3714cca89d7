"""Masks of a compaction, of any length, and elements whose every bit matters."""

import numpy as np

MASKS = ["none", "all", "half", "few", "most", "alternating", "first", "last", "blocks"]


def mask_of(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """A mask [n] of one of the ``MASKS``."""
    mask = np.zeros(n, bool)
    if kind == "all":
        mask[:] = True
    elif kind in ("half", "few", "most"):
        mask = rng.random(n) < {"half": 0.5, "few": 1 / 16, "most": 0.95}[kind]
    elif kind == "alternating":
        mask[rng.integers(2) :: 2] = True
    elif kind in ("first", "last"):
        mask[:1] = kind == "first"
        mask[-1:] |= kind == "last"
    elif kind == "blocks":
        length = int(rng.integers(1, 3000))
        mask = np.repeat(rng.random(n // length + 1) < 0.5, length)[:n]
    return mask


def noise(shape: tuple[int, ...], code: str, rng: np.random.Generator) -> np.ndarray:
    """Random bits, as a type: floats are NaN, infinite, -0.0 and denormal, too."""
    dtype = np.dtype(code)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    size = int(np.prod(shape)) * dtype.itemsize
    x = np.frombuffer(rng.bytes(size), dtype).reshape(shape).copy()
    if dtype.kind in "fc" and x.size:
        special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0], dtype)
        places = rng.random(shape) < 0.2
        x[places] = rng.choice(special, int(places.sum()))
    return x


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same type, shape and bytes."""
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
