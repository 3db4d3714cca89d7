"""offsets: counts of any size, in one exchange; wrong ones; and segment_flags."""

import numpy as np
import pytest
from hypothesis import strategies as st

import distscan
from distscan import DisagreementError
from distscan.mpi import agree
from support.arrays import Foreign, host
from support.campaigns import run_campaign
from support.cases import pairs
from support.processes import everywhere
from support.reference import wanted

pytestmark = pytest.mark.fast


@pytest.fixture(params=["slots", "none"])
def own(request, comm, monkeypatch):
    """A communicator whose votes have a slot for each rank, or none, as with many ranks."""
    if request.param == "none":
        monkeypatch.setattr(agree, "MOST_SLOTS", 0)
    dup = comm.Dup()
    yield dup
    dup.Free()


def check(counts, comm):
    """Against a plain loop."""
    want = 0
    for count in counts[: comm.rank]:
        want += int(count)
    start, total = distscan.offsets(counts[comm.rank], comm=comm)
    assert (start, total) == (want, sum(map(int, counts)))
    assert type(start) is type(total) is int


COUNTS = st.one_of(
    st.integers(0, 3),
    st.integers(0, 2**40),
    st.sampled_from([2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40]),
)


def test_against_a_loop(own, comm):
    cases = st.lists(COUNTS, min_size=comm.size, max_size=comm.size)
    run_campaign(comm, cases, lambda counts: check(counts, own), 100)


@pytest.mark.parametrize("count", [0, 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**40])
def test_the_same_count_on_all_ranks_but_one(count, own):
    check([count] * own.size, own)
    check([1] * (own.size - 1) + [count], own)
    check([count] + [1] * (own.size - 1), own)


def test_integers_of_numpy(own):
    for count in (np.uint64(2**64 - 1), np.int64(2**63 - 1), np.uint8(200), True):
        check([count] * own.size, own)


def test_an_object_with_an_index(own):
    class Count:
        def __index__(self):
            return 7

    assert distscan.offsets(Count(), comm=own) == (7 * own.rank, 7 * own.size)


WRONG = {
    "negative": (ValueError, "count must be an integer of at least 0, not -1", -1),
    "very negative": (ValueError, "count must be an integer of at least 0, not -1000", -(10**40)),
    "float": (TypeError, "count must be an integer of at least 0, not 1.5", 1.5),
    "None": (TypeError, "count must be an integer of at least 0, not None", None),
    "array": (TypeError, r"count must be an integer of at least 0, not array\(", np.ones(2)),
}


@pytest.mark.parametrize("who", [0, -1])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_count(case, who, own):
    """All ranks raise; the message names the rank; then all can go on."""
    kind, message, count = WRONG[case]
    wrong = who % own.size
    mine = count if own.rank == wrong else 2**63
    text = everywhere(own, kind, message, lambda: distscan.offsets(mine, comm=own))
    assert own.size == 1 or text.startswith(f"rank {wrong}: ")
    check([5] * own.size, own)


def test_an_interrupt_inside_a_count(own):
    """The rank raises it; the others raise, too."""

    class Interrupts:
        def __index__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt if own.rank == 0 else RuntimeError):
        distscan.offsets(Interrupts() if own.rank == 0 else 1, comm=own)
    check([5] * own.size, own)


def test_beside_other_functions(own):
    """A vote has one length: ranks in other functions learn of it, and nothing is left behind."""
    if own.size == 1:
        pytest.skip("one rank calls one function")
    x = np.arange(3.0)
    others = [
        lambda: distscan.scan(x, comm=own),
        lambda: distscan.partition(x, 2, comm=own),
        lambda: distscan.compact(x, x > 1, comm=own),
    ]
    for other in others:
        for count in (3, 2**63):
            call = other if own.rank == own.size - 1 else lambda: distscan.offsets(count, comm=own)  # noqa: B023
            text = everywhere(own, DisagreementError, "disagree on the function", call)
            assert "offsets;" in text
            check([count] * own.size, own)


def test_between_other_calls(own):
    """Numbers of earlier votes do not show."""
    x = np.arange(4)
    for count in (7, 2**63 - 1, 0, 2**70, 1):
        check([count * rank for rank in range(own.size)], own)
        distscan.scan(x, comm=own)
        with agree.agreed(own):
            pass
        check([count] * own.size, own)


def test_communicators_of_other_orders(comm):
    backwards = comm.Split(0, -comm.rank)
    check([10**rank for rank in range(comm.size)], backwards)
    backwards.Free()
    alone = comm.Split(comm.rank)
    check([3], alone)
    alone.Free()


# ---- segment_flags -------------------------------------------------------------------------------


@pairs(code="bBhiIlL", begin=[0, 5], rows=[0, 1, 12])
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
    want = wanted(x, segments=heads)
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
