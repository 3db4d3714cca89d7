"""Non-commutative operators through every level: any exchange of operands shows.

An element packs the map v -> m v + c over the integers modulo 2^k, m above c; combine(earlier,
later) composes two maps. Maps compose associatively, and almost never commute.
"""

import numpy as np
import pytest
from conftest import host

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


@pytest.mark.parametrize("n", [0, 1, 2, 5, 31, 33, 257, 2049, 16385, 40000])
def test_order_is_kept(n, strategy, xp, cut, rng):
    x = maps(rng, n)
    mine = cut(n)
    y = distscan.scan(xp.asarray(x[mine]), COMPOSE, strategy=strategy)
    np.testing.assert_array_equal(host(y), one_by_one(x)[mine])


@pytest.mark.parametrize("n", [1, 31, 2049, 40000])
@pytest.mark.parametrize(
    ("k", "op", "dtype", "out"),
    [
        (16, HALVES, None, "u4"),
        (16, HALVES, "u8", "u8"),
        (16, HALVES, "u8", "u4"),
        (4, NIBBLES, None, "u1"),
        (4, NIBBLES, "u8", "u2"),
    ],
)
def test_order_is_kept_in_other_types(n, k, op, dtype, out, strategy, xp, cut, rng):
    """Running values wider than x, results narrower than those."""
    x = maps(rng, n, k)
    mine = cut(n)
    y = xp.zeros(mine.stop - mine.start, out)
    distscan.scan(xp.asarray(x[mine]), op, dtype=dtype, out=y, strategy=strategy)
    np.testing.assert_array_equal(host(y), one_by_one(x, k)[mine])


@pytest.mark.parametrize("k", [4, 16, 32])
def test_two_ways_to_the_expected_result(k, rng):
    x = maps(rng, 1000, k)
    np.testing.assert_array_equal(packed_at_once(x, k), one_by_one(x, k))


def test_operator_sees_order():
    """The operator itself: exchanged operands give another result, other groupings do not."""
    for k, op in ((32, COMPOSE), (16, HALVES), (4, NIBBLES)):
        a, b, c = maps(np.random.default_rng(1), 3, k)
        assert op.numpy(a, b) != op.numpy(b, a)
        assert op.numpy(op.numpy(a, b), c) == op.numpy(a, op.numpy(b, c))
