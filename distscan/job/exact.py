"""``fsum`` of files: the sweep that finds the window of all elements, and what follows from it.

::

    window   each rank finds the bits that its elements need      MPI_Allgather
    reduce, exscan, scan: as for every operator, by the operator of that window
"""

from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..binding import threads
from ..build import adds_exactly
from ..core.digit_sum import DigitSum
from ..core.digits import decode, decode_words
from ..core.fixed import Window
from ..core.fixed_sum import FixedSum
from ..core.special import NEGATIVE_ZERO, NOT_FINITE
from ..exact_check import Asked, check_window, is_fsum
from ..exact_window import window_of, without_zeros
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


def by_window(options: Options, sums: Asked, window: Window, x: Any, **words: bool) -> Options:
    """Return the options of the scan, by the operator for elements ``x`` of a window."""
    op, initial = sums.operator(window, x, **words)
    return options._replace(op=op, initial=initial, dtype=sums.result)


_WIDE = 64  # int64 of a running value, at most about so many


def narrowed(budget: Budget, decided: Decided) -> Budget:
    """Return the memory of a job, in which running values of many columns have room."""
    inner, chunk = decided.form.extents.inner, max(1, budget.chunk // _WIDE)
    narrow = isinstance(decided.op, DigitSum) and inner > chunk
    return budget._replace(chunk=chunk) if narrow else budget


def find_window(comm: Comm, part: Part, sums: Asked, source: Source, show: Show) -> None:
    """Read all elements, and decide the scan by the operator of their window; collective."""
    own, special = Window(0, 0, 0), False
    # Ranks may have different numbers of blocks.
    with agreed(comm), watched(comm, part, "window", part.blocks[0], show) as watch:
        for block in part.blocks:
            window, found = _sweep(part, block, sums, watch)
            own, special = own.joined(window), special or found
    x = part.types.x
    compiled = adds_exactly(x, sums.result, part.gpu) and sums.is_plain
    everyone = comm.allgather((own, special or not compiled))
    window = reduce(Window.joined, [each for each, _ in everyone])._replace(most=source.n + 1)
    with agreed(comm):
        words = not any(each for _, each in everyone)
        options = by_window(part.decided.options, sums, window, x, words=words)
        part.decide(decide(options, source, part.gpu, comm.size, comm.rank))


@interruptible
def _sweep(part: Part, block: Block, sums: Asked, watch: Note) -> tuple[Window, bool]:
    """Return the window of a block of this rank's elements, and whether anything is special."""
    found, special, chunks = Window(0, 0, 0), 0, 0
    extents, form = part.form.extents, part.form
    one_scan = extents.outer == extents.inner == 1 and not form.segmented

    def note(x: Any) -> None:
        nonlocal found, special, chunks
        window, codes = window_of(x, threads(part.decided.options.threads))
        if sums.limits is not None:
            check_window("the input", window, sums.limits, finite=not codes & NOT_FINITE)
        if chunks > 0 and one_scan:  # sums that begin with -0.0 begin in the first chunk
            codes &= ~NEGATIVE_ZERO
        if x.dtype.kind != "c":  # complex numbers have digits anyway
            zeros: Any = {"one_scan": one_scan, "reverse": form.reverse}
            special |= without_zeros(codes, x, sums.initial, **zeros)
        found, chunks = found.joined(window), chunks + 1

    def done(chunk: Chunk) -> None:
        watch(chunk.size * part.types.x.itemsize)

    part.look(block, note, done)
    return found, special != 0


def total(decided: Decided, value: NDArray[Any] | None) -> Any:
    """Return the total of a job, rounded; that of no elements is 0."""
    op, dtype = decided.op, decided.types.out
    if value is None:
        return np.zeros((), dtype).item()
    if isinstance(op, FixedSum):
        return decode_words(op, np.asarray(value), dtype).item()
    assert isinstance(op, DigitSum)
    return decode(op, value, dtype).item()
