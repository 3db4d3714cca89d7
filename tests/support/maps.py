"""A non-commutative operator: any exchange of operands shows.

An element packs the map v -> m v + c over the integers modulo 2^k, m above c; combine(earlier,
later) composes two maps. Maps compose associatively, and almost never commute.
"""

import numpy as np

import distscan


def packed(k):
    """The operator on maps of k bits each way, in any unsigned type of 2 k bits or more."""
    low = (1 << k) - 1

    def compose(earlier, later):
        m = (earlier >> k) * (later >> k) & low
        c = (later >> k) * (earlier & low) + (later & low) & low
        return m << k | c

    return distscan.Operator(
        f"compose {k}",
        numpy=compose,
        cuda=f"(((a >> {k}) * (b >> {k}) & {low}u) << {k}) "
        f"| (((b >> {k}) * (a & {low}u) + (b & {low}u)) & {low}u)",
        identity=lambda dtype: dtype.type(1 << k),
    )


COMPOSE, HALVES, NIBBLES = packed(32), packed(16), packed(4)


def one_by_one(x, k=32):
    """The scan as its definition reads, in Python's own integers."""
    result, m, c, low = [], 1, 0, (1 << k) - 1
    for element in x.tolist():
        em, ec = element >> k, element & low
        m, c = m * em & low, em * c + ec & low
        result.append(m << k | c)
    return np.array(result, x.dtype)


def packed_at_once(x, k):
    """The same in a few steps over whole arrays: c' = m' sum(c / m'), where m' multiplies up m."""
    m, c = x.astype(np.uint64) >> k, x.astype(np.uint64) & ((1 << k) - 1)
    inverse = m.copy()  # right in 3 bits, since m is odd; each step doubles them
    for _ in range(5):
        inverse *= 2 - m * inverse
    products = np.cumprod(m)
    constants = products * np.cumsum(c * np.cumprod(inverse))
    low = (1 << k) - 1
    return ((products & low) << k | constants & low).astype(x.dtype)


def maps(rng, n, k=32):
    """Random maps; odd factors are invertible, so that no element is ever forgotten."""
    dtype = f"u{k // 4}"
    return rng.integers(0, 1 << 2 * k, n, dtype) | np.dtype(dtype).type(1 << k)
