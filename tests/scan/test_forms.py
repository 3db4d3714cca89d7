"""Exclusive, initial, reverse: each with the others, against the definition."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import DisagreementError
from distscan.mpi import communicators
from support.host import host
from support.together import everywhere


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
