"""Operators that record the order of their operands: words, and fingerprints of words.

Words over the letters 0 to 15 are the free monoid, whose operation is to join them.
"""

import numpy as np

import distscan

# A word in 64 bits: its length, its first 4 letters, its last 4.
LENGTH, FIRST, LAST = 32, 16, 0


def join(a, b):
    """Join words; exact in the length and in the letters at both ends."""
    a, b = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
    four = np.uint64(4)
    n, m = a >> LENGTH, b >> LENGTH
    first = np.where(
        n >= 4,
        a >> FIRST & 0xFFFF,
        a >> FIRST & 0xFFFF | (b >> FIRST & 0xFFFF) << 4 * np.minimum(n, four) & 0xFFFF,
    )
    last = np.where(
        m >= 4, b & 0xFFFF, (a & 0xFFFF) << 4 * np.minimum(m, four) & 0xFFFF | b & 0xFFFF
    )
    return n + m << LENGTH | first << FIRST | last  # fmt: skip


WORDS = distscan.Operator(
    "words",
    numpy=join,
    cuda="""
    const T n = a >> 32, m = b >> 32;
    const T first = n >= 4 ? a >> 16 : (a >> 16 & 0xffff) | (b >> 16 & 0xffff) << 4 * n;
    const T last = m >= 4 ? b : a << 4 * m | (b & 0xffff);
    return (n + m) << 32 | (first & 0xffff) << 16 | (last & 0xffff);
    """,
    identity=0,
)


def letters(rng, n):
    """Words of one letter."""
    letter = rng.integers(0, 16, n).astype(np.uint64)
    return np.uint64(1) << LENGTH | letter << FIRST | letter


def words(x):
    """The scan as its definition reads."""
    result, word = [], []
    for letter in (x & 15).tolist():
        word.append(letter)
        first = sum(value << 4 * i for i, value in enumerate(word[:4]))
        last = sum(value << 4 * i for i, value in enumerate(reversed(word[-4:])))
        result.append(len(word) << LENGTH | first << FIRST | last)
    return np.array(result, np.uint64)


# A word's fingerprint, with all its letters in it: the number they are in an odd base, modulo 2^64,
# and that base to the power of the length.
PRINT = np.dtype([("digits", "u8"), ("power", "u8")])


def fingerprints(a, b):
    made = np.empty(np.broadcast_shapes(np.shape(a), np.shape(b)), PRINT)
    made["digits"] = a["digits"] * b["power"] + b["digits"]
    made["power"] = a["power"] * b["power"]
    return made


FINGERPRINTS = distscan.Operator(
    "fingerprints",
    numpy=fingerprints,
    cuda="T{a.digits * b.power + b.digits, a.power * b.power}",
    identity=(0, 1),
)


BASE = 0x9E3779B97F4A7C15


def printed(x):
    """The scan of digits as its definition reads, in Python's integers."""
    result, digits, power = [], 0, 1
    for digit in x["digits"].tolist():
        digits, power = (digits * BASE + digit) % 2**64, power * BASE % 2**64
        result.append((digits, power))
    return np.array(result, PRINT)


def digits(rng, n):
    x = np.empty(n, PRINT)
    x["digits"], x["power"] = rng.integers(0, 2**64, n, np.uint64), BASE
    return x
