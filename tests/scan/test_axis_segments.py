"""Segments along an axis: one flag or key for each step of it, for all columns."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.arrays import host

OPS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
       "bitwise_xor": np.bitwise_xor, "logaddexp": np.logaddexp}  # fmt: skip
CASES = [("sum", "i4"), ("sum", "f4"), ("prod", "i8"), ("max", "f8"), ("min", "i2"),
         ("bitwise_xor", "u4"), ("logaddexp", "f8"), ("sum", "?")]  # fmt: skip


def expected(x, op, keys, axis, *, exclusive=False, reverse=False, initial=None):
    """Scan each segment by NumPy."""
    ufunc, x = OPS[op], np.moveaxis(x, axis, 0)
    acc = np.result_type(x, "i8") if op in {"sum", "prod"} and x.dtype.kind in "bi" else x.dtype
    parts = []
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    for part in np.split(x, starts[1:]):
        y = ufunc.accumulate(part[::-1] if reverse else part, 0, acc)
        if exclusive:
            identity = distscan.scan([1], op, exclusive=True, dtype=acc, comm=MPI.COMM_SELF)
            y = np.concatenate([np.broadcast_to(identity, y[:1].shape), y[:-1]])
        if initial is not None:
            y = ufunc(acc.type(initial), y)
        parts.append(y[::-1] if reverse else y)
    return np.moveaxis(np.concatenate(parts), 0, axis)


@pytest.mark.parametrize("form", [{}, {"reverse": True}, {"exclusive": True, "initial": 2},
                                  {"exclusive": True, "reverse": True}], ids=str)  # fmt: skip
@pytest.mark.parametrize("marks", ["flags", "keys", "texts"])
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_values(op, dtype, marks, form, comm, cut, rng, xp):
    if marks == "texts" and xp is not np:
        pytest.skip("CuPy has no text")
    x = rng.integers(0, 4, (90, 5, 2)).astype(dtype)
    mine = cut(90)
    for axis in (0, 1):
        n = x.shape[axis]
        keys = np.cumsum(rng.random(n) < 0.2)
        want = expected(x, op, keys, axis, **form)[mine]
        part = mine if axis == 0 else slice(None)
        given = {
            "flags": np.r_[True, keys[1:] != keys[:-1]],
            "keys": keys,
            "texts": keys.astype("U"),
        }
        segments = xp.asarray(given[marks][part])
        out = xp.full(want.shape, 7, want.dtype)
        for more in ({}, {"out": out}):
            got = distscan.scan(
                xp.asarray(x[mine]), op, axis=axis, segments=segments, **form, **more
            )
            assert got.dtype == want.dtype
            np.testing.assert_allclose(host(got), want, rtol=1e-6)


def test_one_axis(comm, cut, rng):
    x, keys = rng.integers(0, 9, 50), np.arange(50) // 7
    mine = cut(50)
    got = distscan.scan(x[mine], axis=0, segments=keys[mine])
    np.testing.assert_array_equal(got, expected(x, "sum", keys, 0)[mine])


def test_refusals(comm):
    x, last = np.ones((4, 3)), comm.rank == comm.size - 1
    flags = np.ones(4, bool)
    mine = distscan.Operator("mine", numpy=np.add, identity=0)
    for fault, given in (
        (r"segments has shape \(3,\)", {"segments": flags[:3] if last else flags}),
        ("built-in operators", {"op": mine, "segments": flags}),
        ("out has shape", {"segments": flags, "out": np.ones((4, 2) if last else (4, 3))}),
    ):
        with pytest.raises((ValueError, TypeError), match=fault):
            distscan.scan(x, axis=0, **given)
    if comm.size > 1:
        keys = np.arange(4, dtype="i4" if last else "i8")
        with pytest.raises(distscan.DisagreementError, match="the dtype of segments"):
            distscan.scan(x, axis=0, segments=keys)
