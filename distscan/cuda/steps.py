"""The local steps on CuPy arrays: checks, launches. Knows no MPI."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core import segments
from ..core.dtypes import Types
from ..core.forms import PLAIN, Form, Pending
from ..core.operators import Operator
from . import columns, launches
from .call import Call, CallWithTotal
from .definitions import type_name
from .kernel import HostTotal
from .policy import TextbookPolicy
from .row import Row
from .workspace import ROUND, Workspace, is_capturing, next_call, sweep

_TOO_LATE = 3  # offsets in a row that came too late for a kernel that waits


class _Steps:
    """What the strategies share. ``finish`` is done when its kernel is queued.

    The GPU that is current when the steps are made must be current when they are used. Work is
    ordered on the current stream, and behind all earlier use of these steps on other streams.
    """

    captured = "the host waits for the shard's total"  # why no graph takes it; "": one does

    def __init__(
        self,
        op: Operator,
        types: Types,
        n: int,
        form: Form = PLAIN,
        textbook: TextbookPolicy | None = None,
        *,
        ranks: int = 1,
    ) -> None:
        """Compile, and allocate what shards of ``n`` elements need beside input and output.

        ``textbook`` is the kernel that scans, None for the fastest; ``ranks`` is how many scan
        together.
        """
        next_call()  # which a process that was forked is refused
        for dtype in (types.x, types.acc, types.out):
            type_name(dtype)
        self.types, self.n, self.form, self._ranks = types, n, form, ranks
        self._op, self._textbook = op, textbook
        if is_capturing(cupy.cuda.get_current_stream()):
            raise RuntimeError(
                "nothing can be made for a new kind of scan while a CUDA graph is captured: "
                "make the plan, or call scan() once with such arrays, before the capture"
            )
        sweep()
        self._work = self._make() if n * form.outer > 0 else None

    def _make(self) -> Workspace:
        """Make the kernels, and allocate what they share."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """How much memory is kept between calls."""
        return 0 if self._work is None else self._work.nbytes

    def close(self) -> None:
        """Give the memory back, behind what is queued."""
        self._work = None

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""
        return cupy.empty(self.form.outer * self.n * self.form.inner, self.types.out)

    def _entered(self, x: Any, out: Any, *others: Any) -> tuple[Any, ...]:
        """Check memory; return what a call is made of: ``x`` as kernels read it."""
        if x.data.ptr % x.dtype.alignment or out.data.ptr % out.dtype.alignment:
            name = "x" if x.data.ptr % x.dtype.alignment else "out"
            raise ValueError(f"{name} begins at an address that its type cannot have")
        work, number, stream = self._work, next_call(), cupy.cuda.get_current_stream()
        if is_capturing(stream):
            work = self._for_a_graph()
        elif work is not None and work.round != number >> ROUND:
            work = self._work = self._make()
        if not x.flags.c_contiguous:
            self.refuse_capture("x, which is not contiguous, must be copied")
            x = cupy.ascontiguousarray(x)
        return work, number, stream, x, out, *others

    def refuse_capture(self, reason: str) -> None:
        """Raise where work goes into a CUDA graph, for which there is a reason not to."""
        if is_capturing(cupy.cuda.get_current_stream()):
            raise RuntimeError(f"a CUDA graph cannot capture this scan: {reason}")

    def _for_a_graph(self) -> Workspace:
        """Make a workspace that one graph has alone, and zeroes itself at every replay."""
        if self.captured:
            self.refuse_capture(self.captured)
        # No pool, whose memory work that was queued earlier may still use.
        with cupy.cuda.using_allocator(None):
            work = self._make()
            if self.form.segmented:
                work.flags(self.n)
        return work

    def _heads(self, call: Any) -> None:
        """Find where segments begin."""
        reverse, buffer = self.form.reverse, None
        if not segments.needs_no_buffer(call.marks, reverse=reverse):
            buffer = call.work.flags(self.n)
        call.heads = segments.heads(call.marks, buffer, reverse=reverse)

    def _behind(self, offset: Any) -> Any:
        """Return what the shard starts behind, or None where that is nothing."""
        return self.form.first if offset is None else offset


class SinglePass(_Steps):
    """Strategy ``single-pass``: scan and store, each element moved once; for one rank."""

    captured = ""

    def _make(self) -> Workspace:
        return Workspace(scan=_make_scan(self._op, self.types, self.n, self.form, self._textbook))

    def begin(self, x: Any, out: Any, marks: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``: nobody waits for its total."""
        if self._work is None:
            return Pending(None)
        call = Call(*self._entered(x, out, marks, overlap))
        if marks is not None:
            self._heads(call)
        call.work.leave()
        return call

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """Scan, behind ``offset``."""
        if self._work is None:
            return
        stream, scan = call.resume(), call.work.scan
        scan.prepare(call.x, call.out, call.heads)
        scan.launch(call.epoch, self._behind(offset))
        call.ended(stream)


