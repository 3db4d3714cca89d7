"""compact and segment_flags, at the edges of ranks; faults of offsets and compact."""

import numpy as np
import pytest

import distscan
from distscan.core.errors import DisagreementError
from support import reference
from support.foreign import Foreign
from support.host import host
from support.together import everywhere


@pytest.mark.parametrize("keep", ["some", "none", "all", "every second shard"])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_compact(n, keep, xp, cut, comm, rng):
    x = rng.normal(size=n)
    mine = cut(n)
    mask = {"none": np.zeros(n, bool), "all": np.ones(n, bool)}.get(keep, rng.random(n) < 0.3)
    if keep == "every second shard":
        for start, stop in comm.allgather((mine.start, mine.stop))[1::2]:
            mask[start:stop] = False
    kept, start = distscan.compact(xp.asarray(x[mine]), xp.asarray(mask[mine]))
    assert isinstance(kept, xp.ndarray)
    assert start == mask[: mine.start].sum()
    np.testing.assert_array_equal(host(kept), x[mask][start : start + len(kept)])
    np.testing.assert_array_equal(host(kept), x[mine][mask[mine]])


def test_compact_rows_and_other_types(xp, cut, rng):
    x, mask = rng.integers(0, 99, (200, 3)), rng.random(200) < 0.5
    mine = cut(200)
    kept, start = distscan.compact(xp.asarray(x[mine]), xp.asarray(mask[mine]))
    np.testing.assert_array_equal(host(kept), x[mine][mask[mine]])
    assert start == mask[: mine.start].sum()
    if xp is np:
        text = x[:, 0].astype(str)
        kept, _ = distscan.compact(text[mine], mask[mine])
        np.testing.assert_array_equal(kept, text[mine][mask[mine]])
        kept, _ = distscan.compact(Foreign(x[mine]), mask[mine])
        assert isinstance(kept, Foreign)
        np.testing.assert_array_equal(kept.array, x[mine][mask[mine]])


FAULTS = {
    "count": (
        ValueError,
        "count must be an integer of at least 0, not -1",
        lambda: distscan.offsets(-1),
    ),
    "count type": (TypeError, "integer", lambda: distscan.offsets(1.5)),
    "mask type": (TypeError, "mask is int64", lambda: distscan.compact(np.zeros(3), [0, 1, 1])),
    "mask shape": (ValueError, "mask has shape", lambda: distscan.compact(np.zeros(3), [True])),
}
RIGHT = {
    "count": lambda: distscan.offsets(1),
    "mask": lambda: distscan.compact(np.zeros(3), np.ones(3, bool)),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults(case, comm):
    kind, message, call = FAULTS[case]
    if comm.rank != comm.size - 1:
        call = RIGHT[case.split()[0]]
    everywhere(comm, kind, message, call)
    assert distscan.offsets(1) == (comm.rank, comm.size)


def test_disagreement(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    x = np.ones(3, "fd"[comm.rank % 2])
    everywhere(comm, DisagreementError, "disagree on the dtype of x",
               lambda: distscan.compact(x, x > 0))  # fmt: skip


@pytest.mark.parametrize("code", "bBhiIlL")
@pytest.mark.parametrize("begin", [0, 5])
@pytest.mark.parametrize("rows", [0, 1, 12])
def test_segment_flags(code, begin, rows, xp, rng):
    """Against one loop over the rows; empty ones at the ends too."""
    lengths = rng.integers(0, 8, rows) * (rng.random(rows) < 0.7)
    offsets = (begin + np.concatenate([[0], np.cumsum(lengths)])).astype(code)
    want = [i == 0 for length in lengths for i in range(length)]
    flags = distscan.segment_flags(xp.asarray(offsets))
    assert isinstance(flags, xp.ndarray)
    assert flags.dtype == bool
    np.testing.assert_array_equal(host(flags), want)


def test_segment_flags_over_the_whole_range_of_a_type():
    for code in "bBhH":
        top = np.iinfo(code).max
        flags = distscan.segment_flags(np.array([0, 1, top, top], code))
        np.testing.assert_array_equal(np.flatnonzero(flags), [0, 1])
        assert flags.size == top
    flags = distscan.segment_flags(np.array([2**64 - 4, 2**64 - 2, 2**64 - 1], "u8"))
    np.testing.assert_array_equal(flags, [True, False, True])


def test_segment_flags_of_other_kinds():
    want = [True, False, True]
    np.testing.assert_array_equal(distscan.segment_flags([3, 5, 5, 6]), want)
    np.testing.assert_array_equal(distscan.segment_flags(np.arange(9)[2:6:2]), [True, False])
    flags = distscan.segment_flags(Foreign(np.array([3, 5, 5, 6])))
    assert isinstance(flags, Foreign)
    np.testing.assert_array_equal(flags.array, want)


def test_rows_of_a_matrix(xp, cut, rng):
    """Ranks hold whole rows, and slices of the whole's row_offsets."""
    lengths = rng.integers(0, 6, 90)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    x = rng.integers(-9, 9, offsets[-1])
    mine = cut(90)
    own = offsets[mine.start : mine.stop + 1]
    y = distscan.scan(
        xp.asarray(x[own[0] : own[-1]]), segments=distscan.segment_flags(xp.asarray(own))
    )
    heads = np.isin(np.arange(x.size), offsets)
    want = reference.scan(np.add, x, heads=heads)
    np.testing.assert_array_equal(host(y), want[own[0] : own[-1]])


@pytest.mark.parametrize(
    ("kind", "message", "offsets"),
    [
        (ValueError, r"row_offsets has shape \(0,\); \[rows \+ 1\] is needed", []),
        (ValueError, "row_offsets has shape", np.zeros((2, 2), int)),
        (ValueError, "row_offsets has shape", 3),
        (TypeError, "row_offsets is float64", [0.0, 1.0]),
        (TypeError, "row_offsets is bool", [False, True]),
        (ValueError, "row_offsets decreases", [0, 3, 2, 4]),
        (ValueError, "row_offsets decreases", np.array([3, 2], "u1")),
        (ValueError, "row_offsets begins with -1", [-1, 3]),
    ],
)
def test_row_offsets_that_cannot_be(kind, message, offsets):
    with pytest.raises(kind, match=message):
        distscan.segment_flags(offsets)
