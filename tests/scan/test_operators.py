"""logaddexp, bitwise and logical operators against NumPy's accumulate, on every type they take."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core import dtypes, operators
from distscan.mpi import exscan
from support.data import CODES, HOST_CODES
from support.host import host
from support.logic import bits, truths
from support.pending import Known

BITWISE = {name: getattr(np, name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")}
LOGICAL = {name: getattr(np, name) for name in ("logical_and", "logical_or", "logical_xor")}
MPI_OPS = {"bitwise_and": MPI.BAND, "bitwise_or": MPI.BOR, "bitwise_xor": MPI.BXOR,
           "logical_and": MPI.LAND, "logical_or": MPI.LOR, "logical_xor": MPI.LXOR}  # fmt: skip
INTEGERS = "?bBhHiIlL"


def apart(rng, code, n):
    """Numbers so far apart that adding exponentials leaves the larger: every order is exact."""
    x = (np.arange(n) + 1) * (32.0 if code == "e" else 128.0)
    return (
        (x + 2048 * rng.random(n) // 1).astype(code) if n == 0 else rng.permutation(x).astype(code)
    )


def check(op, ufunc, x, strategy, xp, cut, **options):
    mine = cut(x.size)
    y = distscan.scan(xp.asarray(x[mine]), op, strategy=strategy, **options)
    want = ufunc.accumulate(x, **options)
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(host(y), want[mine])


@pytest.mark.parametrize("op", BITWISE)
@pytest.mark.parametrize("code", INTEGERS)
def test_bitwise(op, code, strategy, xp, cut, rng):
    check(op, BITWISE[op], bits(rng, op, code, 3001), strategy, xp, cut)


@pytest.mark.parametrize("op", LOGICAL)
@pytest.mark.parametrize("code", HOST_CODES)
def test_logical(op, code, strategy, xp, cut, rng):
    if xp is not np and code not in CODES:
        pytest.skip("the GPU has no long double")
    check(op, LOGICAL[op], truths(rng, op, code, 3001), strategy, xp, cut)


@pytest.mark.parametrize("code", "efd")
def test_logaddexp_exact(code, strategy, xp, cut, rng):
    check("logaddexp", np.logaddexp, apart(rng, code, 1003), strategy, xp, cut)


@pytest.mark.parametrize("code", INTEGERS + "efd")
def test_logaddexp(code, strategy, xp, cut, rng):
    """Real data: within the rounding of a chain of as many steps, in the type NumPy chooses."""
    x = (
        rng.integers(0, 2, 2001)
        if code == "?"
        else rng.integers(0, 99, 2001) / (1 + (code in "efd"))
    )
    x = x.astype(code)
    mine = cut(x.size)
    y = distscan.scan(xp.asarray(x[mine]), "logaddexp", strategy=strategy)
    assert y.dtype == np.logaddexp.accumulate(x[:0]).dtype
    want = np.logaddexp.accumulate(x, dtype=np.longdouble)[mine]
    acc = np.result_type(y.dtype, np.float32)
    bound = 4 * x.size * np.finfo(acc).eps * 100 + np.finfo(y.dtype).eps * np.abs(want)
    assert np.all(np.abs(host(y) - want) <= bound)


@pytest.mark.parametrize("spread", [1, 30, 300])
@pytest.mark.parametrize("code", "fd")
def test_logaddexp_of_wide_ranges(code, spread, xp, cut, rng):
    """GPUs add terms in units of the largest; CPUs combine element by element, and round more."""
    x = (rng.standard_normal(70_001) * spread).astype(code)
    mine = cut(x.size)
    y = host(distscan.scan(xp.asarray(x[mine]), "logaddexp"))
    want = np.logaddexp.accumulate(x, dtype=np.longdouble)[mine]
    most = 400 if xp is np else 40
    assert np.all(np.abs(y - want) <= most * np.finfo(code).eps * np.maximum(1, np.abs(want)))


@pytest.mark.parametrize("code", "efd")
@pytest.mark.parametrize(
    "special",
    [
        [-np.inf, -np.inf, -np.inf],  # no NaN from inf - inf
        [-np.inf, 3, -np.inf],
        [np.inf, np.inf, -np.inf],
        [-np.inf, np.inf, 3],
        [-np.inf, np.nan, -np.inf],
        [np.inf, np.nan, np.inf],
    ],
)
def test_logaddexp_of_infinities(special, code, strategy, xp, cut):
    x = np.tile(np.array([-np.inf], code), 90)
    x[[20, 40, 60]] = special
    with np.errstate(all="ignore"):
        check("logaddexp", np.logaddexp, x, strategy, xp, cut)


@pytest.mark.parametrize("code", "fd")
def test_logaddexp_of_nan_before_infinities(code, strategy, xp, cut):
    """A NaN stays, also across parts that are infinite as a whole, and as the first value."""
    x = np.zeros(3000, code)
    x[:1500] = -np.inf
    y = distscan.scan(xp.asarray(x[cut(3000)]), "logaddexp", initial=np.nan, strategy=strategy)
    assert np.isnan(host(y)).all()
    x[0] = np.nan
    y = distscan.scan(xp.asarray(x[cut(3000)]), "logaddexp", strategy=strategy)
    assert np.isnan(host(y)).all()


@pytest.mark.parametrize("code", "fd")
def test_the_first_result_of_logaddexp_is_the_first_element(code, xp, comm, rng):
    for n in (1, 100, 3000):
        x = rng.normal(size=n).astype(code)
        x[0] *= 1e-3
        y = distscan.scan(xp.asarray(x), "logaddexp")
        assert comm.rank > 0 or host(y)[0] == x[0]


def test_no_rounding_near_zero(xp, cut):
    """log(exp(-40) + exp(0)) is 4e-18, not 0."""
    x = np.array([-40.0, 0.0])
    mine = cut(2)
    y = distscan.scan(xp.asarray(x[mine]), "logaddexp")
    np.testing.assert_allclose(host(y), np.logaddexp.accumulate(x)[mine], rtol=1e-12)


@pytest.mark.parametrize(
    ("op", "code", "dtype"),
    [("bitwise_xor", "i", "b"), ("bitwise_and", "b", "i"), ("bitwise_or", "H", "l"),
     ("bitwise_xor", "d", "i"), ("bitwise_or", "i", "?"), ("logical_xor", "i", "?"),
     ("logaddexp", "i", "f"), ("logaddexp", "d", "e")],
)  # fmt: skip
def test_dtype(op, code, dtype, strategy, xp, cut, rng):
    x = (
        apart(rng, "e", 99).astype(code)
        if op == "logaddexp"
        else rng.integers(0, 99, 99).astype(code)
    )
    check(op, getattr(np, op), x, strategy, xp, cut, dtype=dtype)


@pytest.mark.parametrize("code", "ifD")
def test_truth_as_numbers(code, strategy, xp, cut, rng):
    """As in NumPy, ``out`` takes what it can hold: here 0 and 1."""
    x = truths(rng, "logical_xor", "d", 500)
    mine = cut(x.size)
    out = xp.zeros(mine.stop - mine.start, code)
    distscan.scan(xp.asarray(x[mine]), np.logical_xor, out=out, strategy=strategy)
    np.testing.assert_array_equal(host(out), np.logical_xor.accumulate(x)[mine])


@pytest.mark.parametrize("op", [*BITWISE, *LOGICAL])
def test_every_spelling(op, cut, rng):
    x = rng.integers(0, 1 << 40, 77)
    mine = cut(x.size)
    want = getattr(np, op).accumulate(x)[mine]
    for spelling in (op, getattr(np, op), MPI_OPS[op]):
        np.testing.assert_array_equal(distscan.scan(x[mine], spelling), want)
    assert operators.resolve(np.logaddexp) is operators.BUILTIN["logaddexp"]


@pytest.mark.parametrize("op", operators.BUILTIN)
@pytest.mark.parametrize("code", HOST_CODES)
def test_types_are_the_ufuncs(op, code):
    """The accumulating type, or the refusal, of every operator on every type."""
    operator = operators.BUILTIN[op]
    try:
        want = operator.numpy.accumulate(np.zeros(0, code)).dtype
    except TypeError:
        with pytest.raises(TypeError, match=f"operator '{op}' does not take {np.dtype(code)}"):
            dtypes.resolve(operator, code)
    else:
        assert dtypes.resolve(operator, code).out == want
        assert dtypes.resolve(operator, np.dtype(code).newbyteorder()).out == want


@pytest.mark.parametrize("op", [*BITWISE, *LOGICAL])
def test_exchange_by_mpi(op, comm, rng):
    """MPI's own operators: the totals of earlier ranks, some of them empty."""
    dtype = np.dtype("?" if op in LOGICAL else "i8")
    assert dtype.kind in operators.BUILTIN[op].mpi_kinds
    totals = rng.integers(0, 2 if op in LOGICAL else 1 << 40, comm.size).astype(dtype)
    some = rng.random(comm.size) < 0.6
    mine = Known(np.array(totals[comm.rank]) if some[comm.rank] else None)
    offset = exscan.Exscan(operators.BUILTIN[op], dtype)(comm, mine)
    before = totals[: comm.rank][some[: comm.rank]]
    if before.size:
        assert offset[()] == getattr(np, op).reduce(before)
    elif offset is not None:
        assert offset[()] == operators.BUILTIN[op].identity(dtype)


@pytest.mark.parametrize("op", ["logaddexp", *BITWISE, *LOGICAL])
def test_identity_changes_nothing(op, rng):
    operator = operators.BUILTIN[op]
    for code in "fd" if op == "logaddexp" else "?" if op in LOGICAL else INTEGERS:
        dtype = np.dtype(code)
        x = apart(rng, code, 50) if op == "logaddexp" else bits(rng, "bitwise_xor", code, 50)
        identity = operator.identity(dtype)
        assert np.asarray(identity).dtype == dtype
        for y in (operator.combine(identity, x), operator.combine(x, identity)):
            np.testing.assert_array_equal(y, x)
