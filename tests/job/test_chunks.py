"""The chunks of a shard: each element is in one of them, and they follow the order of the scan."""

import itertools

import numpy as np
import pytest

from distscan.core.form import Extents, bounds
from distscan.job.plan import Chunk, cut

pytestmark = pytest.mark.one_rank
orders = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def elements(chunk):
    """The indices in the shard of a chunk's elements [outer, n, inner], from its runs."""
    found = np.full(chunk.size, -1)
    for index, low, high in chunk.runs():
        assert 0 <= low < high <= chunk.size
        assert (found[low:high] == -1).all()
        found[low:high] = np.arange(index, index + high - low)
    assert (found >= 0).all()
    return found.reshape(chunk.outer, chunk.n, chunk.inner)


def check(extents, most, *, goes_on, reverse):
    """Follow each line through the chunks, as a running value would; return the blocks."""
    blocks = cut(extents, most, goes_on=goes_on, reverse=reverse)
    n, inner = extents.length, extents.inner
    every, columns = [], []
    for block in blocks:
        columns += range(block.column, block.column + block.width)
        before = None  # the lines [outer, inner] of the chunk before, and how far they are
        for chunk in block:
            at = elements(chunk)
            every.append(at.reshape(-1))
            assert 0 < chunk.size <= most
            assert chunk.start == at[0, 0, 0]
            assert (chunk.inner, chunk.pitch) == (block.width, inner)
            rows, lines = at // inner % n, at // (n * inner) * inner + at % inner
            assert (lines == lines[:, :1]).all()
            assert (rows == rows[:1, :, :1]).all()
            order = rows[0, ::-1, 0] if reverse else rows[0, :, 0]
            walk = n - 1 - order if reverse else order
            assert (np.diff(walk) == 1).all()
            if before is None or before[1] == n:
                assert walk[0] == 0
            else:
                assert walk[0] == before[1]
                np.testing.assert_array_equal(lines[:, 0], before[0])
            before = lines[:, 0], walk[-1] + 1
            assert chunk.begins == (walk[0] == 0)
            assert chunk.whole == (not goes_on and len(walk) == n)
            check_extents(chunk)
        assert before is None or before[1] == n
    assert columns == list(range(inner))
    found = np.concatenate(every) if every else np.zeros(0, int)
    np.testing.assert_array_equal(np.sort(found), np.arange(extents.size))
    return blocks


def check_extents(chunk):
    """What the scan of a chunk is made for."""
    extents = chunk.extents
    assert extents.size == chunk.size
    assert (extents.outer, extents.length, extents.inner) == (chunk.outer, chunk.n, chunk.inner)
    assert extents.goes_on == (not chunk.whole)
    assert chunk.outer == 1 or chunk.whole
    assert extents.has_rows == (extents.goes_on and chunk.inner > 1)


