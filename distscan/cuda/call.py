"""One call in flight on a GPU: its workspace, stream, epoch and arrays, and its total."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core import segments
from ..core.form import Form
from ..core.steps import Edges
from .workspace import Workspace, epoch, keep_captured


class Call:
    """What ``finish`` needs of ``begin``; its work is queued between ``enter`` and ``leave``."""

    empty = True
    head = False
    offset: Any = None  # where ``put`` has left that of a long row
    heads: Any = None  # where segments begin
    ahead = False  # whether the scan waits for the offset already

    def __init__(self, work: Workspace, number: int, stream: Any, *given: Any) -> None:
        """Order ``stream``, the current one, behind the workspace's last use.

        ``given`` are x, out, the flags or keys of segments, if any, and whether ``finish`` comes at
        once: on the same stream.
        """
        self.work, self.epoch, self.stream = work, epoch(number), stream
        self.x, self.out, self.marks, self._at_once = given
        work.enter(stream)

    def resume(self) -> Any:
        """Return the current stream, which may be another by now, behind what was begun."""
        if self._at_once:
            return self.stream
        stream = cupy.cuda.get_current_stream()
        self.work.enter(stream)
        return stream

    def ended(self, stream: Any) -> None:
        """Note that ``finish`` has queued its work, on the current stream."""
        self.work.leave()
        if self.work.is_of_a_graph:
            keep_captured(self.work, self.heads)
        elif stream is not self.stream:
            self.work.keep(self.x, self.heads)


class CallWithTotal(Call):
    """A call that finds a total, or a row of totals, of type ``dtype`` for the exchange."""

    empty = False
    read = False  # whether somebody has waited for the total

    def __init__(self, dtype: np.dtype[Any], form: Form, *given: Any) -> None:
        super().__init__(*given)
        self._dtype, self._form = dtype, form

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for the total, or for a piece of a long row of totals, and return it."""
        self.read = True
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
        self.resume()
        self.work.total.put(piece, offset)
        self.work.leave()
        self.offset = self.work.total

    @property
    def edges(self) -> Edges | None:
        """What tells whether a segment begins between this shard and others."""
        if self.marks is None:
            return None
        return segments.edges(self.marks, reverse=self._form.reverse)

    def have_read(self) -> None:
        """Wait for a total that nobody has read: what earlier calls queued has ended then."""
        if self._form.inner == 1:
            self.total()
