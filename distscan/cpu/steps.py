"""The local steps on NumPy arrays; tests compare the other backends with them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import segments as segmented
from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from ..core.steps import Edges, Pending
from . import chunked, sweeps


class Call:
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

    @property
    def reduced(self) -> bool:
        """Whether the total is known."""
        return self._total is not None

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
    """The base of the strategies."""

    #: Whether ``begin`` finds the total.
    finds_totals = True
    #: Whether kernels see elements that are outside of the window of an exact sum.
    sees_outside = True

    def __init__(self, op: Operator, types: Types, form: Form, *, threads: int) -> None:
        """Allocate the memory that shards of this form need beside input and output.

        ``threads`` is the most threads that scan.
        """
        self.op, self.types, self.form = op, types, form
        self.n, self.size = form.extents.n, form.extents.size
        swept, totals = self._swept(types), self.finds_totals
        self.sweeps = sweeps.make(op, swept, form, totals=totals, threads=threads)
        self._heads: NDArray[np.bool_] | None = None

    def _swept(self, types: Types) -> Types:
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

    def in_doubt(self, pending: Any) -> bool:
        """Return whether a kernel that checks elements has seen one outside of the window."""
        return self.sweeps.outside

    def refuse_capture(self, reason: str) -> None:
        """Do nothing: only GPUs have CUDA graphs."""

    def empty(self) -> NDArray[Any]:
        """Allocate a result [outer * n * inner]."""
        return np.empty(self.size, self.types.out)

    def _total(self, totals: NDArray[Any]) -> NDArray[Any]:
        """View totals [inner] as the exchange takes them."""
        return totals if self.form.extents.inner > 1 else totals.reshape(())


class ScanAdd(_Steps):
    """Strategy ``scan-add`` on one shard: scan it, then combine the rank's offset into it."""

    def __init__(self, op: Operator, types: Types, form: Form, *, threads: int) -> None:
        super().__init__(op, types, form, threads=threads)
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None
        if types.acc != types.out:
            self._wide = np.empty(self.size, types.acc)

    def _swept(self, types: Types) -> Types:
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

    def begin(
        self, x: NDArray[Any], out: NDArray[Any], segments: None = None, *, overlap: bool = False
    ) -> Pending:
        """Scan ``x`` into ``out`` without an offset; the last result is the shard's total."""
        call = Call(x, out)
        if self.n > 0:
            totals = self.sweeps.scan(x, out if self._wide is None else self._wide, None, None)
            assert totals is not None
            call.found(self._total(totals))
        return call

    def finish(self, pending: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` into each element."""
        if self.n == 0 or (offset is None and self._wide is None):
            return
        target = chunked.in_scan_order(pending.out, self.form)
        local = target if self._wide is None else chunked.in_scan_order(self._wide, self.form)
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
        call = Call(x, out, segments, reverse=self.form.reverse)
        if segments is not None:
            call.heads = self._heads_of(segments)
        if self.n > 0:
            self._reduce(call)
        return call

    def _heads_of(self, segments: NDArray[Any]) -> NDArray[Any]:
        """Return the head flags, bool [n], in the order of memory; or keys that sweeps take."""
        form = self.form if self.sweeps.takes_keys else self.form._replace(keys=None)
        if segmented.are_read_in_place(segments, form):
            return segments
        if self._heads is None:
            self._heads = np.empty(self.n, np.bool_)
        segmented.find_heads(segments, self._heads, reverse=form.reverse)
        return self._heads

    def _reduce(self, call: Call) -> None:
        """Find the total; with segments, the total of the elements from the last head on."""
        totals, call.head = self.sweeps.reduce(call.x, call.heads)
        call.found(self._total(totals))

    def finish(self, pending: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` into ``out``, which may be ``x``, seeded with ``offset``."""
        if self.n > 0:
            reduced = pending.reduced
            self.sweeps.scan(pending.x, pending.out, pending.heads, offset, reduced=reduced)


class SinglePass(ReduceScan):
    """Strategy ``single-pass`` on the only shard: there is no exchange, and no total is needed."""

    finds_totals = False

    def _reduce(self, call: Call) -> None:
        """Do nothing: no total is needed."""
