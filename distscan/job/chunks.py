"""The chunks of a shard, in the order in which a job scans them: turns of ranks, blocks, tiles."""

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.form import Extents, bounds, chunks
from ..mpi.communicators import Comm
from .formats.interface import Box


class Turns(NamedTuple):
    """How ranks share the rows of an array: in turns, some chunks each, round after round.

    ::

        rows of the array    | 0: a a | 1: b b | 2: c c | 0: d d | 1: e e | 2: f |
                             '------ a round -----------'------ the last round --'
    """

    size: int = 1  # ranks
    rank: int = 0
    chunks: int = 1  # of a rank in a round
    grain: int = 1  # parts of a round begin at multiples of it, if there is one for each rank
    whole: bool = False  # whether they always do

    def part(self, length: int) -> int:
        """Return the rows of a rank in a round, but the last one: chunks of ``length`` rows."""
        part = self.chunks * length
        return part - part % self.grain if part >= self.grain else part

    def rounds(self, n: int, length: int, *, reverse: bool) -> Iterator[list["Cut"]]:
        """Yield this rank's chunks of each round of ``n`` rows, in the order of the scan.

        A chunk has at most ``length`` rows. In a round, all ranks have the same number of chunks,
        perhaps empty ones.

        >>> rounds = Turns(size=2, rank=1, chunks=2).rounds(7, 1, reverse=False)
        >>> [[(cut.low, cut.high) for cut in cuts] for cuts in rounds]
        [[(2, 3), (3, 4)], [(6, 7), (7, 7)]]
        """
        part = self.part(length)
        grain, step = self.grain if part >= self.grain else 1, part * self.size
        firsts = range(0, n, step)
        for first in reversed(firsts) if reverse else firsts:
            rows = min(step, n - first)
            low, high = bounds(rows, self.size, self.rank, grain, whole=self.whole)
            cuts = [Cut(first + a, first + b) for a, b in chunks(low, high, length)]
            _, longest = bounds(rows, self.size, 0, grain, whole=self.whole)
            cuts += [Cut(first + high, first + high)] * (-(-longest // length) - len(cuts))
            cuts, last_rank = cuts[::-1] if reverse else cuts, 0 if reverse else self.size - 1
            while bounds(rows, self.size, last_rank, grain, whole=self.whole)[0] == rows:
                last_rank -= 1
            yield [*cuts[:-1], cuts[-1]._replace(last_rank=last_rank)]


class Cut(NamedTuple):
    """The rows of a chunk."""

    low: int
    high: int
    last_rank: int = -1  # of a round, in its last chunk: the last rank with rows, as the scan goes


class Order(NamedTuple):
    """The order in which the chunks of a block are scanned."""

    goes_on: bool  # whether the scan goes on from chunk to chunk
    reverse: bool
    turns: Turns = Turns()


class Chunk(NamedTuple):
    """A piece [outer, n, inner] of an array, scanned along n.

    Its rows [inner] are ``pitch`` elements apart in the file. They are neighbours, unless the chunk
    has a part of the columns.
    """

    start: int  # the index of its first element, as it lies in the file
    outer: int
    n: int
    inner: int
    pitch: int
    begins: bool  # whether scans of this rank begin with it, else it goes on from the one before
    whole: bool  # whether it is independent of all other chunks
    last_rank: int = 0  # of the round that ends with it: see ``Cut``
    box: Box | None = None  # its place in the array, if the job reads and writes boxes

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
        """Yield the runs of neighbours: (index in the file, first and last index in the chunk).

        >>> list(Chunk(3, 1, 2, 4, pitch=10, begins=True, whole=True).runs())
        [(3, 0, 4), (13, 4, 8)]
        """
        if self.inner == self.pitch:
            yield self.start, 0, self.size
            return
        for row in range(self.n):
            low = row * self.inner
            yield self.start + row * self.pitch, low, low + self.inner


def cut(extents: Extents, start: int, most: int, order: Order) -> list["Block"]:
    """Return the blocks of an array whose chunks have at most ``most`` elements.

    The array begins with element ``start`` of the file. If ranks take turns, all of them have the
    same number of blocks.

    >>> extents = Extents.of((5,), None)
    >>> (block,) = cut(extents, 0, 2, Order(goes_on=True, reverse=True))
    >>> [(chunk.start, chunk.size) for chunk in block]
    [(4, 1), (2, 2), (0, 2)]
    """
    inner = extents.inner
    width = min(inner, most)
    # Columns are independent. A row that is longer than a chunk is cut into as few blocks.
    width = -(-inner // -(-inner // width))
    return [Block(extents, most, columns, order, start) for columns in chunks(0, inner, width)]


class Block:
    """Some columns of an array: this rank's chunks of them, in the order of the scan."""

    def __init__(
        self, extents: Extents, most: int, columns: tuple[int, int], order: Order, start: int = 0
    ) -> None:
        """``columns`` are the first and the last; a chunk has at most ``most`` elements.

        The array begins with element ``start`` of the file.
        """
        self._extents, self._start, self._most, self._order = extents, start, most, order
        self.column, self.width = columns[0], columns[1] - columns[0]

    def __iter__(self) -> Iterator[Chunk]:
        outer, n, inner = self._extents.outer, self._extents.length, self._extents.inner
        if outer * n == 0:
            return
        length = max(1, min(n, self._most // self.width))
        goes_on, reverse, turns = self._order
        # Whole columns of several matrices fit into a chunk only if all columns do.
        fit = length == n and self.width == inner and not goes_on
        height = max(1, self._most // (n * inner)) if fit else 1
        for top, bottom in chunks(0, outer, height):
            for low, high, last_rank in chain.from_iterable(
                turns.rounds(n, length, reverse=reverse)
            ):
                yield Chunk(
                    self._start + (top * n + low) * inner + self.column,
                    bottom - top,
                    high - low,
                    self.width,
                    inner,
                    high == n if reverse else low == 0,
                    length == n and not goes_on,
                    last_rank,
                )

    def __len__(self) -> int:
        """Return the number of chunks."""
        return sum(1 for _ in self)

    def of_row(self, row: NDArray[Any]) -> NDArray[Any]:
        """Return the part of a row [inner] of the array that has these columns: a view."""
        return row[self.column : self.column + self.width]


# ---- tiles: boxes that are stored, and perhaps compressed, each for itself -------------------


class Tiles(NamedTuple):
    """The tiles of an array that a rank scans: rows of them, along the scanned axis, and columns.

    ::

        axis 0, scanned   +----+----+----+
              |           |  0 |  1 |  2 |   columns of tiles are counted along the other axes
              v           +----+----+----+
                          |    |    |    |
                          +----+----+----+
    """

    shape: tuple[int, ...]  # of the array
    tile: tuple[int, ...]  # the shape of a tile
    axis: int  # the scanned one
    rows: tuple[int, int]  # first and last index along that axis
    columns: tuple[int, int]  # first and last column of tiles

    @classmethod
    def of(cls, shape: tuple[int, ...], tile: tuple[int, ...], axis: int) -> "Tiles":
        """Return all tiles of an array.

        >>> Tiles.of((10, 7), (4, 3), axis=0).columns
        (0, 3)
        """
        tile = tuple(map(min, tile, shape))
        tiles = cls(shape, tile, axis, (0, shape[axis]), (0, 0))
        return tiles._replace(columns=(0, math.prod(tiles._grid)))

    def of_rank(self, comm: Comm, *, by_rows: bool, whole: bool) -> "Tiles":
        """Return those of a rank; ``whole`` keeps all tiles whole, if some ranks then have none."""
        if by_rows:
            n, tile = self.shape[self.axis], self.tile[self.axis]
            return self._replace(rows=bounds(n, comm.size, comm.rank, tile, whole=whole))
        return self._replace(columns=bounds(self.columns[1], comm.size, comm.rank))

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that are not scanned."""
        return tuple(axis for axis in range(len(self.shape)) if axis != self.axis)

    @property
    def _grid(self) -> tuple[int, ...]:
        """The numbers of tiles along these."""
        return tuple(-(-self.shape[i] // self.tile[i]) for i in self.others)

    @property
    def extents(self) -> Extents:
        """The tiles as a shard [rows, columns]."""
        width = sum(math.prod(high - low for low, high in box) for box in self._boxes(1))
        return Extents.of((self.rows[1] - self.rows[0], width), 0)

    @property
    def of_all_ranks(self) -> "Tiles":
        """The tiles in the same columns and all rows."""
        return self._replace(rows=(0, self.shape[self.axis]))

    def blocks(self, most: int, order: Order) -> list["Block"]:
        """Return blocks of columns of tiles, whose chunks have at most ``most`` elements.

        Chunks have whole tiles, unless a tile has more elements.
        """
        size, column, blocks = math.prod(self.tile), 0, list[Block]()
        for columns in self._boxes(max(1, most // size)):
            for box in _halves(columns, most):
                block = BoxBlock(self, box, most, column, order)
                column += block.width
                blocks.append(block)
        return blocks

    def _boxes(self, most: int) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yield the bounds, along the other axes, of up to ``most`` columns of tiles that touch."""
        grid, (number, end) = self._grid, self.columns
        while number < end:
            *before, last = np.unravel_index(number, grid)
            count = min(most, end - number, grid[-1] - int(last))
            starts = [(int(i), int(i) + 1) for i in before] + [(int(last), int(last) + count)]
            yield tuple(
                (low * self.tile[i], min(high * self.tile[i], self.shape[i]))
                for i, (low, high) in zip(self.others, starts, strict=True)
            )
            number += count


def _halves(
    bounds: tuple[tuple[int, int], ...], most: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Halve a box along its axes, the first one first, until its parts have ``most`` elements."""
    lengths = [high - low for low, high in bounds]
    if math.prod(lengths) <= most:
        yield bounds
        return
    i = next(i for i, length in enumerate(lengths) if length > 1)
    low, high = bounds[i]
    middle = (low + high) // 2
    for part in ((low, middle), (middle, high)):
        yield from _halves((*bounds[:i], part, *bounds[i + 1 :]), most)


class BoxBlock(Block):
    """Columns of a shard that are a box; its chunks are boxes, too."""

    def __init__(
        self,
        tiles: Tiles,
        bounds: tuple[tuple[int, int], ...],
        most: int,
        column: int,
        order: Order,
    ) -> None:
        """``bounds`` are those of the columns, along the axes that are not scanned."""
        self._tiles, self._bounds = tiles, bounds
        width = math.prod(high - low for low, high in bounds)
        extents = Extents.of((tiles.rows[1] - tiles.rows[0], width), 0)
        super().__init__(extents, most, (column, column + width), order)

    def __iter__(self) -> Iterator[Chunk]:
        n, axis, first = self._extents.length, self._tiles.axis, self._tiles.rows[0]
        length, height = self._most // self.width, self._tiles.tile[axis]
        goes_on, reverse, turns = self._order
        if length >= height:
            length, turns = length - length % height, turns._replace(grain=height)
        for low, high, last_rank in chain.from_iterable(turns.rounds(n, length, reverse=reverse)):
            rows = (first + low, first + high)
            yield Chunk(
                low * self.width,
                1,
                high - low,
                self.width,
                self.width,
                high == n if reverse else low == 0,
                length >= n and not goes_on,
                last_rank,
                Box((*self._bounds[:axis], rows, *self._bounds[axis:]), axis),
            )

    def of_row(self, row: NDArray[Any]) -> NDArray[Any]:
        """Return the part of a row of the array that has these columns: a view, which is a box."""
        shape = [self._tiles.shape[i] for i in self._tiles.others]
        return row.reshape(shape)[tuple(slice(low, high) for low, high in self._bounds)]
