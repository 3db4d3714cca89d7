"""The work of all ranks on their chunks, and the exchange of totals between them; collective.

::

    resume   each rank reads again the input of a killed job     only with --resume
    window   each rank finds the bits that its elements need     only for fsum, unless kernels check
    scan     in rounds, in each of which each rank has some chunks:
             reduce    it finds their total                      only if scans go on across ranks
             exchange  it gets the total of all earlier ranks    likewise
             scan      it scans them, seeded with that total
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import reduce
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from ..binding import threads
from ..core import dtypes
from ..core.errors import InputError, RankError
from ..core.form import Extents
from ..core.operators import Operator
from ..core.segments import edge_dtype
from ..core.steps import Pending
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
from ..mpi.signals import interruptible, uninterruptible
from .chunks import Block, Chunk
from .formats.interface import Show, Source, option
from .plan import by_window
from .restart import BlockProgress, Journal, State, state_to_json
from .shard import Carry, Digests, Shard, Slot, extend

Note = Callable[[int], None]  # bytes of the input that this rank has done since the last call


_WATCHED = 1 << 24  # bytes: the progress of a smaller job is not gathered from its ranks


def watched(
    comm: Comm, shard: Shard, phase: str, earlier: int, show: Show
) -> AbstractContextManager[Note]:
    """Return a context that shows the progress of all ranks after ``earlier`` bytes; collective.

    It is entered inside a step of an agreement: ``show`` may raise an exception on rank 0.
    """
    if comm.size > 1 and shard.nbytes < _WATCHED:
        # Messages between ranks would take longer than the work.
        if comm.rank == 0:
            show(phase, earlier, shard.nbytes)
        return nullcontext(lambda done: None)
    return watching(comm, lambda done: show(phase, earlier + done, shard.nbytes))


def sweep(comm: Comm, shard: Shard, show: Show, state: State, journal: Journal | None) -> State:
    """Scan all blocks, seeded with ``state``; return the state after the last element; collective.

    Without exchanges, it is the state after this rank's last element. It has no value if the rank
    has no elements, and if scans do not go on from row to row.
    """
    plan, ends = shard.plan, list[tuple[Block, State]]()
    # A journal, which the scan of a block extends, says where that of the next one begins.
    scans = (_BlockScan(comm, shard, i, state, journal) for i in range(len(shard.blocks)))
    rest = (scan for scan in scans if not scan.ended)
    if not plan.across:
        with agreed(comm), watched(comm, shard, "scan", 0, show) as watch:
            ends += [(scan.block, scan.run(watch)) for scan in rest]
    else:
        for scan in rest:
            with agreed(comm):
                scan.prepare()
            with (
                agreed(comm),
                scan.meeting(),  # if the progress cannot be shown
                watched(comm, shard, "scan", shard.nbytes_before(scan.block), show) as watch,
                scan.meeting(),  # if the scan fails: ``watched`` ends when that of all ranks has
            ):
                ends.append((scan.block, scan.run(watch)))
    extents = plan.form.extents
    if not plan.goes_on or extents.size == 0 or not ends:
        return State()
    value, key = ends[-1][1]
    if value is None or extents.inner != math.prod(plan.row):  # other ranks have other columns
        return State()
    if extents.inner == 1:
        return State(value.reshape(()), key)
    row = np.zeros(extents.inner, value.dtype)
    for block, end in ends:
        columns = block.of_row(row)
        columns[...] = np.asarray(end.value).reshape(columns.shape)
    return State(row, key)


class _Part(NamedTuple):
    """A chunk of a round."""

    chunk: Chunk
    slot: Slot
    total: Carry
    pending: Pending | None  # None: its scan begins again, or it has no elements


class _BlockScan:
    """The scan of a block, round after round; a journal says how many chunks are done already.

    ::

                  .--------------- a round ---------------.
        rank 0    read   reduce   exchange   scan   write    read   reduce   exchange   scan ...
        rank 1    read   reduce   exchange   scan   write    read   reduce   exchange   scan ...

    The exchange gives each rank the total of all earlier ones, seeded with that of all earlier
    rounds. A rank that exchanges nothing goes on from chunk to chunk.
    """

    def __init__(
        self, comm: Comm, shard: Shard, index: int, state: State, journal: Journal | None
    ) -> None:
        """``index`` is that of the block, ``state`` that before the first element."""
        self._comm, self._shard, self._journal = comm, shard, journal
        self.block = shard.blocks[index]
        progress = BlockProgress() if journal is None else journal.progress
        #: Whether the journal is of a later block.
        self.ended = progress.block > index
        self._progress = progress.of_block(index)
        self._done = self._progress.scanned
        self._before = self._state = state.of_columns(self.block)
        self._carry, self._round = shard.carry(), list[_Part]()
        self._exscan: Exscan | None = None
        self._rounds = 0  # whose totals have been exchanged
        self._failed = False  # whether an exchange was the last one because of a fault

    @interruptible
    def run(self, watch: Note) -> State:
        """Scan the chunks that are not done; return the state after the last one."""
        journal, progress = self._journal, self._progress
        if journal is not None and progress.state is not None:
            self._state = journal.state_after(progress, self._shard.plan.totals)
        self._state.start(self._carry)
        written, waiting = progress.scanned, None  # waiting: for the last chunks to be written
        share = 2 if self._shard.plan.across else 1  # a chunk of a round is read, and later scanned

        def scan(chunk: Chunk, slot: Slot) -> Iterator[tuple[Chunk, Slot]]:
            nonlocal waiting
            watch(self._bytes(chunk) - self._bytes(chunk) // share)
            for part in self._scan(chunk, slot):
                self._note(part.chunk)
                watch(self._bytes(part.chunk) // share)
                # The state is that after a round.
                if journal is not None and journal.due and part.chunk.last_rank >= 0:
                    waiting = waiting or self._record()
                yield part.chunk, part.slot

        def wrote() -> None:
            nonlocal written, waiting
            written += 1
            if journal is not None and waiting is not None and written >= waiting.scanned:
                self._save(journal, waiting)
                waiting = None

        watch(sum(self._bytes(chunk) for chunk in islice(self.block, progress.scanned)))
        self._shard.scan(self._rest(), scan, wrote)
        if journal is not None:
            self._save(journal, self._record())
        return self._state

    def prepare(self) -> None:
        """Prepare the exchange of totals."""
        plan = self._shard.plan
        form = plan.form
        if form.extents.inner > 1:
            form = form._replace(extents=Extents.of((form.extents.length, self.block.width), 0))
        # What comes before the first element is combined later, chunk by chunk.
        edges = edge_dtype(plan.scan.segments)
        self._exscan = Exscan(plan.op, plan.totals, form._replace(seed=None), edges=edges)
        self._exscan.reserve()

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """After a fault in the ``with`` block, take part in the next exchange: others wait in it.

        All ranks then leave it with a fault.
        """
        try:
            yield
        except BaseException:
            last_ranks = [chunk.last_rank for chunk in self._rest() if chunk.last_rank >= 0]
            if not self._failed and self._rounds < len(last_ranks):
                with suppress(BaseException):
                    self._exchange([], None, last_ranks[self._rounds])
            raise

    # ---- one round ----

    def _scan(self, chunk: Chunk, slot: Slot) -> Iterator[_Part]:
        """Take the next chunk of a round; after its last one, scan all, and yield each."""
        shard, plan, ends = self._shard, self._shard.plan, chunk.last_rank >= 0
        moved = plan.types.x.itemsize + plan.types.out.itemsize
        if not plan.across:
            if chunk.begins:
                self._before.start(self._carry)
            with shard.timeline("scan", chunk.size * moved):
                pending = shard.begin(chunk, slot)
                seed = plan.form.seed if chunk.whole else self._seed(pending)
                shard.finish(chunk, pending, seed)
            self._state = State.after(self._carry)
            yield _Part(chunk, slot, self._carry, pending)
            return
        self._round.append(self._begin(chunk, slot, alone=ends and not self._round))
        if not ends:
            return
        parts, self._round = self._round, []
        total = self._total(parts)
        with shard.timeline("exscan"):
            self._exchange(parts, total, chunk.last_rank)
        for part in parts:
            seed = self._seed(part.total)
            if part.chunk.size > 0:
                with shard.timeline("scan", part.chunk.size * moved):
                    begun = part.pending
                    if begun is None:
                        begun = shard.begin(part.chunk, part.slot)
                    shard.finish(part.chunk, begun, seed)
            yield part

    def _begin(self, chunk: Chunk, slot: Slot, *, alone: bool) -> _Part:
        """Find the total of a chunk of a round, which perhaps has no other one."""
        total = self._shard.carry()
        if chunk.size == 0:
            return _Part(chunk, slot, total, None)
        with self._shard.timeline("reduce", chunk.size * self._shard.plan.types.x.itemsize):
            pending = self._shard.begin(chunk, slot, again=not alone)
            total.advance(pending)
        total.value = np.array(total.value)  # the next chunk has the memory of this one's
        return _Part(chunk, slot, total, pending if alone else None)

    def _total(self, parts: Sequence[_Part]) -> Carry:
        """Return this rank's total of a round; that of the first rank is seeded with the state."""
        total = self._shard.carry()
        if self._is_first:
            self._state.start(total)
        for part in parts:
            total.advance(part.total)
        if total.value is not None:
            total.value = np.array(total.value)  # offsets are stored over a long one
        return total

    @uninterruptible
    def _exchange(self, parts: Sequence[_Part], total: Carry | None, last_rank: int) -> None:
        """Exchange totals: begin the running value, and note the state after the round; collective.

        A rank that has failed has no total. All ranks then raise in the same round: ``last_rank``,
        whose offset is of all others with rows, says whether any has failed. A fault of a rank
        without rows, which only the last round has, is raised at the end of the block.
        """
        self._rounds += 1
        assert self._exscan is not None
        end, fault = None, None
        try:
            offset = self._exscan(self._comm, total)
            if self._is_first:
                self._state.start(self._carry)
            else:
                self._carry.start(offset)
            if total is not None and self._comm.rank == last_rank:
                end = self._after(parts)
        except BaseException as error:  # the other ranks wait for the state
            fault = error
        state = self._comm.bcast(end, last_rank)
        self._failed = state is None
        if fault is not None:
            raise fault
        if state is None:
            raise RankError("another rank has failed")
        self._state = state

    def _after(self, parts: Sequence[_Part]) -> State:
        """Return the state after this rank's chunks of a round."""
        end = self._shard.carry()
        State.after(self._carry).start(end)
        for part in parts:
            end.advance(part.total)
        return State.after(end)

    def _seed(self, total: Pending) -> Any:
        """Return what seeds a chunk, and advance the running value by its total."""
        seed = self._carry.before(total)
        self._carry.advance(total)
        return None if seed is None else dtypes.cast(seed, self._shard.plan.types.acc)

    @property
    def _is_first(self) -> bool:
        """Whether this rank has the first elements of each round, as the scan goes."""
        return self._comm.rank == (self._comm.size - 1 if self._shard.plan.form.reverse else 0)

    # ---- the journal ----

    def _rest(self) -> Iterator[Chunk]:
        """Return the chunks after those that are done already."""
        return islice(self.block, self._done, None)

    def _bytes(self, chunk: Chunk) -> int:
        return chunk.size * self._shard.plan.types.x.itemsize

    def _note(self, chunk: Chunk) -> None:
        """Count a chunk that has been scanned."""
        read = self._progress.input
        if chunk.size > 0:
            read = extend(read, self._shard.digests_of(chunk))
        self._progress = self._progress._replace(scanned=self._progress.scanned + 1, input=read)

    def _record(self) -> BlockProgress:
        """Return a record of all chunks that have been scanned."""
        return self._progress._replace(state=state_to_json(self._state))

    def _save(self, journal: Journal, record: BlockProgress) -> None:
        """Write a record of chunks that have been written."""
        self._shard.flush()
        journal.record(record)


