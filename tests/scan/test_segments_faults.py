"""What is wrong with segments, or with a plan's call that brings them, and who hears of that."""

from contextlib import suppress

import numpy as np
import pytest

import distscan
from distscan.core.errors import DisagreementError, RankError
from support import reference
from support.together import everywhere


@pytest.mark.parametrize(
    ("kind", "message", "given"),
    [
        (ValueError, "'scan-add' does not take segments=; use 'reduce-scan'",
         lambda: {"segments": np.zeros(6, bool), "strategy": "scan-add"}),
        (ValueError, "segments has shape", lambda: {"segments": np.zeros(5, bool)}),
        (ValueError, "axis=None", lambda: {"segments": np.zeros(6, bool), "axis": 0}),
        (TypeError, "segments is object", lambda: {"segments": np.array([None] * 6)}),
        (TypeError, "segments is ", lambda: {"segments": np.zeros(6, "i,i")}),
        (TypeError, "masked", lambda: {"segments": np.ma.masked_array(np.zeros(6))}),
    ],
)  # fmt: skip
def test_bad_segments(kind, message, given, comm):
    given = given() if comm.rank == comm.size - 1 else {"segments": np.zeros(6, bool)}
    everywhere(comm, kind, message, lambda: distscan.scan(np.zeros((2, 3)), **given))


def test_ranks_that_disagree(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    for ours, theirs in ((bool, int), ("U3", "S3"), (bool, None)):
        dtype = theirs if comm.rank else ours
        marks = None if dtype is None else np.zeros(3, dtype)
        everywhere(comm, DisagreementError, "the dtype of segments",
                   lambda m=marks: distscan.scan(np.zeros(3), segments=m))  # fmt: skip


PLAN_FAULTS = {
    "none": (TypeError, "none are given", lambda: None),
    "list": (TypeError, "segments is a list", lambda: [True] * 6),
    "type": (TypeError, "segments is int64", lambda: np.zeros(6, int)),
    "shape": (ValueError, "segments has shape", lambda: np.zeros((2, 3), bool)),
    "strides": (ValueError, "segments is not contiguous", lambda: np.zeros(12, bool)[::2]),
}


@pytest.mark.parametrize("case", PLAN_FAULTS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_fault_of_one_rank_is_its_own(case, reverse, comm, rng):
    """The ranks behind it, in scan order, hear of it; those before it have their results."""
    kind, message, bad = PLAN_FAULTS[case]
    x, flags = rng.integers(-9, 9, 6 * comm.size), rng.random(6 * comm.size) < 0.3
    guilty = comm.size // 2
    own = slice(6 * comm.rank, 6 * comm.rank + 6)
    plan = distscan.Plan(comm, 6, x.dtype, segments=True, reverse=reverse, backend="cpu")
    want = reference.scan(np.add, x, reverse=reverse, heads=flags)[own]
    if comm.rank == guilty:
        with pytest.raises(kind, match=message):
            plan(x[own], segments=bad())
    elif (comm.rank < guilty) == reverse:
        with pytest.raises(RankError, match="an earlier rank failed"):
            plan(x[own], segments=flags[own])
    else:
        np.testing.assert_array_equal(plan(x[own], segments=flags[own]), want)
    comm.Barrier()
    out = np.zeros_like(want)
    with suppress(RankError):  # which ranks before it hear now
        plan(x[own], out, flags[own])
    np.testing.assert_array_equal(out, want)


def test_plans_without_segments_refuse_them(comm):
    plan = distscan.Plan(comm, 3, "d", segments=False, backend="cpu")
    with pytest.raises(TypeError, match="without segments="):
        plan(np.zeros(3), segments=np.zeros(3, bool))
