"""The running value of a shard, from chunk to chunk: what the exchange is from rank to rank."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import dtypes
from ..core.operators import Operator
from ..core.steps import Edges, Pending


class Carry:
    """The combination of all elements so far, 0-d or [inner]; with segments, of the last segment's.

    It begins without a value, or with that of the elements before the shard. After the last chunk
    it is the total of all these, and a ``Pending`` for the exchange of totals between ranks.

    ``first``, which comes before the first element and before each segment (see ``Form``), is part
    of what ``before`` and ``result`` return, not of the value.
    """

    def __init__(
        self, op: Operator, dtype: np.dtype[Any], first: NDArray[Any] | None, *, segmented: bool
    ) -> None:
        self._op, self.dtype, self._segmented = op, dtype, segmented
        self._first = None if first is None else dtypes.cast(first, dtype)
        self.start(None)

    def start(self, value: Any, edges: Edges | None = None) -> None:
        """Forget all elements, and begin behind others: their value, the edges of their keys."""
        self.value: NDArray[Any] | None = None if value is None else np.array(value, self.dtype)
        self.edges = edges
        self.empty, self.head = value is None, False
        self.offset: Any = None

    def before(self, chunk: Pending) -> NDArray[Any] | None:
        """Return the offset of a chunk; None if nothing comes before it."""
        return self._first if self._segment_begins(chunk) else self.result()

    def result(self) -> NDArray[Any] | None:
        """Return ``first`` combined with the value; None if there is neither."""
        if self.value is None or self._first is None:
            return self._first if self.value is None else self.value
        combined: NDArray[Any] = np.asarray(self._op.combine(self._first, self.value))
        return combined

    def advance(self, chunk: Pending) -> None:
        """Combine the total of a chunk into the value."""
        if chunk.empty:
            return
        total = dtypes.cast(chunk.total(), self.dtype)
        begins = self._segment_begins(chunk) or (self._segmented and chunk.head)
        if begins or self.value is None:
            self.value = total
        else:
            self.value = np.asarray(self._op.combine(self.value, total))
        self.head = self.head or begins
        if self._segmented and chunk.edges is not None:
            enters, leaves = chunk.edges
            self.edges = Edges(enters if self.edges is None else self.edges.enters, leaves)
        self.empty = False

    def _segment_begins(self, chunk: Pending) -> bool:
        """Return whether a segment begins between the last chunk and the next one."""
        if not self._segmented or self.edges is None or chunk.empty:
            return False
        chunk.total()  # the edges are valid now
        return chunk.edges is not None and bool(self.edges.leaves != chunk.edges.enters)

    # ---- the total of the shard, for the exchange between ranks --------------------------------

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Return the value, or a piece of it."""
        value = np.asarray(self.value)
        return value if piece is None else value[piece]

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Store a piece of a long row of offsets, over the same piece of the row of totals."""
        if offset is not None:
            assert self.value is not None
            self.value[piece] = offset
            self.offset = self.value
