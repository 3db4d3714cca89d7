"""The pipeline: the order of its stages, the slots in use, and faults in every stage."""

import itertools
import threading
import time
from collections import deque

import numpy as np
import pytest

from distscan.core.form import Extents
from distscan.job.chunks import Order, cut
from distscan.job.shard import Pipeline, Slot
from support.cases import pairs

pytestmark = [pytest.mark.one_rank, pytest.mark.timeout(30)]
MOST = 4  # elements of a chunk
NUMBERS = [(0, 0), (1, 1), (0, 2), (3, 0), (2, 1), (4, 8)]
numbers = pytest.mark.parametrize(("readers", "writers"), NUMBERS)


def line(n, reverse=False):
    (block,) = cut(Extents.of((n,), None), 0, MOST, Order(goes_on=True, reverse=reverse))
    return list(block)


def new_slots(number):
    return [Slot(np.zeros(MOST, int), np.zeros(MOST, int)) for _ in range(number)]


class Stages:
    """Stages that scan ``x`` into ``y``, and note what they do; a slot has one chunk at a time."""

    def __init__(self, x, rng=None):
        self.x, self.y = x, np.zeros_like(x)
        self.value, self.notes, self.lock = 0, [], threading.Lock()
        self.in_slot, self.most = {}, 0
        self.delays = [0] if rng is None else rng.exponential(0.0005, 97).tolist()
        self.fault = None, -1, None  # stage, start, exception
        self.told = []  # what had been written at each call of ``written``

    def note(self, stage, chunk):
        time.sleep(self.delays[(chunk.start + len(stage)) % len(self.delays)])
        with self.lock:
            self.notes.append((stage, chunk.start, threading.current_thread().name))
        if self.fault[:2] == (stage, chunk.start):
            raise self.fault[2]

    def read(self, chunk, slot):
        with self.lock:
            assert self.in_slot.setdefault(id(slot), chunk) is chunk
            self.most = max(self.most, len(self.in_slot))
        slot.x[: chunk.size] = self.x[chunk.start : chunk.start + chunk.size]
        self.note("read", chunk)

    def scan(self, chunk, slot):
        assert self.in_slot[id(slot)] is chunk
        slot.out[: chunk.size] = np.cumsum(slot.x[: chunk.size]) + self.value
        self.value = slot.out[chunk.size - 1]
        self.note("scan", chunk)
        yield chunk, slot

    def write(self, chunk, slot):
        assert self.in_slot[id(slot)] is chunk
        self.note("write", chunk)
        self.y[chunk.start : chunk.start + chunk.size] = slot.out[: chunk.size]
        with self.lock:
            del self.in_slot[id(slot)]

    def written(self):
        self.told.append(set(self.of("write")))
        self.notes.append(("written", len(self.told), threading.current_thread().name))

    def of(self, stage):
        return [start for name, start, _ in self.notes if name == stage]

    def threads(self, stage):
        return {thread for name, _, thread in self.notes if name == stage}


def run(stages, chunks, slots, readers, writers):
    pipeline = Pipeline(readers, writers)
    try:
        pipeline.run(chunks, slots, stages.read, stages.scan, stages.write, written=stages.written)
    finally:
        pipeline.close()


@numbers
def test_order_and_slots(readers, writers, rng):
    lengths = (0, 1, MOST, MOST + 1, int(rng.integers(2, 200)))
    for number, n in itertools.product((1, 2, 3, 13), lengths):
        x = rng.integers(-99, 99, n)
        stages, chunks, slots = Stages(x, rng), line(n), new_slots(number)
        free = deque(slots)
        run(stages, chunks, free, readers, writers)
        np.testing.assert_array_equal(stages.y, np.cumsum(x))
        starts = [chunk.start for chunk in chunks]
        assert stages.of("scan") == starts
        assert sorted(stages.of("read")) == sorted(stages.of("write")) == starts
        assert stages.most <= number
        assert len(stages.told) == len(starts)
        assert all(starts[i] in told for i, told in enumerate(stages.told))
        # Each stage comes after the one before it, and all slots are free again.
        at = {note[:2]: i for i, note in enumerate(stages.notes)}
        for start in starts:
            assert at["read", start] < at["scan", start] < at["write", start]
        assert sorted(map(id, free)) == sorted(map(id, slots))


