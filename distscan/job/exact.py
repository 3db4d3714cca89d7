"""``fsum`` of files: the sweep that finds the window of all elements, and what follows from it.

::

    window   each rank finds the bits that its elements need      MPI_Allgather
    reduce, exscan, scan: as for every operator, by the operator of that window
"""

from functools import reduce
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.digit_sum import DigitSum, digit_sum
from ..core.digits import decode, encode
from ..core.extents import Extents
from ..core.fixed import Window
from ..core.special import NOT_FINITE
from ..exact_check import check_strategy, check_window, limits_of, number_of, result_type
from ..exact_shard import Shard
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..mpi.signals import interruptible
from .budget import Budget
from .chunks import Block, Chunk
from .decided import Decided, Options, decide, number
from .interface import Source
from .part import Part
from .sweeps import Note, Show, watched


class Sum(NamedTuple):
    """What ``fsum`` is asked for."""

    initial: int | float | complex  # 0 if there is none
    limits: tuple[int, int] | None  # ``window`` of the caller
    most: int  # elements of all ranks, with the initial value

    @property
    def windows(self) -> list[Window]:
        """The windows of the parts of the initial value."""
        return [Window.of_one(part) for part in (self.initial.real, self.initial.imag)]


def asked(job: Any, source: Source, ranks: int) -> Sum | None:
    """Check what a job asks for; None if it is not ``fsum``. Raises TypeError and ValueError."""
    if not (isinstance(job.op, str) and job.op == "fsum"):
        if job.window is not None:
            raise ValueError(f"window= goes with op='fsum', not {job.op!r}")
        return None
    if job.state is not None:
        raise ValueError("--state does not take fsum: its running value has the window of one job")
    if job.check:
        raise ValueError("--check has no reference for fsum")
    check_strategy(job.strategy, ranks)
    result = result_type(source.dtype, None, job.dtype)
    limits = None if job.window is None else limits_of(job.window)
    initial = number(job.initial) if isinstance(job.initial, str) else job.initial
    first = number_of(0 if initial is None else initial, result)
    found = Sum(first, limits, source.n + 1)
    if limits is not None:
        for part, window in zip((first.real, first.imag), found.windows, strict=True):
            check_window("initial", window, limits, finite=isfinite(part))
    return found


def options_of(job: Any, options: Options, source: Source, sums: Sum) -> Options:
    """Return the options of the scan, by the operator of a window without elements."""
    result = result_type(source.dtype, None, job.dtype)
    return _by(options._replace(dtype=result), sums, Window(0, 0, 0))


def _by(options: Options, sums: Sum, window: Window) -> Options:
    """Return the options of a scan of numbers of a window."""
    joined = reduce(Window.joined, sums.windows, window)._replace(most=sums.most)
    if sums.limits is not None:
        joined = Window(*sums.limits, sums.most)
    op = digit_sum(joined, 2 if np.dtype(options.dtype).kind == "c" else 1)
    initial = None if options.initial is None else encode(op, sums.initial)
    return options._replace(op=op, initial=initial)


_WIDE = 64  # int64 of a running value, at most about so many


def narrowed(budget: Budget, decided: Decided) -> Budget:
    """Return the memory of a job, in which running values of many columns have room."""
    inner, chunk = decided.form.extents.inner, max(1, budget.chunk // _WIDE)
    narrow = isinstance(decided.op, DigitSum) and inner > chunk
    return budget._replace(chunk=chunk) if narrow else budget


def find_window(comm: Comm, part: Part, sums: Sum, source: Source, show: Show) -> None:
    """Read all elements, and decide the scan by the operator of their window; collective."""
    own = Window(0, 0, 0)
    for block in part.blocks:
        with agreed(comm), watched(comm, part, "window", block, show) as watch:
            own = own.joined(_sweep(part, block, sums, watch))
    window = reduce(Window.joined, comm.allgather(own))
    with agreed(comm):
        options = _by(part.decided.options, sums, window)
        part.decide(decide(options, source, part.gpu, comm.size, comm.rank))


@interruptible
def _sweep(part: Part, block: Block, sums: Sum, watch: Note) -> Window:
    """Return the window of a block of this rank's elements."""
    found = Window(0, 0, 0)

    def note(x: Any) -> None:
        nonlocal found
        for each in (x.real, x.imag) if x.dtype.kind == "c" else (x,):
            window, special = _window_of(each)
            if sums.limits is not None:
                check_window("the input", window, sums.limits, finite=not special & NOT_FINITE)
            found = found.joined(window)

    def done(chunk: Chunk) -> None:
        watch(chunk.size * part.types.x.itemsize)

    part.look(block, note, done)
    return found


def _window_of(x: Any) -> tuple[Window, int]:
    """Return the window of an array, and what is special among its elements."""
    given = {"exclusive": False, "reverse": False}
    return Shard(x, x, None, Extents.of(x.shape, None), **given).window()


def total(decided: Decided, value: NDArray[Any] | None) -> Any:
    """Return the total of a job, rounded; that of no elements is 0."""
    if value is None:
        return np.zeros((), decided.types.out).item()
    assert isinstance(decided.op, DigitSum)
    return decode(decided.op, value, decided.types.out).item()
