"""A long row of totals crosses ranks in pieces, each while others are still on their way."""

from typing import Any

import numpy as np

from .shards import chunks

# Bytes of a piece. Small enough that what is copied before the first exchange and after the last,
# which nothing overlaps, is little (30 us each way over PCIe), and that an exchange's buffers stay
# in cache (a row of 32 MiB between two ranks of a host: 57 ms whole, 14 in pieces); large enough
# that the fixed costs of a copy and of an MPI_Exscan, some 10 us, are still a small part.
PIECE = 1 << 20


def pieces(inner: int, dtype: np.dtype[Any]) -> list[slice]:
    """Cut a row [inner] of totals into the pieces that it is exchanged in, alike on every rank.

    >>> pieces(300000, np.dtype(np.float64))
    [slice(0, 131072, None), slice(131072, 262144, None), slice(262144, 300000, None)]
    """
    return [slice(*part) for part in chunks(0, inner, longest_piece(dtype))]


def longest_piece(dtype: np.dtype[Any]) -> int:
    """Return how many elements a piece has at most."""
    return max(PIECE // dtype.itemsize, 1)