@numbers
def test_threads(readers, writers, rng):
    """The scan is this thread's; the other stages are, where they have no threads of their own."""
    stages, here = Stages(rng.integers(0, 9, 100)), threading.current_thread().name
    run(stages, line(100), deque(new_slots(5)), readers, writers)
    assert stages.threads("scan") == stages.threads("written") == {here}
    for stage, number in (("read", readers), ("write", writers)):
        found = stages.threads(stage)
        assert len(found) <= max(number, 1)
        assert (here in found) == (number == 0)
    assert not [t for t in threading.enumerate() if t.name.startswith("distscan ")]


def test_without_threads_chunk_after_chunk(rng):
    """So that a chunk stays in the cache, however many slots there are."""
    stages, chunks = Stages(rng.integers(0, 9, 50)), line(50)
    run(stages, chunks, deque(new_slots(4)), 0, 0)
    stage_by_stage = [(stage, c.start) for c in chunks for stage in ("read", "scan", "write")]
    assert [note[:2] for note in stages.notes if note[0] != "written"] == stage_by_stage


@pytest.mark.parametrize("readers", [1, 4])
def test_readers_work_ahead(readers, rng):
    """All of them at a time, while the scan of an early chunk goes on."""
    n = 30 * MOST
    stages, together, ahead = Stages(rng.integers(0, 9, n)), threading.Barrier(readers), []

    def read(chunk, slot):
        if chunk.start < readers * MOST:
            together.wait(10)
        Stages.read(stages, chunk, slot)
        if chunk.start >= readers * MOST:
            later.set()

    def scan(chunk, slot):
        if chunk.start == 0:
            ahead.append(later.wait(10))
        yield from Stages.scan(stages, chunk, slot)

    later = threading.Event()
    stages.read, stages.scan = read, scan
    run(stages, line(n), deque(new_slots(2 * readers)), readers, 1)
    assert ahead == [True]
    np.testing.assert_array_equal(stages.y, np.cumsum(stages.x))


@pytest.mark.parametrize("writers", [1, 3])
def test_writers_work_behind(writers, rng):
    """All of them at a time, while later chunks are scanned."""
    n = 30 * MOST
    stages, together, behind = Stages(rng.integers(0, 9, n)), threading.Barrier(writers), []

    def write(chunk, slot):
        if chunk.start < writers * MOST:
            together.wait(10)
        if chunk.start == 0:
            behind.append(scanned.wait(10))
        Stages.write(stages, chunk, slot)

    def scan(chunk, slot):
        if chunk.start == writers * MOST:
            scanned.set()
        yield from Stages.scan(stages, chunk, slot)

    scanned = threading.Event()
    stages.write, stages.scan = write, scan
    run(stages, line(n), deque(new_slots(writers + 2)), 1, writers)
    assert behind == [True]
    np.testing.assert_array_equal(stages.y, np.cumsum(stages.x))


@pairs(
    threads=NUMBERS,
    stage=["read", "scan", "write"],
    at=["first", "inner", "last"],
    kind=[OSError, KeyboardInterrupt],
    group_by="threads",
)
def test_a_stage_fails(threads, stage, at, kind, rng):
    readers, writers = threads
    x = rng.integers(0, 9, 100)
    stages, chunks = Stages(x, rng), line(100)
    failing = chunks[{"first": 0, "inner": int(rng.integers(1, 24)), "last": 24}[at]].start
    stages.fault = stage, failing, kind("no more")
    with pytest.raises(kind, match="no more") as caught:
        run(stages, chunks, deque(new_slots(readers + writers + 1)), readers, writers)
    assert caught.value is stages.fault[2]
    assert not [t for t in threading.enumerate() if t.name.startswith("distscan ")]
    # No later chunk is scanned than were on their way.
    scanned = stages.of("scan")
    assert scanned == [chunk.start for chunk in chunks][: len(scanned)]
    if stage != "write":
        assert max(scanned, default=-1) <= failing
        assert failing not in stages.of("write")


