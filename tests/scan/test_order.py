"""Non-commutative operators through every level: any exchange of operands shows.

An element packs the map v -> m v + c over the integers modulo 2^k, m above c; combine(earlier,
later) composes two maps. Maps compose associatively, and almost never commute.
"""

import numpy as np
import pytest

import distscan
from support.arrays import host
from support.cases import STRATEGIES, pairs
from support.operators import COMPOSE, HALVES, NIBBLES, maps, one_by_one, packed_at_once

pytestmark = pytest.mark.fast


@pairs(group_by="strategy", n=[0, 1, 2, 5, 31, 33, 257, 2049, 16385, 40000], strategy=STRATEGIES)
def test_order_is_kept(n, strategy, xp, cut, rng):
    x = maps(rng, n)
    mine = cut(n)
    y = distscan.scan(xp.asarray(x[mine]), COMPOSE, strategy=strategy)
    np.testing.assert_array_equal(host(y), one_by_one(x)[mine])


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
