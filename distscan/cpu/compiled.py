"""The sweeps over a shard by the compiled kernels: reduce it, and scan it from a seed.

A block is a fixed number of elements. Threads draw blocks in order, each has a slot for its prefix,
and prefixes are combined in the order of blocks. So the number of threads changes no bit.
"""

from collections.abc import Iterator
from ctypes import byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.form import Form
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


class Compiled:
    """The sweeps of one form and type by one kernel, for one call at a time."""

    def __init__(
        self,
        types: Types,
        form: Form,
        kernel: Kernel,
        direct: Kernel | None,
        *,
        totals: bool,
        most: int,
    ) -> None:
        """Allocate the slots, for at most ``most`` threads; ``totals`` says that totals are asked.

        ``direct`` is the kernel that takes x and results as they are, ``kernel`` the one that takes
        both converted to the type that accumulates.
        """
        extents = form.extents
        self._acc, self._kernel, self._direct = types.acc, kernel, direct
        self._shape = (extents.outer, extents.n, extents.inner)
        rows, size = extents.inner == 1, types.acc.itemsize
        self._rows = rows
        self._block = block_of(extents.inner, size)
        self._blocks = -(-extents.n // self._block)
        strip = min(extents.inner, _STRIP // size)
        strips = -(-extents.inner // strip)
        work = extents.size * (types.x.itemsize + types.out.itemsize)
        self._threads = max(1, min(most, work // _THREAD))
        self._first = form.first  # the job has its address
        self._streams = extents.size * types.out.itemsize >= _STREAMED
        self._slots: NDArray[Any] | None = None
        self._states = np.empty(0, np.intc)
        if totals or self._blocks > 1:
            slots = extents.outer * (self._blocks + 1)
            self._slots = np.empty((slots, extents.inner), types.acc)
            self._states = np.zeros(slots * strips, np.intc)
        self._job = Job(
            outer=extents.outer,
            n=extents.n,
            inner=extents.inner,
            block=self._block,
            strip=strip,
            exclusive=form.exclusive,
            reverse=form.reverse,
            first=_address(form.first),
            slots=_address(self._slots),
            states=_address(self._states),
        )

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
        if kernel := self._that_takes(x):
            job.x = _address(x)
            self._run(kernel.reduce if self._rows else kernel.reduce_columns, job)
        else:
            reduce = self._kernel.reduce if self._rows else self._kernel.reduce_columns
            for _, buffer, part in self._pieces(x, job):
                part.x = _address(buffer)
                reduce(byref(part))
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
            job.ticket = 0
        else:
            job = self._new_job(heads)
        if before is not None:
            before = np.ascontiguousarray(before, self._acc)
            job.before_row = before.size > 1
        job.before = _address(before)
        if reduced:
            self._kernel.seed(byref(job))
        if kernel := self._that_takes(x, out):
            job.x, job.y = _address(x), _address(out)
            # In place, the lines of x are in the caches: there the results find them.
            job.stream = self._streams and job.x != job.y
            self._run(kernel.scan if self._rows else kernel.scan_columns, job)
        else:
            scan = self._kernel.scan if self._rows else self._kernel.scan_columns
            results = out.reshape(self._shape)
            for where, buffer, part in self._pieces(x, job):
                part.x = part.y = _address(buffer)
                scan(byref(part))
                store(buffer, results[where])
        return None if self._slots is None else self._slots[self._blocks]  # of the first row

    def _new_job(self, heads: NDArray[Any] | None) -> Job:
        job = self._job
        job.ticket, job.heads = 0, _address(heads)
        self._states.fill(0)
        return job

    def _that_takes(self, *arrays: NDArray[Any]) -> Kernel | None:
        """Return the kernel that takes arrays as they are, if there is one."""
        fit = all(a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative for a in arrays)
        return self._direct if fit else None

    def _run(self, function: kernels.Function, job: Job) -> None:
        if self._threads == 1:
            function(byref(job))
        else:
            threads.run(lambda: function(byref(job)), self._threads)

    def _pieces(
        self, x: NDArray[Any], job: Job
    ) -> Iterator[tuple[tuple[slice, slice], NDArray[Any], Job]]:
        """Yield the pieces of ``x`` in scan order, converted to the running type in a buffer.

        A piece is a block, or several short rows. With it come its place in [outer, n, inner], and
        a job on the piece alone, with the piece's own slots.
        """
        (outer, n, inner), size = self._shape, self._acc.itemsize
        x = x.reshape(self._shape)
        block = min(self._block, n)
        height = 1 if self._blocks > 1 else max(1, min(outer, BLOCK // size // (block * inner)))
        buffer = np.empty(height * block * inner, self._acc)
        row, strips = inner * size, -(-inner // job.strip)
        for top in range(0, outer, height):
            for b in range(self._blocks):
                low, high = b * block, min(n, (b + 1) * block)
                if job.reverse:
                    low, high = n - high, n - low
                where = slice(top, top + height), slice(low, high)
                source = x[where]
                piece = buffer[: source.size].reshape(source.shape)
                store(source, piece)
                part = Job.from_buffer_copy(job)
                part.ticket, part.outer, part.n, part.stream = 0, source.shape[0], high - low, 0
                if job.heads:
                    part.heads = job.heads + low
                if job.slots:
                    slot = top * (self._blocks + 1) + b
                    part.slots = job.slots + slot * row
                    part.states = job.states + slot * strips * self._states.itemsize
                    if b > 0:
                        part.before, part.before_row = part.slots, 1
                yield where, piece, part


def block_of(inner: int, size: int) -> int:
    """Return the length along n of a block, for running values of ``size`` bytes.

    >>> block_of(1, 8), block_of(2048, 8)
    (16384, 64)
    """
    if inner == 1:
        return BLOCK // size
    return max(_FEWEST_ROWS, _COLUMNS_BLOCK // (inner * size))


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.__array_interface__["data"][0]
