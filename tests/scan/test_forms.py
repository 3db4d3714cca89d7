"""Exclusive, initial, reverse: each with the others, against the definition."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core.errors import DisagreementError
from distscan.core.operators import BUILTIN
from distscan.mpi import communicators
from support import reference
from support.cuts import two_cuts
from support.data import OPS, exact, expected
from support.forms import forms, planned
from support.host import host
from support.maps import COMPOSE, HALVES, maps
from support.together import everywhere


@forms
@two_cuts
@pytest.mark.parametrize(
    ("op", "code"),
    [("sum", "b"), ("sum", "e"), ("prod", "L"), ("max", "?"), ("min", "D")],
)
def test_every_form(form, op, code, strategy, xp, cut, rng):
    x = exact(rng, op, code, 503)
    mine = cut(x.size)
    want = expected(op, x)
    acc = np.dtype("f") if code == "e" else want.dtype
    form = form | {"initial": None if form["initial"] is None else code != "?" and 3}
    identity = BUILTIN[op].identity(acc)
    want = reference.scan(OPS[op], x, acc=acc, identity=identity, **form).astype(want.dtype)
    y = distscan.scan(xp.asarray(x[mine]), op, strategy=strategy, **form)
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(host(y), want[mine])


@forms
@pytest.mark.parametrize("n", [2, 9001])
def test_order_is_kept(form, n, strategy, xp, cut, rng):
    x = maps(rng, n)
    mine = cut(n)
    form = form | {"initial": form["initial"] and int(maps(rng, 1)[0])}
    want = reference.scan(COMPOSE.numpy, x, identity=1 << 32, **form)
    for call in (distscan.scan, planned):
        y = call(xp.asarray(x[mine]), COMPOSE, strategy=strategy, **form)
        np.testing.assert_array_equal(host(y), want[mine])


@forms
@two_cuts
@pytest.mark.parametrize(("dtype", "out"), [(None, "u4"), ("u8", "u4")])
def test_order_is_kept_in_other_types(form, dtype, out, strategy, xp, cut, rng):
    x = maps(rng, 5001, 16)
    mine = cut(x.size)
    want = reference.scan(HALVES.numpy, x, acc=dtype, identity=1 << 16, **form).astype(out)
    y = xp.zeros(mine.stop - mine.start, out)
    distscan.scan(xp.asarray(x[mine]), HALVES, dtype=dtype, out=y, strategy=strategy, **form)
    np.testing.assert_array_equal(host(y), want[mine])


@forms
@two_cuts
def test_in_place(form, strategy, xp, cut, rng):
    x = rng.integers(-9, 9, 20003)
    mine = cut(x.size)
    want = reference.scan(np.add, x, identity=0, **form)
    y = xp.asarray(x[mine].copy())
    assert distscan.scan(y, out=y, strategy=strategy, **form) is y
    np.testing.assert_array_equal(host(y), want[mine])
    backend = "cpu" if xp is np else "cuda"
    plan = distscan.Plan(None, y.shape, y.dtype, strategy=strategy, backend=backend, **form)
    y = xp.asarray(x[mine].copy())
    plan(y, y)
    np.testing.assert_array_equal(host(y), want[mine])
    y = xp.asarray(x[mine].copy())
    plan.start(y, y)
    plan.wait()
    np.testing.assert_array_equal(host(y), want[mine])


@forms
@two_cuts
def test_nan_infinity_and_negative_zero(form, strategy, xp, cut, rng):
    x = np.full(300, -0.0)
    x[[100, 200]] = [np.inf, -np.inf]
    mine = cut(x.size)
    form = form | {"initial": form["initial"] and -0.0}
    want = reference.scan(np.add, x, identity=0.0, **form)
    y = host(distscan.scan(xp.asarray(x[mine]), strategy=strategy, **form))
    np.testing.assert_array_equal(y, want[mine])
    signed = ~np.isnan(want[mine])
    np.testing.assert_array_equal(np.signbit(y)[signed], np.signbit(want[mine])[signed])


@pytest.mark.parametrize("code", "edD")
def test_exclusive_sums_begin_with_zero(code, xp, cut, comm):
    """With 0.0, as NumPy's add has it; -0.0 equals it, but would be printed."""
    x = np.ones(9, code)
    y = host(distscan.scan(xp.asarray(x[cut(9)]), exclusive=True))
    np.testing.assert_array_equal(y, np.arange(9)[cut(9)])
    assert not np.signbit(y.real).any()
    assert not np.signbit(y.imag).any()


