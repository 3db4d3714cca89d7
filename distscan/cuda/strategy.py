"""The kernels and the memory of a strategy, made once for all its calls."""

from typing import Any

import cupy

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from ..core.pieces import is_long
from ..fsum.words import unchecked
from . import columns, epochs, launches
from .configs import scan_config
from .definitions import type_name
from .outside import sees_outside
from .policy import TextbookPolicy
from .registers import register_types
from .workspace import Workspace, is_capturing, releases


class Strategy:
    """The kernels and the memory of one strategy on one GPU.

    The GPU that is current when a strategy is made must be current when it is used. Work is queued
    on the current stream, behind all earlier use on other streams.

    Attributes
    ----------
    types, form
        The types and the form of the scan.
    n, size
        The number of elements along the axis, and in the shard.
    work
        The kernels and the memory; None for shards without elements.
    waits
        Whether totals are long rows, which an exchange asks for piece by piece.
    captured
        The reason why a CUDA graph cannot capture a call; empty if it can.
    """

    captured = "the host waits for the shard's total"

    def __init__(
        self,
        op: Operator,
        types: Types,
        form: Form,
        textbook: TextbookPolicy | None = None,
    ) -> None:
        """Compile the kernels, and allocate the memory that calls need beside their arrays.

        ``textbook`` chooses a textbook's kernel; None is the fastest one.
        """
        next(epochs.calls)  # raises in a process that was forked
        for dtype in (types.x, types.acc, types.out):
            type_name(dtype)
        #: Whether kernels see elements that are outside of the window of an exact sum.
        self.sees_outside = sees_outside(types, form)
        self.op = op if self.sees_outside else unchecked(op)
        self.types, self.form = types, form
        self.n, self.size = form.extents.n, form.extents.size
        self.waits = form.extents.goes_on and is_long(form.extents.inner, types.acc)
        self._textbook = textbook
        if is_capturing(cupy.cuda.get_current_stream()):
            raise RuntimeError(
                "nothing can be made for a new kind of scan while a CUDA graph is captured: "
                "make the plan, or call scan() once with such arrays, before the capture"
            )
        releases.sweep()
        self.work: Any = self.make() if self.size > 0 else None

    def make(self) -> Workspace:
        """Make the kernels, and allocate the memory that they share."""
        raise NotImplementedError

    def make_scan(
        self, op: Operator, types: Types
    ) -> "launches.Scan | columns.Scan | columns.ThreadPerColumn":
        """Make the kernel that scans, down columns or along rows."""
        n, form, textbook = self.n, self.form, self._textbook
        if form.extents.inner == 1:
            types = register_types(op, types)
            config = scan_config(types, n, form, textbook)
            return launches.Scan(op, types, n, form, config)
        if textbook is not None:
            raise NotImplementedError("block_scan= is for scans along the last axis")
        return columns.make_scan(op, types, n, form)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return 0 if self.work is None else int(self.work.nbytes)

    def close(self) -> None:
        """Free the memory once all queued work has ended.

        Raises ``KernelError`` if the last scan has stored nothing: see ``launches.HostOffset``.
        """
        work, self.work = self.work, None
        if work is not None and "mail" in vars(work.scan):
            work.scan.mail.check(cupy.cuda.get_current_stream())

    def in_doubt(self, call: Any) -> bool:
        """Return whether the kernel that checks elements has seen one outside; wait for it."""
        if self.work is None or not self.sees_outside:
            return False
        if not call.read:  # the total, which comes behind all checks
            call.stream.synchronize()
        return bool(call.work.outside.since(call.epoch))

    def refuse_capture(self, reason: str) -> None:
        """Raise RuntimeError, with ``reason``, if the stream is captured in a CUDA graph."""
        if is_capturing(cupy.cuda.get_current_stream()):
            raise RuntimeError(f"a CUDA graph cannot capture this scan: {reason}")

    def make_for_a_graph(self) -> Workspace:
        """Make a workspace for one graph alone. Every replay first sets its memory to zero."""
        if self.captured:
            self.refuse_capture(self.captured)
        # Not from a pool: earlier work that is still queued may use the pool's memory.
        with cupy.cuda.using_allocator(None):
            return self.make()
