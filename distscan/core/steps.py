"""What every backend does with one shard: the protocols between scans, the exchange and backends.

pending = steps.begin(x, out)        finds the total of the shard
offset = exchange of pending.total() by MPI_Exscan, the same for every backend
steps.finish(pending, offset)        scans the shard behind the offset
"""

from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray


class Edges(NamedTuple):
    """What tells whether a segment begins between a shard and the one before it in scan order.

    One does where what leaves the earlier shard differs from what enters the later one.
    """

    enters: Any
    leaves: Any


class Pending(Protocol):
    """One call in flight on one rank: what ``begin`` has started and ``finish`` will end."""

    @property
    def empty(self) -> bool:
        """Whether the shard has no elements, and so no total."""

    @property
    def head(self) -> bool:
        """Whether a segment begins in the shard; known when ``total`` has returned."""

    @property
    def edges(self) -> Edges | None:
        """What tells whether a segment begins between this shard and others."""

    @property
    def offset(self) -> Any:
        """Where ``put`` has left the offset of a long row, for ``finish``."""

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for the total, 0-d or [inner], or for a piece of a long row, and return it.

        Of segments, it is the total of all elements from the last head on.
        """

    def put(self, piece: slice, offset: NDArray[Any]) -> None:
        """Put a piece of a long row of offsets where that of the totals was."""


class Steps(Protocol):
    """The steps of one rank, made for one length, type and form; one call at a time uses them."""

    @property
    def nbytes(self) -> int:
        """How much memory is kept between calls."""

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``: find the total of ``x``.

        ``out`` may be ``x``; it is whole only after ``finish``. ``segments`` [n] are flags or keys.
        ``overlap`` promises that ``finish`` comes as soon as the totals are exchanged.
        """

    def finish(self, pending: Any, offset: Any) -> None:
        """Scan behind ``offset``, and so end what ``begin`` began; None: nothing comes before."""

    def refuse_capture(self, reason: str) -> None:
        """Raise where a CUDA graph is captured, for ``reason``."""

    def close(self) -> None:
        """Give the memory back."""