def test_operator_without_identity(comm, cut, rng):
    """It needs an initial value to be exclusive, and nothing else."""
    op = distscan.Operator("latest", lambda a, b: np.where(True, b, a), "b", None)
    x = rng.integers(0, 99, 50)
    mine = cut(50)
    everywhere(comm, ValueError, "'latest' has no identity",
               lambda: distscan.scan(x[mine], op, exclusive=True))  # fmt: skip
    y = distscan.scan(x[mine], op, exclusive=True, initial=-1)
    np.testing.assert_array_equal(y, np.concatenate([[-1], x[:-1]])[mine])
    np.testing.assert_array_equal(distscan.scan(x[mine], op, reverse=True), x[mine])


@pytest.mark.parametrize(
    ("code", "initial", "kind", "message"),
    [
        ("l", 2.0, TypeError, "initial is float64; the scan accumulates in int64"),
        ("d", 1j, TypeError, "initial is complex128"),
        ("d", "three", TypeError, "initial is <U5"),
        ("d", [1, 2], ValueError, "not an array of shape"),
        ("l", 2**63, OverflowError, "int"),
        ("L", -1, OverflowError, "out of bounds"),
        ("d", {}, TypeError, "initial is object"),
        ("d", np.ma.masked, ValueError, "initial is masked"),
        ("l,l", (1, 2.5), ValueError, "initial has 2.5, which int64 does not have"),
    ],
)
def test_bad_initial(code, initial, kind, message, comm):
    x = np.zeros(3, code)
    op = distscan.Operator("own", lambda a, b: b) if x.dtype.names else "sum"
    op = "max" if code == "f" else op  # sums accumulate in float64
    initial = initial if comm.rank == comm.size - 1 else 0
    everywhere(comm, kind, message, lambda: distscan.scan(x, op, initial=initial))
    options = {"op": op, "initial": initial, "backend": "cpu"}
    everywhere(comm, kind, message, lambda: distscan.Plan(comm, 3, code, **options))


def test_narrow_initial(comm):
    """In the accumulating type: sums of int8 are wide, its maxima are not."""
    x = np.zeros(2, "b")
    assert distscan.scan(x, initial=300)[0] == 300
    everywhere(comm, OverflowError, "300", lambda: distscan.scan(x, "max", initial=300))
    everywhere(comm, OverflowError, "300", lambda: distscan.scan(x, "max", initial=np.int64(300)))
    assert distscan.scan(x, "max", initial=np.float32(0.5), dtype="d").dtype == np.float64
    assert distscan.scan(x, "logical_or", initial=2).all()  # any number but 0 is true
    everywhere(comm, ValueError, "initial is masked",
               lambda: distscan.scan(x, "fsum", initial=np.ma.masked))  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "what"),
    [
        ({"exclusive": True}, {}, "exclusive"),
        ({"reverse": True}, {}, "reverse"),
        ({"initial": 1}, {"initial": 2}, "initial"),
        ({"initial": 0.0}, {"initial": -0.0}, "initial"),
        ({"initial": 1.0}, {}, "initial"),
    ],
)
def test_ranks_that_disagree(ours, theirs, what, comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    form = theirs if comm.rank == comm.size - 1 else ours
    everywhere(comm, DisagreementError, f"disagree on {what}",
               lambda: distscan.scan(np.zeros(3), **form))  # fmt: skip
    everywhere(comm, DisagreementError, f"disagree on {what}",
               lambda: distscan.Plan(comm, 3, "d", backend="cpu", **form))  # fmt: skip


def test_initial_values_that_compare_equal_are_told_apart(xp, cut):
    """0.0 and -0.0, 1 and True: what scan() remembers is of one of them."""
    mine = cut(9)
    x = xp.full(mine.stop - mine.start, -0.0)
    for initial in (0.0, -0.0, 0.0):
        y = host(distscan.scan(x, initial=initial))
        np.testing.assert_array_equal(np.signbit(y), np.signbit(initial))


def test_the_opposite_order_is_made_once(comm):
    """A communicator keeps it, and frees it when it is freed itself."""
    own = comm.Dup()
    distscan.scan(np.arange(3), comm=own, reverse=True)
    kept = communicators.backwards(own)
    distscan.scan(np.arange(3), comm=own, reverse=True)
    assert communicators.backwards(own) is kept
    assert (kept.rank, kept.size) == (comm.size - 1 - comm.rank, comm.size)
    own.Free()
    assert kept == MPI.COMM_NULL
