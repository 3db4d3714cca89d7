"""bfloat16, which NumPy has from ml_dtypes: it accumulates in float32 and rounds once."""

import numpy as np
import pytest

import distscan
from distscan.core import arrays, dtypes, operators
from distscan.core.errors import OutputError
from distscan.job import output
from support.bfloat16 import BFLOAT16, ml_dtypes
from support.data import OPS, exact
from support.foreign import Exporter, exported_as_bfloat16
from support.host import host

FLOAT = ("sum", "prod", "max", "min", "logaddexp")


def drawn(rng, op, n):
    """Numbers that bfloat16 holds, whose scan is exact in float32."""
    return exact(rng, op, "f", n).astype(BFLOAT16)


def wanted(op, x):
    return operators.BUILTIN[op].numpy.accumulate(x.astype("f")).astype(BFLOAT16)


@pytest.mark.parametrize("op", OPS)
def test_operators(op, strategy, xp, cut, rng):
    x = drawn(rng, op, 3001)
    mine = cut(x.size)
    y = distscan.scan(xp.asarray(x[mine]), op, strategy=strategy)
    assert y.dtype == BFLOAT16
    np.testing.assert_array_equal(host(y), wanted(op, x)[mine])


def test_logaddexp(strategy, xp, cut, rng):
    x = rng.normal(size=501).astype(BFLOAT16)
    mine = cut(x.size)
    y = host(distscan.scan(xp.asarray(x[mine]), "logaddexp", strategy=strategy))
    assert y.dtype == BFLOAT16
    want = np.logaddexp.accumulate(x.astype("d"))[mine]
    assert np.all(np.abs(y.astype("d") - want) <= 2.0**-8 * np.abs(want) + 1e-3)


def test_logical(strategy, xp, cut, rng):
    x = (rng.integers(0, 2, 999) * 0.5).astype(BFLOAT16)
    mine = cut(x.size)
    y = distscan.scan(xp.asarray(x[mine]), "logical_xor", strategy=strategy)
    np.testing.assert_array_equal(host(y), np.logical_xor.accumulate(x != 0)[mine])


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
    np.testing.assert_array_equal(y.astype("f"), wanted(op, x)[mine].astype("f"))


@pytest.mark.parametrize("code", "?bhilBefdF")
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_conversions(code, strategy, xp, cut, rng):
    """From another type to bfloat16, and from bfloat16 to another."""
    x = rng.integers(0, 2, 400).astype(code)
    mine = cut(x.size)
    y = distscan.scan(xp.asarray(x[mine]), dtype=BFLOAT16, strategy=strategy)
    want = np.cumsum(x.real, dtype="f").astype(BFLOAT16)
    np.testing.assert_array_equal(host(y), want[mine])
    x = x.astype(BFLOAT16)
    y = distscan.scan(xp.asarray(x[mine]), dtype=code, strategy=strategy)
    np.testing.assert_array_equal(host(y), np.cumsum(x.astype("f").astype(code), dtype=code)[mine])


def test_rounds_to_even(xp, cut):
    """Ties of the store: 1 + 2^-8 rounds down, 1 + 3 * 2^-8 up."""
    x = np.array([1, 2.0**-8, 2.0**-7], "f")
    mine = cut(3)
    y = distscan.scan(xp.asarray(x[mine]), dtype=BFLOAT16)
    np.testing.assert_array_equal(host(y), np.array([1, 1, 1 + 2.0**-6], BFLOAT16)[mine])


def test_in_place_and_plan(cut, rng):
    x = drawn(rng, "sum", 500)
    mine = cut(x.size)
    y = x[mine].copy()
    assert distscan.cumsum(y, out=y) is y
    np.testing.assert_array_equal(y, wanted("sum", x)[mine])
    plan = distscan.Plan(None, y.shape, BFLOAT16, "max", backend="cpu")
    np.testing.assert_array_equal(plan(x[mine]), np.maximum.accumulate(x)[mine])


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
    mine, want = cut(200), wanted("sum", x)
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
    np.testing.assert_array_equal(y, wanted("sum", x)[cut(200)])
    assert np.shares_memory(arrays.as_native(Exported(x)), x)


@pytest.mark.parametrize("op", operators.BUILTIN)
def test_types_are_the_ufuncs(op):
    operator = operators.BUILTIN[op]
    if op.startswith("bitwise"):
        with pytest.raises(TypeError, match=f"'{op}' does not take bfloat16"):
            dtypes.resolve(operator, BFLOAT16)
        return
    types = dtypes.resolve(operator, BFLOAT16)
    assert types.out == operator.numpy.accumulate(np.zeros(1, BFLOAT16)).dtype
    assert types.acc == (np.float32 if op in FLOAT else np.bool_)


def test_other_small_floats_are_refused(comm):
    with pytest.raises(TypeError, match="x is float8_e5m2"):
        distscan.scan(np.zeros(3, ml_dtypes.float8_e5m2))


def test_no_npy_file_holds_it(tmp_path):
    with pytest.raises(OutputError, match="cannot hold bfloat16"):
        output.create(tmp_path / "x.npy", BFLOAT16, (3,)).__enter__()
    assert not list(tmp_path.iterdir())
