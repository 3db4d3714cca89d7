"""The local steps on NumPy arrays; tests compare the other backends with them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import segments as segmented
from ..core.arrays import HostFields
from ..core.dtypes import Types
from ..core.form import Form, Pieces, chunks, is_long
from ..core.operators import Operator
from ..core.steps import Edges, Pending
from . import chunked, sweeps

_WIDE = 4 << 20  # bytes of running values of long rows that are rounded later


class CpuCall:
    """One call in flight: its arrays, and the total of the shard.

    Of a long row of totals, there is one piece at a time: ``total`` finds it, and ``put`` scans its
    columns.
    """

    offset: Any = None

    def __init__(self, steps: Any, x: Any, out: Any, segments: Any = None) -> None:
        """Begin a call; ``steps`` have the methods ``reduce`` and ``scan``."""
        self.x, self.out = x, out
        self.heads: Any = None
        self.head = False
        self.empty = not (steps.finds_totals and steps.form.extents.length > 0)
        #: Whether the exchange has asked for pieces, and scanned their columns.
        self.in_pieces = False
        #: The columns whose totals were found last; None: all.
        self.reduced: slice | tuple[()] | None = ()
        self._steps, self._segments = steps, segments
        self._total: NDArray[Any] | None = None  # 0-d or [inner]

    @property
    def edges(self) -> Edges | None:
        """The edges of the shard's segments, which only an exchange asks for."""
        if self._segments is None:
            return None
        return segmented.edges(self._segments, reverse=self._steps.form.reverse)

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Return the total, or find a piece of it, which is valid until the next one is found."""
        if piece is not None:
            self.in_pieces, self.reduced = True, piece
            total: NDArray[Any] = self._steps.reduce(self, piece)
            return total
        if self._total is None:
            totals, self.reduced = self._steps.reduce(self), None
            self._total = totals if self._steps.form.extents.inner > 1 else totals.reshape(())
        return self._total

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Scan the columns of a piece, seeded with its offset."""
        if offset is None:
            offset = self._steps.form.seed_of(piece)
        self._steps.scan(self, offset, piece)


