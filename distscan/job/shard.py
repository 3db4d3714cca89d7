"""One rank's chunks of a job: how they are read, scanned and written. No MPI.

Chunks are read, scanned and written at once, in the order of the scan::

    readers, one thread each           this thread                  writers, one thread each
    file -> host -> device     ->      reduce, scan        ->       device -> host -> file

A chunk is in a ``Slot`` from the time it is read until it is written. Readers work ahead until no
slot is free. Without threads, this thread does all the work, chunk after chunk: a chunk then stays
in the caches of its core.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import zip_longest
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core import dtypes
from ..core.form import Extents
from ..core.operators import Operator
from ..core.steps import Edges, Pending, Strategy
from ..cpu import threads
from ..engine.shard_scan import ShardScan
from .chunks import Block, Chunk
from .formats.interface import Put, Source, fill_box, put_box
from .plan import Budget, JobPlan
from .report import Timeline

T = TypeVar("T")


# ---- the running value of a shard, from chunk to chunk; digests of chunks -------------------


class Carry:
    """The combination of all elements so far, 0-d or [inner]; with segments, of the last segment's.

    It begins without a value, or with that of the elements before. After a rank's chunks of a round
    it is the total of all these, and a ``Pending`` for the exchange of totals between ranks.

    ``first``, which comes before the first element and before each segment (see ``Form``), is part
    of what ``before`` and ``result`` return, not of the value.
    """

    def __init__(
        self, op: Operator, dtype: np.dtype[Any], first: NDArray[Any] | None, *, segmented: bool
    ) -> None:
        self._op, self.dtype, self._segmented = op, dtype, segmented
        self._first = None if first is None else dtypes.cast(first, dtype)
        self.start(None)

    def start(self, value: Any, edges: Edges | None = None) -> None:
        """Forget all elements, and begin after others: their value, the edges of their keys."""
        self.value: NDArray[Any] | None = None if value is None else np.array(value, self.dtype)
        self.edges = edges
        self.empty, self.head = value is None, False
        self.offset: Any = None

    def before(self, chunk: Pending) -> NDArray[Any] | None:
        """Return the offset of a chunk; None if nothing comes before it."""
        return self._first if self._segment_begins(chunk) else self.result()

    def result(self) -> NDArray[Any] | None:
        """Return ``first`` combined with the value; None if there is neither."""
        if self.value is None or self._first is None:
            return self._first if self.value is None else self.value
        combined: NDArray[Any] = np.asarray(self._op.combine(self._first, self.value))
        return combined

    def advance(self, chunk: Pending) -> None:
        """Combine the total of a chunk into the value."""
        if chunk.empty:
            return
        total = dtypes.cast(chunk.total(), self.dtype)
        begins = self._segment_begins(chunk) or (self._segmented and chunk.head)
        if begins or self.value is None:
            self.value = total
        else:
            self.value = np.asarray(self._op.combine(self.value, total))
        self.head = self.head or begins
        if self._segmented and chunk.edges is not None:
            enters, leaves = chunk.edges
            self.edges = Edges(enters if self.edges is None else self.edges.enters, leaves)
        self.empty = False

    def _segment_begins(self, chunk: Pending) -> bool:
        """Return whether a segment begins between the last chunk and the next one."""
        if not self._segmented or self.edges is None or chunk.empty:
            return False
        chunk.total()  # the edges are valid now
        return chunk.edges is not None and bool(self.edges.leaves != chunk.edges.enters)

    # The total of the shard, for the exchange between ranks.

    def total(self, piece: slice | None = None) -> NDArray[Any]:
        """Return the value, or a piece of it."""
        value = np.asarray(self.value)
        return value if piece is None else value[piece]

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Store a piece of a long row of offsets, over the same piece of the row of totals."""
        if offset is not None:
            assert self.value is not None
            self.value[piece] = offset
            self.offset = self.value


#: Digests of chunks in order, of the elements and of the flags or keys; () if none are computed.
Digests = tuple[str, ...]


def digest_of(elements: NDArray[Any]) -> str:
    """Return the digest of all bytes of a chunk; other threads run meanwhile.

    XXH3 of 128 bits: 30 GB/s for a chunk in the caches (one core of an EPYC), SHA-256 has 1.4.
    """
    from xxhash import xxh3_128_hexdigest  # noqa: PLC0415 - jobs with --resume alone need it

    return xxh3_128_hexdigest(elements.view(np.uint8))  # type: ignore[arg-type]


