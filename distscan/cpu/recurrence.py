"""The sweeps of linear recurrences by compiled kernels, over the arrays as they are in memory."""

from ctypes import byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types, cast
from ..core.form import Form
from ..core.operators import Operator
from .compiled import Compiled, address
from .kernels import Kernel

_VECTOR = 64  # the most elements of a vector: VECTOR of kernels/cpu/vector.hpp, of one byte each

Arrays = tuple[NDArray[Any], ...]


class Recurrence(Compiled):
    """The sweeps of one form and type by one kernel, for one call at a time.

    The shard is what ``as_read`` returns, the result a tuple of ``h`` alone.
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
        heads = x[2] if len(x) > 2 else heads
        job = self._new_job(heads)
        factors = self._read(x)  # the job has its address
        reduce = self._kernel.reduce if self._rows else self._kernel.reduce_columns
        self._run(lambda: reduce(byref(job)))
        self._kernel.total(byref(job))
        del factors
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
        heads = x[2] if len(x) > 2 else heads
        job = self._job if reduced else self._new_job(heads)
        job.ticket = 0
        factors = self._read(x)  # the job has its address
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
        del factors

    def _read(self, x: Arrays) -> NDArray[Any]:
        """Set what the job reads; return the factors that it reads."""
        factors, terms = x[:2]
        self._job.x, self._job.a_step, self._job.a_column = address(terms), self._shape[2], 1
        if factors.strides[0] == 0:
            self._job.a_step = 0
            if self._rows or factors.strides[1] == 0:  # one number
                factors, self._job.a_column = np.full(_VECTOR, factors.flat[0]), 0
        self._job.a = address(factors)
        return factors


def as_read(x: Arrays, dtype: np.dtype[Any]) -> Arrays:
    """Return factors, terms and, for columns with segments, heads, as the kernels read them.

    ``x`` are arrays [n] or [n, inner], of which the heads are the same for all columns. ``dtype``
    has the fields' types. Factors that are one number, or a row, are read as they are, with a
    stride of 0 along n; other factors and terms are contiguous. Heads become [n].
    """
    factors, terms = (
        array if array.dtype == dtype[i] else cast(array, dtype[i]) for i, array in enumerate(x[:2])
    )
    alike = factors.strides[0] == 0 and factors.strides[-1] in {0, factors.itemsize}
    if not alike:
        factors = np.require(factors, requirements=["C", "A"])
    terms = np.require(terms, requirements=["C", "A"])
    return factors, terms, *(heads[:, :1].ravel() for heads in x[2:])
