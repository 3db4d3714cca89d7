"""The sweeps of all ranks over their shards, and the exchange of totals between them; collective.

::

    resume   each rank reads what a killed job has read     only with --resume
    reduce   each rank finds the total of its shard         only if scans go on from rank to rank
    exscan   each rank gets the total of all earlier ranks  likewise
    scan     each rank scans its shard behind that total
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.form import Extents
from ..core.segments import edge_dtype
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..mpi.exscan import Exscan
from ..mpi.notices import watching
from ..mpi.signals import interruptible
from .interface import Source, option
from .part import Carry, Digests, Part, extend
from .plan import Block, Chunk, Decided
from .restart import Journal, Progress, State, of_carry

Note = Callable[[int], None]  # bytes of the input that this rank has done since the last call
Show = Callable[[str, int, int], None]  # phase, bytes of the input done, all its bytes


_WATCHED = 1 << 24  # bytes: the progress of a smaller job is not gathered from its ranks


def watched(
    comm: Comm, part: Part, phase: str, block: Block, show: Show
) -> AbstractContextManager[Note]:
    """Return a context that shows the progress of all ranks in a block; collective."""
    earlier = part.nbytes_before(block)
    if comm.size > 1 and part.nbytes < _WATCHED:
        # Messages between ranks would take longer than the work.
        if comm.rank == 0:
            show(phase, earlier, part.nbytes)
        return nullcontext(lambda done: None)
    return watching(comm, lambda done: show(phase, earlier + done, part.nbytes))


def sweep(comm: Comm, part: Part, show: Show, state: State, journal: Journal | None) -> State:
    """Scan all blocks behind ``state``; return the state behind this rank's last element.

    It has no value if the rank has no elements, and if scans do not go on from row to row.
    """
    decided, carries = part.decided, list[Carry]()
    if not decided.across:
        with agreed(comm), watched(comm, part, "scan", part.blocks[0], show) as watch:
            for i, block in enumerate(part.blocks):
                sweeps = _Sweeps(part, block, i, state, journal)
                if not sweeps.passed:
                    carries.append(sweeps.scan(None, watch))
    else:
        # A state is the total of a rank before the first one in the order of the scan.
        first = comm.size - 1 if decided.form.reverse else 0
        before = state if comm.rank == first else State()
        for i, block in enumerate(part.blocks):
            sweeps = _Sweeps(part, block, i, before, journal)
            # No rank goes on to the next block before all ranks have written this one.
            if journal is not None and any(comm.allgather(sweeps.passed)):
                continue
            with agreed(comm), watched(comm, part, "reduce", block, show) as watch:
                total, exscan = sweeps.reduce(watch), _exscan(decided, block.width)
            with part.timeline("exscan"), agreed(comm):
                offset = exscan(comm, total)
            with agreed(comm), watched(comm, part, "scan", block, show) as watch:
                carries.append(sweeps.scan(offset, watch))
    if not decided.goes_on or decided.form.extents.size == 0 or not carries:
        return State()
    values = [np.atleast_1d(carry.total()) for carry in carries]
    value = np.concatenate(values) if decided.form.extents.inner > 1 else values[0].reshape(())
    edges = carries[-1].edges
    return State(value, None if edges is None else edges.leaves)


class _Sweeps:
    """The sweeps of one rank over one block; a journal says which chunks are done already."""

    def __init__(
        self, part: Part, block: Block, index: int, before: State, journal: Journal | None
    ) -> None:
        self._part, self._block, self._journal = part, block, journal
        self._before = before.of(block)
        #: Whether the journal is of a later block.
        self.passed = journal is not None and journal.progress.block > index
        self._progress = Progress(index) if journal is None else journal.progress
        if self._progress.block < index:
            self._progress = self._progress.next_block()

    @interruptible
    def reduce(self, watch: Note) -> Carry:
        """Return the total of the shard."""
        carry, before = self._part.carry(), self._progress
        carry.start(*self._before)
        if self._journal is not None and before.total is not None:
            self._journal.restore(before.total, carry)
        count, read = before.reduced, before.reduced_input

        def done(chunk: Chunk) -> None:
            nonlocal count, read
            count, read = count + 1, extend(read, self._part.digests_of(chunk))
            watch(self._bytes(chunk))
            if self._journal is not None and self._journal.due:
                record(self._journal)

        def record(journal: Journal) -> None:
            how: Any = {"reduced": count, "reduced_input": read, "total": of_carry(carry)}
            self._progress = self._progress._replace(**how)
            journal.record(self._progress)

        self._part.reduce(self._rest(before.reduced, watch), carry, done)
        if self._journal is not None:
            record(self._journal)
        return carry

    @interruptible
    def scan(self, offset: Any, watch: Note) -> Carry:
        """Scan the shard behind ``offset``; return the value behind its last element."""
        carry, before, journal = self._part.carry(), self._progress, self._journal
        scanned = written = before.scanned
        read = before.scanned_input
        waiting: Progress | None = None  # a record of chunks that are not all written

        def begin() -> None:
            carry.start(offset) if self._before[0] is None else carry.start(*self._before)

        def done(chunk: Chunk) -> None:
            nonlocal scanned, read, waiting
            scanned, read = scanned + 1, extend(read, self._part.digests_of(chunk))
            watch(self._bytes(chunk))
            if journal is not None and journal.due and waiting is None:
                waiting = now()

        def wrote() -> None:
            nonlocal written, waiting
            written += 1
            if journal is not None and waiting is not None and written >= waiting.scanned:
                record(journal, waiting)
                waiting = None

        def now() -> Progress:
            how: Any = {"scanned": scanned, "scanned_input": read, "carry": of_carry(carry)}
            return self._progress._replace(**how)

        def record(journal: Journal, progress: Progress) -> None:
            self._part.flush()
            journal.record(progress)

        begin()
        if journal is not None and before.carry is not None:
            journal.restore(before.carry, carry)
        self._part.scan(self._rest(before.scanned, watch), carry, begin, done, wrote)
        if journal is not None:
            record(journal, now())
        return carry

    def _rest(self, skipped: int, watch: Note) -> Any:
        """Return the chunks behind those that are done already."""
        watch(sum(self._bytes(chunk) for chunk in islice(self._block, skipped)))
        return islice(self._block, skipped, None)

    def _bytes(self, chunk: Chunk) -> int:
        return chunk.size * self._part.types.x.itemsize


def _exscan(decided: Decided, width: int) -> Exscan:
    """Prepare the exchange of the totals of a block whose rows are ``width`` wide; local."""
    form = decided.form
    if form.extents.inner > 1:
        form = form._replace(extents=Extents.of((form.extents.n, width), 0))
    # What comes before the first element is combined later, chunk by chunk.
    edges = edge_dtype(decided.scan.segments)
    exscan = Exscan(decided.op, decided.totals, form._replace(first=None), edges=edges)
    exscan.reserve()
    return exscan


# ---- what a killed job has left -------------------------------------------------------------


def compare(
    comm: Comm, part: Part, journal: Journal | None, sources: Sequence[Source | None], show: Show
) -> None:
    """Refuse journals of which a part is missing, and an input that was changed; collective.

    ``sources`` are the elements, and flags or keys.
    """
    if journal is None:
        return
    _check_progress(comm, part, journal)
    if part.digests:
        names = [each.name for each in sources if each is not None]
        with agreed(comm), watched(comm, part, "resume", part.blocks[0], show) as watch:
            _check_input(part, journal, names, watch)


def _check_progress(comm: Comm, part: Part, journal: Journal) -> None:
    """Refuse journals of different times: what one rank has scanned needs the totals of all.

    While ranks reduce a block, each of them has its own progress, or no journal yet.
    """
    if not part.decided.across:
        return
    mine = journal.progress
    everyone = comm.allgather((mine.block, mine.scanned > 0))
    top = max(block for block, _ in everyone)
    scans = (top, True) in everyone
    with agreed(comm):
        chunks = [len(block) for block in part.blocks]
        ended = mine.block == top - 1 and mine.scanned == chunks[mine.block]
        reduced = mine.block == top and mine.reduced == chunks[top]
        if not (reduced if scans else mine.block == top or ended):
            raise ValueError(f"{journal.path} is missing, or older than those of other ranks; "
                             f"{journal.remedy}")  # fmt: skip


def _check_input(part: Part, journal: Journal, names: Sequence[str], watch: Note) -> None:
    """Read again what a killed job has read, and compare its digests."""
    progress = journal.progress
    before = sum(len(block) for block in part.blocks[: progress.block])
    ends = {(before + progress.scanned, progress.scanned_input)}
    if part.decided.across:
        ends.add((before + progress.reduced, progress.reduced_input))
    digests, count = Digests(), 0

    def done(chunk: Chunk) -> None:
        nonlocal digests, count
        watch(chunk.size * part.types.x.itemsize)
        digests, count = extend(digests, part.digests_of(chunk)), count + 1
        for end, wanted in ends:
            if end == count and wanted != digests:
                raise InputError(_changed(wanted, digests, names, journal))

    read = chain.from_iterable(part.blocks)
    part.look(islice(read, max(end for end, _ in ends)), lambda x: None, done)


def _changed(wanted: Digests, digests: Digests, names: Sequence[str], journal: Journal) -> str:
    if not wanted:
        return (
            f"{journal.path} has no digest of the input, because of {option('trust_input')}: "
            "name it again"
        )
    changed = [names[i] for i in range(len(names)) if wanted[i] != digests[i]]
    return f"{' and '.join(changed)} was changed since the killed job has read it; {journal.remedy}"
