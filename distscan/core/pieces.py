"""Pieces of a long row of totals: no rank needs memory for the totals of a whole row."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Bytes of a piece. It is small, so that a shard's columns of a piece, and the buffers of its
# exchange, stay in cache: a row of 32 MiB between two ranks of a host takes 57 ms whole, 14 ms in
# pieces. On GPUs, the first and the last copy, which overlap with nothing, are short: 30 us each
# way over PCIe. It is large, so that the fixed costs of a copy and of an MPI_Exscan, some 10 us,
# are a small part of the time.
PIECE = 1 << 20
#: The most pieces for which there are buffers at a time.
IN_FLIGHT = 4
_NARROWEST = 4  # bytes of an integer in a message
_ALIGNED = 1024  # columns: NumPy's steps take so many at a time, whatever the piece


class Pieces(Sequence[slice]):
    """The pieces in which a row [inner] of totals is exchanged, the same on every rank.

    They are not in memory: a row of an array without rows may be of any length.

    >>> [*Pieces(300000, np.dtype(np.float64))]
    [slice(0, 131072, None), slice(131072, 262144, None), slice(262144, 300000, None)]
    """

    def __init__(self, inner: int, dtype: np.dtype[Any]) -> None:
        """Cut a row of elements of a type."""
        self._lows = range(0, inner, longest_piece(dtype))

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._lows)

    def __getitem__(self, i: Any) -> Any:
        """Return piece ``i``."""
        low = self._lows[i]
        return slice(low, min(low + self._lows.step, self._lows.stop))


def longest_piece(dtype: np.dtype[Any]) -> int:
    """Return the largest number of elements in a piece."""
    number = max(PIECE // max(dtype.itemsize, _NARROWEST), 1)
    return number - number % _ALIGNED or number


def is_long(inner: int, dtype: np.dtype[Any]) -> bool:
    """Return whether a row [inner] of totals has several pieces."""
    return inner > longest_piece(dtype)