class ScanAdd(_Steps):
    """Strategy ``scan-add``; each call as in ``cpu.ScanAdd``."""

    def _make(self) -> Workspace:
        op, types, n, form = self._op, self.types, self.n, self.form
        wide = Types(types.x, types.acc, types.acc)
        return Workspace(
            scan=launches.make_scan(op, wide, n, form, self._textbook),
            add=launches.Add(op, types, n, form),
            total=HostTotal(launches.register_types(op, types).acc),
            # A result narrower than the running value is rounded once, behind the offset.
            wide=None if types.acc == types.out else cupy.empty(n, types.acc),
        )

    def begin(self, x: Any, out: Any, marks: None = None, *, overlap: bool = False) -> Pending:
        """Scan ``x`` [n] on its own, and so find its total."""
        if self._work is None:
            return Pending(None)
        given = self._entered(x, out, None, overlap)
        call = CallWithTotal(self.types.acc, self.form, *given)
        work = call.work
        local = out if work.wide is None else work.wide
        work.scan.prepare(call.x, local, total=work.total.pointer)
        work.scan.launch(call.epoch, None)
        work.leave()
        return call

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` into ``out`` [n]."""
        if self._work is None:
            return
        if not call.read:
            call.have_read()
        stream = call.resume()
        wide, offset = call.work.wide, self._behind(offset)
        if offset is not None or wide is not None:
            call.work.add(call.out if wide is None else wide, call.out, offset)
        call.ended(stream)


class ReduceScan(_Steps):
    """Strategy ``reduce-scan``; each call as in ``cpu.ReduceScan``."""

    _too_late = 0  # offsets in a row that came too late for a kernel that waits

    def _make(self) -> Workspace:
        op, types, n, form = self._op, self.types, self.n, self.form
        acc = launches.register_types(op, types).acc
        total: Row | HostTotal
        if form.inner > 1:
            total = Row(acc, form.inner, types.acc)
        else:
            total = HostTotal(launches.flagged(acc) if form.segmented else acc)
        scan = _make_scan(op, types, n, form, self._textbook)
        return Workspace(
            scan=scan,
            reduce=(columns if form.inner > 1 else launches).Reduce(op, types, n, form),
            total=total,
        )

    def begin(self, x: Any, out: Any, marks: Any = None, *, overlap: bool = False) -> Pending:
        """Begin to reduce ``x`` [n] to its total.

        With ``overlap`` the scan is launched too: it fetches, and waits for the offset, which
        should come at once. Where offsets keep coming too late, as on a GPU that ranks share, the
        scan is not launched ahead any more.
        """
        if self._work is None:
            return Pending(None)
        given = self._entered(x, out, marks, overlap)
        call = CallWithTotal(self.types.acc, self.form, *given)
        if marks is not None:
            self._heads(call)
        work = call.work
        work.reduce(call.x, work.total.pointer, call.epoch, call.heads)
        work.scan.prepare(call.x, out, call.heads)  # while the GPU reduces
        if self.form.inner > 1:
            work.total.bring()
        elif overlap and work.scan.waits and self._too_late < _TOO_LATE:
            call.ahead = True
            work.scan.launch_ahead(call.epoch)
        work.leave()
        return call

    def finish(self, call: Any, offset: Any) -> None:
        """Scan ``x`` [n] into ``out`` [n], behind ``offset``: None, an array, or a long row."""
        if self._work is None:
            return
        scan, total = call.work.scan, call.work.total
        if not call.read:  # when it is, the scan of the call before, which has its mail, has ended
            call.have_read()
        stream, offset = call.resume(), self._behind(offset)
        if isinstance(offset, np.ndarray) and offset.ndim > 0:
            total.put(slice(None), offset)
            offset = total
        in_time = call.ahead and scan.mail.send(call.epoch, offset, call.stream)
        if call.ahead:
            self._too_late = 0 if in_time else self._too_late + 1
        if not in_time:
            scan.launch(call.epoch + call.ahead, offset)
            call.ended(stream)


def _make_scan(
    op: Operator, types: Types, n: int, form: Form, textbook: TextbookPolicy | None
) -> Any:
    """Make the kernel that scans: down columns, or along rows."""
    if form.inner == 1:
        return launches.make_scan(op, types, n, form, textbook)
    if textbook is not None:
        raise NotImplementedError("block_scan= is for scans along the last axis")
    return columns.make_scan(op, types, n, form)
