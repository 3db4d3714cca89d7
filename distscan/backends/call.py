"""One call in flight on a GPU: its workspace, stream, epoch and arrays, and its total."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from .. import segments
from ..forms import Edges, Form, Pending
from .workspace import Workspace, epoch, is_capturing, keep_captured


class Call(Pending):
    """What ``finish`` needs of ``begin``; its work is queued between ``enter`` and ``leave``."""

    def __init__(self, work: Workspace, number: int, x: Any, out: Any, marks: Any = None) -> None:
        super().__init__(None)
        self.work, self.epoch, self.x, self.out, self.marks = work, epoch(number), x, out, marks
        self.heads: Any = None
        self.ahead = False  # whether the scan waits for the offset already
        self.stream = work.enter()

    def begun(self) -> None:
        """Note that ``begin`` has queued its work."""
        self.work.leave(self.stream)

    def resume(self) -> None:
        """Order the current stream, which may be another by now, behind what was begun."""
        self.work.enter()

    def ended(self) -> None:
        """Note that ``finish`` has queued its work, on the current stream."""
        stream = cupy.cuda.get_current_stream()
        self.work.leave(stream)
        if is_capturing(stream):
            keep_captured(self)
        elif stream is not self.stream:
            self.work.keep(self.x, self.heads)


class CallWithTotal(Call):
    """A call that finds a total, or a row of totals, of type ``dtype`` for the exchange."""

    def __init__(self, dtype: np.dtype[Any], form: Form, *given: Any) -> None:
        super().__init__(*given)
        self._dtype, self._form, self._read = dtype, form, False
        self.empty = False

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for the total, or for a piece of a long row of totals, and return it."""
        self._read = True
        if self._form.inner > 1:
            totals: NDArray[Any] = self.work.total.take(piece)
            return totals
        value = self.work.total.wait(self.epoch, self.stream)
        if self._form.segmented:
            self.head, value = bool(value["head"]), value["value"]
        found: NDArray[Any] = value.astype(self._dtype)
        return found

    def put(self, piece: slice, offset: NDArray[Any]) -> None:
        """Queue a piece of a row of offsets to the GPU, where that of the totals was."""
        stream = self.work.enter()
        self.work.total.put(piece, offset)
        self.work.leave(stream)
        self.offset = self.work.total

    @property
    def edges(self) -> Edges | None:
        """What tells whether a segment begins between this shard and others."""
        if self.marks is None:
            return None
        return segments.edges(self.marks, reverse=self._form.reverse)

    def have_read(self) -> None:
        """Wait for a total that nobody has read: what earlier calls queued has ended then."""
        if not self._read and self._form.inner == 1:
            self.total()
