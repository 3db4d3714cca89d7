"""The sweeps of linear recurrences by compiled kernels, over the arrays as they are in memory."""

from ctypes import byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types, cast
from ..core.form import Form
from ..core.operators import Operator
from .compiled import _STRIP, Compiled, address
from .kernels import Job, Kernel

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

    def cut(self, x: Any, columns: slice) -> Any:
        """View some columns of the arrays; heads are those of all columns."""
        shape = self._lines[1], self._inner
        return *(each.reshape(shape)[:, columns] for each in x[:2]), *x[2:]

    def reduce(self, x: Any, heads: NDArray[Any] | None) -> tuple[NDArray[Any], bool]:
        """Return the totals [inner] of ``x``, and whether a segment begins in it."""
        totals, head = super().reduce(x, heads)
        if self._total == self._acc:
            return totals, head
        packed = np.full(totals.shape, head, self._total)
        for name in ("x0", "x1"):
            packed[name] = totals[name]
        return packed, False

    def _width_of(self, x: Arrays) -> int:
        terms = x[1]
        return int(terms.shape[1]) if terms.ndim > 1 else self._inner

    def _reduce(self, x: Any, heads: NDArray[Any] | None, width: int) -> NDArray[Any]:
        assert self._slots is not None
        job = self._new_job(x[2] if len(x) > 2 else heads, width)
        self._cut_strips(job, _STRIP)
        factors = self._read(job, x)  # the job has its address
        reduce = self._kernel.reduce if self._rows else self._kernel.reduce_columns
        self._run(lambda: reduce(byref(job)), width)
        self._kernel.total(byref(job))
        del factors
        return self._slots[:width]

    def _scan(
        self,
        x: Any,
        out: Any,
        heads: NDArray[Any] | None,
        before: NDArray[Any] | None,
        width: int,
        *,
        reduced: bool,
    ) -> None:
        job = self._job if reduced else self._new_job(x[2] if len(x) > 2 else heads, width)
        job.ticket = 0
        self._cut_strips(job, _STRIP)
        factors = self._read(job, x)  # the job has its address
        if before is not None:
            maps = np.empty(before.shape, self._acc)
            maps["x0"], maps["x1"] = before["x0"], before["x1"]
            before, job.before_row = maps, before.size > 1
        job.before = address(before)
        if reduced:
            self._kernel.seed(byref(job))
        h = out[0]
        job.y, job.y_step, job.stream = address(h), _row_step(h, width), self._streams
        scan = self._kernel.scan if self._rows else self._kernel.scan_columns
        self._run(lambda: scan(byref(job)), width)
        del factors

    def _read(self, job: Job, x: Arrays) -> NDArray[Any]:
        """Set what the job reads; return the factors that it reads."""
        factors, terms = x[:2]
        job.x, job.x_step = address(terms), _row_step(terms, job.inner)
        job.a_step, job.a_column = _row_step(factors, job.inner), 1
        if factors.strides[0] == 0:
            job.a_step = 0
            if self._rows or factors.strides[1] == 0:  # one number
                factors, job.a_column = np.full(_VECTOR, factors.flat[0]), 0
        job.a = address(factors)
        return factors


def _row_step(array: NDArray[Any], width: int) -> int:
    """Return the elements from a row [width] of an array to the next."""
    return width if array.flags.c_contiguous else array.strides[0] // array.itemsize


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
    factors = factors if alike else _plain(factors)
    return factors, _plain(terms), *(heads[:, :1].ravel() for heads in x[2:])


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous array at an address that its type can have: ``array``, or a copy."""
    flags = array.flags
    plain = flags.c_contiguous and flags.aligned
    return array if plain else np.require(array, requirements=["C", "A"])
