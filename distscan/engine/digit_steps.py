"""The local steps of exact sums by digits, on NumPy's and on CuPy's arrays; see ``DigitSum``.

They take any window and what is not finite, and no compiled kernels. Elements become digits chunk
by chunk, so that digits need little memory.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import arrays
from ..core import segments as segmented
from ..core.dtypes import Types
from ..core.form import Form, is_long
from ..core.steps import Pending
from ..cpu.chunked import Part, in_scan_order, parts
from ..cpu.steps import CpuCall
from ..fsum.request import ADDS
from ..fsum.words import DigitSum, rows_of

_CHUNK = 1 << 18  # rows at a time on the host: they stay in the caches
_GPU_CHUNK = 1 << 23  # on a GPU: enough to fill it


class ReduceScan:
    """Strategy ``reduce-scan`` on one shard: reduce it, then scan it seeded with the offset."""

    nbytes = 0
    finds_totals = True

    def __init__(self, op: DigitSum, types: Types, form: Form, *, gpu: int | None) -> None:
        self.op, self.types, self.form, self._gpu = op, types, form, gpu
        long = is_long(form.extents.inner, types.acc)
        self.waits = self.finds_totals and form.extents.goes_on and long

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""
        with arrays.context(self._gpu):
            return arrays.type_on(self._gpu)(self.form.extents.size, self.types.out)

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Find the total of ``x``, but for long rows: see ``cpu.steps``; ``out`` is not written."""
        call = CpuCall(self, x, out, segments)
        if segments is not None:
            xp = arrays.namespace(out)
            call.heads = xp.empty(self.form.extents.length, np.bool_)
            segmented.find_heads(segments, call.heads, reverse=self.form.reverse)
        if not (call.empty or self.waits):
            call.total()
        return call

    def finish(self, pending: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` into ``out``, seeded with ``offset``, unless the exchange has done that."""
        if self.form.extents.length > 0 and not pending.in_pieces:
            self.scan(pending, offset)

    def reduce(self, call: Any, piece: slice | None = None) -> NDArray[Any]:
        """Find totals [inner]; with segments, the total of the elements from the last head on."""
        xp, begin, x = arrays.namespace(call.out), 0, self._ordered(call.x, piece)
        heads = self._heads(call)
        if heads is not None and (starts := xp.flatnonzero(heads)).size:
            begin, call.head = int(starts[-1]), True
        found = np.zeros((self._rows, x.shape[2]), np.int64)
        for strip in self._strips(xp, x):
            for part in strip:
                rows = slice(max(part[1].start, begin), part[1].stop)
                elements = x[part[0], rows, part[2]]
                if elements.shape[1] > 0:
                    sums = self.op.split(xp, elements).sum(axis=(1, 2))
                    found[:, part[2]] += sums if xp is np else sums.get()
        return np.ascontiguousarray(found.T).view(self.types.acc).reshape(-1)

    def scan(self, call: Any, offset: NDArray[Any] | None, piece: slice | None = None) -> None:
        """Scan ``x`` into ``out``, which may be ``x``, seeded with ``offset``."""
        op, xp = self.op, arrays.namespace(call.out)
        x, out, heads = (
            self._ordered(call.x, piece),
            self._ordered(call.out, piece),
            self._heads(call),
        )
        first, before = self._on_device(xp, self.form.seed), self._on_device(xp, offset)
        before = xp.broadcast_to(before, (self._rows, x.shape[2]))
        for strip in self._strips(xp, x):
            carry: Any = None
            for part in strip:
                if carry is None:
                    carry = before[:, None, None, part[2]]
                rows = op.split(xp, x[part])
                sums = rows.cumsum(axis=2)
                begins = None if heads is None else heads[part[1]]
                if begins is not None and (starts := xp.flatnonzero(begins)).size:
                    # What is added to all sums of a segment in this chunk.
                    earlier = (sums - rows)[:, 0, starts, 0]
                    added = xp.concatenate([carry[:, 0, 0], first - earlier], axis=1)
                    sums += added[:, xp.cumsum(begins)][:, None, :, None]
                else:
                    sums += carry
                carry = sums[:, :, -1:].copy()
                if self.form.exclusive:
                    sums -= rows
                op.store(xp, sums, out[part])

    @property
    def _rows(self) -> int:
        return self.op.parts * self.op.rows

    def _on_device(self, xp: Any, values: NDArray[Any] | None) -> Any:
        """Return running values, 0-d or [inner], as rows [rows, 1 or inner]; zeros of None."""
        if values is None:
            return xp.zeros((self._rows, 1), np.int64)
        return xp.asarray(np.ascontiguousarray(rows_of(np.asarray(values)).T))

    def _ordered(self, array: Any, piece: slice | None) -> Any:
        """View an array, or some of its columns, as [outer, n, inner], in the order of the scan."""
        array = in_scan_order(array, self.form)
        return array if piece is None else array[..., piece]

    def _heads(self, call: CpuCall) -> Any:
        """Return the head flags in scan order."""
        reverse = self.form.reverse and call.heads is not None
        return call.heads[::-1] if reverse else call.heads

    def _strips(self, xp: Any, x: Any) -> Iterator[Iterator[Part]]:
        """Yield strips of chunks in scan order, as ``parts`` does."""
        chunk = (_CHUNK if xp is np else _GPU_CHUNK) // self._rows
        return parts(x.shape, max(1, chunk))

    def move(self, x: Any, out: Any) -> bool:
        """Return False, as ``repeat``."""
        return False

    def repeat(self) -> bool:
        """Return False: no arguments are kept."""
        return False

    def check(self) -> None:
        """Do nothing: calls raise all faults themselves."""

    def call_off(self) -> None:
        """Do nothing: other ranks do not wait inside kernels."""

    def refuse_capture(self, reason: str) -> None:
        """Do nothing: a scan of digits cannot be captured at all."""

    def close(self) -> None:
        """Do nothing: no memory is kept."""


class SinglePass(ReduceScan):
    """Strategy ``single-pass`` on the only shard: no total is needed."""

    finds_totals = False


class ScanAdd(ReduceScan):
    """Strategy ``scan-add``: refused."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ValueError(ADDS)
