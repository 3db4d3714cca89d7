"""A non-commutative operator through every level: any exchange of operands shows.

An element packs the map v -> m v + c over the integers modulo 2^32; combine(earlier, later)
composes two maps. Maps compose associatively, and almost never commute.
"""

import numpy as np
import pytest
from conftest import host

import distscan

WORD = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


def compose(earlier, later):
    m = (earlier >> WORD) * (later >> WORD) & LOW
    c = ((later >> WORD) * (earlier & LOW) + (later & LOW)) & LOW
    return (m << WORD) | c


COMPOSE = distscan.Operator(
    "compose",
    numpy=compose,
    cuda="((a >> 32) * (b >> 32) << 32) | (((b >> 32) * a + b) & 0xffffffffull)",
    identity=lambda dtype: dtype.type(1 << 32),
)


def one_by_one(x):
    """The scan as its definition reads, in Python's own integers."""
    result, m, c = [], 1, 0
    for element in x.tolist():
        m, c = element_map(element, m, c)
        result.append((m << 32) | c)
    return np.array(result, np.uint64)


def element_map(element, m, c):
    em, ec = element >> 32, element & 0xFFFFFFFF
    return m * em % 2**32, (em * c + ec) % 2**32


def maps(rng, n):
    """Random maps; odd factors are invertible, so that no element is ever forgotten."""
    return rng.integers(0, 2**64, n, np.uint64) | np.uint64(1 << 32)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 31, 33, 257, 2049, 16385, 40000])
def test_order_is_kept(n, strategy, xp, cut, rng):
    x = maps(rng, n)
    mine = cut(n)
    y = distscan.scan(xp.asarray(x[mine]), COMPOSE, strategy=strategy)
    np.testing.assert_array_equal(host(y), one_by_one(x)[mine])


def test_operator_sees_order():
    """The operator itself: exchanged operands give another result, other groupings do not."""
    a, b, c = maps(np.random.default_rng(1), 3)
    assert compose(a, b) != compose(b, a)
    assert compose(compose(a, b), c) == compose(a, compose(b, c))