@orders
@pytest.mark.parametrize("goes_on", [False, True], ids=["ends", "goes-on"])
@pytest.mark.parametrize("most", [1, 2, 3, 7, 64])
def test_a_line(most, goes_on, reverse):
    """Every length near an edge of a chunk."""
    edges = {most * i + d for i in range(4) for d in (-1, 0, 1)}
    for n in sorted(edges & set(range(1000))):
        (block,) = check(Extents.of((n,), None), most, goes_on=goes_on, reverse=reverse)
        sizes = [chunk.size for chunk in block]
        assert len(sizes) == -(-n // most)
        assert all(size == most for size in (sizes[1:] if reverse else sizes[:-1]))


@orders
@pytest.mark.parametrize("most", [1, 2, 5, 12, 30])
def test_rows(most, reverse):
    """Along axis 0: as many whole rows as a chunk has room for, or parts of one."""
    for n, inner in itertools.product((0, 1, 2, 5, 6, 7), (1, 2, 4, 5, 6, 11, 12, 13, 61)):
        extents = Extents.of((n, inner), 0)
        blocks = check(extents, most, goes_on=True, reverse=reverse)
        assert len(blocks) == -(-inner // most)
        lengths = {len(list(block)) for block in blocks}
        if inner <= most:
            assert lengths == {-(-n // (most // inner))}


@orders
@pytest.mark.parametrize("most", [1, 3, 8, 24, 25, 200])
def test_matrices_within(most, reverse):
    """Along an inner axis: several matrices a chunk, one, or parts of one."""
    sizes = itertools.product((1, 2, 5), (1, 2, 3, 8), (1, 2, 3, 8, 9))
    for shape in sizes:
        for axis in (1, 2):
            extents = Extents.of(shape, axis)
            blocks = check(extents, most, goes_on=False, reverse=reverse)
            matrix = extents.length * extents.inner
            if matrix <= most:  # whole matrices, as many as possible
                (block,) = blocks
                heights = [chunk.outer for chunk in block]
                assert all(chunk.begins and chunk.whole for chunk in block)
                assert heights[:-1] == [min(most // matrix, extents.outer)] * (len(heights) - 1)


@orders
def test_axis_0_of_one_rank(reverse):
    """One matrix whose lines end on this rank."""
    for n, inner, most in itertools.product((1, 2, 9), (1, 3, 10), (1, 2, 10, 29, 30, 90)):
        check(Extents.of((n, inner), 0), most, goes_on=False, reverse=reverse)


@pytest.mark.parametrize("turn", range(40))
def test_random_extents(turn, rng):
    for _ in range(10):
        shape = tuple(rng.integers(0, 12, rng.integers(1, 5)).tolist())
        axis = [None, *range(len(shape))][rng.integers(len(shape) + 1)]
        extents = Extents.of(shape, axis)
        goes_on = extents.goes_on and bool(rng.integers(2))
        most = int(rng.integers(1, 2 * extents.size + 2))
        check(extents, most, goes_on=goes_on, reverse=bool(rng.integers(2)))


@orders
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((0,), None), ((0, 5), 0), ((0, 5), 1), ((3, 0, 5), 1), ((3, 5, 0), 2), ((3, 5, 0), 0)],
)
def test_no_elements(shape, axis, reverse):
    extents = Extents.of(shape, axis)
    for most in (1, 2, 100):
        for block in check(extents, most, goes_on=extents.goes_on, reverse=reverse):
            assert list(block) == []


def test_ranks_have_as_many_blocks(rng):
    """Blocks are exchanged in turn, also by ranks that have no rows."""
    for _ in range(100):
        n, inner, most, ranks = (int(i) for i in rng.integers(1, 40, 4))
        columns = []
        for rank in range(ranks):
            low, high = bounds(n, ranks, rank)
            blocks = cut(Extents.of((high - low, inner), 0), most, goes_on=True, reverse=False)
            columns.append([(block.column, block.width) for block in blocks])
        assert all(each == columns[0] for each in columns)


def test_blocks_are_about_as_wide(rng):
    """A long row is cut into as few blocks as can be, and none is wider than a chunk."""
    for _ in range(100):
        inner, most = (int(i) for i in rng.integers(1, 200, 2))
        blocks = cut(Extents.of((3, inner), 0), most, goes_on=True, reverse=False)
        widths = [block.width for block in blocks]
        assert len(widths) == -(-inner // most)
        assert max(widths) == -(-inner // len(widths))


def test_long_axes_take_no_time():
    """Chunks are made one after the other, when they are asked for."""
    extents = Extents.of((1 << 60,), None)
    for reverse in (False, True):
        (block,) = cut(extents, 1 << 20, goes_on=True, reverse=reverse)
        first, second = itertools.islice(block, 2)
        assert first.size == second.size == 1 << 20
        low, high = (second, first) if reverse else (first, second)
        assert low.start + low.size == high.start
        assert first.start == ((1 << 60) - (1 << 20) if reverse else 0)


def test_whole_rows_are_one_run(rng):
    start, outer, n, inner = (int(i) for i in rng.integers(1, 100, 4))
    whole = Chunk(start, outer, n, inner, inner, begins=True, whole=True)
    assert list(whole.runs()) == [(start, 0, outer * n * inner)]
    part = Chunk(start, 1, n, inner, inner + 1, begins=False, whole=False)
    assert len(list(part.runs())) == n
