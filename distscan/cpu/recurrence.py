"""The sweeps of linear recurrences by compiled kernels, over the arrays as they are in memory."""

from ctypes import byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from .compiled import Compiled, address
from .kernels import Job, Kernel

_VECTOR = 64  # the most elements of a vector: VECTOR of kernels/cpu/vector.hpp, of one byte each

Arrays = tuple[NDArray[Any], ...]


class Recurrence(Compiled):
    """The sweeps of one form and type by one kernel, for one call at a time.

    The shard is a tuple of the factors, of the terms, both of shape [n] or [n, inner], and, for
    columns with segments, of the heads; the result is a tuple of ``h`` alone. Factors with strides
    of 0 are one number, or a row.
    """

    def __init__(
        self, op: Operator, types: Types, form: Form, kernel: Kernel, **options: Any
    ) -> None:
        """Allocate the slots; ``options`` are those of ``Compiled``."""
        self._total = types.acc
        fields = [(name, types.acc[name]) for name in ("x0", "x1")]
        super().__init__(op, types._replace(acc=np.dtype(fields)), form, kernel, kernel, **options)
        self._rows = self._rows and op.arity == 2

    def reduce(self, x: Any, heads: NDArray[Any] | None) -> tuple[NDArray[Any], bool]:
        """Return the totals [inner] of ``x``, and whether a segment begins in it."""
        assert self._slots is not None
        job, used = self._on(x, heads)
        reduce = self._kernel.reduce if self._rows else self._kernel.reduce_columns
        self._run(lambda: reduce(byref(job)))
        self._kernel.total(byref(job))
        del used
        totals, head = self._slots[0], bool(self._states[0])
        if self._total == self._acc:
            return totals, head
        packed = np.full(totals.shape, head, self._total)
        for name in ("x0", "x1"):
            packed[name] = totals[name]
        return packed, False

    def scan(
        self,
        x: Any,
        out: Any,
        heads: NDArray[Any] | None,
        before: NDArray[Any] | None,
        *,
        reduced: bool = False,
    ) -> None:
        """Scan ``x`` into ``out``, seeded with ``before``."""
        job, used = self._on(x, heads, reduced=reduced)
        if before is not None:
            maps = np.empty(before.shape, self._acc)
            maps["x0"], maps["x1"] = before["x0"], before["x1"]
            before, job.before_row = maps, before.size > 1
        job.before = address(before)
        if reduced:
            self._kernel.seed(byref(job))
        job.y, job.stream = address(out[0]), self._streams
        scan = self._kernel.scan if self._rows else self._kernel.scan_columns
        self._run(lambda: scan(byref(job)))
        del used

    def _on(
        self, x: Arrays, heads: NDArray[Any] | None, *, reduced: bool = False
    ) -> tuple[Job, object]:
        """Return the job on a shard, and arrays that must outlive it."""
        factors, terms, *rest = x
        if rest:  # all columns have the heads of the first one
            heads = np.ascontiguousarray(rest[0].reshape(self._shape[1:])[:, 0])
        job = self._job if reduced else self._new_job(heads)
        job.ticket, job.x = 0, address(terms)
        along, column = (*factors.strides, 0)[:2] if factors.ndim > 1 else (*factors.strides, 1)
        job.a_step = 0 if along == 0 else self._shape[2]
        job.a_column = column != 0
        if along == 0 and (self._rows or column == 0):
            factors = np.full(_VECTOR, factors.flat[0])
        job.a = address(factors)
        return job, (factors, heads)
