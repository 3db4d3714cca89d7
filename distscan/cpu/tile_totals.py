"""The totals of tiles of weights in host memory, and the search for cuts in them."""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.form import chunks
from . import threads

TILE = 1 << 14  # weights; as float64 they fit in the L2 cache


class TileTotals:
    """The running sums of a shard of weights, in float64, at the ends of its tiles.

    Attributes
    ----------
    total
        The sum of all weights. It is not finite if a weight is negative, infinite or NaN, but also
        if the sum is out of range.
    """

    def __init__(self, x: NDArray[Any], most: int) -> None:
        """Sum the weights ``x`` [n] by at most so many threads."""
        self._x = x
        tiles = [*chunks(0, x.size, TILE)]
        totals, numbers = np.zeros(len(tiles)), itertools.count()

        def work() -> None:
            buffer = np.empty(min(TILE, x.size))
            with np.errstate(all="ignore"):
                while (number := next(numbers)) < len(tiles):
                    totals[number] = _total(self._tile(*tiles[number], buffer))

        threads.run(work, max(1, min(most, len(tiles))))
        self._ends = np.cumsum(totals)
        self.total = float(self._ends[-1]) if tiles else 0.0

    def cuts(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of elements before each target: those whose middle is below it.

        The targets rise. The middle of an element is the sum of all earlier weights and of half of
        its own.
        """
        tiles = np.searchsorted(self._ends, targets)
        cuts = np.full(targets.size, self._x.size, np.int64)
        numbers, firsts = np.unique(tiles, return_index=True)
        lasts, buffer = np.append(firsts[1:], targets.size), np.empty(TILE)
        for number, first, last in zip(numbers, firsts, lasts, strict=False):
            low = int(number) * TILE
            if low >= self._x.size:
                break
            weights = self._tile(low, low + TILE, buffer)
            ends, ours = np.cumsum(weights), targets[first:last]
            if number > 0:
                ends += self._ends[number - 1]
            # The element in which a target falls; the last one, if a rounding puts it behind.
            inside = np.minimum(np.searchsorted(ends, ours), weights.size - 1)
            cuts[first:last] = low + inside + (ends[inside] - weights[inside] / 2 < ours)
        return cuts

    def _tile(self, low: int, high: int, buffer: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights as float64, which may lie in the ``buffer``."""
        tile = self._x[low:high]
        if tile.dtype == np.float64 and tile.flags.c_contiguous:
            return tile
        converted = buffer[: tile.size]
        converted[...] = tile
        return converted


def _total(weights: NDArray[np.float64]) -> float:
    """Return the sum; NaN if a weight is negative."""
    return np.nan if weights.min() < 0 else float(weights.sum())
