"""Inputs of bitwise and of logical operators, whose scans change all along."""

import numpy as np


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
