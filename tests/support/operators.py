"""Operators of tests: maps and words, which do not commute, and squares, which change elements."""

import numpy as np

import distscan

# ---- maps: any exchange of operands shows --------------------------------------------------------

# An element packs the map v -> m v + c over the integers modulo 2^k, m above c; combine(earlier,
# later) composes two maps. Maps compose associatively, and almost never commute.


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


# ---- words over the letters 0 to 15, and their fingerprints --------------------------------------

# Words are the free monoid, whose operation is to join them: they record the order of operands.


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


# ---- the sum of squares --------------------------------------------------------------------------


SQUARES = distscan.Operator(
    "squares",
    numpy=np.add,
    cuda="a + b",
    identity=0,
    commutative=True,
    load=np.square,
    cuda_load="x * x",
)
