"""Bools whose bytes are neither 0 nor 1 are true, as in NumPy; results are 0 or 1. GPU only."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.bench.block_scans import BLOCK_SCANS
from distscan.core import dtypes, operators
from support.data import exact
from support.host import host
from support.reference import scan
from support.steps import whole

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ANY = ["sum", "max", "logical_or", "logical_xor", "bitwise_xor"]
ALL = ["prod", "min", "logical_and"]
KINDS = [(op, None) for op in ANY + ALL] + [("sum", "?"), ("sum", "b"), ("sum", "f"), ("sum", "e"),
                                            ("sum", "D"), ("prod", "?"), ("max", "i")]  # fmt: skip
FEW = [("sum", None), ("max", None), ("logical_xor", None), ("sum", "?"), ("sum", "f")]


def odd(cp, rng, flags, shift=0):
    """The same flags on the GPU, as bytes that are 0 or anything else, ``shift`` bytes further."""
    some = rng.integers(1, 256, flags.shape, np.uint8)
    some[rng.random(flags.shape) < 1 / 2] = 2  # what looks false in its lowest bit
    whole = cp.zeros(flags.size + shift, np.uint8)
    whole[shift:] = cp.asarray(np.where(flags, some, np.uint8(0)).reshape(-1))
    return whole[shift:].reshape(flags.shape).view(np.bool_)


def drawn(rng, op, shape):
    """Bools whose running result is not constant."""
    n = int(np.prod(shape))
    return exact(rng, "min" if op in ALL else "max", "?", n).reshape(shape)


def same(y, want):
    """Values are equal, and true is 1."""
    y = host(y)
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(y.view(np.uint8), np.ascontiguousarray(want).view(np.uint8))


@pytest.mark.parametrize(("op", "dtype"), KINDS)
@pytest.mark.parametrize("strategy", ["single-pass", "reduce-scan", "scan-add"])
@pytest.mark.parametrize("n", [7, 5003, 5_000_003])
def test_elements(op, dtype, strategy, n, cp, rng):
    x = drawn(rng, op, n)
    want = operators.BUILTIN[op].numpy.accumulate(x, dtype=dtype)
    for shift in (0, 3):
        y = distscan.scan(odd(cp, rng, x, shift), op, comm=MPI.COMM_SELF, dtype=dtype,
                          strategy=strategy)  # fmt: skip
        same(y, want)


@pytest.mark.parametrize(("op", "dtype"), FEW)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((307, 1001), 1), ((3001, 24), 0), ((3001, 3), 0), ((3001, 1001), 0), ((37, 29, 100), 1),
     ((60, 37, 4096), 1), ((30, 37, 4099), 1)],
)  # fmt: skip
def test_rows_and_columns(op, dtype, shape, axis, cp, rng):
    x = drawn(rng, op, shape)
    want = operators.BUILTIN[op].numpy.accumulate(x, axis=axis, dtype=dtype)
    for strategy in ("single-pass", "reduce-scan"):
        y = distscan.scan(odd(cp, rng, x), op, comm=MPI.COMM_SELF, axis=axis, dtype=dtype,
                          strategy=strategy)  # fmt: skip
        same(y, want)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", ["sum", "logical_xor"])
def test_forms(op, reverse, exclusive, cp, rng):
    x = rng.random(100_003) < 1 / 2
    form = {"reverse": reverse, "exclusive": exclusive}
    want = scan(operators.BUILTIN[op].numpy, x, acc="l" if op == "sum" else "?", identity=0, **form)
    same(distscan.scan(odd(cp, rng, x), op, comm=MPI.COMM_SELF, **form), want)


def test_operators_of_ones_own(cp, rng):
    """C++ compares bools as it knows them: 0 and 1."""
    differ = distscan.Operator("differ", numpy=np.logical_xor, cuda="a != b", identity=False)
    x = rng.random(100_003) < 1 / 2
    y = distscan.scan(odd(cp, rng, x), differ, comm=MPI.COMM_SELF)
    same(y, np.logical_xor.accumulate(x))


@pytest.mark.parametrize("struct", [struct for struct, _ in BLOCK_SCANS.values()])
@pytest.mark.parametrize(("op", "dtype"), [("sum", None), ("logical_xor", None), ("sum", "f")])
def test_textbooks(struct, op, dtype, cp, rng):
    from distscan.bench.textbook import TextbookPolicy, TextbookScan

    x, operator = rng.random(100_003) < 1 / 2, operators.BUILTIN[op]
    types = dtypes.resolve(operator, x.dtype, None if dtype is None else np.dtype(dtype))
    steps = TextbookScan(operator, types, x.size, TextbookPolicy(struct))
    out = steps.empty()
    whole(steps, odd(cp, rng, x), out)
    same(out, operator.numpy.accumulate(x, dtype=dtype))


@pytest.mark.parametrize("code", "?bhidD")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("strategy", ["single-pass", "reduce-scan"])
def test_flags(code, reverse, strategy, cp, rng):
    """Flags of segments, with vectors of 16, 8, 4, 2 elements and of one."""
    n = 50_003
    flags = rng.random(n) < 1 / 10
    x = rng.random(n) < 1 / 2 if code == "?" else exact(rng, "sum", code, n)
    want = scan(np.add, x, acc=np.add.accumulate(x[:1]).dtype, reverse=reverse, heads=flags)
    for shift in (0, 1, 4):
        array = odd(cp, rng, x) if code == "?" else cp.asarray(x)
        y = distscan.scan(array, comm=MPI.COMM_SELF, reverse=reverse, strategy=strategy,
                          segments=odd(cp, rng, flags, shift))  # fmt: skip
        same(y, want)
