"""``out`` of every type beside ``x`` of every type: NumPy's values, or its refusal."""

import numpy as np
import pytest

import distscan
from distscan.core import dtypes, operators
from distscan.core.operators import Operator
from support.cuts import one_cut
from support.data import HOST_CODES
from support.host import host
from support.together import everywhere

CODES = HOST_CODES + "qQ"
N = 12

# NumPy's own, when numbers lose their imaginary part.
pytestmark = pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")


def drawn(rng, op, x, acc):
    """Draw numbers whose scan is exact in ``acc``, and whose results every type holds cut."""
    x = np.dtype(x)
    if x.kind == "b":
        return rng.random(N) < 0.5
    if acc.kind in "iu" and x.kind in "iu":  # which wrap
        return rng.integers(np.iinfo(x).min, np.iinfo(x).max, N, x, endpoint=True)
    if op == "logaddexp":
        return rng.permutation(np.arange(N) * 10).astype(x)
    part = rng.integers(0, 4 if x.kind == "c" else 15, N)
    if op == "prod":
        part = rng.permutation([0.5, 0.5, 1.5, 2, 2, 2, *[1] * (N - 6)])
    elif x.kind in "fc":
        part = part / 2
    values = part.astype(x)
    return values + np.array(0.5j, x) if x.kind == "c" and op != "prod" else values


def numpys(ufunc, x, out):
    """What NumPy leaves in ``out``, or raises."""
    with np.errstate(all="ignore"):
        try:
            ufunc.accumulate(x, out=out)
        except TypeError:
            return None
    return out


@one_cut
@pytest.mark.parametrize("x", CODES)
@pytest.mark.parametrize("op", operators.BUILTIN)
def test_every_pair(op, x, cut, comm, rng):
    ufunc, mine = operators.BUILTIN[op].numpy, cut(N)
    for code in CODES:
        want = numpys(ufunc, np.zeros(N, x), np.zeros(N, code))
        y = np.zeros(mine.stop - mine.start, code)
        if want is None:
            everywhere(comm, TypeError, f"operator '{op}' does not take",
                       lambda y=y: distscan.scan(np.zeros(y.size, x), op, out=y))  # fmt: skip
            continue
        values = drawn(rng, op, x, dtypes.resolve(operators.BUILTIN[op], x, out=code).acc)
        want = numpys(ufunc, values, np.zeros(N, code))
        assert distscan.scan(values[mine], op, out=y) is y
        exact = op != "logaddexp" or want.dtype.kind not in "fc"
        close = 0 if exact else 4 * max(np.finfo(code).eps, np.finfo("f").eps)
        np.testing.assert_allclose(y, want[mine], rtol=close, atol=close, err_msg=f"{x} {code}")


@pytest.mark.parametrize("x", CODES)
@pytest.mark.parametrize("op", operators.BUILTIN)
def test_the_accumulating_type_is_the_ufuncs(op, x):
    """The promotion of both, where the ufunc's loops are of one type."""
    operator = operators.BUILTIN[op]
    for code in CODES:
        if numpys(operator.numpy, np.zeros(2, x), np.zeros(2, code)) is None:
            with pytest.raises(TypeError, match="does not take"):
                dtypes.resolve(operator, x, out=code)
            continue
        types = dtypes.resolve(operator, x, out=code)
        assert types.out == np.dtype(code)
        if op in ("sum", "prod", "max", "min"):
            acc = np.result_type(x, code)
            assert types.acc == (np.float32 if acc == np.float16 else acc)
        assert dtypes.resolve(operator, np.dtype(x).newbyteorder(), out=code).acc == types.acc


@pytest.mark.parametrize(
    ("x", "out"), ["dl", "fb", "Dd", "Ff", "ld", "bh", "?l", "hb", "eb", "de", "Di"]
)
def test_sums(x, out, strategy, xp, cut, rng):
    values = drawn(rng, "sum", x, np.result_type(x, out))
    mine = cut(N)
    y = xp.zeros(mine.stop - mine.start, out)
    distscan.scan(xp.asarray(values[mine]), out=y, strategy=strategy)
    np.testing.assert_array_equal(host(y), np.cumsum(values, out=np.zeros(N, out))[mine])


def test_fractions_are_cut_at_the_end(strategy, xp, cut):
    x, mine = np.array([0.5, 0.5, 0.7]), cut(3)
    y = xp.zeros(mine.stop - mine.start, int)
    distscan.scan(xp.asarray(x[mine]), out=y, strategy=strategy)
    np.testing.assert_array_equal(host(y), np.array([0, 1, 1])[mine])


@pytest.mark.parametrize("code", "bilfdD")
def test_a_type_that_is_given_accumulates(code, cut, rng):
    """Whatever ``out`` is."""
    x, mine = rng.integers(0, 9, N) / 2, cut(N)
    y = np.zeros(mine.stop - mine.start, "i")
    distscan.scan(x[mine], dtype=code, out=y)
    np.testing.assert_array_equal(y, np.cumsum(x, dtype=code, out=np.zeros(N, "i"))[mine])


@one_cut
@pytest.mark.parametrize("x", "?bHilfdD")
def test_a_function_of_ones_own(x, cut, rng):
    """It accumulates in the promotion of both types."""
    seen, mine = set(), cut(N)

    def plus(a, b):
        seen.update((a.dtype, b.dtype))
        return a + b

    for code in "?BhlfdF":
        acc = np.result_type(x, code)
        values = drawn(rng, "sum", x, acc)
        y = np.zeros(mine.stop - mine.start, code)
        seen.clear()
        distscan.scan(values[mine], Operator("plus", plus, identity=0), out=y)
        np.testing.assert_array_equal(y, np.cumsum(values, dtype=acc).astype(code)[mine])
        assert seen <= {acc}


def test_initial_is_of_the_promotion_too(strategy, comm):
    """A fraction where integers are scanned into floats."""
    y = np.zeros(2)
    distscan.scan(np.ones(2, int), out=y, initial=0.5, strategy=strategy)
    np.testing.assert_array_equal(y, 2 * comm.rank + np.array([1.5, 2.5]))


@pytest.mark.parametrize("op", ["sum", Operator("plus", lambda a, b: a + b, identity=0)])
@pytest.mark.parametrize("order", "<>")
def test_results_are_in_the_machines_byte_order(order, op, comm):
    """Whichever that of ``x`` and ``dtype`` is; what is written keeps its own."""
    x = np.ones(2, f"{order}i8")
    want = 2 * comm.rank + np.array([1, 2])
    plan = distscan.Plan(comm, 2, x.dtype, op, out_dtype=f"{order}i8", backend="cpu")
    for y in (distscan.scan(x, op), distscan.scan(x, op, dtype=f"{order}i8")):
        assert y.dtype == np.int64
        np.testing.assert_array_equal(y, want)
    assert plan.types.out == plan.types.acc == np.int64
    out = np.zeros(2, f"{order}f8")
    np.testing.assert_array_equal(distscan.scan(x, op, out=out), want)
