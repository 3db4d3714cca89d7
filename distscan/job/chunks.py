"""Chunks: the pieces in which a rank reads, scans and writes its shard. Integers only."""

from collections.abc import Iterator
from typing import NamedTuple

from ..core.extents import Extents
from ..core.shards import chunks


class Chunk(NamedTuple):
    """A piece [outer, n, inner] of a shard, scanned along n.

    Its rows [inner] are ``pitch`` elements apart in the file. They are neighbours, unless the chunk
    has a part of the shard's columns.
    """

    start: int  # the index of its first element in the shard, as it lies in the file
    outer: int
    n: int
    inner: int
    pitch: int
    begins: bool  # whether scans of this rank begin with it, else it goes on from the one before
    whole: bool  # whether it is independent of all other chunks

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.outer * self.n * self.inner

    @property
    def extents(self) -> Extents:
        """The chunk as the shard of a scan, which goes on from other chunks unless it is whole."""
        if self.whole:
            return Extents.of((self.outer, self.n, self.inner), 1)
        if self.inner > 1:
            return Extents.of((self.n, self.inner), 0)
        return Extents.of((self.n,), None)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of neighbours: (index in the shard, first and last index in the chunk).

        >>> list(Chunk(3, 1, 2, 4, pitch=10, begins=True, whole=True).runs())
        [(3, 0, 4), (13, 4, 8)]
        """
        if self.inner == self.pitch:
            yield self.start, 0, self.size
            return
        for row in range(self.n):
            low = row * self.inner
            yield self.start + row * self.pitch, low, low + self.inner


def cut(extents: Extents, most: int, *, goes_on: bool, reverse: bool) -> list["Block"]:
    """Return the blocks of a shard whose chunks have at most ``most`` elements.

    ``goes_on`` says that the scan goes on from shard to shard. All ranks then have the same number
    of blocks.

    >>> extents = Extents.of((5,), None)
    >>> (block,) = cut(extents, 2, goes_on=True, reverse=True)
    >>> [(chunk.start, chunk.size) for chunk in block]
    [(4, 1), (2, 2), (0, 2)]
    """
    inner = extents.inner
    width = min(inner, most)
    # Columns are independent. A row that is longer than a chunk is cut into as few blocks.
    width = -(-inner // -(-inner // width))
    return [
        Block(extents, most, low, high - low, goes_on=goes_on, reverse=reverse)
        for low, high in chunks(0, inner, width)
    ]


class Block:
    """Some columns of a shard: their chunks, in the order of the scan."""

    def __init__(
        self, extents: Extents, most: int, column: int, width: int, *, goes_on: bool, reverse: bool
    ) -> None:
        """``column`` is the first of ``width``; a chunk has at most ``most`` elements."""
        self.extents, self.most, self.goes_on, self.reverse = extents, most, goes_on, reverse
        self.column, self.width = column, width

    def __iter__(self) -> Iterator[Chunk]:
        outer, n, inner = self.extents.outer, self.extents.n, self.extents.inner
        if outer * n == 0:
            return
        length = max(1, min(n, self.most // self.width))
        # Whole columns of several matrices fit into a chunk only if all columns do.
        fit = length == n and self.width == inner and not self.goes_on
        height = max(1, self.most // (n * inner)) if fit else 1
        for top, bottom in chunks(0, outer, height):
            for low, high in self._cuts(length):
                yield Chunk(
                    (top * n + low) * inner + self.column,
                    bottom - top,
                    high - low,
                    self.width,
                    inner,
                    high == n if self.reverse else low == 0,
                    length == n and not self.goes_on,
                )

    def __len__(self) -> int:
        """Return the number of chunks."""
        return sum(1 for _ in self)

    def _cuts(self, length: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last row of each chunk, in the order of the scan."""
        n = self.extents.n
        if not self.reverse:
            yield from chunks(0, n, length)
            return
        for low in range((n - 1) // length * length, -1, -length):
            yield low, min(low + length, n)
