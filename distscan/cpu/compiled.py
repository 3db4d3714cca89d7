"""The sweeps over a shard by the compiled kernels: reduce it, and scan it from a seed.

A block is a fixed number of elements. Threads draw blocks in order, each has a slot for its prefix,
and prefixes are combined in the order of blocks. So the number of threads changes no bit.
"""

from collections.abc import Callable
from ctypes import byref
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.calls import load_into
from ..core.dtypes import Types
from ..core.fixed_sum import FixedSum
from ..core.form import Form
from ..core.operators import Operator
from . import kernels, threads
from .chunked import store
from .kernels import Job, Kernel

BLOCK = 1 << 17  # bytes of running values in a block: they stay in the L2 cache
_COLUMNS_BLOCK = 1 << 18  # the same for columns, whose prefixes are rows
_FEWEST_ROWS = 64  # in a block of columns: there is a prefix for 64 elements
_STRIP = 1 << 14  # bytes of running values in a row of a strip; WIDEST of kernels/cpu/columns.hpp
# Results of so many bytes go past the caches, which saves a third of the traffic. Smaller results
# stay in the caches for their readers.
_STREAMED = 8 << 20
_THREAD = 1 << 20  # bytes of input and results for which a thread is worth its start
_READY = 1  # the state of a slot; READY of kernels/cpu/job.hpp


