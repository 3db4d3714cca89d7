"""What form a scan has, decided once: which elements it combines, and in which order."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray


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


class Total(NamedTuple):
    """What a shard hands to the ranks behind it."""

    value: NDArray[Any]  # 0-d, or [inner]: of all its elements, or of those from the last head on
    head: bool = False  # whether a segment begins in it
