"""Inputs and definitions of recurrences, compactions and partitions."""

import numpy as np

# ---- recurrences whose states are exact ----------------------------------------------------------


def by_hand(a, b, initial=0, heads=None):
    """One element after the other; a segment begins at each head, as the first one does."""
    h, before = np.empty_like(b), initial
    for t in range(len(b)):
        if heads is not None and heads[t]:
            before = initial
        with np.errstate(all="ignore"):
            h[t] = before = a[t] * before + b[t]
    return h


def exact(rng, shape, code):
    """Factors of size 1 and small integers: exact in every order of composition."""
    a = rng.choice([-1, 1, 1], shape).astype(code)
    b = rng.integers(-8, 9, shape).astype(code)
    if np.dtype(code).kind == "c":
        a = (a * 1j ** rng.integers(0, 4, shape)).round().astype(code)
        b = (b + 1j * rng.integers(-8, 9, shape)).astype(code)
    return a, b


# ---- masks of a compaction, and elements whose every bit matters ---------------------------------


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


# ---- cuts ----------------------------------------------------------------------------------------


def exact_cuts(weights, parts):
    """The cuts of integers, by a plain loop over the elements."""
    weights = [int(weight) for weight in weights]
    if not any(weights):
        weights = [1] * len(weights)
    n, total, before, cuts = len(weights), sum(weights), 0, [0]
    for i, weight in enumerate(weights):
        # Element i is the first whose middle is not below the target.
        while len(cuts) < parts and (2 * before + weight) * parts >= 2 * len(cuts) * total:
            cuts.append(i)
        before += weight
    return cuts + [n] * (parts + 1 - len(cuts))


def check_rounded(weights, cuts):
    """Check the cuts of floats: an element is on the right side, but for the roundings of sums."""
    weights = np.asarray(weights).astype(np.longdouble)
    n, parts, ends = weights.size, len(cuts) - 1, np.cumsum(weights)
    middles = ends - weights / 2
    off = ends[-1] * (n + 10) / 2**52
    assert (cuts[0], cuts[-1]) == (0, n)
    assert np.all(np.diff(cuts) >= 0)
    for k, cut in enumerate(cuts[1:-1], 1):
        target = ends[-1] * k / parts
        assert cut == 0 or middles[cut - 1] < target + off
        assert cut == n or middles[cut] >= target - off
