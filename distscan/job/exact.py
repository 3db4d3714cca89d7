"""``fsum`` of files: the sweep that finds the window of all elements, and what follows from it.

::

    window   each rank finds the bits that its elements need      MPI_Allgather, unless it is named
    reduce, exscan, scan: as for every operator, by the operator of that window
"""

from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..binding import threads
from ..build import adds_exactly
from ..core.operators import Operator
from ..fsum.digits import DigitSum
from ..fsum.request import FsumRequest, check_window
from ..fsum.special import NEGATIVE_ZERO, NOT_FINITE, firsts, has_negative_zero
from ..fsum.window import Window
from ..fsum.words import FixedSum
from ..fsum_scan import check_of, window_of, without_zeros
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..mpi.signals import interruptible
from ..options import RunOptions, ScanOptions
from .interface import Source, option
from .part import Part
from .plan import Block, Budget, Chunk, Decided, decide
from .restart import Journal
from .sweeps import Note, Show, watched

_NAME = "the input"  # in messages


def asked(
    scan: ScanOptions, run: RunOptions, source: Source, ranks: int, *, has_state: bool
) -> FsumRequest | None:
    """Check what a job asks for; None if it is not ``fsum``. Raises TypeError and ValueError."""
    if scan.op != "fsum":
        return None
    if has_state:
        raise ValueError(
            f"{option('state', argument='')} does not take fsum: "
            "its running value has the window of one job"
        )
    if run.check:
        raise ValueError(f"{option('check')} has no reference for fsum")
    return FsumRequest.of(
        source.dtype,
        dtype=scan.dtype,
        initial=scan.initial,
        window=scan.window,
        strategy=run.strategy,
        ranks=ranks,
    )


def before_window(scan: ScanOptions, sums: FsumRequest, source: Source) -> ScanOptions:
    """Return the options of the scan while the window is not known: by that of no elements."""
    return by_window(scan, sums, Window(0, 0, source.n), source.dtype)


def by_window(
    scan: ScanOptions, sums: FsumRequest, window: Window, x: Any, **how: Any
) -> ScanOptions:
    """Return the options of the scan, by the operator for elements ``x`` of a window.

    ``how`` is as in ``FsumRequest.operator``.
    """
    op, initial = sums.operator(window, x, **how)
    return replace(scan, op=op, initial=initial, dtype=sums.result)


_WIDE = 64  # int64 of a running value, at most about so many


def narrowed(budget: Budget, decided: Decided) -> Budget:
    """Return the memory of a job, in which running values of many columns have room."""
    inner, chunk = decided.form.extents.inner, max(1, budget.chunk // _WIDE)
    narrow = isinstance(decided.op, DigitSum) and inner > chunk
    return budget._replace(chunk=chunk) if narrow else budget


def find_window(
    comm: Comm,
    part: Part,
    sums: FsumRequest,
    source: Source,
    show: Show,
    *,
    journal: Journal | None,
) -> None:
    """Decide the scan by the operator of the window of all elements; collective.

    It must be that of the job whose ``journal`` it is.
    """
    _find_window(comm, part, sums, source, show)
    if journal is not None:
        with agreed(comm):
            journal.note_operator(name_of(part.decided.op))


def _find_window(comm: Comm, part: Part, sums: FsumRequest, source: Source, show: Show) -> None:
    """Decide the scan by the operator of the window of all elements; collective.

    All elements are read, unless the window is named and kernels check them as they add them.
    """
    if sums.limits is not None and _by_name(sums.limits, comm, part, sums, source):
        return
    own, special = Window(0, 0, 0), False
    # Ranks may have different numbers of blocks.
    with agreed(comm), watched(comm, part, "window", part.blocks[0], show) as watch:
        for block in part.blocks:
            window, found = _sweep(part, block, sums, watch)
            own, special = own.joined(window), special or found
    compiled = _adds(part, sums) and sums.is_plain
    everyone = comm.allgather((own, special or not compiled))
    window = reduce(Window.joined, [each for each, _ in everyone])._replace(most=source.n + 1)
    with agreed(comm):
        words = not any(each for _, each in everyone)
        scan = by_window(part.decided.scan, sums, window, part.types.x, words=words)
        part.decide(decide(scan, part.decided.run, source, part.gpu, comm))


def _by_name(
    limits: tuple[int, int], comm: Comm, part: Part, sums: FsumRequest, source: Source
) -> bool:
    """Decide the scan by the named window, if kernels can check elements; collective.

    Return whether it is decided. Without ``initial``, one chunk is read: its first element must not
    be -0.0.
    """
    x, window, check = part.types.x, Window(0, 0, source.n + 1), check_of(limits, _NAME)
    if x.kind == "c" or sums.narrow(window, x) is None:
        return False
    with agreed(comm):
        own = _adds(part, sums) and sums.is_plain
        if own and sums.initial is None:
            own = _one_scan(part) and not _begins_with_zero(part)
    if not all(comm.allgather(own)):
        return False
    with agreed(comm):
        scan = by_window(part.decided.scan, sums, window, x, words=True, check=check)
        part.decide(decide(scan, part.decided.run, source, part.gpu, comm))
    return True


def _adds(part: Part, sums: FsumRequest) -> bool:
    """Return whether kernels add the elements of this rank."""
    return adds_exactly(part.types.x, sums.result, part.gpu)


def _one_scan(part: Part) -> bool:
    """Return whether the job is one scan of all elements."""
    extents = part.form.extents
    return extents.outer == extents.inner == 1 and not part.form.segmented


def _begins_with_zero(part: Part) -> bool:
    """Return whether the first element of this rank is -0.0; it reads one chunk."""
    found = False

    def note(x: Any) -> None:
        nonlocal found
        found = has_negative_zero(firsts(x, None, reverse=part.form.reverse))

    part.look(islice(part.blocks[0], 1), note, lambda chunk: None)
    return found


@interruptible
def _sweep(part: Part, block: Block, sums: FsumRequest, watch: Note) -> tuple[Window, bool]:
    """Return the window of a block of this rank's elements, and whether anything is special."""
    found, special, chunks = Window(0, 0, 0), 0, 0
    one_scan = _one_scan(part)

    def note(x: Any) -> None:
        nonlocal found, special, chunks
        window, codes = window_of(x, threads(part.decided.run.threads))
        if sums.limits is not None:
            check_window(_NAME, window, sums.limits, finite=not codes & NOT_FINITE)
        if chunks > 0 and one_scan:  # sums that begin with -0.0 begin in the first chunk
            codes &= ~NEGATIVE_ZERO
        if x.dtype.kind != "c":  # complex numbers have digits anyway
            starts = firsts(x, None, reverse=part.form.reverse) if one_scan else None
            special |= without_zeros(codes, starts, sums.initial)
        found, chunks = found.joined(window), chunks + 1

    def done(chunk: Chunk) -> None:
        watch(chunk.size * part.types.x.itemsize)

    part.look(block, note, done)
    return found, special != 0


def name_of(op: Operator) -> str:
    """Return what the running values of exact sums stand for."""
    if isinstance(op, FixedSum):
        return f"{op.acc} times 2^{op.lowest}"
    assert isinstance(op, DigitSum)
    return f"digits of {op.parts} {op.window}"


def total(decided: Decided, value: NDArray[Any] | None) -> Any:
    """Return the total of a job, rounded; that of no elements is 0."""
    op, dtype = decided.op, decided.types.out
    if value is None:
        return np.zeros((), dtype).item()
    assert isinstance(op, FixedSum | DigitSum)
    return op.decode(np.asarray(value), dtype).item()
