"""The sweeps of all ranks over their shards, and the exchange of totals between them; collective.

::

    resume   each rank reads again the input of a killed job     only with --resume
    window   each rank finds the bits that its elements need     only for fsum, unless kernels check
    reduce   each rank finds the total of its shard              only if scans go on across ranks
    exscan   each rank gets the total of all earlier ranks       likewise
    scan     each rank scans its shard, seeded with that total
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from itertools import chain, islice
from typing import Any

import numpy as np

from ..binding import threads
from ..core.errors import InputError
from ..core.form import Extents
from ..core.operators import Operator
from ..core.segments import edge_dtype
from ..engine.fsum_scan import check_of, window_of, without_zeros
from ..engine.shard_scan import adds_exactly
from ..fsum.request import FsumRequest, check_window
from ..fsum.special import NEGATIVE_ZERO, NOT_FINITE, firsts, has_negative_zero
from ..fsum.window import Window
from ..fsum.words import DigitSum, FixedSum
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..mpi.exscan import Exscan
from ..mpi.notices import watching
from ..mpi.signals import interruptible
from .formats.interface import Show, Source, option
from .plan import Block, Chunk, JobPlan, by_window
from .restart import BlockProgress, Journal, State, carry_to_json
from .shard import Carry, Digests, Shard, extend

Note = Callable[[int], None]  # bytes of the input that this rank has done since the last call


_WATCHED = 1 << 24  # bytes: the progress of a smaller job is not gathered from its ranks


def watched(
    comm: Comm, shard: Shard, phase: str, block: Block, show: Show
) -> AbstractContextManager[Note]:
    """Return a context that shows the progress of all ranks in a block; collective."""
    earlier = shard.nbytes_before(block)
    if comm.size > 1 and shard.nbytes < _WATCHED:
        # Messages between ranks would take longer than the work.
        if comm.rank == 0:
            show(phase, earlier, shard.nbytes)
        return nullcontext(lambda done: None)
    return watching(comm, lambda done: show(phase, earlier + done, shard.nbytes))


def sweep(comm: Comm, shard: Shard, show: Show, state: State, journal: Journal | None) -> State:
    """Scan all blocks, seeded with ``state``; return the state after this rank's last element.

    It has no value if the rank has no elements, and if scans do not go on from row to row.
    """
    plan, carries = shard.plan, list[Carry]()
    if not plan.across:
        with agreed(comm), watched(comm, shard, "scan", shard.blocks[0], show) as watch:
            for i, block in enumerate(shard.blocks):
                sweeps = _Sweeps(shard, block, i, state, journal)
                if not sweeps.passed:
                    carries.append(sweeps.scan(None, watch))
    else:
        # A state is the total of a rank before the first one in the order of the scan.
        first = comm.size - 1 if plan.form.reverse else 0
        before = state if comm.rank == first else State()
        for i, block in enumerate(shard.blocks):
            sweeps = _Sweeps(shard, block, i, before, journal)
            # No rank goes on to the next block before all ranks have written this one.
            if journal is not None and any(comm.allgather(sweeps.passed)):
                continue
            with agreed(comm), watched(comm, shard, "reduce", block, show) as watch:
                total, exscan = sweeps.reduce(watch), _exscan(plan, block.width)
            with shard.timeline("exscan"), agreed(comm):
                offset = exscan(comm, total)
            with agreed(comm), watched(comm, shard, "scan", block, show) as watch:
                carries.append(sweeps.scan(offset, watch))
    extents = plan.form.extents
    if not plan.goes_on or extents.size == 0 or not carries:
        return State()
    if extents.inner != math.prod(plan.row):  # other ranks have the other columns
        return State()
    value = np.atleast_1d(carries[-1].total())
    if extents.inner > 1:
        value = np.zeros(extents.inner, value.dtype)
        for block, carry in zip(shard.blocks[-len(carries) :], carries, strict=True):
            columns = block.of_row(value)
            columns[...] = carry.total().reshape(columns.shape)
    else:
        value = value.reshape(())
    edges = carries[-1].edges
    return State(value, None if edges is None else edges.leaves)


class _Sweeps:
    """The sweeps of one rank over one block; a journal says which chunks are done already."""

    def __init__(
        self, shard: Shard, block: Block, index: int, before: State, journal: Journal | None
    ) -> None:
        self._shard, self._block, self._journal = shard, block, journal
        self._before = before.before(block)
        #: Whether the journal is of a later block.
        self.passed = journal is not None and journal.progress.block > index
        self._progress = BlockProgress(index) if journal is None else journal.progress
        if self._progress.block < index:
            self._progress = self._progress.next_block()

    @interruptible
    def reduce(self, watch: Note) -> Carry:
        """Return the total of the shard."""
        carry, before = self._shard.carry(), self._progress
        carry.start(*self._before)
        if self._journal is not None and before.total is not None:
            self._journal.restore(before.total, carry)
        count, read = before.reduced, before.reduced_input

        def done(chunk: Chunk) -> None:
            nonlocal count, read
            count, read = count + 1, extend(read, self._shard.digests_of(chunk))
            watch(self._bytes(chunk))
            if self._journal is not None and self._journal.due:
                record(self._journal)

        def record(journal: Journal) -> None:
            fields: Any = {"reduced": count, "reduced_input": read, "total": carry_to_json(carry)}
            self._progress = self._progress._replace(**fields)
            journal.record(self._progress)

        self._shard.reduce(self._rest(before.reduced, watch), carry, done)
        if self._journal is not None:
            record(self._journal)
        return carry

    @interruptible
    def scan(self, offset: Any, watch: Note) -> Carry:
        """Scan the shard, seeded with ``offset``; return the value after its last element."""
        carry, before, journal = self._shard.carry(), self._progress, self._journal
        scanned = written = before.scanned
        read = before.scanned_input
        waiting: BlockProgress | None = None  # a record of chunks that are not all written

        def begin() -> None:
            carry.start(offset) if self._before[0] is None else carry.start(*self._before)

        def done(chunk: Chunk) -> None:
            nonlocal scanned, read, waiting
            scanned, read = scanned + 1, extend(read, self._shard.digests_of(chunk))
            watch(self._bytes(chunk))
            if journal is not None and journal.due and waiting is None:
                waiting = now()

        def wrote() -> None:
            nonlocal written, waiting
            written += 1
            if journal is not None and waiting is not None and written >= waiting.scanned:
                record(journal, waiting)
                waiting = None

        def now() -> BlockProgress:
            fields: Any = {"scanned": scanned, "scanned_input": read, "carry": carry_to_json(carry)}
            return self._progress._replace(**fields)

        def record(journal: Journal, progress: BlockProgress) -> None:
            self._shard.flush()
            journal.record(progress)

        begin()
        if journal is not None and before.carry is not None:
            journal.restore(before.carry, carry)
        self._shard.scan(self._rest(before.scanned, watch), carry, begin, done, wrote)
        if journal is not None:
            record(journal, now())
        return carry

    def _rest(self, skipped: int, watch: Note) -> Any:
        """Return the chunks after those that are done already."""
        watch(sum(self._bytes(chunk) for chunk in islice(self._block, skipped)))
        return islice(self._block, skipped, None)

    def _bytes(self, chunk: Chunk) -> int:
        return chunk.size * self._shard.plan.types.x.itemsize


def _exscan(plan: JobPlan, width: int) -> Exscan:
    """Prepare the exchange of the totals of a block whose rows are ``width`` wide; local."""
    form = plan.form
    if form.extents.inner > 1:
        form = form._replace(extents=Extents.of((form.extents.length, width), 0))
    # What comes before the first element is combined later, chunk by chunk.
    edges = edge_dtype(plan.scan.segments)
    exscan = Exscan(plan.op, plan.totals, form._replace(seed=None), edges=edges)
    exscan.reserve()
    return exscan


# ---- the input of a killed job -------------------------------------------------------------


def compare(
    comm: Comm, shard: Shard, journal: Journal | None, sources: Sequence[Source | None], show: Show
) -> None:
    """Refuse journals of which a part is missing, and an input that was changed; collective.

    ``sources`` are the elements, and flags or keys.
    """
    if journal is None:
        return
    _check_progress(comm, shard, journal)
    if shard.digests:
        names = [each.name for each in sources if each is not None]
        with agreed(comm), watched(comm, shard, "resume", shard.blocks[0], show) as watch:
            _check_input(shard, journal, names, watch)


def _check_progress(comm: Comm, shard: Shard, journal: Journal) -> None:
    """Refuse journals of different times: the scan of one rank needs the totals of all.

    While ranks reduce a block, each of them has its own progress, or no journal yet.
    """
    if not shard.plan.across:
        return
    local = journal.progress
    ranks = comm.allgather((local.block, local.scanned > 0))
    top = max(block for block, _ in ranks)
    scans = (top, True) in ranks
    with agreed(comm):
        chunks = [len(block) for block in shard.blocks]
        ended = local.block == top - 1 and local.scanned == chunks[local.block]
        reduced = local.block == top and local.reduced == chunks[top]
        if not (reduced if scans else local.block == top or ended):
            raise ValueError(f"{journal.path} is missing, or older than those of other ranks; "
                             f"{journal.remedy}")  # fmt: skip


def _check_input(shard: Shard, journal: Journal, names: Sequence[str], watch: Note) -> None:
    """Read again the input of a killed job, and compare the digests."""
    progress = journal.progress
    before = sum(len(block) for block in shard.blocks[: progress.block])
    ends = {(before + progress.scanned, progress.scanned_input)}
    if shard.plan.across:
        ends.add((before + progress.reduced, progress.reduced_input))
    digests, count = Digests(), 0

    def done(chunk: Chunk) -> None:
        nonlocal digests, count
        watch(chunk.size * shard.plan.types.x.itemsize)
        digests, count = extend(digests, shard.digests_of(chunk)), count + 1
        for end, recorded in ends:
            if end == count and recorded != digests:
                raise InputError(_changed(recorded, digests, names, journal))

    read = chain.from_iterable(shard.blocks)
    shard.look(islice(read, max(end for end, _ in ends)), lambda x: None, done)


def _changed(recorded: Digests, digests: Digests, names: Sequence[str], journal: Journal) -> str:
    if not recorded:
        return (
            f"{journal.path} has no digest of the input, because of {option('trust_input')}: "
            "name it again"
        )
    changed = [names[i] for i in range(len(names)) if recorded[i] != digests[i]]
    return f"{' and '.join(changed)} was changed since the killed job has read it; {journal.remedy}"


# ---- fsum: the window of all elements ----------------------------------------------------------

_INPUT_NAME = "the input"  # in messages


def find_window(
    comm: Comm,
    shard: Shard,
    request: FsumRequest,
    source: Source,
    show: Show,
    *,
    journal: Journal | None,
) -> None:
    """Plan the scan by the operator of the window of all elements; collective.

    It must be that of the job whose ``journal`` it is.
    """
    _find_window(comm, shard, request, source, show)
    if journal is not None:
        with agreed(comm):
            journal.note_operator(_unit(shard.plan.op))


def _find_window(
    comm: Comm, shard: Shard, request: FsumRequest, source: Source, show: Show
) -> None:
    """Plan the scan by the operator of the window of all elements; collective.

    All elements are read, unless the window is named and kernels check them as they add them.
    """
    if request.limits is not None and _by_named_window(
        request.limits, comm, shard, request, source
    ):
        return
    local, special = Window(0, 0, 0), False
    # Ranks may have different numbers of blocks.
    with agreed(comm), watched(comm, shard, "window", shard.blocks[0], show) as watch:
        for block in shard.blocks:
            window, block_special = _window_of_block(shard, block, request, watch)
            local, special = local.joined(window), special or block_special
    compiled = _adds(shard, request) and request.is_plain
    ranks = comm.allgather((local, special or not compiled))
    window = reduce(Window.joined, [each for each, _ in ranks])._replace(most=source.n + 1)
    with agreed(comm):
        words = not any(each for _, each in ranks)
        scan = by_window(shard.plan.scan, request, window, shard.plan.types.x, words=words)
        shard.plan = shard.plan.by(scan, shard.plan.gpu, comm.size)


def _by_named_window(
    limits: tuple[int, int], comm: Comm, shard: Shard, request: FsumRequest, source: Source
) -> bool:
    """Plan the scan by the named window, if kernels can check elements; collective.

    Return whether they can. Without ``initial``, one chunk is read: its first element must not
    be -0.0.
    """
    x, window, check = shard.plan.types.x, Window(0, 0, source.n + 1), check_of(limits, _INPUT_NAME)
    if x.kind == "c" or request.narrow(window, x) is None:
        return False
    with agreed(comm):
        checks = _adds(shard, request) and request.is_plain
        if checks and request.initial is None:
            checks = _one_scan(shard) and not _begins_with_negative_zero(shard)
    if not all(comm.allgather(checks)):
        return False
    with agreed(comm):
        scan = by_window(shard.plan.scan, request, window, x, words=True, check=check)
        shard.plan = shard.plan.by(scan, shard.plan.gpu, comm.size)
    return True


def _adds(shard: Shard, request: FsumRequest) -> bool:
    """Return whether kernels add the elements of this rank."""
    return adds_exactly(shard.plan.types.x, request.result, shard.plan.gpu)


def _one_scan(shard: Shard) -> bool:
    """Return whether the job is one scan of all elements."""
    extents = shard.plan.form.extents
    return extents.outer == extents.inner == 1 and not shard.plan.form.segmented


def _begins_with_negative_zero(shard: Shard) -> bool:
    """Read one chunk, and return whether the first element of this rank is -0.0."""
    negative_zero = False

    def note(x: Any) -> None:
        nonlocal negative_zero
        negative_zero = has_negative_zero(firsts(x, None, reverse=shard.plan.form.reverse))

    shard.look(islice(shard.blocks[0], 1), note, lambda chunk: None)
    return negative_zero


@interruptible
def _window_of_block(
    shard: Shard, block: Block, request: FsumRequest, watch: Note
) -> tuple[Window, bool]:
    """Return the window of a block of this rank's elements, and whether anything is special."""
    joined, special, chunks = Window(0, 0, 0), 0, 0
    one_scan = _one_scan(shard)

    def note(x: Any) -> None:
        nonlocal joined, special, chunks
        window, codes = window_of(x, threads(shard.plan.run.threads))
        if request.limits is not None:
            check_window(_INPUT_NAME, window, request.limits, finite=not codes & NOT_FINITE)
        if chunks > 0 and one_scan:  # sums that begin with -0.0 begin in the first chunk
            codes &= ~NEGATIVE_ZERO
        if x.dtype.kind != "c":  # complex numbers have digits anyway
            starts = firsts(x, None, reverse=shard.plan.form.reverse) if one_scan else None
            special |= without_zeros(codes, starts, request.initial)
        joined, chunks = joined.joined(window), chunks + 1

    def done(chunk: Chunk) -> None:
        watch(chunk.size * shard.plan.types.x.itemsize)

    shard.look(block, note, done)
    return joined, special != 0


def _unit(op: Operator) -> str:
    """Return the unit of the running values of exact sums, as text."""
    if isinstance(op, FixedSum):
        return f"{op.acc} times 2^{op.lowest}"
    assert isinstance(op, DigitSum)
    return f"digits of {op.parts} {op.window}"