class Compiled:
    """The sweeps of one form and type by one kernel, for one call at a time."""

    def __init__(
        self,
        op: Operator,
        types: Types,
        form: Form,
        kernel: Kernel,
        direct: Kernel | None,
        *,
        find: int | None,
        loads: bool = False,
        taken: tuple[np.dtype[Any], np.dtype[Any]] | None = None,
        exact: FixedSum | None = None,
        totals: bool,
        most: int,
    ) -> None:
        """Allocate the slots, for at most ``most`` threads; ``totals`` says that totals are asked.

        ``direct`` is the kernel that takes x and results as they are, or, if the operator ``loads``
        elements by a function of Python, as they are loaded. ``kernel`` is the one that takes both
        converted to the types ``taken``, or else to the type that accumulates, and loaded. ``find``
        is the function that finds the heads among keys; None if segments are always flags.
        ``exact`` is the operator of exact sums. If it has a ``check``, kernels look for elements
        that are outside of its window.
        """
        extents = form.extents
        self._taken = taken or (types.acc, types.acc)
        self._op, self._acc, self._kernel, self._direct = op, types.acc, kernel, direct
        self._find = find
        self._loads, self._loaded = loads, loaded_type(types) if loads else types.acc
        self._shape = (extents.outer, extents.n, extents.inner)
        rows, size = extents.inner == 1, types.acc.itemsize
        self._rows = rows
        self._block = block_of(extents.inner, size)
        self._blocks = -(-extents.n // self._block)
        strip = min(extents.inner, _STRIP // size)
        self._strips = -(-extents.inner // strip)
        fit = (self._block if rows else BLOCK // size // extents.inner) // extents.n
        self._height = max(1, min(extents.outer, fit))  # of a piece, in rows or matrices
        work = extents.size * (types.x.itemsize + types.out.itemsize)
        self._threads = max(1, min(most, work // _THREAD))
        self._first = form.first  # the job has its address
        self._streams = extents.size * types.out.itemsize >= _STREAMED
        self._slots: NDArray[Any] | None = None
        self._states = np.empty(0, np.intc)
        if totals or self._blocks > 1:
            slots = extents.outer * (self._blocks + 1)
            self._slots = np.empty((slots, extents.inner), types.acc)
            self._states = np.zeros(slots * self._strips, np.intc)
        self._job = Job(
            outer=extents.outer,
            n=extents.n,
            inner=extents.inner,
            block=self._block,
            strip=strip,
            end=(-(-extents.outer // self._height) if rows else extents.outer * self._strips)
            * self._blocks,
            exclusive=form.exclusive,
            reverse=form.reverse,
            first=address(form.first),
            slots=address(self._slots),
            states=address(self._states),
        )
        self._outside = np.zeros(1, np.intc)  # see ``Job``
        self._checks = exact is not None and exact.check is not None
        if exact is not None:
            self._job.lowest, (self._job.low, self._job.high) = exact.lowest, exact.limits

    @property
    def takes_keys(self) -> bool:
        """Whether ``heads`` may be keys."""
        return self._find is not None

    @property
    def outside(self) -> bool:
        """Whether the last call has seen an element outside of the window."""
        return bool(self._outside[0])

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return self._states.nbytes + (0 if self._slots is None else self._slots.nbytes)

    def close(self) -> None:
        """Free the memory."""
        self._slots, self._states = None, np.empty(0, np.intc)

    def reduce(self, x: NDArray[Any], heads: NDArray[Any] | None) -> tuple[NDArray[Any], bool]:
        """Return the totals [inner] of ``x``, and whether a segment begins in it.

        With segments, the total is that of the elements from the last head on. A ``scan`` of the
        same ``x`` may follow: it uses the totals of blocks.
        """
        assert self._slots is not None
        job = self._new_job(heads)
        kernel = self._that_takes(x)
        this = kernel or self._kernel
        reduce = this.reduce if self._rows else this.reduce_columns
        if kernel and not self._loads:
            job.x = address(x)
            self._run(lambda: reduce(byref(job)))
        else:
            self._run(self._in_pieces(reduce, job, x, self._loaded if kernel else self._taken[0]))
        self._kernel.total(byref(job))
        return self._slots[0], bool(self._states[0])

    def scan(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        heads: NDArray[Any] | None,
        before: NDArray[Any] | None,
        *,
        reduced: bool = False,
    ) -> NDArray[Any] | None:
        """Scan ``x`` into ``out``, which may be ``x``; return the totals [inner] of a single scan.

        ``before``, 0-d or [inner], comes before the first element, and counts in the totals.
        ``reduced`` says that ``reduce`` has run on the same ``x`` and ``heads``.
        """
        if reduced:
            job = self._job
            job.ticket, job.outside = 0, None
        else:
            job = self._new_job(heads)
        if before is not None:
            before = np.ascontiguousarray(before, self._acc)
            job.before_row = before.size > 1
        job.before = address(before)
        if reduced:
            self._kernel.seed(byref(job))
        kernel = self._that_takes(x, out)
        this = kernel or self._kernel
        scan = this.scan if self._rows else this.scan_columns
        job.stream = 0
        if kernel:
            job.x, job.y = address(x), address(out)
            # In place, the lines of x are in the caches: there the results find them.
            job.stream = self._streams and job.x != job.y
        if kernel and not self._loads:
            self._run(lambda: scan(byref(job)))
        elif kernel:
            self._run(self._in_pieces(scan, job, x, self._loaded))
        else:
            self._run(self._in_pieces(scan, job, x, self._taken[0], out))
        return None if self._slots is None else self._slots[self._blocks]  # of the first row

    def _new_job(self, heads: NDArray[Any] | None) -> Job:
        job = self._job
        job.ticket, job.heads = 0, address(heads)
        job.find = None if heads is None or heads.dtype == np.bool_ else self._find
        self._states.fill(0)
        if self._checks:
            self._outside[0], job.outside = 0, address(self._outside)
        return job

    def _that_takes(self, *arrays: NDArray[Any]) -> Kernel | None:
        """Return the kernel that takes arrays as they are, if there is one."""
        fit = all(a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative for a in arrays)
        return self._direct if fit else None

    def _run(self, work: Callable[[], None]) -> None:
        if self._threads == 1:
            work()
        else:
            threads.run(work, self._threads, lambda: self._states.fill(_READY))

    def _in_pieces(
        self,
        function: kernels.Function,
        job: Job,
        x: NDArray[Any],
        dtype: np.dtype[Any],
        out: NDArray[Any] | None = None,
    ) -> Callable[[], None]:
        """Return the work of a thread: convert or load pieces of ``x``, and run the kernel on them.

        A piece is a block, or several short rows, in a buffer of ``dtype``. The job on it is a part
        of ``job``: its arrays begin where they would if the buffer lay inside them. With ``out``,
        results are written to the buffer, or to one of their own type, and then converted.
        """
        (outer, n, inner), op, to = self._shape, self._op, self._taken[1]
        x = x.reshape(self._shape)
        results = None if out is None else out.reshape(self._shape)
        height, length = self._height, min(self._block, n)
        drawn = count()  # the next piece; drawing is atomic

        def work() -> None:
            buffer = np.empty(height * length * inner, dtype)
            found = buffer if results is None or to == dtype else np.empty(buffer.size, to)
            while (piece := next(drawn)) < -(-outer // height) * self._blocks:
                top, b = piece // self._blocks * height, piece % self._blocks
                low, high = b * length, min(n, (b + 1) * length)
                if job.reverse:
                    low, high = n - high, n - low
                where = slice(top, top + height), slice(low, high)
                source = x[where]
                converted = buffer[: source.size].reshape(source.shape)
                if op.load is None:
                    store(source, converted)
                else:
                    load_into(op.name, op.load, source, converted)
                part = Job.from_buffer_copy(job)
                begin = (top * n + low) * inner
                part.x = buffer.ctypes.data - begin * buffer.itemsize
                if results is not None:
                    part.y = found.ctypes.data - begin * found.itemsize
                part.ticket = piece if self._rows else (top * self._blocks + b) * self._strips
                part.end = part.ticket + (1 if self._rows else len(source) * self._strips)
                function(byref(part))
                if results is not None:
                    store(found[: source.size].reshape(source.shape), results[where])

        return work


def loaded_type(types: Types) -> np.dtype[Any]:
    """Return the type in which elements are loaded: the one that accumulates on GPUs.

    Sums of float32 accumulate in float64 on CPUs alone.

    >>> f4, f8 = np.dtype("f4"), np.dtype("f8")
    >>> loaded_type(Types(f4, f8, f4)), loaded_type(Types(f4, f8, f8))
    (dtype('float32'), dtype('float64'))
    """
    return types.out if types.x == types.out == np.float32 else types.acc


def block_of(inner: int, size: int) -> int:
    """Return the length along n of a block, for running values of ``size`` bytes.

    >>> block_of(1, 8), block_of(2048, 8)
    (16384, 64)
    """
    if inner == 1:
        return BLOCK // size
    return max(_FEWEST_ROWS, _COLUMNS_BLOCK // (inner * size))


def address(array: NDArray[Any] | None) -> int | None:
    """Return the address of an array's memory; None for None."""
    return None if array is None else array.__array_interface__["data"][0]
