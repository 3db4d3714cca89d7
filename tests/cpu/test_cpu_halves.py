"""float16 and bfloat16 on CPUs: every value is read, and every result rounded, as NumPy does."""

import numpy as np
import pytest

import distscan
from support.cpu_data import HALVES, dtype_of
from support.cpu_scans import anew, bits, is_nan, levels

pytestmark = pytest.mark.one_rank

names = pytest.mark.parametrize("name", HALVES)


@pytest.fixture(params=["numpy", *levels()])
def level(request, monkeypatch):
    with anew(monkeypatch, level=request.param):
        yield request.param


def every(name):
    return np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))


def assert_bits(got, want):
    """NaN keeps its sign, and may have another payload."""
    got, want = got.reshape(-1), want.reshape(-1)
    nan = is_nan(want)
    np.testing.assert_array_equal(is_nan(got), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(want)[~nan])


@names
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_every_value(op, name, level):
    """As a row of one element, as a column, alone behind the identity."""
    x = every(name)
    assert_bits(distscan.scan(x[:, None], op, axis=1), x)
    assert_bits(distscan.scan(x[None], op, axis=0), x)
    nan = is_nan(x)
    signs = bits(distscan.scan(x[:, None], op, axis=1))[nan] >> 15
    np.testing.assert_array_equal(signs, bits(x)[nan] >> 15)


@names
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_every_rounding(op, name, level, rng):
    """Of pairs: also to subnormal numbers and to infinity; ties go to even."""
    x = every(name)
    ufunc = {"sum": np.add, "prod": np.multiply}[op]
    one = np.array(1, x.dtype)
    near = (bits(x) ^ rng.integers(0, 1 << 11, x.size, np.uint16)).view(x.dtype)
    others = [rng.permutation(x), rng.permutation(x), near, np.full_like(x, one)]
    others += [np.full_like(x, 2.0**-k) for k in (1, 5, 8, 10, 11)]
    for other in others:
        pairs = np.stack([x, other])
        with np.errstate(all="ignore"):
            want = ufunc(x.astype(np.float32), other.astype(np.float32)).astype(x.dtype)
        for got in (
            distscan.scan(pairs, op, axis=0)[1],
            distscan.scan(pairs.T, op, axis=1)[:, 1],
            distscan.scan(np.ascontiguousarray(pairs.T), op, axis=1, reverse=True)[:, 0],
        ):
            assert_bits(got, want)


def test_known_roundings(level):
    for pair, want in [
        ((2048, 1), 2048), ((2048, 3), 2052), ((2050, 1), 2052), ((65504, 15.9), 65504),
        ((65504, 16), np.inf), ((-65504, -16), -np.inf), ((2**-24, 2**-24), 2**-23),
        ((np.inf, -np.inf), np.nan),
    ]:  # fmt: skip
        got = distscan.scan(np.array(pair, np.float16))
        np.testing.assert_array_equal(got, np.array([pair[0], want], np.float16))
    x = np.array([2**-12, 2**-13], np.float16)  # their products are subnormal, or a tie with 0
    got = distscan.scan(np.stack([x, x * 1.5, x], 1), "prod", axis=1)
    want = [[2**-12, 1.5 * 2**-24, 0], [2**-13, 0, 0]]
    np.testing.assert_array_equal(got, np.array(want, np.float64).astype(np.float16))


@names
def test_running_values_are_not_rounded(name, level, rng):
    """They are float32: 4096 ones and more are counted, and each count is rounded once."""
    for n in (300, 4097, 60_001):
        x = np.ones(n, dtype_of(name))
        want = np.arange(1, n + 1, dtype=np.float32).astype(x.dtype)
        assert_bits(distscan.scan(x), want)
        flags = rng.random(n) < 0.001
        flags[0] = True
        begins = np.maximum.accumulate(np.where(flags, np.arange(n), 0))
        want = (np.arange(n) - begins + 1).astype(np.float32).astype(x.dtype)
        assert_bits(distscan.scan(x, segments=flags), want)
