"""The local steps on CuPy arrays: ``begin`` and ``finish`` of a call. Nothing here uses MPI.

A strategy's kernels and memory are made once. A call in flight has its memory, stream and total.
"""

from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime
from numpy.typing import NDArray

from ..core import segments as segmented
from ..core.arrays import FieldArrays, HostFields, contiguous
from ..core.dtypes import Types
from ..core.form import Form, is_long
from ..core.operators import Operator
from ..core.steps import Edges, Pending
from ..fsum.words import unchecked
from . import columns, launches, workspace
from .arguments import total_type
from .definitions import as_numbers, register_types, type_name
from .kernel import launch, side_by_side
from .launches import Add, HostTotal, Reduce, checks_window, violation_word
from .policy import scan_config
from .workspace import (
    Row,
    Workspace,
    is_capturing,
    keep_captured,
    refuse_capture_of_new,
    releases,
)

# ---- the kernels and the memory of a strategy, made once for all its calls -------------------


class Strategy:
    """The kernels and the memory of one strategy on one GPU.

    The GPU that is current when a strategy is made must be current when it is used. Work is queued
    on the current stream, after all earlier use on other streams. ``finish`` returns when its
    kernel is queued.

    Attributes
    ----------
    types, form
        The types and the form of the scan.
    n, size
        The number of elements along the axis, and in the shard.
    work
        The kernels and the memory; None for shards without elements.
    waits
        Whether totals are long rows, which an exchange reads piece by piece.
    captured
        The reason why a CUDA graph cannot capture a call; empty if it can.
    """

    captured = "the host waits for the shard's total"
    #: Whether the arguments of ``work`` are those of the last call, which was of plain arrays.
    are_set = False
    #: Whether ``begin`` finds the total.
    finds_totals = True

    def __init__(self, op: Operator, types: Types, form: Form) -> None:
        """Compile the kernels, and allocate the memory that calls need beside their arrays."""
        next(workspace.calls)  # raises in a process that was forked
        for dtype in (types.x, types.acc, types.out):
            type_name(dtype)
        #: Whether kernels see elements that are outside of the window of an exact sum.
        self.checks_window = checks_window(types, form)
        self.op = op if self.checks_window else unchecked(op)
        self.types, self.form = types, form
        self.n, self.size = form.extents.length, form.extents.size
        self.waits = form.extents.goes_on and is_long(form.extents.inner, types.acc)
        refuse_capture_of_new()
        releases.sweep()
        self.work: Any = self.make() if self.size > 0 else None

    def make(self) -> Workspace:
        """Make the kernels, and allocate the memory that they share."""
        raise NotImplementedError

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""
        return cupy.empty(self.size, self.types.out)

    def make_scan(
        self, op: Operator, types: Types
    ) -> "launches.Scan | columns.Scan | columns.ThreadPerColumn":
        """Make the kernel that scans, down columns or along rows."""
        n, form = self.n, self.form
        if form.extents.inner == 1:
            types = register_types(op, types)
            return launches.Scan(op, types, n, form, scan_config(types, n, form))
        return columns.make_scan(op, types, n, form)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return 0 if self.work is None else int(self.work.nbytes)

    def close(self) -> None:
        """Free the memory once all queued work has ended. Raises as ``check``."""
        try:
            self.check()
        finally:
            self.work = None

    def check(self) -> None:
        """Raise ``KernelError`` if the last scan has stored nothing: see ``launches.HostOffset``.

        Waits for that scan if there is doubt.
        """
        if self.work is not None and "mail" in vars(self.work.scan):
            self.work.scan.mail.check(cupy.cuda.get_current_stream())

    def window_violated(self, call: Any) -> bool:
        """Wait for the kernel; return whether it has seen an element outside of the window."""
        if self.work is None or not self.checks_window:
            return False
        if not call.read:  # the total comes after all checks
            call.stream.synchronize()
        return bool(call.work.violation.since(call.epoch))

    def move(self, x: Any, out: Any) -> bool:
        """Let ``repeat`` scan these arrays, which differ from the last ones in address alone."""
        aligned = x.data.ptr % x.dtype.alignment == out.data.ptr % out.dtype.alignment == 0
        if self.are_set and aligned:
            self._set_arrays(self.work, x, out)
            return True
        return False

    def _set_arrays(self, work: Any, x: Any, out: Any, heads: Any = None) -> None:
        """Set the arrays in the arguments of all kernels; of strategies that ``repeat``."""
        raise NotImplementedError

    def repeat(self) -> bool:
        """Return False: only strategies of one part can repeat a call."""
        return False

    def _note_arguments(self, call: "GpuCall") -> None:
        """Note whether a later call can have the arguments of this one, which has ended."""
        plain = type(call.x) is type(call.out) is cupy.ndarray and call.heads is None
        same = call.work is self.work and not call.is_copied
        self.are_set = plain and same and self.work.violation is None

    def _next_number(self) -> int | None:
        """Begin a call with the arguments of the last one, and return its number; else None."""
        if not self.are_set:
            return None
        work, stream = self.work, cupy.cuda.get_current_stream()
        last = work.last
        if stream is not last.stream or last.at_once or runtime.streamIsCapturing(stream.ptr):
            return None
        number = next(workspace.calls)
        if work.round != number >> workspace.BITS:
            return None
        last.recorded = False
        return number

    def call_off(self) -> None:
        """Do nothing: other ranks do not wait for this GPU."""

    def refuse_capture(self, reason: str) -> None:
        """Raise RuntimeError, with ``reason``, if the stream is captured in a CUDA graph."""
        if is_capturing(cupy.cuda.get_current_stream()):
            raise RuntimeError(f"a CUDA graph cannot capture this scan: {reason}")

    def make_for_a_graph(self) -> Workspace:
        """Make a workspace for one graph alone, whose replays use it one after the other."""
        if self.captured:
            self.refuse_capture(self.captured)
        # Not from a pool: earlier work that is still queued may use the pool's memory.
        with cupy.cuda.using_allocator(None):
            return self.make()