@numbers
def test_chunks_that_end_with_a_fault(readers, writers, rng):
    stages = Stages(rng.integers(0, 9, 100), rng)

    def chunks():
        yield from line(100)[:7]
        raise ZeroDivisionError("no chunk")

    with pytest.raises(ZeroDivisionError, match="no chunk"):
        run(stages, chunks(), deque(new_slots(readers + writers + 1)), readers, writers)
    assert stages.of("scan") == [chunk.start for chunk in line(100)[:7]][: len(stages.of("scan"))]


def test_calls_that_have_not_begun_are_dropped(rng):
    """A fault is not kept waiting for a slow disk."""
    stages, failed = Stages(rng.integers(0, 9, 100)), threading.Event()

    def write(chunk, slot):
        Stages.write(stages, chunk, slot)
        failed.wait(10)
        time.sleep(0.1)

    def scan(chunk, slot):
        if chunk.start == 2 * MOST:
            failed.set()
            raise OSError("no more")
        yield from Stages.scan(stages, chunk, slot)

    stages.write, stages.scan = write, scan
    with pytest.raises(OSError, match="no more"):
        run(stages, line(100), deque(new_slots(20)), 0, 1)
    assert stages.of("write") == [0]


@numbers
def test_reduce_writes_nothing(readers, writers, rng):
    """A sweep without a last stage; then another one in the same slots."""
    x = rng.integers(-99, 99, int(rng.integers(50, 100)))
    stages, ring, found = Stages(x, rng), deque(new_slots(3)), []

    def reduce(chunk, slot):
        found.append(slot.x[: chunk.size].sum())
        del stages.in_slot[id(slot)]
        yield chunk, slot

    pipeline, chunks = Pipeline(readers, writers), line(x.size)
    pipeline.run(chunks, ring, stages.read, reduce, None)
    assert found == [x[c.start : c.start + c.size].sum() for c in chunks]
    pipeline.run(chunks, ring, stages.read, stages.scan, stages.write)
    pipeline.close()
    np.testing.assert_array_equal(stages.y, np.cumsum(x))


@numbers
@pytest.mark.parametrize("turn", [1, 2, 5])
def test_rounds(turn, readers, writers, rng):
    """The chunks of a round leave together, however many slots there are beside."""
    for number, n in itertools.product((turn, turn + 1, turn + 9), (0, 1, 7 * MOST, 100)):
        x, round_, chunks = rng.integers(-99, 99, n), [], line(n)
        stages = Stages(x, rng)

        def scan(chunk, slot, stages=stages, round_=round_, chunks=chunks):
            round_.append((chunk, slot))
            if len(round_) == turn or chunk is chunks[-1]:
                for each in round_:
                    yield from stages.scan(*each)
                round_.clear()

        pipeline = Pipeline(readers, writers)
        pipeline.run(chunks, deque(new_slots(number)), stages.read, scan, stages.write)
        pipeline.close()
        np.testing.assert_array_equal(stages.y, np.cumsum(x))
        assert stages.most <= number


def test_threads_begin(rng):
    """Each thread calls a function before all others."""
    begun, stages = [], Stages(rng.integers(0, 9, 100), rng)
    for readers, writers in ((0, 0), (2, 3)):
        pipeline = Pipeline(readers, writers, lambda: begun.append(threading.current_thread().name))
        pipeline.run(line(100), deque(new_slots(6)), stages.read, stages.scan, stages.write)
        pipeline.close()
        assert len(begun) == len(set(begun)) <= readers + writers
    found = stages.threads("read") | stages.threads("write")
    assert found - set(begun) == {threading.current_thread().name}
