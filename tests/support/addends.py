"""Arrays of floats to add exactly, by what their sums need: one word, two words, or more."""

import numpy as np

from support.exact import dtype_of
from support.patterns import finite_bits


def grid(rng, name, n):
    """Multiples of 2^-10 below 2^11, and -0.0 at the ends: sums of one word."""
    x = rng.integers(-(2**20), 2**20, n) / 2.0**10
    x[: n // 4] = x[n - n // 4 :] = -0.0
    return x.astype(dtype_of(name))


def normal(rng, name, n):
    """Numbers of similar size, and of all bits of their type: sums of two words."""
    return rng.standard_normal(n).astype(dtype_of(name))


def special(rng, name, n, of=finite_bits):
    """Infinities, NaN and zeros of both signs among others; -0.0 at the ends."""
    x = of(rng, name, n)
    x[: n // 4] = x[n - n // 4 :] = -0.0
    for value in (np.inf, -np.inf, np.nan, -0.0, 0.0):
        x[rng.integers(n // 3, 2 * n // 3, 2)] = value
    return x


def mixed(rng, name, n):
    """The same among numbers of similar size, which kernels add."""
    return special(rng, name, n, normal)
