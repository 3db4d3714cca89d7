"""What form a scan has, decided once: which elements it combines, and in which order."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .shards import chunks


@dataclass(frozen=True, eq=False)
class Form:
    """How the elements of a shard hang together; the shard is seen as [outer, n, inner].

    The scan goes along n. ``outer`` and ``inner`` are what the axes before and behind it hold, 1
    for a flattened or 1-D scan.

    Attributes
    ----------
    exclusive
        Whether element i of the result leaves out element i of the input.
    reverse
        Whether the scan goes from the last element to the first; "before" is meant in that order.
    segmented
        Whether each call brings flags of the elements that begin a segment.
    outer, inner
        Independent scans: rows one behind the other, and columns side by side.
    first
        What each row, column and segment starts behind, 0-d: the caller's ``initial``, or of an
        exclusive scan without one the operator's identity. None: its first element.
    """

    exclusive: bool = False
    reverse: bool = False
    segmented: bool = False
    outer: int = 1
    inner: int = 1
    first: NDArray[Any] | None = None


PLAIN = Form()


class Pending:
    """One call in flight on one rank: what ``begin`` has started and ``finish`` will end.

    This one is of a shard whose total is known; that of a GPU may be still on its way.
    """

    #: Whether the shard has no elements, and so no total.
    empty = True
    #: Whether a segment begins in the shard; known when ``total`` has returned.
    head = False
    #: Where ``put`` has left the offset of a long row, for ``finish``.
    offset: Any = None

    def __init__(
        self, total: NDArray[Any] | None, *, head: bool = False, edges: "Edges | None" = None
    ) -> None:
        self._total = total  # 0-d or [inner]: of all elements, or of those from the last head on
        self.empty, self.head, self._edges = total is None, head, edges

    @property
    def edges(self) -> "Edges | None":
        """What tells whether a segment begins between this shard and others."""
        return self._edges

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for the total, or for a piece of a long row of totals, and return it."""
        assert self._total is not None
        return self._total if piece is None else self._total[piece]

    def put(self, piece: slice, offset: NDArray[Any]) -> None:
        """Put a piece of a long row of offsets where that of the totals was."""
        assert self._total is not None
        self._total[piece] = offset
        self.offset = self._total


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


class Edges(NamedTuple):
    """What tells whether a segment begins between a shard and the one before it in scan order.

    One does where what leaves the earlier shard differs from what enters the later one.
    """

    enters: Any
    leaves: Any


@np.errstate(all="ignore")  # what a narrow type cannot hold is infinite, or 0
def starting_value(initial: Any, acc: np.dtype[Any]) -> NDArray[Any]:
    """Return ``initial`` as a 0-d array of the accumulating type.

    Raises OverflowError for an integer out of its range, TypeError for a value of a higher kind,
    such as a float where integers accumulate.

    >>> starting_value(3, np.dtype(np.float32))
    array(3., dtype=float32)
    """
    if acc.names is not None:
        return np.array(initial, acc).reshape(())
    value = np.asarray(initial)
    if value.ndim > 0:
        raise ValueError(f"initial must be one value, not an array of shape {value.shape}")
    number = value.item()
    if isinstance(number, int):
        return np.array(number, acc)  # NumPy checks the range of Python's integers alone
    if not np.can_cast(value.dtype, acc, "same_kind"):
        raise TypeError(f"initial is {value.dtype}; the scan accumulates in {acc}")
    return value.astype(acc)
