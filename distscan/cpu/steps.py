"""The local steps on NumPy arrays; tests compare the other backends with them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import segments as segmented
from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from ..core.steps import Edges, Pending
from . import chunked


class _Call:
    """One call in flight: its arrays, and the total of the shard, which ``begin`` finds."""

    offset: Any = None

    def __init__(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        segments: NDArray[Any] | None = None,
        *,
        reverse: bool = False,
    ) -> None:
        self.x, self.out = x, out
        self.heads: NDArray[Any] | None = None
        self.empty, self.head = True, False
        self._segments, self._reverse = segments, reverse
        self._total: NDArray[Any] | None = None  # 0-d or [inner]

    @property
    def edges(self) -> Edges | None:
        """The edges of the shard's segments, which only an exchange asks for."""
        if self._segments is None:
            return None
        return segmented.edges(self._segments, reverse=self._reverse)

    def found(self, total: NDArray[Any]) -> None:
        """Store the total of the shard."""
        self.empty, self._total = False, total

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Return the total, or a piece of it."""
        assert self._total is not None
        return self._total if piece is None else self._total[piece]

    def put(self, piece: slice, offset: NDArray[Any]) -> None:
        """Store a piece of a long row of offsets, over the same piece of the row of totals."""
        assert self._total is not None
        self._total[piece] = offset
        self.offset = self._total


class _Steps:
    """The base of the strategies: views of arrays as [outer, n, inner], in scan order."""

    def __init__(self, op: Operator, types: Types, form: Form) -> None:
        """Allocate the memory that shards of this form need beside input and output."""
        self.op, self.types, self.form = op, types, form
        self.n, self.size = form.extents.n, form.extents.size
        self._heads: NDArray[np.bool_] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return 0 if self._heads is None else self._heads.nbytes

    def close(self) -> None:
        """Free the memory."""
        self._heads = None

    def refuse_capture(self, reason: str) -> None:
        """Do nothing: only GPUs have CUDA graphs."""

    def empty(self) -> NDArray[Any]:
        """Allocate a result [outer * n * inner]."""
        return np.empty(self.size, self.types.out)

    def _in_scan_order(self, array: NDArray[Any]) -> NDArray[Any]:
        """View an array as [outer, n, inner], with the first element in scan order first."""
        extents = self.form.extents
        array = array.reshape(extents.outer, extents.n, extents.inner)
        return array[:, ::-1] if self.form.reverse else array

    def _total(self, totals: NDArray[Any]) -> NDArray[Any]:
        """View totals [inner] as the exchange takes them."""
        return totals if self.form.extents.inner > 1 else totals.reshape(())


class ScanAdd(_Steps):
    """Strategy ``scan-add`` on one shard: scan it, then combine the rank's offset into it."""

    def __init__(self, op: Operator, types: Types, form: Form) -> None:
        super().__init__(op, types, form)
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None
        if types.acc != types.out:
            self._wide = np.empty(self.size, types.acc)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return 0 if self._wide is None else self._wide.nbytes

    def begin(
        self, x: NDArray[Any], out: NDArray[Any], segments: None = None, *, overlap: bool = False
    ) -> Pending:
        """Scan ``x`` into ``out`` without an offset; the last result is the shard's total."""
        call = _Call(x, out)
        if self.n > 0:
            local = self._in_scan_order(out if self._wide is None else self._wide)
            x, exclusive, acc = self._in_scan_order(x), self.form.exclusive, self.types.acc
            totals = chunked.scan(self.op, x, local, None, acc, exclusive=exclusive)
            call.found(self._total(totals))
        return call

    def finish(self, pending: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` into each element."""
        if self.n == 0 or (offset is None and self._wide is None):
            return
        target = self._in_scan_order(pending.out)
        local = target if self._wide is None else self._in_scan_order(self._wide)
        if self.form.exclusive and offset is not None:
            chunked.store(offset, target[:, :1])
            local, target = local[:, 1:], target[:, 1:]
        chunked.add(self.op, local, offset, None if self._wide is None else target)


class ReduceScan(_Steps):
    """Strategy ``reduce-scan`` on one shard: reduce it, then scan it seeded with the offset."""

    def begin(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        segments: NDArray[Any] | None = None,
        *,
        overlap: bool = False,
    ) -> Pending:
        """Reduce ``x`` to its total; ``out`` is not written."""
        call = _Call(x, out, segments, reverse=self.form.reverse)
        if segments is not None:
            call.heads = self._find_heads(segments)
        if self.n > 0:
            self._reduce(call)
        return call

    def _find_heads(self, segments: NDArray[Any]) -> NDArray[Any]:
        """Return the head flags, bool [n], in scan order."""
        reverse = self.form.reverse
        if self._heads is None and not segmented.needs_no_buffer(segments, reverse=reverse):
            self._heads = np.empty(self.n, np.bool_)
        heads = segmented.heads(segments, self._heads, reverse=reverse)
        return self._in_scan_order(heads)[0, :, 0]

    def _reduce(self, call: _Call) -> None:
        """Find the total; with segments, the total of the elements from the last head on."""
        x = self._in_scan_order(call.x)
        if call.heads is not None and (starts := np.flatnonzero(call.heads)).size:
            x, call.head = x[:, starts[-1] :], True
        call.found(self._total(chunked.reduce(self.op, x, self.types.acc)))

    def finish(self, pending: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` into ``out``, which may be ``x``, seeded with ``offset``."""
        if self.n == 0:
            return
        x, out = self._in_scan_order(pending.x), self._in_scan_order(pending.out)
        form, acc = self.form, self.types.acc
        if pending.heads is None:
            chunked.scan(self.op, x, out, offset, acc, exclusive=form.exclusive)
            return
        chunked.scan_segments(
            self.op,
            x[0, :, 0],
            out[0, :, 0],
            pending.heads,
            offset,
            first=form.first,
            acc=acc,
            exclusive=form.exclusive,
        )


class SinglePass(ReduceScan):
    """Strategy ``single-pass`` on the only shard: there is no exchange, and no total is needed."""

    def _reduce(self, call: _Call) -> None:
        """Do nothing: no total is needed."""
