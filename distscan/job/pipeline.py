"""The pipeline of a rank: chunks are read, scanned and written, several at a time. No MPI.

::

    readers, one thread each           this thread                  writers, one thread each
    file -> host -> device     ->      reduce, scan        ->       device -> host -> file

A chunk is in a ``Slot`` from the time it is read until it is written. Readers work ahead until no
slot is free. Without threads, this thread does all the work, chunk after chunk: a chunk then stays
in the caches of its core.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from .chunks import Chunk

T = TypeVar("T")


class Result(Protocol[T]):  # type: ignore[misc]
    """The result of a call, as of ``concurrent.futures``."""

    def result(self) -> T:
        """Wait for the call, and return what it returned, or raise what it raised."""


class Done(Generic[T]):
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
        """Call a function; return its result, or what will be it."""
        if self._executor is None:
            return Done(function(*args))
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


class Slots(Protocol):
    """The slots of a sweep."""

    def take(self, chunk: Chunk) -> Slot | None:
        """Return memory for a chunk; None if all is in use."""

    def give(self, slot: Slot) -> None:
        """Take back memory that is no longer in use."""


class Ring:
    """Slots that are used again and again, for chunks of at most as many elements as they have."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._free = deque(slots)

    def take(self, chunk: Chunk) -> Slot | None:
        """Return the slot that has been free the longest."""
        return self._free.popleft() if self._free else None

    def give(self, slot: Slot) -> None:
        """Take a slot back."""
        self._free.append(slot)


class Resident:
    """Slots that are parts of a shard, which stays in memory from one sweep to the next.

    Results are in place, or in the slots of ``results``.
    """

    def __init__(self, shard: Any, marks: Any, results: Ring, *, in_place: bool) -> None:
        self._shard, self._marks = shard, marks
        self._results, self._in_place = results, in_place

    def take(self, chunk: Chunk) -> Slot | None:
        """Return the part of the shard for a chunk, with memory for its result."""
        low = chunk.start // chunk.pitch * chunk.inner
        high = low + chunk.size
        x, marks = self._shard[low:high], None if self._marks is None else self._marks[low:high]
        if self._in_place:
            return Slot(x, x, marks)
        result = self._results.take(chunk)
        return None if result is None else Slot(x, result.out, marks)

    def give(self, slot: Slot) -> None:
        """Take back the memory for a result."""
        if not self._in_place:
            self._results.give(slot)


Stage = Callable[[Chunk, Slot], None]


class Pipeline:
    """The threads that read and write, and the order of their work."""

    def __init__(self, readers: int, writers: int, begin: Callable[[], None] | None = None) -> None:
        """Make so many threads, in each of which ``begin`` is called first."""
        self._readers = Threads(readers, "reader", begin)
        self._writers = Threads(writers, "writer", begin)

    def run(
        self,
        chunks: Iterable[Chunk],
        slots: Slots,
        read: Stage | None,
        scan: Stage,
        write: Stage | None,
        *,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """Read, scan and write chunks, each stage in their order; return when all is written.

        ``scan`` is called by this thread, the other stages by threads of their own. An exception of
        a stage is raised here. Without ``read``, the chunks are in their slots already. ``written``
        is called by this thread when the next chunk in order is written.
        """
        leaving: deque[tuple[Slot, Result[None]]] = deque()

        def leave(most: int) -> None:
            while len(leaving) > most:
                slot, done = leaving.popleft()
                done.result()
                slots.give(slot)
                written()

        for arrived in self._arriving(chunks, slots, read):
            if arrived is None:  # all slots are in use
                leave(len(leaving) - 1)
                continue
            chunk, slot = arrived
            scan(chunk, slot)
            if write is None:
                slots.give(slot)
            else:
                leaving.append((slot, self._writers.submit(write, chunk, slot)))
                leave(2 * self._writers.number)
        leave(0)

    def _arriving(
        self, chunks: Iterable[Chunk], slots: Slots, read: Stage | None
    ) -> Iterator[tuple[Chunk, Slot] | None]:
        """Yield the chunks that have been read, with their slots; None if no slot is free."""
        ahead: deque[tuple[Chunk, Slot, Result[None]]] = deque()
        coming = iter(chunks)
        chunk = next(coming, None)
        most = max(1, 2 * self._readers.number)
        while chunk is not None or ahead:
            while chunk is not None and len(ahead) < most and (slot := slots.take(chunk)):
                arrived = Done(None) if read is None else self._readers.submit(read, chunk, slot)
                ahead.append((chunk, slot, arrived))
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
