"""bfloat16, which accumulates in float32 and rounds once; every type of ``out`` beside every x."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest

import distscan
from support.arrays import Exporter, exported_as_bfloat16, host
from support.cases import FORMS, STRATEGIES, one_cut, pairs
from support.data import HOST_CODES, OPS, exact
from support.exact import BFLOAT16
from support.processes import everywhere, left
from support.reference import CALLS, UFUNCS, check, types_of, wanted

# NumPy's own, when numbers lose their imaginary part.
pytestmark = pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")


def drawn(rng, op, n):
    """Numbers that bfloat16 holds, whose scan is exact in float32."""
    return exact(rng, op, "f", n).astype(BFLOAT16)


@pairs(group_by="op", op=OPS, form=FORMS, call=CALLS, strategy=STRATEGIES)
def test_operators_of_bfloat16(op, form, call, strategy, xp, cut, rng):
    if xp is not np and call in ("plan", "start"):
        return  # CuPy has no bfloat16
    check(drawn(rng, op, 3001), op, xp=xp, cut=cut, call=call, strategy=strategy, **form)


def test_logaddexp(strategy, xp, cut, rng):
    x = rng.normal(size=501).astype(BFLOAT16)
    mine = cut(x.size)
    y = host(distscan.scan(xp.asarray(x[mine]), "logaddexp", strategy=strategy))
    assert y.dtype == BFLOAT16
    want = np.logaddexp.accumulate(x.astype("d"))[mine]
    assert np.all(np.abs(y.astype("d") - want) <= 2.0**-8 * np.abs(want) + 1e-3)


def test_logical(strategy, xp, cut, rng):
    x = (rng.integers(0, 2, 999) * 0.5).astype(BFLOAT16)
    check(x, "logical_xor", xp=xp, cut=cut, strategy=strategy)


def test_accumulates_in_float32(strategy, xp, cut):
    """256 + 1 is 256 in bfloat16: a sum that rounded each step would stop there."""
    x = np.ones(1001, BFLOAT16)
    mine = cut(x.size)
    y = distscan.scan(xp.asarray(x[mine]), strategy=strategy)
    np.testing.assert_array_equal(host(y), np.arange(1, 1002).astype(BFLOAT16)[mine])


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_and_infinity(op, strategy, xp, cut, rng):
    x = rng.normal(size=300).astype(BFLOAT16)
    x[[100, 150, 200]] = [np.inf, -np.inf, np.nan]
    mine = cut(x.size)
    y = host(distscan.scan(xp.asarray(x[mine]), op, strategy=strategy))
    np.testing.assert_array_equal(y.astype("f"), wanted(x, op)[mine].astype("f"))


@pytest.mark.parametrize("code", "?bhilBefdF")
def test_conversions(code, xp, cut, rng):
    """From another type to bfloat16, and from bfloat16 to another."""
    x = rng.integers(0, 2, 400).astype(code)
    mine, small = cut(x.size), x.astype(BFLOAT16)
    to_small = np.cumsum(x.real, dtype="f").astype(BFLOAT16)[mine]
    from_small = np.cumsum(small.astype("f").astype(code), dtype=code)[mine]
    for strategy in STRATEGIES:
        y = distscan.scan(xp.asarray(x[mine]), dtype=BFLOAT16, strategy=strategy)
        np.testing.assert_array_equal(host(y), to_small)
        y = distscan.scan(xp.asarray(small[mine]), dtype=code, strategy=strategy)
        np.testing.assert_array_equal(host(y), from_small)


def test_rounds_to_even(xp, cut):
    """Ties of the store: 1 + 2^-8 rounds down, 1 + 3 * 2^-8 up."""
    x = np.array([1, 2.0**-8, 2.0**-7], "f")
    mine = cut(3)
    y = distscan.scan(xp.asarray(x[mine]), dtype=BFLOAT16)
    np.testing.assert_array_equal(host(y), np.array([1, 1, 1 + 2.0**-6], BFLOAT16)[mine])


class Tensor:
    """As PyTorch's and JAX's: it has a bfloat16, which NumPy does not take through DLPack."""

    def __init__(self, array, *, shared=True):
        self.array, self.dtype, self.shared = array, array.dtype, shared

    def view(self, dtype):
        return Tensor(self.array.view(dtype))

    def __dlpack__(self, **options):
        if not self.shared:
            raise BufferError("tensors that require a gradient are not exported")
        if self.dtype == BFLOAT16:
            return exported_as_bfloat16(self.array.view("u2"), **options)
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)

    def __array_namespace__(self):
        return Tensors


class Tensors:
    int16, bfloat16 = np.int16, BFLOAT16

    @staticmethod
    def from_dlpack(array):
        return Tensor(np.from_dlpack(array))


def test_of_another_library(cut, rng):
    x = drawn(rng, "sum", 200)
    mine, want = cut(200), wanted(x)
    shard = x.repeat(2)[::2][mine]
    y = distscan.scan(Tensor(shard))
    assert isinstance(y, Tensor)
    assert y.dtype == BFLOAT16
    np.testing.assert_array_equal(y.array, want[mine])
    y = distscan.scan(Tensor(shard), dtype="f")
    assert y.dtype == np.float32
    out = Tensor(np.zeros(len(shard), BFLOAT16))
    assert distscan.scan(Tensor(shard), out=out) is out
    np.testing.assert_array_equal(out.array, want[mine])
    kept, _ = distscan.compact(Tensor(shard), shard > 0)
    np.testing.assert_array_equal(kept.array, shard[shard > 0])
    with pytest.raises(TypeError, match="x is a Tensor that does not share its memory"):
        distscan.scan(Tensor(shard, shared=False))


class Exported(Exporter):
    """bfloat16 of a library that only exports arrays, by DLPack before 1.0."""

    def __dlpack__(self, *, stream=None):
        return exported_as_bfloat16(self.array.view("u2"))


def test_of_a_library_that_only_exports(cut, rng):
    x = drawn(rng, "sum", 200)
    y = distscan.scan(Exported(x[cut(200)]))
    assert type(y) is np.ndarray
    assert y.dtype == BFLOAT16
    np.testing.assert_array_equal(y, wanted(x)[cut(200)])


@pytest.mark.parametrize("op", UFUNCS)
def test_types_of_bfloat16_are_the_ufuncs(op):
    x = np.zeros(3, BFLOAT16)
    if op.startswith("bitwise"):
        with pytest.raises(TypeError, match=f"'{op}' does not take bfloat16"):
            distscan.scan(x, op)
    else:
        assert distscan.scan(x, op).dtype == UFUNCS[op].accumulate(x).dtype


def test_other_small_floats_are_refused(comm):
    with pytest.raises(TypeError, match="x is float8_e5m2"):
        distscan.scan(np.zeros(3, ml_dtypes.float8_e5m2))


def test_no_npy_file_holds_it(save, folder, comm):
    save("x.npy", np.ones(3))
    everywhere(comm, (distscan.OutputError, TypeError, ValueError), "bfloat16",
               lambda: distscan.scan_file(folder / "x.npy", folder / "y.npy", dtype=BFLOAT16,
                                          backend="cpu"))  # fmt: skip
    assert left(comm, folder) == ["x.npy"]


# ---- out beside x --------------------------------------------------------------------------------


CODES = HOST_CODES + "qQ"
N = 12


def drawn_apart(rng, op, x, acc):
    """Draw numbers whose scan is exact in ``acc``, and whose results every type holds cut."""
    x = np.dtype(x)
    if x.kind == "b":
        return rng.random(N) < 0.5
    if op == "logaddexp":
        return rng.permutation(np.arange(N) * 10).astype(x)
    if acc.kind in "iu" and x.kind in "iu":  # which wrap
        return rng.integers(np.iinfo(x).min, np.iinfo(x).max, N, x, endpoint=True)
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
@pytest.mark.parametrize("op", UFUNCS)
def test_every_pair(op, cut, comm, rng):
    ufunc, mine = UFUNCS[op], cut(N)
    for x, code in product(CODES, CODES):
        want = numpys(ufunc, np.zeros(N, x), np.zeros(N, code))
        y = np.zeros(mine.stop - mine.start, code)
        if want is None:
            everywhere(comm, TypeError, f"operator '{op}' does not take",
                       lambda x=x, y=y: distscan.scan(np.zeros(y.size, x), op, out=y))  # fmt: skip
            continue
        values = drawn_apart(rng, op, x, types_of(op, x, out=code)[0])
        want = numpys(ufunc, values, np.zeros(N, code))
        assert distscan.scan(values[mine], op, out=y) is y
        exact = op != "logaddexp" or want.dtype.kind not in "fc"
        close = 0 if exact else 4 * max(np.finfo(code).eps, np.finfo("f").eps)
        np.testing.assert_allclose(y, want[mine], rtol=close, atol=close, err_msg=f"{x} {code}")


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
        values = drawn_apart(rng, "sum", x, acc)
        y = np.zeros(mine.stop - mine.start, code)
        seen.clear()
        distscan.scan(values[mine], distscan.Operator("plus", plus, identity=0), out=y)
        np.testing.assert_array_equal(y, np.cumsum(values, dtype=acc).astype(code)[mine])
        assert seen <= {acc}


def test_initial_is_of_the_promotion_too(strategy, comm):
    """A fraction where integers are scanned into floats."""
    y = np.zeros(2)
    distscan.scan(np.ones(2, int), out=y, initial=0.5, strategy=strategy)
    np.testing.assert_array_equal(y, 2 * comm.rank + np.array([1.5, 2.5]))


@pytest.mark.parametrize("op", ["sum", distscan.Operator("plus", lambda a, b: a + b, identity=0)])
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