# ---- calls in flight, from begin to finish ---------------------------------------------------


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


class GpuCall(NoTotal):
    """One call in flight: its workspace, epoch, stream and arrays.

    The work is queued in two parts, by ``begin`` and by ``finish``. Each part is queued on the
    stream that is current then, after the last use of the workspace. ``end_part`` ends a part.
    """

    heads: Any = None  # the head flags of the segments, or the keys
    deferred = False  # whether the scan is launched, and waits for its offset
    is_queued = False  # whether all is launched, of GPUs that exchange totals themselves
    is_copied = False  # whether ``x`` is a copy, which nobody keeps

    def __init__(self, steps: Strategy, x: Any, out: Any, segments: Any, at_once: bool) -> None:
        """Begin the first part. With ``at_once``, the second part follows on the same stream."""
        for name, array in (("x", x), ("out", out), ("segments", segments)):
            if array is None:
                continue
            plain = type(array) is not FieldArrays
            if array.data.ptr % array.dtype.alignment if plain else array.misaligned():
                raise ValueError(f"{name} begins at an address that its type cannot have")
        work, number, stream = steps.work, next(workspace.calls), cupy.cuda.get_current_stream()
        if runtime.streamIsCapturing(stream.ptr):
            work = steps.make_for_a_graph()
        elif work.round != number >> workspace.BITS:
            work = steps.work = steps.make()
        if type(x) is not FieldArrays and not x.flags.c_contiguous:
            steps.refuse_capture("x, which is not contiguous, must be copied")
            x, self.is_copied = contiguous(x), True
        self._steps, self.work = steps, work
        self.epoch = number & workspace.LAST
        self.stream = self.first_stream = stream
        self.x, self.out, self.segments, self.at_once = x, out, segments, at_once
        if stream is not work.last.stream:
            work.last.order(stream)
        work.last.recorded = False
        if work.violation is not None:
            work.violation.begin(self.epoch)
        if segments is not None:
            self.heads = segmented.as_read(segments, steps.form, work)

    def resume(self) -> Any:
        """Begin the second part on the current stream, and return the stream."""
        if not self.at_once:
            self.stream = cupy.cuda.get_current_stream()
            if self.stream is not self.work.last.stream:
                self.work.last.order(self.stream)
        self.work.last.recorded = False
        return self.stream

    def end_part(self) -> None:
        """End a part, whose work is all queued."""
        if self.work.last.at_once:
            self.work.last.record()

    def end(self) -> None:
        """End the second part: all work of the call is queued."""
        if self.work.last.at_once:
            self.work.last.record()
        if self.work.is_of_a_graph:
            keep_captured(self.work, self.heads)
        elif self.stream is not self.first_stream:
            self.work.keep(self.x, self.heads)


