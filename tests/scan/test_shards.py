"""Who owns what; shards that are empty lists."""

from itertools import pairwise

import numpy as np
import pytest

import distscan
from distscan import DisagreementError
from distscan.core.form import bounds, chunks
from support.arrays import host
from support.cases import pairs
from support.processes import everywhere

# ---- who owns what -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000, 2**40 + 5])
def test_shards_cover_everything_once(n):
    for size in (1, 2, 3, 8, 1000):
        parts = [bounds(n, size, rank) for rank in range(size)]
        assert parts[0][0] == 0
        assert parts[-1][1] == n
        assert all(left[1] == right[0] for left, right in pairwise(parts))
        lengths = [stop - start for start, stop in parts]
        assert max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("rank", [-1, 4])
def test_no_such_rank(rank):
    with pytest.raises(ValueError, match="not in a communicator of 4"):
        bounds(10, 4, rank)


def test_chunks():
    assert list(chunks(5, 5, 3)) == []
    assert list(chunks(0, 7, 3)) == [(0, 3), (3, 6), (6, 7)]


# ---- empty lists, which are float64 to NumPy, beside other ranks' arrays -------------------------

HINT = r" of an empty list \(pass an empty array of the others' type and shape\)"
NAMES = ["scan", "cumsum", "cummax", "nancumsum", "cumulative_sum"]


@pairs(name=NAMES, empty=[[], ()], who=["first", "last"])
def test_it_is_said_where_the_type_is_from(name, empty, who, comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    guilty = {"first": 0, "last": comm.size - 1}[who]
    x = empty if comm.rank == guilty else np.arange(3)
    # MPI has an operator of its own for the maximum of integers.
    said = rf"(dtype of x: .*rank {guilty}: float64|MPI form: .*rank {guilty}: False){HINT}"
    everywhere(comm, DisagreementError, said, lambda: getattr(distscan, name)(x))


def test_of_shapes_segments_and_a_first_element(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.size - 1
    x = [] if comm.rank == last else np.zeros((3, 2))
    everywhere(comm, DisagreementError, rf"shape beyond axis 0: .*rank {last}: \(\){HINT}",
               lambda: distscan.scan(x))  # fmt: skip
    x, keys = ([], []) if comm.rank == last else (np.zeros(3), np.zeros(3, int))
    everywhere(comm, DisagreementError, f"dtype of segments: .*rank {last}: float64{HINT}",
               lambda: distscan.scan(x, segments=keys))  # fmt: skip
    for guilty in (0, last):
        x = [] if comm.rank == guilty else np.arange(3)
        everywhere(comm, DisagreementError, f"dtype of x: .*rank {guilty}: float64{HINT}",
                   lambda x=x: distscan.cumulative_sum(x, include_initial=True))  # fmt: skip


def test_beside_float64_it_is_as_good_as_an_array(xp, strategy, comm, rng):
    x = rng.integers(-9, 9, 8 * comm.size).astype(float)
    mine, empty = slice(8 * comm.rank, 8 * comm.rank + 8), comm.size // 2
    x[8 * empty : 8 * empty + 8] = 0
    shard = [] if comm.rank == empty else xp.asarray(x[mine])
    y = host(distscan.scan(shard, strategy=strategy))
    np.testing.assert_array_equal(y, np.cumsum(x)[mine][: len(y)])
    assert len(y) == len(shard)


def test_another_disagreement_is_not_its(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.rank == comm.size - 1
    for options, what in (({"op": "max"}, "op"), ({"exclusive": True}, "exclusive")):
        arguments = {"x": []} if last else {"x": np.zeros(3), **options}
        text = everywhere(comm, DisagreementError, f"disagree on {what}: ",
                          lambda given=arguments: distscan.scan(**given))  # fmt: skip
        assert "list" not in text
