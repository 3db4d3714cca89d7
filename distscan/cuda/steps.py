"""The local steps on CuPy arrays: ``begin`` and ``finish`` of a call. Nothing here uses MPI.

This file has the work of each call. ``strategy.py`` makes the kernels and the memory, once.
"""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.field_arrays import HostFields
from ..core.steps import Pending
from ..fsum.words import unchecked
from . import columns
from .arguments import flagged, keyed
from .calls import Call, CallWithTotal, NoTotal
from .kernel import launch
from .launches import Add, HostTotal, Reduce
from .outside import outside
from .registers import register_types
from .row import Row
from .strategy import Strategy
from .workspace import Workspace

_TOO_LATE = 3  # after so many late offsets in a row, no scan is launched ahead of its offset


class _Steps(Strategy):
    """The common part of the strategies. ``finish`` returns when its kernel is queued."""

    #: Whether ``begin`` finds the total.
    finds_totals = True

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""
        return cupy.empty(self.size, self.types.out)


class SinglePass(_Steps):
    """Strategy ``single-pass``, for one rank: each element is read once and written once."""

    captured = ""
    finds_totals = False

    def make(self) -> Workspace:
        """Make the kernel, and the row of values that columns begin behind, if there is one."""
        scan, first, row = self.make_scan(self.op, self.types), self.form.first, None
        if first is not None and first.ndim > 0:
            row = Row(first.dtype, first.size, first.dtype)
            row.put(slice(None), first)
        return Workspace(scan=scan, total=row, outside=outside(self.op, scan))

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``. No kernel is launched before ``finish``."""
        if self.work is None:
            return NoTotal()
        call = Call(self, x, out, segments, overlap)
        call.queued()
        return call

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """Scan, seeded with ``offset``."""
        if self.work is None:
            return
        stream, scan = call.resume(), call.work.scan
        scan.prepare(call.x, call.out, call.heads)
        row = call.work.total
        scan.behind(offset if row is None else row, call.epoch)
        launch(scan, stream)
        call.ended()


class ScanAdd(_Steps):
    """Strategy ``scan-add``. Each call does the steps of ``cpu.ScanAdd``."""

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
        call = CallWithTotal(self, x, out, None, overlap)
        work, scan = call.work, call.work.scan
        scan.prepare(call.x, out if work.wide is None else work.wide, total=work.total.pointer)
        scan.behind(None, call.epoch)
        launch(scan, call.stream)
        call.queued()
        return call

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` into ``out`` [n]."""
        if self.work is None:
            return
        call.have_read()
        stream, work = call.resume(), call.work
        if offset is not None or work.wide is not None:
            work.add.prepare(call.out if work.wide is None else work.wide, call.out, offset)
            launch(work.add, stream)
        call.ended()


class ReduceScan(_Steps):
    """Strategy ``reduce-scan``. Each call does the steps of ``cpu.ReduceScan``."""

    #: The number of offsets, in a row, that came too late for a scan that waited for them.
    too_late = 0

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
            sent = flagged(acc) if form.segmented else acc
            total = HostTotal(sent if form.keys is None else keyed(acc, form.keys))
        return Workspace(scan=scan, reduce=reduce, total=total, outside=outside(op, reduce))

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin to reduce ``x`` [n] to its total.

        With ``overlap`` the scan is launched ahead of its offset. It fetches its first tiles, and
        waits for the offset, which should come at once. If offsets come too late several times in
        a row, as on a GPU that ranks share, later scans are not launched ahead.
        """
        if self.work is None:
            return NoTotal()
        call = CallWithTotal(self, x, out, segments, overlap)
        reduce, scan, total = call.work.reduce, call.work.scan, call.work.total
        reduce.prepare(call.x, total.pointer, call.epoch, call.heads)
        launch(reduce, call.stream)
        scan.prepare(call.x, out, call.heads)  # while the GPU reduces
        if self.form.extents.inner > 1:
            total.bring()
        elif overlap and scan.can_wait and self.too_late < _TOO_LATE:
            call.ahead = True
            scan.ahead(call.epoch, call.stream)
            launch(scan, call.stream)
        call.queued()
        return call

    def finish(self, call: Any, offset: Any) -> None:
        """Scan ``x`` [n] into ``out`` [n], seeded with ``offset``: None, an array or a long row."""
        if self.work is None:
            return
        call.have_read()
        stream, scan, row = call.resume(), call.work.scan, call.work.total
        if isinstance(offset, np.ndarray | HostFields) and offset.ndim > 0:
            if not call.read:  # the row of totals is on its way to the host
                call.total()
            row.put(slice(None), offset)
            offset = row
        if call.ahead:
            in_time = scan.mail.send(call.epoch, offset, call.begun_on)
            self.too_late = 0 if in_time else self.too_late + 1
            if in_time:
                return
        scan.behind(offset, call.epoch + call.ahead)
        launch(scan, stream)
        call.ended()
