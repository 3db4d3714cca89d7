"""The local steps on NumPy arrays; the reference for every test."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import segments
from ..core.dtypes import Types
from ..core.forms import PLAIN, Form, Pending
from ..core.operators import Operator
from . import chunked, segmented


class _Steps:
    """What the strategies share: arrays are seen as ``form`` says, and in scan order."""

    def __init__(
        self, op: Operator, types: Types, n: int, form: Form = PLAIN, *, ranks: int = 1
    ) -> None:
        """Allocate what shards of ``n`` elements along the scan need beside input and output.

        ``ranks`` is how many scan together.
        """
        self.op, self.types, self.n, self.form, self._ranks = op, types, n, form, ranks
        self._heads: NDArray[np.bool_] | None = None

    @property
    def nbytes(self) -> int:
        """How much memory is kept between calls."""
        return 0 if self._heads is None else self._heads.nbytes

    def close(self) -> None:
        """Give the memory back."""
        self._heads = None

    def refuse_capture(self, reason: str) -> None:
        """Do nothing: CUDA graphs are a GPU's."""

    def empty(self) -> NDArray[Any]:
        """Allocate a result [outer * n * inner]."""
        return np.empty(self.form.outer * self.n * self.form.inner, self.types.out)

    def _seen(self, array: NDArray[Any]) -> NDArray[Any]:
        """View an array as [outer, n, inner], the element that is scanned first in front."""
        seen = array.reshape(self.form.outer, self.n, self.form.inner)
        return seen[:, ::-1] if self.form.reverse else seen

    def _found(self, marks: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return where segments begin, in scan order."""
        if marks is None:
            return None
        if self._heads is None and not segments.needs_no_buffer(marks, reverse=self.form.reverse):
            self._heads = np.empty(self.n, np.bool_)
        found = segments.heads(marks, self._heads, reverse=self.form.reverse)
        return self._seen(found)[0, :, 0]

    def _whole(self, totals: NDArray[Any]) -> NDArray[Any]:
        return totals if self.form.inner > 1 else totals.reshape(())


class _Call(Pending):
    """What ``finish`` needs of ``begin``."""

    x: NDArray[Any]
    out: NDArray[Any]
    heads: NDArray[Any] | None = None


class ScanAdd(_Steps):
    """Strategy ``scan-add`` on one shard: scan it, then combine the rank's offset into it."""

    def __init__(
        self, op: Operator, types: Types, n: int, form: Form = PLAIN, *, ranks: int = 1
    ) -> None:
        super().__init__(op, types, n, form, ranks=ranks)
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None
        if types.acc != types.out:
            self._wide = np.empty(self.n * self.form.inner, types.acc)

    @property
    def nbytes(self) -> int:
        """How much memory is kept between calls."""
        return 0 if self._wide is None else self._wide.nbytes

    def begin(
        self, x: NDArray[Any], out: NDArray[Any], marks: None = None, *, overlap: bool = False
    ) -> Pending:
        """Begin the scan of ``x`` into ``out``: find the total of ``x``.

        ``out`` may be ``x`` itself; it is whole only after ``finish``. ``marks`` [n] are the flags
        or keys of segments. ``overlap`` promises that ``finish`` follows as soon as the totals are
        exchanged.
        """
        total = None
        if self.n > 0:
            local = self._seen(out if self._wide is None else self._wide)
            exclusive, acc = self.form.exclusive, self.types.acc
            total = self._whole(
                chunked.scan(self.op, self._seen(x), local, None, acc, exclusive=exclusive)
            )
        call = _Call(total)
        call.out = out
        return call

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """End what ``begin`` began, with ``offset``, the total of all that comes before."""
        if self.n == 0:
            return
        carry = self.form.first if offset is None else offset
        if carry is None and self._wide is None:
            return
        target = self._seen(call.out)
        local = target if self._wide is None else self._seen(self._wide)
        if self.form.exclusive and carry is not None:
            chunked.store(carry, target[:, :1])
            local, target = local[:, 1:], target[:, 1:]
        for strip in chunked.parts(local.shape):
            for part in strip:
                piece = local[part]
                if carry is not None:
                    self.op.combine(chunked.before(carry, part), piece, out=piece)
                if self._wide is not None:
                    chunked.store(piece, target[part])


class ReduceScan(_Steps):
    """Strategy ``reduce-scan`` on one shard: reduce it, then scan it behind the rank's offset."""

    def begin(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        marks: NDArray[Any] | None = None,
        *,
        overlap: bool = False,
    ) -> Pending:
        """Begin as ``ScanAdd`` does; ``out`` is left alone."""
        heads = self._found(marks)
        edges = None
        if marks is not None and self._ranks > 1:
            edges = segments.edges(marks, reverse=self.form.reverse)
        total, head = self._reduced(x, heads) if self.n > 0 else (None, False)
        call = _Call(total, head=head, edges=edges)
        call.x, call.out, call.heads = x, out, heads
        return call

    def _reduced(
        self, x: NDArray[Any], heads: NDArray[Any] | None
    ) -> tuple[NDArray[Any] | None, bool]:
        """Return the total from the last head on, and whether there is one."""
        seen, head = self._seen(x), False
        if heads is not None and (starts := np.flatnonzero(heads)).size:
            seen, head = seen[:, starts[-1] :], True
        return self._whole(chunked.reduce(self.op, seen, self.types.acc)), head

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` into ``out``, which may be ``x``, behind ``offset``."""
        if self.n == 0:
            return
        seen, target = self._seen(call.x), self._seen(call.out)
        carry = self.form.first if offset is None else offset
        form, acc = self.form, self.types.acc
        if call.heads is None:
            chunked.scan(self.op, seen, target, carry, acc, exclusive=form.exclusive)
            return
        segmented.scan(
            self.op,
            seen[0, :, 0],
            target[0, :, 0],
            call.heads,
            carry,
            first=form.first,
            acc=acc,
            exclusive=form.exclusive,
        )


class SinglePass(ReduceScan):
    """Strategy ``single-pass`` on the only shard: it has no total to give and nothing before it."""

    def _reduced(
        self, x: NDArray[Any], heads: NDArray[Any] | None
    ) -> tuple[NDArray[Any] | None, bool]:
        return None, False
