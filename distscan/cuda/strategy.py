"""What a strategy makes once, for all its calls: kernels and memory."""

from typing import Any

import cupy

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from . import columns, epochs, launches
from .configs import register_types, scan_config
from .definitions import type_name
from .policy import TextbookPolicy
from .workspace import Workspace, is_capturing, releases


class Strategy:
    """The kernels and the memory of one strategy on one GPU.

    The GPU that is current when it is made must be current when it is used. Work is ordered on the
    current stream, and behind all earlier use on other streams.

    Attributes
    ----------
    types, form, n, size
        What is scanned: ``size`` elements, ``n`` of them along the axis.
    work
        None for shards without elements.
    captured
        Why no CUDA graph captures it; empty: one does.
    """

    captured = "the host waits for the shard's total"

    def __init__(
        self,
        op: Operator,
        types: Types,
        form: Form,
        textbook: TextbookPolicy | None = None,
        *,
        ranks: int = 1,
    ) -> None:
        """Compile, and allocate what shards of such a form need beside input and output.

        ``textbook`` is the kernel that scans, None for the fastest; ``ranks`` is how many scan
        together.
        """
        next(epochs.calls)  # which a process that was forked is refused
        for dtype in (types.x, types.acc, types.out):
            type_name(dtype)
        self.op, self.types, self.form = op, types, form
        self.n, self.size = form.extents.n, form.extents.size
        self._textbook = textbook
        if is_capturing(cupy.cuda.get_current_stream()):
            raise RuntimeError(
                "nothing can be made for a new kind of scan while a CUDA graph is captured: "
                "make the plan, or call scan() once with such arrays, before the capture"
            )
        releases.sweep()
        self.work: Any = self.make() if self.size > 0 else None

    def make(self) -> Workspace:
        """Make the kernels, and allocate what they share."""
        raise NotImplementedError

    def make_scan(self, types: Types) -> "launches.Scan | columns.Scan | columns.ThreadPerColumn":
        """Make the kernel that scans: down columns, or along rows."""
        op, n, form, textbook = self.op, self.n, self.form, self._textbook
        if form.extents.inner == 1:
            types = register_types(op, types)
            return launches.Scan(op, types, n, form, scan_config(types, n, form, textbook))
        if textbook is not None:
            raise NotImplementedError("block_scan= is for scans along the last axis")
        return columns.make_scan(op, types, n, form)

    @property
    def nbytes(self) -> int:
        """How much memory is kept between calls."""
        return 0 if self.work is None else int(self.work.nbytes)

    def close(self) -> None:
        """Give the memory back, behind what is queued."""
        self.work = None

    def refuse_capture(self, reason: str) -> None:
        """Raise where work goes into a CUDA graph, for which there is a reason not to."""
        if is_capturing(cupy.cuda.get_current_stream()):
            raise RuntimeError(f"a CUDA graph cannot capture this scan: {reason}")

    def make_for_a_graph(self) -> Workspace:
        """Make a workspace that one graph has alone, and zeroes itself at every replay."""
        if self.captured:
            self.refuse_capture(self.captured)
        # No pool, whose memory work that was queued earlier may still use.
        with cupy.cuda.using_allocator(None):
            work = self.make()
            if self.form.segmented:
                work.flags(self.n)
        return work
