"""The protocols of a backend's steps on one shard, for scans and for the exchange.

pending = steps.begin(x, out)        finds the total of the shard
offset = exchange of pending.total() by MPI_Exscan, the same for every backend
steps.finish(pending, offset)        scans the shard, seeded with the offset
"""

import os
from typing import Any, Literal, NamedTuple, Protocol

from numpy.typing import NDArray

Strategy = Literal["auto", "scan-add", "reduce-scan", "single-pass"]
PlanStrategy = Literal[Strategy, "fused", "nccl"]

WAIT = "DISTSCAN_WAIT"


def wait_limit() -> float:
    """Return the seconds that a rank waits for another one outside of MPI: ``DISTSCAN_WAIT``.

    The default is 60. Raises ValueError if it is no positive number.
    """
    setting = os.environ.get(WAIT) or "60"
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{WAIT}={setting}: it is a number of seconds above 0")
    return seconds


class Edges(NamedTuple):
    """The first and the last key of a shard in scan order; or flags in their place.

    A segment begins between two shards if ``leaves`` of the earlier one differs from ``enters`` of
    the later one.
    """

    enters: Any
    leaves: Any


class Pending(Protocol):
    """One call in flight on one rank, from ``begin`` to ``finish``."""

    @property
    def empty(self) -> bool:
        """Whether the shard has no elements, and so no total."""

    @property
    def head(self) -> bool:
        """Whether a segment begins in the shard; valid when ``total`` has returned."""

    @property
    def edges(self) -> Edges | None:
        """The edges of the shard's segments; None for an empty shard, and without segments.

        Valid when ``total`` has returned.
        """

    @property
    def offset(self) -> Any:
        """The long row of offsets, for ``finish``, if ``put`` has stored one."""

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Find or await the total, 0-d or [inner], or a piece of a long row, and return it.

        With segments, it is the total of the elements from the last head on. Pieces are asked for
        in order. A piece is valid until the next one is asked for.
        """

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Take a piece of a long row of offsets; None if no element comes before the shard.

        It follows ``total`` of this piece, and at most ``form.IN_FLIGHT`` pieces are between
        the two. Steps may scan the columns at once, and need no row of offsets.
        """


class Steps(Protocol):
    """The steps of one rank, made for one length, type and form; for one call at a time."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``: find the total of ``x``.

        ``out`` may be ``x``; it is complete only after ``finish``. ``segments`` [n] are flags or
        keys. ``overlap`` promises that ``finish`` follows as soon as the totals are exchanged.
        """

    def finish(self, pending: Any, offset: Any) -> None:
        """Scan the shard, seeded with ``offset``; None if no element comes before the shard.

        Columns that ``put`` has scanned are left alone.
        """

    def move(self, x: Any, out: Any) -> bool:
        """Let ``repeat`` scan these arrays in place of the last ones; return whether it will.

        They differ from the last ones in their addresses alone.
        """

    def repeat(self) -> bool:
        """Scan the arrays of the last call again if one launch does it; return whether it did.

        The arrays have the same addresses and properties as then. There is no exchange, and the
        seed is the form's.
        """

    def check(self) -> None:
        """Wait for the work that is queued; raise the fault of a call that seemed to succeed."""

    def call_off(self) -> None:
        """Tell the other ranks, if they wait inside kernels, that this call was refused here."""

    def refuse_capture(self, reason: str) -> None:
        """Raise RuntimeError, with ``reason``, if the stream is captured in a CUDA graph."""

    def close(self) -> None:
        """Free the memory."""