class _Steps:
    """The base of the strategies.

    ``begin`` finds the total, but for long rows: the exchange asks for these piece by piece.
    """

    #: Whether there are totals.
    finds_totals = True
    #: Whether kernels see elements that are outside of the window of an exact sum.
    checks_window = True

    def __init__(self, op: Operator, types: Types, form: Form, *, threads: int) -> None:
        """Allocate the memory that shards of this form need beside input and output.

        ``threads`` is the most threads that scan.
        """
        self.op, self.types, self.form = op, types, form
        self.n, self.size = form.extents.length, form.extents.size
        swept, totals = self._sweep_types(types), self.finds_totals
        self.sweeps = sweeps.make(op, swept, form, totals=totals, threads=threads)
        long = is_long(form.extents.inner, types.acc)
        self.waits = self.finds_totals and form.extents.goes_on and long
        self._heads: NDArray[np.bool_] | None = None

    def _sweep_types(self, types: Types) -> Types:
        """Return the types of the sweeps."""
        return types

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return self.sweeps.nbytes + (0 if self._heads is None else self._heads.nbytes)

    def close(self) -> None:
        """Free the memory."""
        self._heads = None
        self.sweeps.close()

    def window_violated(self, pending: Any) -> bool:
        """Return whether a kernel that checks elements has seen one outside of the window."""
        return self.sweeps.window_violated

    def move(self, x: Any, out: Any) -> bool:
        """Return False: kernels keep the addresses of the last arrays."""
        return False

    def repeat(self) -> bool:
        """Return False: only ``SinglePass`` can repeat a call."""
        return False

    def check(self) -> None:
        """Do nothing: calls raise all faults themselves."""

    def call_off(self) -> None:
        """Do nothing: other ranks do not wait inside kernels."""

    def refuse_capture(self, reason: str) -> None:
        """Do nothing: only GPUs have CUDA graphs."""

    def empty(self) -> NDArray[Any]:
        """Allocate a result [outer * n * inner]."""
        return np.empty(self.size, self.types.out)

    def begin(
        self, x: Any, out: Any, segments: NDArray[Any] | None = None, *, overlap: bool = False
    ) -> Pending:
        """Begin the scan of ``x`` into ``out``, which may be ``x``."""
        call = CpuCall(self, x, out, segments)
        if segments is not None:
            call.heads = self._heads_of(segments)
        if not (call.empty or self.waits):
            call.total()
        return call

    def finish(self, pending: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` into ``out``, seeded with ``offset``, unless the exchange has done that."""
        if self.n == 0 or pending.in_pieces:
            return
        if not isinstance(offset, HostFields):
            self.scan(pending, offset)
            return
        for piece in Pieces(self.form.extents.inner, self.types.acc):
            self.scan(pending, np.asarray(offset[piece]), piece)

    def reduce(self, call: Any, piece: slice | None = None) -> NDArray[Any]:
        """Return the totals [inner] of the shard, or of some columns."""
        raise NotImplementedError

    def scan(self, call: Any, offset: NDArray[Any] | None, piece: slice | None = None) -> None:
        """Scan the shard, or some columns, seeded with ``offset``."""
        raise NotImplementedError

    def _cut(self, array: Any, piece: slice | None) -> Any:
        return array if piece is None else self.sweeps.cut(array, piece)

    def _heads_of(self, segments: NDArray[Any]) -> NDArray[Any]:
        """Return the head flags, bool [n], in the order of memory; or keys that sweeps take."""
        form = self.form if self.sweeps.takes_keys else self.form._replace(keys=None)
        if segmented.are_read_in_place(segments, form):
            return segments
        if self._heads is None:
            self._heads = np.empty(self.n, np.bool_)
        segmented.find_heads(segments, self._heads, reverse=form.reverse)
        return self._heads


class ReduceScan(_Steps):
    """Strategy ``reduce-scan`` on one shard: reduce it, then scan it seeded with the offset."""

    def reduce(self, call: Any, piece: slice | None = None) -> NDArray[Any]:
        """Find totals; with segments, the total of the elements from the last head on."""
        x = call.x if piece is None else self.sweeps.cut(call.x, piece)
        totals, call.head = self.sweeps.reduce(x, call.heads)
        return totals

    def scan(self, call: Any, offset: NDArray[Any] | None, piece: slice | None = None) -> None:
        """Scan ``x`` into ``out``, seeded with ``offset``."""
        x, out = call.x, call.out
        if piece is not None:
            x, out = self.sweeps.cut(x, piece), self.sweeps.cut(out, piece)
        self.sweeps.scan(x, out, call.heads, offset, reduced=call.reduced == piece)


class SinglePass(ReduceScan):
    """Strategy ``single-pass`` on the only shard: there is no exchange, and no total is needed."""

    finds_totals = False

    def finish(self, pending: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` into ``out``, seeded with ``offset``."""
        if self.n > 0 and not isinstance(offset, HostFields):
            self.sweeps.scan(pending.x, pending.out, pending.heads, offset)
        else:
            super().finish(pending, offset)

    def repeat(self) -> bool:
        """Scan the last arrays again; return whether the kernel's arguments were still set."""
        return self.sweeps.repeat()


class ScanAdd(_Steps):
    """Strategy ``scan-add`` on one shard: scan it, then combine the rank's offset into it.

    A result narrower than the running value is rounded once, after the offset is known. Until then
    it is in a buffer of running values. The buffer is as large as the shard; for long rows it has
    some columns, which are scanned again.
    """

    def __init__(self, op: Operator, types: Types, form: Form, *, threads: int) -> None:
        super().__init__(op, types, form, threads=threads)
        self._wide = None
        if types.acc != types.out and self.n > 0:
            width = form.extents.inner
            if self.waits:
                width = max(1, min(width, _WIDE // (self.n * types.acc.itemsize)))
            self._wide = np.empty((form.extents.outer, self.n, width), types.acc)

    def _sweep_types(self, types: Types) -> Types:
        """Return the types of the sweeps."""
        return types._replace(out=types.acc)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return super().nbytes + (0 if self._wide is None else self._wide.nbytes)

    def close(self) -> None:
        """Free the memory."""
        super().close()
        self._wide = None

    def reduce(self, call: Any, piece: slice | None = None) -> NDArray[Any]:
        """Scan without an offset; the last results are the totals."""
        totals = [self._scan_locally(call, band) for band in self._bands(piece)]
        return totals[0] if len(totals) == 1 else np.concatenate(totals)

    def scan(self, call: Any, offset: NDArray[Any] | None, piece: slice | None = None) -> None:
        """Combine ``offset`` into each element."""
        bands, begin = self._bands(piece), piece.start if piece else 0
        for band in bands:
            if len(bands) > 1 or (self._wide is not None and call.reduced != piece):
                self._scan_locally(call, band)
            seed = offset
            if offset is not None and offset.ndim > 0 and band is not None:
                seed = offset[band.start - begin : band.stop - begin]
            self._add(self._local(call, band), self._cut(call.out, band), seed)

    def finish(self, pending: Any, offset: NDArray[Any] | None) -> None:
        """Scan; if there was no exchange, the totals of a long row are found first."""
        if not self.waits or pending.reduced != ():
            super().finish(pending, offset)
            return
        for piece in Pieces(self.form.extents.inner, self.types.acc):
            pending.total(piece)
            row = offset is not None and offset.ndim > 0
            seed = np.asarray(offset[piece]) if row else offset  # type: ignore[index]
            self.scan(pending, seed, piece)

    def _bands(self, piece: slice | None) -> list[slice | None]:
        """Return the columns that the buffer has room for at a time; None: all."""
        if self._wide is None or not self.waits:
            return [piece]
        begin, end, _ = (piece or slice(None)).indices(self.form.extents.inner)
        return [slice(*band) for band in chunks(begin, end, self._wide.shape[2])]

    def _local(self, call: Any, band: slice | None) -> Any:
        """Return where the scan without an offset goes."""
        if self._wide is None:
            return self._cut(call.out, band)
        return self._wide if band is None else self._wide[..., : band.stop - band.start]

    def _scan_locally(self, call: Any, band: slice | None) -> NDArray[Any]:
        """Scan columns without an offset; return their totals."""
        totals = self.sweeps.scan(self._cut(call.x, band), self._local(call, band), None, None)
        assert totals is not None
        return totals if band is None or self._wide is None else totals.copy()

    def _add(self, local: Any, target: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` into the results of a scan without one, and store them."""
        if offset is None and self._wide is None:
            return
        local, target = (chunked.in_scan_order(each, self.form) for each in (local, target))
        if self.form.exclusive and offset is not None:
            chunked.store(offset, target[:, :1])
            local, target = local[:, 1:], target[:, 1:]
        chunked.add(self.op, local, offset, None if self._wide is None else target)
