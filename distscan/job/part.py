"""One rank's part of a job: its sweeps over the chunks of its shard. No MPI.

A sweep reads the chunks in the order of the scan. The first one finds the total of the shard, if
other ranks need it. The last one scans the chunks and writes them.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from ..build import CompiledScan, Strategy
from ..core import dtypes
from ..core.extents import Extents
from ..cpu import cores
from .budget import Budget
from .carry import Carry
from .chunks import Block, Chunk, cut
from .decided import Decided
from .interface import Put, Source
from .journal import Digests, digest_of
from .pipeline import Pipeline, Resident, Ring, Slot, Slots, Stage
from .timeline import Timeline


class Part:
    """The memory, the threads and the compiled scans of one rank.

    ``memory`` is the backend's module of that name, and ``put`` writes the results. ``open`` opens
    the source and starts the threads; at the end of a ``with`` block they have ended.
    """

    def __init__(
        self,
        decided: Decided,
        budget: Budget,
        memory: Any,
        *,
        source: Source,
        marks: Source | None,
        put: Put,
        timeline: Timeline,
        digests: bool = False,
    ) -> None:
        """``digests`` says that chunks have digests as they are read."""
        self.digests, self._digests = digests, dict[Chunk, Digests]()
        self.budget, self.timeline = budget, timeline
        self.decide(decided)
        self._memory, self._source, self._marks, self._put = memory, source, marks, put
        extents = self.form.extents
        self.blocks = cut(extents, budget.chunk, goes_on=decided.goes_on, reverse=self.form.reverse)
        self.gpu: int | None = memory.current_gpu()
        self._lanes, self._scans = threading.local(), dict[tuple[Extents, Strategy], CompiledScan]()
        self._in_place = self.types.x == self.types.out
        self._largest = min(budget.chunk, extents.size)
        ring = Ring(self._allocate(budget.slots))
        self._slots: Slots = ring
        if budget.resident:
            shard, kept = memory.empty(extents.size, self.types.x), self._empty_marks(extents.size)
            self._slots = Resident(shard, kept, ring, in_place=self._in_place)
        self._arrived = False  # whether the whole shard is in memory
        self._held = ExitStack()

    def decide(self, decided: Decided) -> None:
        """Scan as is decided now, with the same types of elements and results."""
        self.decided, self.form, self.types = decided, decided.form, decided.types

    def open(self) -> None:
        """Open the source, and start the threads."""
        with ExitStack() as held:
            flattened = self.form.extents.axis is None
            window = self.budget.window
            reading = self._source.reading(flattened=flattened, window=window)
            self._fill = held.enter_context(reading)
            if self._marks is not None:
                reading = self._marks.reading(flattened=True, window=window)
                self._fill_marks = held.enter_context(reading)
            begin = None if self.gpu is None else cores.unbind
            self._pipeline = Pipeline(self.budget.readers, self.budget.writers, begin)
            held.callback(self._pipeline.close)
            self._held = held.pop_all()

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._held.__exit__(*raised)

    def _allocate(self, number: int) -> Iterator[Slot]:
        for _ in range(number):
            if self._in_place and self.budget.resident:
                return
            out = self._memory.empty(self._largest, self.types.out)
            if self.budget.resident:
                yield Slot(None, out)
                continue
            x = out if self._in_place else self._memory.empty(self._largest, self.types.x)
            yield Slot(x, out, self._empty_marks(self._largest))

    def _empty_marks(self, n: int) -> Any:
        dtype = self.decided.scan.segments
        return None if dtype is None else self._memory.empty(n, dtype.newbyteorder("="))

    @property
    def links(self) -> int:
        """The most chunks that one scan goes through."""
        extents = self.form.extents
        return -(-extents.n * extents.inner // self.budget.chunk)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole source."""
        return self._source.n * self.types.x.itemsize

    def nbytes_before(self, block: Block) -> int:
        """Return the bytes of the source in the columns before a block."""
        return self.nbytes * block.column // max(self.form.extents.inner, 1)

    # ---- sweeps --------------------------------------------------------------------------------

    def look(
        self, chunks: Iterable[Chunk], note: Callable[[Any], None], done: Callable[[Chunk], None]
    ) -> None:
        """Read chunks, and call ``note`` with the elements of each; then ``done``."""

        def look(chunk: Chunk, slot: Slot) -> None:
            with self.timeline("reduce", chunk.size * self.types.x.itemsize):
                note(slot.x[: chunk.size])
            done(chunk)

        self._pipeline.run(chunks, self._slots, self._read, look, None)
        self._arrived = isinstance(self._slots, Resident) and [chunks] == self.blocks

    def reduce(self, chunks: Iterable[Chunk], carry: Carry, done: Callable[[Chunk], None]) -> None:
        """Read chunks, and combine their totals into ``carry``; ``done`` is called for each."""

        def reduce(chunk: Chunk, slot: Slot) -> None:
            scan = self._scan_of(chunk, "reduce-scan")
            with self.timeline("reduce", chunk.size * self.types.x.itemsize):
                carry.advance(scan.steps.begin(*_cut(slot, chunk.size)))
            done(chunk)

        self._pipeline.run(chunks, self._slots, self._unless(self._arrived), reduce, None)

    def scan(
        self,
        chunks: Iterable[Chunk],
        carry: Carry,
        begin: Callable[[], None],
        done: Callable[[Chunk], None],
        written: Callable[[], None],
    ) -> None:
        """Read, scan and write chunks behind ``carry``, which is then behind the last one.

        ``begin`` is called before a chunk with which scans begin, ``done`` after a chunk is
        scanned, ``written`` when it is written. A sweep before has read a shard that is resident.
        """

        def scan(chunk: Chunk, slot: Slot) -> None:
            compiled = self._scan_of(chunk, self.decided.chunk_strategy)
            moved = chunk.size * (self.types.x.itemsize + self.types.out.itemsize)
            with self.timeline("scan", moved):
                if chunk.begins:
                    begin()
                pending, seed = compiled.steps.begin(*_cut(slot, chunk.size)), self.form.first
                if not chunk.whole:
                    before = carry.before(pending)
                    seed = None if before is None else dtypes.cast(before, self.types.acc)
                    carry.advance(pending)
                compiled.steps.finish(pending, seed)
                self._memory.synchronize()
            done(chunk)

        reduced = self.decided.across and isinstance(self._slots, Resident)
        read = self._unless(self._arrived or reduced)
        self._pipeline.run(chunks, self._slots, read, scan, self._write, written=written)

    def _unless(self, arrived: bool) -> Stage | None:
        """Return the stage that reads, unless all chunks are in memory."""
        return None if arrived else self._read

    def flush(self) -> None:
        """Return when all that this rank has written is on the disk."""
        self._put.sync()

    def digests_of(self, chunk: Chunk) -> Digests:
        """Return the digests of a chunk that has been read; () without ``digests``."""
        if not self.digests:
            return ()
        resident = isinstance(self._slots, Resident)  # another sweep has the chunk as it was read
        return self._digests[chunk] if resident else self._digests.pop(chunk)

    def carry(self) -> Carry:
        """Return a running value for a sweep."""
        decided, form = self.decided, self.form
        return Carry(decided.op, decided.totals, form.first, segmented=form.segmented)

    def _scan_of(self, chunk: Chunk, strategy: Strategy) -> CompiledScan:
        """Return the compiled scan of a chunk; most chunks share one."""
        key = chunk.extents, strategy
        if key not in self._scans:
            self._scans[key] = self.decided.compile(*key, self.gpu)
        return self._scans[key]

    # ---- stages of other threads -----------------------------------------------------------------

    @property
    def _lane(self) -> Any:
        """The way of this thread between host and device."""
        lanes = self._lanes
        if not hasattr(lanes, "lane"):
            large = max(self.types.x.itemsize, self.types.out.itemsize)
            if self._marks is not None:
                large = max(large, self._marks.dtype.itemsize)
            lanes.lane = self._memory.Lane(self._largest * large, self.gpu)
        return lanes.lane

    def _read(self, chunk: Chunk, slot: Slot) -> None:
        """Read a chunk of the source into its slot."""
        x = slot.x[: chunk.size]
        landing, nbytes = self._lane.landing(x), x.nbytes
        with self.timeline("read", nbytes):
            self._runs(chunk, lambda low, high, at: self._fill(landing[low:high], at))
            self._digest(chunk, landing, first=True)
        if self.gpu is not None:
            with self.timeline("copy_in", nbytes):
                self._lane.upload(x)
        if slot.marks is not None:
            marks = slot.marks[: chunk.size]
            landing = self._lane.landing(marks)
            with self.timeline("read", marks.nbytes):
                self._fill_marks(landing, self.decided.start + chunk.start)
                self._digest(chunk, landing)
            self._lane.upload(marks)

    def _digest(self, chunk: Chunk, landing: Any, *, first: bool = False) -> None:
        """Note the digest of what was read for a chunk: of elements ``first``, then of marks."""
        if self.digests:
            before = () if first else self._digests[chunk]
            self._digests[chunk] = (*before, digest_of(landing[: chunk.size]))

    def _write(self, chunk: Chunk, slot: Slot) -> None:
        """Write the result in a slot to the target."""
        out = slot.out[: chunk.size]
        host = out
        if self.gpu is not None:
            with self.timeline("copy_out", out.nbytes):
                host = self._lane.download(out)
        with self.timeline("write", out.nbytes):
            self._runs(chunk, lambda low, high, at: self._put(host[low:high], at))

    def _runs(self, chunk: Chunk, move: Callable[[int, int, int], None]) -> None:
        """Call ``move`` for each run: (first and last in the chunk, index in the source)."""
        for index, low, high in chunk.runs():
            move(low, high, self.decided.start + index)


def _cut(slot: Slot, n: int) -> tuple[Any, Any, Any]:
    """Return the first ``n`` elements of a slot: x, out and segments, as steps take them."""
    return slot.x[:n], slot.out[:n], None if slot.marks is None else slot.marks[:n]