class GpuCallWithTotal(GpuCall):
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
        value = self.work.total.wait(self.epoch, self.first_stream)
        if form.keys is not None:
            low, high = value["ends"].view(self.segments.dtype)
            self._edges = segmented.between(low, high, reverse=form.reverse)
            value = value["total"]
        if form.segmented:
            self.head, value = bool(value["head"]), value["value"]
        if value.dtype.names is not None:
            value = as_numbers(value)
        total: NDArray[Any] = value.astype(self._steps.types.acc, copy=False)
        return total

    def wait_for_total(self) -> None:
        """Wait for the total, unless ``total`` has. Then all work of earlier calls has ended."""
        if not self.read and self._steps.form.extents.inner == 1:
            self.total()

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Queue a copy of a piece of the row of offsets to the GPU, over the row of totals."""
        seed = self._steps.form.seed
        if offset is None and seed is not None and seed.ndim > 0:
            offset = self._steps.form.seed_of(piece)
        self.resume()
        self.work.total.put(piece, offset)
        self.end_part()
        if offset is not None:
            self.offset = self.work.total

    @property
    def edges(self) -> Edges | None:
        """The first and the last key or flag of the shard; None without segments."""
        if self.segments is None or self._edges is not None:
            return self._edges
        return segmented.edges(self.segments, reverse=self._steps.form.reverse)


# ---- the steps of a shard --------------------------------------------------------------------

_TOO_LATE = 3  # after so many late offsets in a row, scans are launched after their offsets


class SinglePass(Strategy):
    """Strategy ``single-pass``, for one rank: each element is read once and written once."""

    captured = ""
    finds_totals = False

    def make(self) -> Workspace:
        """Make the kernel, and the row of values that seeds columns, if there is one."""
        scan, seed, row = self.make_scan(self.op, self.types), self.form.seed, None
        if seed is not None and seed.ndim > 0:
            row = Row(seed.dtype, seed.size, seed.dtype)
            row.put(slice(None), seed)
        return Workspace(scan=scan, total=row, violation=violation_word(self.op, scan))

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``. No kernel is launched before ``finish``."""
        self.are_set = False
        if self.work is None:
            return NoTotal()
        call = GpuCall(self, x, out, segments, overlap)
        last = call.work.last
        if last.at_once:  # ``end_part``: another rank's fault may be the end of this call
            last.record()
        return call

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """Scan, seeded with ``offset``."""
        if self.work is None:
            return
        stream, scan = call.stream if call.at_once else call.resume(), call.work.scan
        call.work.last.recorded = False
        self._set_arrays(call.work, call.x, call.out, call.heads)
        row = call.work.total
        scan.set_offset(offset if row is None else row, call.epoch)
        launch(scan, stream)
        call.end()
        self._note_arguments(call)

    def _set_arrays(self, work: Any, x: Any, out: Any, heads: Any = None) -> None:
        work.scan.prepare(x, out, heads)

    def repeat(self) -> bool:
        """Scan the last arrays again, on the stream of the last call alone."""
        number = self._next_number()
        if number is None:
            return False
        work = self.work
        seed = self.form.seed if work.total is None else work.total
        work.scan.set_offset(seed, number & workspace.LAST)
        launch(work.scan, work.last.stream)
        return True


