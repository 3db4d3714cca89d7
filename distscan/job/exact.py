"""``fsum`` of files: the sweep that finds the window of all elements, and what follows from it.

::

    window   each rank finds the bits that its elements need      MPI_Allgather
    reduce, exscan, scan: as for every operator, by the operator of that window
"""

from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.digit_sum import DigitSum
from ..core.digits import decode
from ..core.fixed import Window
from ..exact_check import Asked, is_fsum
from ..exact_window import checked_window
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..mpi.signals import interruptible
from .budget import Budget
from .chunks import Block, Chunk
from .decided import Decided, Options, decide, number
from .interface import Source
from .part import Part
from .sweeps import Note, Show, watched


def asked(job: Any, source: Source, ranks: int) -> Asked | None:
    """Check what a job asks for; None if it is not ``fsum``. Raises TypeError and ValueError."""
    if not is_fsum(job.op, job.window):
        return None
    if job.state is not None:
        raise ValueError("--state does not take fsum: its running value has the window of one job")
    if job.check:
        raise ValueError("--check has no reference for fsum")
    initial = number(job.initial) if isinstance(job.initial, str) else job.initial
    given = {"dtype": job.dtype, "window": job.window, "strategy": job.strategy}
    return Asked.of(source.dtype, initial=initial, ranks=ranks, **given)


def by_window(options: Options, sums: Asked, window: Window) -> Options:
    """Return the options of the scan, by the operator for elements of a window."""
    op, initial = sums.operator(window)
    return options._replace(op=op, initial=initial, dtype=sums.result)


_WIDE = 64  # int64 of a running value, at most about so many


def narrowed(budget: Budget, decided: Decided) -> Budget:
    """Return the memory of a job, in which running values of many columns have room."""
    inner, chunk = decided.form.extents.inner, max(1, budget.chunk // _WIDE)
    narrow = isinstance(decided.op, DigitSum) and inner > chunk
    return budget._replace(chunk=chunk) if narrow else budget


def find_window(comm: Comm, part: Part, sums: Asked, source: Source, show: Show) -> None:
    """Read all elements, and decide the scan by the operator of their window; collective."""
    own = Window(0, 0, 0)
    for block in part.blocks:
        with agreed(comm), watched(comm, part, "window", block, show) as watch:
            own = own.joined(_sweep(part, block, sums, watch))
    window = reduce(Window.joined, comm.allgather(own))
    with agreed(comm):
        options = by_window(part.decided.options, sums, window._replace(most=source.n + 1))
        part.decide(decide(options, source, part.gpu, comm.size, comm.rank))


@interruptible
def _sweep(part: Part, block: Block, sums: Asked, watch: Note) -> Window:
    """Return the window of a block of this rank's elements."""
    found = Window(0, 0, 0)

    def note(x: Any) -> None:
        nonlocal found
        found = found.joined(checked_window("the input", x, sums.limits))

    def done(chunk: Chunk) -> None:
        watch(chunk.size * part.types.x.itemsize)

    part.look(block, note, done)
    return found


def total(decided: Decided, value: NDArray[Any] | None) -> Any:
    """Return the total of a job, rounded; that of no elements is 0."""
    if value is None:
        return np.zeros((), decided.types.out).item()
    assert isinstance(decided.op, DigitSum)
    return decode(decided.op, value, decided.types.out).item()
