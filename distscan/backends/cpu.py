"""The local steps on NumPy arrays; the reference for every test."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Types
from ..forms import PLAIN, Form, Total
from ..operators import Operator
from . import chunked, segmented


def empty(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array [n]."""
    return np.empty(n, dtype)


def staging(size: int) -> NDArray[np.uint8]:
    """Allocate ``size`` bytes of the host memory that ``upload`` and ``download`` like best."""
    return np.empty(size, np.uint8)


def upload(piece: NDArray[Any], array: NDArray[Any]) -> None:
    """Copy a piece in host memory into ``array``."""
    array[...] = piece


def download(array: NDArray[Any], buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """Return ``array`` in host memory, in ``buffer`` if it is not there already."""
    return array


def synchronize() -> None:
    """Wait for all work on this backend."""


class _Steps:
    """What the strategies share: arrays are seen as ``form`` says, and in scan order."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form = PLAIN) -> None:
        """Allocate what shards of ``n`` elements along the scan need beside input and output."""
        self.op, self.types, self.n, self.form = op, types, n, form

    def empty(self) -> NDArray[Any]:
        """Allocate a result [outer * n * inner]."""
        return np.empty(self.form.outer * self.n * self.form.inner, self.types.out)

    def _seen(self, array: NDArray[Any]) -> NDArray[Any]:
        """View an array as [outer, n, inner], the element that is scanned first in front."""
        seen = array.reshape(self.form.outer, self.n, self.form.inner)
        return seen[:, ::-1] if self.form.reverse else seen

    def _total(self, totals: NDArray[Any], *, head: bool = False) -> Total:
        return Total(totals if self.form.inner > 1 else totals.reshape(()), head)


class ScanAdd(_Steps):
    """Strategy ``scan-add`` on one shard: scan it, then combine the rank's offset into it."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form = PLAIN) -> None:
        super().__init__(op, types, n, form)
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None
        if types.acc != types.out:
            self._wide = np.empty(self.n * self.form.inner, types.acc)

    def total(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        heads: NDArray[Any] | None = None,
        *,
        soon: bool = False,
    ) -> Total | None:
        """Return the total of ``x``, or None if ``n`` is 0.

        ``out`` may be ``x`` itself; it is whole only after ``seed``. ``soon`` promises that
        ``seed`` follows as soon as the totals are exchanged; the total may be still on its way.
        """
        if self.n == 0:
            return None
        local = self._seen(out if self._wide is None else self._wide)
        exclusive = self.form.exclusive
        return self._total(
            chunked.scan(self.op, self._seen(x), local, None, self.types.acc, exclusive=exclusive)
        )

    def seed(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        offset: NDArray[Any] | None,
        heads: NDArray[Any] | None = None,
    ) -> None:
        """Complete ``out`` with ``offset``, the total of all that comes before this shard."""
        carry = self.form.first if offset is None else offset
        if carry is None and self._wide is None:
            return
        target = self._seen(out)
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

    def total(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        heads: NDArray[Any] | None = None,
        *,
        soon: bool = False,
    ) -> Total | None:
        """Return the total of ``x``, or None if ``n`` is 0; ``out`` is left alone."""
        if self.n == 0:
            return None
        seen, head = self._seen(x), False
        if heads is not None and (starts := np.flatnonzero(self._seen(heads))).size:
            seen, head = seen[:, starts[-1] :], True
        return self._total(chunked.reduce(self.op, seen, self.types.acc), head=head)

    def seed(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        offset: NDArray[Any] | None,
        heads: NDArray[Any] | None = None,
    ) -> None:
        """Scan ``x`` into ``out``, which may be ``x``, behind ``offset``."""
        seen, target, carry = (
            self._seen(x),
            self._seen(out),
            self.form.first if offset is None else offset,
        )
        form, acc = self.form, self.types.acc
        if heads is None:
            chunked.scan(self.op, seen, target, carry, acc, exclusive=form.exclusive)
            return
        segmented.scan(
            self.op,
            seen[0, :, 0],
            target[0, :, 0],
            self._seen(heads)[0, :, 0],
            carry,
            first=form.first,
            acc=acc,
            exclusive=form.exclusive,
        )


class SinglePass(ReduceScan):
    """Strategy ``single-pass`` on the only shard: it has no total to give and nothing before it."""

    def total(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        heads: NDArray[Any] | None = None,
        *,
        soon: bool = False,
    ) -> None:
        """Do nothing: ``seed`` is the whole scan."""