class ScanAdd(Strategy):
    """Strategy ``scan-add``. Each call does the steps of ``cpu.ScanAdd``."""

    @side_by_side()
    def make(self) -> Workspace:
        """Make the two kernels, and the words of the total between them."""
        op, types, n = self.op, self.types, self.n
        return Workspace(
            scan=self.make_scan(op, Types(types.x, types.acc, types.acc)),
            add=Add(op, types, n, self.form),
            total=HostTotal(register_types(op, types).acc),
            # A result narrower than the running value is rounded once, after the offset is added.
            wide=None if types.acc == types.out else cupy.empty(n, types.acc),
        )

    def begin(self, x: Any, out: Any, segments: None = None, *, overlap: bool = False) -> Pending:
        """Scan ``x`` [n] without an offset. The last result is the shard's total."""
        if self.work is None:
            return NoTotal()
        call = GpuCallWithTotal(self, x, out, None, overlap)
        work, scan = call.work, call.work.scan
        scan.prepare(call.x, out if work.wide is None else work.wide, total=work.total.pointer)
        scan.set_offset(None, call.epoch)
        launch(scan, call.stream)
        call.end_part()
        return call

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` into ``out`` [n]."""
        if self.work is None:
            return
        call.wait_for_total()
        stream, work = call.resume(), call.work
        if offset is not None or work.wide is not None:
            work.add.prepare(call.out if work.wide is None else work.wide, call.out, offset)
            launch(work.add, stream)
        call.end()


class ReduceScan(Strategy):
    """Strategy ``reduce-scan``. Each call does the steps of ``cpu.ReduceScan``."""

    #: The number of offsets, in a row, that came too late for a scan that waited for them.
    too_late = 0

    @side_by_side()
    def make(self) -> Workspace:
        """Make the two kernels, and the words or the row of totals between them."""
        op, types, n, form = self.op, self.types, self.n, self.form
        acc = register_types(op, types).acc
        scan = self.make_scan(unchecked(op), types)
        if form.extents.inner > 1:
            reduce: Any = columns.Reduce(op, types, n, form)
            total: Any = Row(acc, form.extents.inner, types.acc)
        else:
            reduce = Reduce(op, types, n, form)
            total = HostTotal(total_type(acc, form))
        return Workspace(
            scan=scan, reduce=reduce, total=total, violation=violation_word(op, reduce)
        )

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin to reduce ``x`` [n] to its total.

        With ``overlap``, the scan is launched before its offset is known. It fetches its first
        tiles, and waits for the offset, which should come at once. If offsets come too late several
        times in a row, as on a GPU that ranks share, later scans are launched after their offsets.
        """
        if self.work is None:
            return NoTotal()
        call = GpuCallWithTotal(self, x, out, segments, overlap)
        reduce, scan, total = call.work.reduce, call.work.scan, call.work.total
        reduce.prepare(call.x, total.pointer, call.epoch, call.heads)
        launch(reduce, call.stream)
        scan.prepare(call.x, out, call.heads)  # while the GPU reduces
        if self.form.extents.inner > 1:
            total.bring()
        elif overlap and scan.can_wait and self.too_late < _TOO_LATE:
            call.deferred = True
            scan.defer_offset(call.epoch, call.stream)
            launch(scan, call.stream)
        call.end_part()
        return call

    def finish(self, call: Any, offset: Any) -> None:
        """Scan ``x`` [n] into ``out`` [n], seeded with ``offset``: None, an array or a long row."""
        if self.work is None:
            return
        call.wait_for_total()
        stream, scan, row = call.resume(), call.work.scan, call.work.total
        if isinstance(offset, np.ndarray | HostFields) and offset.ndim > 0:
            if not call.read:  # the row of totals is being copied to the host
                call.total()
            row.put(slice(None), offset)
            offset = row
        if call.deferred:
            in_time = scan.mail.send(call.epoch, offset, call.first_stream)
            self.too_late = 0 if in_time else self.too_late + 1
            if in_time:
                return
        scan.set_offset(offset, call.epoch + call.deferred)
        launch(scan, stream)
        call.end()