def extend(digests: Digests, chunk: Digests) -> Digests:
    """Return the digests of some chunks and the next one; () if that has none."""
    if not chunk:
        return ()
    from xxhash import xxh3_128_hexdigest  # noqa: PLC0415

    pairs = zip_longest(digests, chunk, fillvalue="")
    return tuple(xxh3_128_hexdigest("".join(pair).encode()) for pair in pairs)


# ---- chunks in memory, and the threads that read and write ----------------------------------


class Result(Protocol[T]):  # type: ignore[misc]
    """The result of a call, as of ``concurrent.futures``."""

    def result(self) -> T:
        """Wait for the call, and return what it returned, or raise what it raised."""


class ReadyResult(Generic[T]):
    """The result of a call that has returned."""

    def __init__(self, value: T) -> None:
        self._value = value

    def result(self) -> T:
        """Return the value."""
        return self._value


class Threads:
    """Calls in up to ``number`` threads; with 0, calls in the caller's own."""

    def __init__(self, number: int, name: str, begin: Callable[[], None] | None = None) -> None:
        """``begin`` is called first in each thread."""
        self.number = number
        self._executor: Any = None
        if number > 0:
            # The import takes longer than a job on a small file.
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

            self._executor = ThreadPoolExecutor(number, name, begin)

    def submit(self, function: Callable[..., T], *args: Any) -> Result[T]:
        """Call a function; return its result, which may be ready later."""
        if self._executor is None:
            return ReadyResult(function(*args))
        future: Result[T] = self._executor.submit(function, *args)
        return future

    def close(self) -> None:
        """Wait for the calls that have begun; drop the others."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)


class Slot:
    """The memory of a chunk on the device: elements, results (perhaps in place), flags or keys."""

    def __init__(self, x: Any, out: Any, marks: Any = None) -> None:
        self.x, self.out, self.marks = x, out, marks  # marks: flags or keys


Stage = Callable[[Chunk, Slot], None]
#: A stage after which some chunks leave: none before the last one of a round, all of them then.
RoundStage = Callable[[Chunk, Slot], Iterable[tuple[Chunk, Slot]]]


class Pipeline:
    """The threads that read and write, and the order of their work."""

    def __init__(self, readers: int, writers: int, begin: Callable[[], None] | None = None) -> None:
        """Make so many threads; each of them calls ``begin`` first."""
        self._readers = Threads(readers, "reader", begin)
        self._writers = Threads(writers, "writer", begin)

    def run(
        self,
        chunks: Iterable[Chunk],
        slots: deque[Slot],
        read: Stage,
        scan: RoundStage,
        write: Stage | None,
        *,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """Read, scan and write chunks, each stage in their order; return when all is written.

        ``slots`` are free, at least as many as a round has chunks. ``scan`` is called by this
        thread, the other stages by threads of their own. An exception of a stage is raised here.
        ``written`` is called by this thread when the next chunk in order is written.
        """
        leaving: deque[tuple[Slot, Result[None]]] = deque()

        def leave(most: int) -> None:
            while len(leaving) > most:
                slot, done = leaving.popleft()
                done.result()
                slots.append(slot)
                written()

        for arrived in self._arriving(chunks, slots, read):
            if arrived is None:  # all slots are in use
                leave(len(leaving) - 1)
                continue
            for chunk, slot in scan(*arrived):
                if write is None:
                    slots.append(slot)
                else:
                    leaving.append((slot, self._writers.submit(write, chunk, slot)))
                    leave(2 * self._writers.number)
        leave(0)

    def _arriving(
        self, chunks: Iterable[Chunk], slots: deque[Slot], read: Stage
    ) -> Iterator[tuple[Chunk, Slot] | None]:
        """Yield the chunks that have been read, with their slots; None if no slot is free."""
        ahead: deque[tuple[Chunk, Slot, Result[None]]] = deque()
        coming = iter(chunks)
        chunk = next(coming, None)
        most = max(1, 2 * self._readers.number)
        while chunk is not None or ahead:
            while chunk is not None and len(ahead) < most and slots:
                slot = slots.popleft()
                ahead.append((chunk, slot, self._readers.submit(read, chunk, slot)))
                chunk = next(coming, None)
            if not ahead:
                yield None
                continue
            first, slot, arrived = ahead.popleft()
            arrived.result()
            yield first, slot

    def close(self) -> None:
        """Wait for the calls that threads have begun; drop the others."""
        self._readers.close()
        self._writers.close()


# ---- the stages of a chunk ------------------------------------------------------------------


_ALIGNED = 256  # elements, at multiples of which large chunks begin in memory


class Shard:
    """The memory, the threads and the compiled scans of one rank.

    ``memory`` is the backend's module of that name, and ``put`` writes the results. ``open`` opens
    the source and starts the threads; at the end of a ``with`` block they have ended.
    """

    def __init__(
        self,
        plan: JobPlan,
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
        self.plan, self.budget, self.timeline = plan, budget, timeline
        self._memory, self._source, self._marks, self._put = memory, source, marks, put
        self.blocks = plan.blocks(budget.chunk, budget.turn)
        self._lanes, self._scans = threading.local(), dict[tuple[Extents, Strategy], ShardScan]()
        self._largest = min(budget.chunk, source.n)
        self._slots = deque(self._allocate(budget.slots))
        self._resources = ExitStack()

    def open(self) -> None:
        """Open the source, and start the threads."""
        with ExitStack() as resources:
            flattened = self.plan.form.extents.axis is None
            window = self.budget.window
            reading = self._source.reading(flattened=flattened, window=window)
            self._fill = resources.enter_context(reading)
            if self._marks is not None:
                reading = self._marks.reading(flattened=True, window=window)
                self._fill_marks = resources.enter_context(reading)
            begin = None if self.plan.gpu is None else threads.unbind
            self._pipeline = Pipeline(self.budget.readers, self.budget.writers, begin)
            resources.callback(self._pipeline.close)
            self._resources = resources.pop_all()

    def __enter__(self) -> "Shard":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._resources.__exit__(*raised)

    def _allocate(self, number: int) -> Iterator[Slot]:
        """Allocate the memory of chunks, all at once: a GPU may have thousands."""
        types, marks, large = self.plan.types, self.plan.scan.segments, self._largest
        step = large if large < _ALIGNED**2 else -(-large // _ALIGNED) * _ALIGNED
        outs = self._memory.empty(step * number, types.out)
        xs = outs if types.x == types.out else self._memory.empty(step * number, types.x)
        keys = None
        if marks is not None:
            keys = self._memory.empty(step * number, marks.newbyteorder("="))
        for low in range(0, step * number, step) if step else [0] * number:
            part = slice(low, low + large)
            yield Slot(xs[part], outs[part], None if keys is None else keys[part])

    @property
    def links(self) -> int:
        """The most chunks that one scan goes through, on all ranks."""
        if self.plan.tiles is not None or self.plan.across:
            return max(map(len, self.blocks)) * self.plan.turns.size
        extents = self.plan.form.extents
        return -(-extents.length * extents.inner // self.budget.chunk)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole source."""
        return self._source.n * self.plan.types.x.itemsize

    def nbytes_before(self, block: Block) -> int:
        """Return the bytes of the source in the columns before a block."""
        return self.nbytes * block.column // max(self.plan.form.extents.inner, 1)

    # ---- stages of this thread ----

    def look(
        self, chunks: Iterable[Chunk], note: Callable[[Any], None], done: Callable[[Chunk], None]
    ) -> None:
        """Read chunks, and call ``note`` with the elements of each; then ``done``."""

        def look(chunk: Chunk, slot: Slot) -> Iterator[tuple[Chunk, Slot]]:
            if chunk.size > 0:
                with self.timeline("reduce", chunk.size * self.plan.types.x.itemsize):
                    note(slot.x[: chunk.size])
            done(chunk)
            yield chunk, slot

        self._pipeline.run(chunks, self._slots.copy(), self._read, look, None)

    def scan(self, chunks: Iterable[Chunk], scan: RoundStage, written: Callable[[], None]) -> None:
        """Read, scan and write chunks; ``written`` is called when the next one is written."""
        self._pipeline.run(
            chunks, self._slots.copy(), self._read, scan, self._write, written=written
        )

    def begin(self, chunk: Chunk, slot: Slot, *, again: bool = False) -> Pending:
        """Begin the scan of a chunk: find its total.

        ``again`` says that the scan will begin a second time, and not end after the first one.
        """
        strategy = "reduce-scan" if again else self.plan.chunk_strategy
        return self._scan_of(chunk, strategy).steps.begin(*_cut(slot, chunk.size))

    def finish(self, chunk: Chunk, pending: Pending, seed: Any) -> None:
        """End the scan of a chunk, seeded with the value before it, or with None."""
        seed = None if seed is None else dtypes.cast(seed, self.plan.types.acc)
        self._scan_of(chunk, self.plan.chunk_strategy).steps.finish(pending, seed)
        self._memory.synchronize()

    def flush(self) -> None:
        """Return when all elements that this rank has written are on the disk."""
        self._put.sync()

    def digests_of(self, chunk: Chunk) -> Digests:
        """Return the digests of a chunk that has been read; () without ``digests``."""
        if not self.digests:
            return ()
        return self._digests.pop(chunk)

    def carry(self) -> Carry:
        """Return a running value."""
        plan, form = self.plan, self.plan.form
        return Carry(plan.op, plan.totals, form.seed, segmented=form.segmented)

    def _scan_of(self, chunk: Chunk, strategy: Strategy) -> ShardScan:
        """Return the compiled scan of a chunk; most chunks share one."""
        key = chunk.extents, strategy
        if key not in self._scans:
            self._scans[key] = self.plan.compile(*key)
        return self._scans[key]

    # ---- stages of other threads ----

    @property
    def _lane(self) -> Any:
        """The way of this thread between host and device."""
        lanes = self._lanes
        if not hasattr(lanes, "lane"):
            large = max(self.plan.types.x.itemsize, self.plan.types.out.itemsize)
            if self._marks is not None:
                large = max(large, self._marks.dtype.itemsize)
            lanes.lane = self._memory.Lane(self._largest * large, self.plan.gpu)
        return lanes.lane

    def _read(self, chunk: Chunk, slot: Slot) -> None:
        """Read a chunk of the source into its slot."""
        if chunk.size == 0:
            return
        x = slot.x[: chunk.size]
        landing, nbytes = self._lane.landing(x), x.nbytes
        with self.timeline("read", nbytes):
            if chunk.box is not None:
                fill_box(self._fill, self.plan.shape, landing, chunk.box)
            else:
                for index, low, high in chunk.runs():
                    self._fill(landing[low:high], index)
            self._digest(chunk, landing, first=True)
        if self.plan.gpu is not None:
            with self.timeline("copy_in", nbytes):
                self._lane.upload(x)
        if slot.marks is not None:
            marks = slot.marks[: chunk.size]
            landing = self._lane.landing(marks)
            with self.timeline("read", marks.nbytes):
                self._fill_marks(landing, chunk.start)
                self._digest(chunk, landing)
            self._lane.upload(marks)

    def _digest(self, chunk: Chunk, landing: Any, *, first: bool = False) -> None:
        """Note the digest of a chunk as it was read: of elements ``first``, then of marks."""
        if self.digests:
            before = () if first else self._digests[chunk]
            self._digests[chunk] = (*before, digest_of(landing[: chunk.size]))

    def _write(self, chunk: Chunk, slot: Slot) -> None:
        """Write the result in a slot to the target."""
        if chunk.size == 0:
            return
        out = slot.out[: chunk.size]
        host = out
        if self.plan.gpu is not None:
            with self.timeline("copy_out", out.nbytes):
                host = self._lane.download(out)
        with self.timeline("write", out.nbytes):
            if chunk.box is not None:
                put_box(self._put, self.plan.shape, host, chunk.box)
            else:
                for index, low, high in chunk.runs():
                    self._put(host[low:high], index)


def _cut(slot: Slot, n: int) -> tuple[Any, Any, Any]:
    """Return the first ``n`` elements of a slot: x, out and segments, as steps take them."""
    return slot.x[:n], slot.out[:n], None if slot.marks is None else slot.marks[:n]
