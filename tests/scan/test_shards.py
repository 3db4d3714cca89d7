"""Who owns what."""

from itertools import pairwise

import pytest

from distscan.core.form import bounds, chunks


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000, 2**40 + 5])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 1000])
def test_shards_cover_everything_once(n, size):
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