# ---- the input of a killed job -------------------------------------------------------------


def compare(
    comm: Comm, shard: Shard, journal: Journal | None, sources: Sequence[Source | None], show: Show
) -> None:
    """Refuse an input that was changed, and agree on the rounds that are done; collective.

    ``sources`` are the elements, and flags or keys.
    """
    if journal is None:
        return
    done = journal.progress
    ranks = comm.allgather((done.block, done.scanned))
    if max(ranks) == (0, 0):
        return  # no job was killed, or before it had scanned a chunk
    if shard.plan.across:
        block, scanned = min(ranks)
        # The state after a round is the same on all ranks, the input is not.
        state = comm.bcast(done.state, ranks.index((block, scanned)))
        same = (done.block, done.scanned) == (block, scanned)
        done = BlockProgress(block, scanned, state, done.input if same else ())
    if shard.digests:
        names = [each.name for each in sources if each is not None]
        with agreed(comm), watched(comm, shard, "resume", 0, show) as watch:
            done = done._replace(input=_check_input(shard, journal, done, names, watch))
    journal.progress = done


def _check_input(
    shard: Shard, journal: Journal, done: BlockProgress, names: Sequence[str], watch: Note
) -> Digests:
    """Read again the input of a killed job, and compare digests; return that of what is ``done``.

    This rank may have done more than others: it compares that, too.
    """
    digests, count, of_done = Digests(), 0, Digests()
    recorded, done_chunks = (
        sum(len(block) for block in shard.blocks[: each.block]) + each.scanned
        for each in (journal.progress, done)
    )

    def look(chunk: Chunk) -> None:
        nonlocal digests, count, of_done
        if chunk.size > 0:
            watch(chunk.size * shard.plan.types.x.itemsize)
            digests = extend(digests, shard.digests_of(chunk))
        count += 1
        if count == done_chunks:
            of_done = digests
        if count == recorded and journal.progress.input != digests:
            raise InputError(_changed(journal.progress.input, digests, names, journal))

    shard.look(islice(chain.from_iterable(shard.blocks), recorded), lambda x: None, look)
    return of_done


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
    with agreed(comm), watched(comm, shard, "window", 0, show) as watch:
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

    chunks = (chunk for chunk in shard.blocks[0] if chunk.size > 0)
    shard.look(islice(chunks, 1), note, lambda chunk: None)
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
