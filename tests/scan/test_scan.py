"""Every operator on every type, however the array is dealt out, against NumPy."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.data import CODES, HOST_CODES, OPS, exact, expected
from support.host import host

NAMED = {"sum": distscan.cumsum, "prod": distscan.cumprod, "max": distscan.cummax,
         "min": distscan.cummin}  # fmt: skip


def poisoned(xp, n, dtype):
    """An output that no right result looks like."""
    return (
        xp.frombuffer(b"\xa5" * (n * np.dtype(dtype).itemsize), dtype).copy()
        if n
        else xp.empty(0, dtype)
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("code", HOST_CODES)
def test_every_type(op, code, strategy, xp, cut, rng):
    if xp is not np and code not in CODES:
        pytest.skip("the GPU has no long double")
    x = exact(rng, op, code, 1003)
    mine = cut(x.size)
    y = distscan.scan(xp.asarray(x[mine]), op, strategy=strategy)
    want = expected(op, x)
    assert y.dtype == want.dtype
    assert isinstance(y, xp.ndarray)
    np.testing.assert_array_equal(host(y), want[mine])


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 16383, 16384, 16385, 50000])
def test_sizes(n, strategy, xp, cut, rng):
    x = exact(rng, "sum", "f", n)
    mine = cut(n)
    out = poisoned(xp, mine.stop - mine.start, "f")
    assert distscan.cumsum(xp.asarray(x[mine]), out=out, strategy=strategy) is out
    np.testing.assert_array_equal(host(out), expected("sum", x)[mine])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("code", "bfD")
def test_in_place(op, code, strategy, xp, cut, rng):
    x = exact(rng, op, code, 20001)
    mine = cut(x.size)
    y = xp.asarray(x[mine].copy())
    assert NAMED[op](y, out=y, strategy=strategy) is y
    np.testing.assert_array_equal(host(y), expected(op, x, np.dtype(code))[mine])


@pytest.mark.parametrize(
    ("code", "dtype"), ["id", "Hf", "df", "ie", "?i", "lb", "Fd", "fF", "ef", "eF", "Fe", "f?"]
)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_dtype(code, dtype, strategy, xp, cut, rng):
    x = rng.integers(0, 2 if code == "?" else 5, 3001).astype(code)
    mine = cut(x.size)
    y = distscan.cumsum(xp.asarray(x[mine]), dtype=dtype, strategy=strategy)
    want = expected("sum", x, dtype)
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(host(y), want[mine])


def test_out_chooses_the_type(xp, cut, rng):
    x = exact(rng, "sum", "b", 999)
    mine = cut(x.size)
    out = poisoned(xp, mine.stop - mine.start, "b")
    distscan.cumsum(xp.asarray(x[mine]), out=out)
    np.testing.assert_array_equal(host(out), np.cumsum(x, dtype="b")[mine])


@pytest.mark.parametrize("code", "fdFD")
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_rounding(op, code, strategy, xp, cut, rng):
    """Real data: as close to the true value as the chain of roundings allows."""
    x = rng.uniform(0.9, 1.1, 5001).astype(code)
    if np.dtype(code).kind == "c":
        x = (x * np.exp(1j * rng.normal(size=x.size))).astype(code)
    mine = cut(x.size)
    y = host(distscan.scan(xp.asarray(x[mine]), op, strategy=strategy))
    wide = np.result_type(code, np.longdouble)
    if op == "sum":
        want, size = np.cumsum(x, dtype=wide), np.cumsum(np.abs(x).astype(wide))
    else:
        want = np.cumprod(x, dtype=wide)
        size = np.abs(want)
    # n roundings of half an ulp each, and four to a complex product.
    bound = x.size * (4 if op == "prod" else 1) * np.finfo(code).eps / 2 * size
    assert np.all(np.abs(y - want[mine]) <= bound[mine])


def test_same_bits_again(strategy, xp, cut, rng):
    x = rng.normal(size=30011).astype("f")
    mine = xp.asarray(x[cut(x.size)])
    assert (
        host(distscan.scan(mine, strategy=strategy)).tobytes()
        == host(distscan.scan(mine, strategy=strategy)).tobytes()
    )


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("nan", [complex(0, np.nan), complex(np.nan, 5)])
def test_half_a_nan(op, nan, strategy, xp, cut, rng):
    """A complex number is NaN if either part is."""
    x = exact(rng, op, "D", 300)
    x[[120, 121]] = [nan, 99 if op == "max" else -99]
    mine = cut(x.size)
    y = host(distscan.scan(xp.asarray(x[mine]), op, strategy=strategy))
    np.testing.assert_array_equal(y, expected(op, x)[mine])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("code", "efdFD")
def test_nan_and_infinity(op, code, strategy, xp, cut, rng):
    """Nothing before a NaN is touched; everything behind it is NaN."""
    x = exact(rng, op, code, 400)
    x[[100, 200, 300]] = [np.inf, -np.inf if op == "sum" else np.inf, np.nan]
    mine = cut(x.size)
    with np.errstate(all="ignore"):
        want = expected(op, x)[mine]
    y = host(distscan.scan(xp.asarray(x[mine]), op, strategy=strategy))
    if op == "prod" and code in "FD":  # once infinite, parts become NaN by order of association
        early = slice(0, max(0, min(len(y), 100 - mine.start)))
        y, want = y[early], want[early]
    if code in "FD":
        np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
        y, want = y[~np.isnan(want)], want[~np.isnan(want)]
    np.testing.assert_array_equal(y, want)


def test_negative_zero(strategy, xp, cut):
    """The identity of a sum is -0.0: an empty shard must not turn -0.0 into 0.0."""
    mine = cut(9)
    y = host(distscan.scan(xp.full(mine.stop - mine.start, -0.0), strategy=strategy))
    assert np.all(np.signbit(y))


def test_float16_accumulates_in_float32(strategy, xp, cut):
    """60000 - 60000 + ... leaves float16's range on the way, but no result does."""
    x = np.tile(np.array([60000, 60000, -60000, -60000], "e"), 100)[1:]
    mine = cut(x.size)
    want = np.cumsum(x, dtype="f").astype("e")
    assert np.isfinite(want).all()
    np.testing.assert_array_equal(
        host(distscan.scan(xp.asarray(x[mine]), strategy=strategy)), want[mine]
    )


def test_ufuncs_and_mpi_ops(comm, cut, rng):
    x = exact(rng, "sum", "l", 77)
    mine = cut(x.size)
    for ufunc, mpi in ((np.add, MPI.SUM), (np.multiply, MPI.PROD), (np.maximum, MPI.MAX),
                       (np.minimum, MPI.MIN)):  # fmt: skip
        want = ufunc.accumulate(x)[mine]
        np.testing.assert_array_equal(distscan.scan(x[mine], ufunc), want)
        np.testing.assert_array_equal(distscan.scan(x[mine], mpi), want)


def test_other_communicators(comm, rng):
    """A part of the ranks, in another order; and one rank alone."""
    x = exact(rng, "sum", "d", 100)
    start, stop = comm.rank * 100 // comm.size, (comm.rank + 1) * 100 // comm.size
    backwards = comm.Split(0, -comm.rank)
    y = distscan.scan(x[::-1][100 - stop : 100 - start], comm=backwards)
    np.testing.assert_array_equal(y, np.cumsum(x[::-1])[100 - stop : 100 - start])
    backwards.Free()
    np.testing.assert_array_equal(distscan.scan(x, comm=MPI.COMM_SELF), np.cumsum(x))
