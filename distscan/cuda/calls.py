"""Calls in flight on CuPy arrays, from ``begin`` to ``finish``: their memory, stream and total."""

from typing import Any

import cupy
from cupy_backends.cuda.api import runtime
from numpy.typing import NDArray

from ..core import segments as segmented
from ..core.field_arrays import FieldArrays
from ..core.steps import Edges
from . import epochs
from .registers import as_numbers
from .strategy import Strategy
from .workspace import keep_captured


class NoTotal:
    """A call without a total for the exchange: of an empty shard, or of a scan on one rank."""

    empty = True
    head = False
    read = False  # whether ``total`` has waited for the total
    offset: Any = None

    @property
    def edges(self) -> Edges | None:
        """None, because there are no elements."""
        return None

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Raise ValueError."""
        raise ValueError("this call has no total")

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Raise ValueError."""
        raise ValueError("this call has no total")


class Call(NoTotal):
    """One call in flight: its workspace, epoch, stream and arrays.

    The work is queued in two parts, by ``begin`` and by ``finish``. Each part is queued on the
    stream that is current then, behind the last use of the workspace. ``queued`` ends a part.
    """

    heads: Any = None  # the head flags of the segments, or the keys
    ahead = False  # whether the scan has been launched ahead of its offset

    def __init__(self, steps: Strategy, x: Any, out: Any, segments: Any, at_once: bool) -> None:
        """Begin the first part. With ``at_once``, the second part follows on the same stream."""
        for name, array in (("x", x), ("out", out), ("segments", segments)):
            if array is None:
                continue
            plain = type(array) is not FieldArrays
            if array.data.ptr % array.dtype.alignment if plain else array.misaligned():
                raise ValueError(f"{name} begins at an address that its type cannot have")
        work, number, stream = steps.work, next(epochs.calls), cupy.cuda.get_current_stream()
        if runtime.streamIsCapturing(stream.ptr):
            work = steps.make_for_a_graph()
        elif work.round != number >> epochs.BITS:
            work = steps.work = steps.make()
        if type(x) is not FieldArrays and not x.flags.c_contiguous:
            steps.refuse_capture("x, which is not contiguous, must be copied")
            x = cupy.ascontiguousarray(x)
        self._steps, self.work = steps, work
        self.epoch = number & epochs.LAST
        self.stream = self.begun_on = stream
        self.x, self.out, self.segments, self._at_once = x, out, segments, at_once
        if stream is not work.last.stream:
            work.last.order(stream)
        work.last.recorded = False
        if work.outside is not None:
            work.outside.begin(self.epoch)
        if segments is not None:
            self.heads = segmented.as_read(segments, steps.form, work)

    def resume(self) -> Any:
        """Begin the second part on the current stream, and return the stream."""
        if not self._at_once:
            self.stream = cupy.cuda.get_current_stream()
            if self.stream is not self.work.last.stream:
                self.work.last.order(self.stream)
        self.work.last.recorded = False
        return self.stream

    def queued(self) -> None:
        """End a part: all its work is queued."""
        if self.work.last.at_once:
            self.work.last.record()

    def ended(self) -> None:
        """End the second part: all work of the call is queued."""
        self.queued()
        if self.work.is_of_a_graph:
            keep_captured(self.work, self.heads)
        elif self.stream is not self.begun_on:
            self.work.keep(self.x, self.heads)


class CallWithTotal(Call):
    """A call that finds a total, or a row of totals, for the exchange."""

    empty = False
    _edges: Edges | None = None  # of keys, which come with the total

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for the total, or for a piece of a long row of totals; return it."""
        self.read = True
        form = self._steps.form
        if form.extents.inner > 1:
            totals: NDArray[Any] = self.work.total.take(piece)
            return totals
        value = self.work.total.wait(self.epoch, self.begun_on)
        if form.keys is not None:
            low, high = value["ends"].view(self.segments.dtype)
            self._edges = segmented.between(low, high, reverse=form.reverse)
            value = value["total"]
        if form.segmented:
            self.head, value = bool(value["head"]), value["value"]
        if value.dtype.names is not None:
            value = as_numbers(value)
        found: NDArray[Any] = value.astype(self._steps.types.acc, copy=False)
        return found

    def have_read(self) -> None:
        """Wait for the total, unless it has been read. Then all work of earlier calls has ended."""
        if not self.read and self._steps.form.extents.inner == 1:
            self.total()

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Queue a copy of a piece of the row of offsets to the GPU, over the row of totals."""
        first = self._steps.form.first
        if offset is None and first is not None and first.ndim > 0:
            offset = self._steps.form.seed(piece)
        self.resume()
        self.work.total.put(piece, offset)
        self.queued()
        if offset is not None:
            self.offset = self.work.total

    @property
    def edges(self) -> Edges | None:
        """The first and the last key or flag of the shard; None without segments."""
        if self.segments is None or self._edges is not None:
            return self._edges
        return segmented.edges(self.segments, reverse=self._steps.form.reverse)
