"""The chip, samples of a call's time, and trials: contenders in turns, and their shares of a copy.

The times of a call are on the device's clock and on the host's.

device
    The time between CUDA events around a batch of calls back to back, divided by their number. Each
    call of a batch has its own buffers. From 256 MiB per call on, a batch is one call. With
    ``--graphs`` a CUDA graph holds the batch, so the time has nothing of the host's.
wall
    The time on the host's clock of one call and a synchronisation of the device, after a barrier.
    With ``--cpu-time``, the processors' time of all threads of the rank: other programs change it
    less.
queued
    The same as device, after a copy. While the device copies, the host queues all calls. So the
    time has no gaps between calls for which the host was too slow. For tuning.

Inputs come from memory. Before every sample, the GPU's cache is filled with other data; with
``--cached``, all calls have the same buffers instead. On a CPU, the calls rotate among buffers.
With several ranks, each sample is that of the slowest rank. All functions with ``comm`` are
collective: every rank takes the same decisions.
"""

import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import CheckError
from ..job.progress import Progress
from ..mpi.agree import agreed
from ..mpi.communicators import Comm

Call = Callable[[], object]
WARM_UPS = 3  # samples that are not counted


# ---- the chip: a CPU with NumPy, or the current GPU with CuPy -------------------------------

_MOST_PAIRS = 256
_BATCH = 32  # the most calls back to back on a GPU
_CACHED_BATCH = 20  # calls back to back on the same buffers
_BATCH_BYTES = 256 << 20  # the most bytes that the calls of a batch touch together
_BALLAST = 1 << 30  # bytes
_MOST_CPU_CACHE = 64 << 20  # bytes; clouds report the cache of a socket, a core has a share of it


class Host:
    """A CPU. ``Gpu`` has the same methods."""

    backend: Literal["cpu", "cuda"] = "cpu"
    xp: Any = np

    def __init__(self, name: str, ranks: int = 1, *, cpu_time: bool = False) -> None:
        """Find the properties of the chip, whose memory ``ranks`` ranks share."""
        #: The host's clock, in seconds.
        self.now: Callable[[], float] = process_time if cpu_time else perf_counter
        self.name, self._ranks = name, ranks
        self.cache = min(_sysconf("SC_LEVEL3_CACHE_SIZE") or 32 << 20, _MOST_CPU_CACHE)  # bytes
        #: The peak of the memory in bytes per second, by its clock; None if it is not known.
        self.peak: float | None = None

    def free(self) -> int:
        """Bytes of memory that this rank may still take."""
        return _sysconf("SC_AVPHYS_PAGES") * _sysconf("SC_PAGE_SIZE") // self._ranks

    def pairs(self, size: int) -> int:
        """Return the number of pairs of buffers, of ``size`` bytes each, that calls rotate among.

        The pairs fill 4 caches, so that data comes from memory. There are at most 256 pairs. So
        with a cache of 32 MiB, pairs below 512 KiB fill less. A flush of the cache instead would
        also remove the program from it.
        """
        return max(1, min(-(-4 * self.cache // size), _MOST_PAIRS))

    def flush(self) -> None:
        """Fill the cache with other data; do nothing on a CPU, whose cache holds the program."""

    def occupy(self) -> None:
        """Keep a GPU busy for a while; do nothing on a CPU."""

    def synchronize(self) -> None:
        """Wait for all work of this process."""

    def batch(self, pairs: int) -> int:
        """Return the number of calls of a batch on the device's own clock."""
        return 1

    def seconds(self, calls: Sequence[Call]) -> float | None:
        """Seconds of each call on the device's own clock; None on a CPU, which has none."""
        return None

    def release(self) -> None:
        """Give unused memory back to the system."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the software that the times depend on, beside NumPy and MPI."""
        return {}


class Gpu(Host):
    """The current GPU and its current stream."""

    backend = "cuda"

    def __init__(
        self, name: str, ranks: int = 1, *, graphs: bool = False, cached: bool = False
    ) -> None:
        """Find the properties of the chip, whose memory ``ranks`` ranks share.

        With ``graphs``, CUDA graphs hold the calls that ``seconds`` times. With ``cached``, all
        calls have the same buffers.
        """
        super().__init__(name, ranks)
        import cupy  # noqa: PLC0415 - a CPU run need not have CuPy

        self._cached = cached
        #: The graph of each sequence of calls, beside the sequence; None without ``graphs``.
        self._graphs: dict[int, tuple[Sequence[Call], Any]] | None = {} if graphs else None

        self.xp = cupy
        self._scratch: Any = None
        self._ballast: Any = None
        self.cache = int(
            cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["l2CacheSize"]
        )
        self.peak = _peak(cupy.cuda.Device().attributes)

    def free(self) -> int:
        """Bytes of device memory that this rank may still take."""
        return int(self.xp.cuda.runtime.memGetInfo()[0]) // self._ranks

    def pairs(self, size: int) -> int:
        """Return the number of calls of a batch: one pair each. ``flush`` comes before a batch."""
        return 1 if self._cached else max(1, min(_BATCH, _BATCH_BYTES // size))

    def batch(self, pairs: int) -> int:
        """Return the number of calls of a batch."""
        return _CACHED_BATCH if self._cached else pairs

    def flush(self) -> None:
        """Read 4 caches of other data. Written cache lines would be written back later."""
        if self._cached:
            return
        if self._scratch is None:
            self._scratch = self.xp.ones(4 * self.cache // 8, self.xp.int64)
        self._scratch.max()

    def occupy(self) -> None:
        """Queue 2 copies of 1 GiB, which take a millisecond on an H200, and fill the cache."""
        if self._ballast is None:
            self._ballast = [self.xp.empty(_BALLAST, np.uint8) for _ in range(2)]
        for x, out in (self._ballast, self._ballast[::-1]):
            out.data.copy_from_device_async(x.data, _BALLAST)

    def synchronize(self) -> None:
        """Wait for all work on the device, on the streams of all libraries."""
        self.xp.cuda.runtime.deviceSynchronize()

    def seconds(self, calls: Sequence[Call]) -> float | None:
        """Seconds of each call of a batch, between two events on the current stream."""
        count = self.batch(len(calls))
        batch = [*calls] * (count // len(calls))
        work = partial(call_all, batch) if self._graphs is None else self._graph(calls, batch)
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end)) / 1e3 / count

    def _graph(self, calls: Sequence[Call], batch: Sequence[Call]) -> Call:
        """Return the launch of a graph that holds a batch; it is captured once."""
        assert self._graphs is not None
        if id(calls) not in self._graphs:
            with self.xp.cuda.Stream(non_blocking=True) as stream:
                call_all(calls)  # before the capture, which allows no first call
                stream.synchronize()
                stream.begin_capture()
                call_all(batch)
                self._graphs[id(calls)] = calls, stream.end_capture()
        return partial(self._graphs[id(calls)][1].launch, self.xp.cuda.get_current_stream())

    def release(self) -> None:
        """Give the memory that CuPy and torch hold in their pools back to the device."""
        if self._graphs:
            self._graphs.clear()
        self.xp.get_default_memory_pool().free_all_blocks()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def versions(self) -> dict[str, str]:
        """Return the versions of CuPy, of the CUDA runtime and of the driver."""
        runtime = self.xp.cuda.runtime
        return {
            "cupy": self.xp.__version__,
            "cuda": _cuda(runtime.runtimeGetVersion()),
            "cuda driver": _cuda(runtime.driverGetVersion()),
        } | _driver()


def _cuda(number: int) -> str:
    """Write CUDA's version number.

    >>> _cuda(13020)
    '13.2'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


def _peak(attributes: Mapping[str, int]) -> float | None:
    """Return the memory's peak in bytes per second: 2 transfers per cycle, over the whole bus.

    >>> _peak({"MemoryClockRate": 3_201_000, "GlobalMemoryBusWidth": 6144}) / 1e12  # an H200
    4.916736
    """
    clock, bits = attributes.get("MemoryClockRate", 0), attributes.get("GlobalMemoryBusWidth", 0)
    return 2 * clock * 1e3 * bits / 8 if clock > 0 and bits > 0 else None


def _driver() -> dict[str, str]:
    """Return the version of NVIDIA's driver, if Linux knows it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return {}
    number = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return {"driver": number.group()} if number else {}


def _sysconf(name: str) -> int:
    try:
        return max(os.sysconf(name), 0)
    except (ValueError, OSError):
        return 0


# ---- samples --------------------------------------------------------------------------------


class Stats(NamedTuple):
    """The quartiles of samples, in their unit; and the number of samples."""

    median: float
    q1: float
    q3: float
    samples: int


class Samples(NamedTuple):
    """The samples of one contender on one rank, in microseconds per call."""

    device: list[float]
    wall: list[float]

    def add(self, *others: "Samples") -> None:
        """Append the samples of others."""
        for other in others:
            self.device.extend(other.device)
            self.wall.extend(other.wall)


def call_all(calls: Sequence[Call]) -> None:
    """Make calls one after the other."""
    for call in calls:
        call()


def sample(comm: Comm, machine: Host, calls: Sequence[Call], which: int, into: Samples) -> None:
    """Take one sample of each kind. If the call fails on one rank, every rank raises.

    The device's clock measures all ``calls``. The host's clock measures one of them: number
    ``which``, modulo their number. Before both, the call before that one runs without a clock,
    because after another contender the caches hold that contender's code.
    """
    call = calls[which % len(calls)]

    def warm_up() -> None:
        with agreed(comm):
            calls[(which - 1) % len(calls)]()
        machine.flush()

    if machine.backend == "cuda":  # a CPU has no clock of its own
        warm_up()
        comm.Barrier()
        with agreed(comm):
            device = machine.seconds(calls)
            if device is not None:
                into.device.append(device * 1e6)
    warm_up()
    machine.synchronize()
    comm.Barrier()
    with agreed(comm):
        begin = machine.now()
        call()
        machine.synchronize()
        into.wall.append((machine.now() - begin) * 1e6)


def time_queued(
    machine: Host,
    calls: Sequence[Call],
    before: Call = lambda: None,
    *,
    repeat: int = 11,
) -> Stats:
    """Time batches on the device's clock, each after a copy; for one rank with a GPU.

    Returns microseconds per call. ``before`` is called before each batch, and is not timed.
    """
    samples = []
    for turn in range(-WARM_UPS, repeat):
        before()
        machine.occupy()
        seconds = machine.seconds(calls)
        if seconds is None:
            raise NotImplementedError("a CPU has no clock of its own")
        if turn >= 0:
            samples.append(seconds * 1e6)
    return stats(samples)


def slowest(comm: Comm, samples: Sequence[float]) -> NDArray[np.float64]:
    """Return each sample of the rank that was slowest in it.

    All ranks must have the same number of samples.
    """
    all_ranks = np.array(comm.allgather(list(samples)))  # [ranks, samples]
    return all_ranks.max(axis=0)  # type: ignore[no-any-return]


def stats(samples: Sequence[float] | NDArray[np.float64]) -> Stats:
    """Return the median, the quartiles and the number of samples.

    >>> stats([4.0, 1.0, 3.0, 2.0, 5.0])
    Stats(median=3.0, q1=2.0, q3=4.0, samples=5)
    """
    q1, median, q3 = (float(q) for q in np.percentile(samples, [25, 50, 75]))
    return Stats(median, q1, q3, len(samples))


# ---- trials ---------------------------------------------------------------------------------

ROOM = 0.9  # the share of the free memory that a trial may take


@dataclass
class Row:
    """One contender in one trial; times in microseconds per call, of the slowest rank."""

    contender: str
    type: str
    n: int  # elements per rank
    status: str = "timed"  # or "wrong", "error", "skipped"
    message: str = ""
    batch: int = 1  # calls between two events
    device_us: Stats | None = None
    wall_us: Stats | None = None
    moved: int | None = None  # bytes per rank, if they are known
    share: float | None = None  # of the copy's speed, for the bytes that a perfect scan moves
    spread: float | None = None  # of the share: its quartiles apart, as a part of it
    times: float | None = None  # NumPy's speed; on several ranks, the speed of by-hand

    def plain(self) -> dict[str, Any]:
        """Return the row as values for JSON."""
        spread = {
            name: None if value is None else value._asdict()
            for name, value in (("device_us", self.device_us), ("wall_us", self.wall_us))
        }
        return asdict(self) | spread

    def fail(self, status: str, fault: Exception | str) -> None:
        """Note why the row has no times."""
        text = " ".join(str(fault).split()) or type(fault).__name__
        self.status, self.message = status, text if len(text) <= 200 else text[:199] + "…"


@dataclass(eq=False)
class Entry:
    """A row, its calls and its samples. Two copies belong to each: one before, one after."""

    row: Row
    calls: list[Call]
    samples: Samples = field(default_factory=lambda: Samples([], []))
    copies: Samples = field(default_factory=lambda: Samples([], []))


class Trial(ABC):
    """All contenders of one scan or use, at one size, on one rank."""

    title: str
    n: int  # elements per rank
    names: Sequence[str]  # of the contenders
    data: Any = None  # the buffers, during the trial

    @abstractmethod
    def need(self, machine: Host) -> int:
        """Return the bytes of memory of the trial on one rank."""

    @abstractmethod
    def draw(self, comm: Comm, machine: Host) -> None:
        """Set ``data``: allocate the buffers, and draw the elements."""

    @abstractmethod
    def calls(self, row: Row) -> list[Call]:
        """Return the calls of a contender. Raises CheckError if its result is wrong."""

    @abstractmethod
    def finish(self, entries: Sequence[Entry]) -> None:
        """Set the times and the shares of the rows, from the samples of the entries."""

    def entries(self, rows: Sequence[Row]) -> list[Entry]:
        """Return the entries of the contenders whose results are right."""
        entries = []
        for row in rows:
            try:
                entries.append(Entry(row, self.calls(row)))
            except Exception as error:
                row.fail("wrong" if isinstance(error, CheckError) else "error", error)
        return entries


def run(
    comm: Comm,
    machine: Host,
    trials: Sequence[Trial],
    *,
    repeat: int,
    notify: Callable[[Progress], None],
) -> list[Row]:
    """Check and time the contenders of all trials. Unused memory is released after each trial."""
    rows = []
    for i, trial in enumerate(trials):
        notify(Progress(trial.title, share=i / len(trials)))
        rows += measure(comm, machine, trial, repeat)
        machine.release()
    return rows


def measure(comm: Comm, machine: Host, trial: Trial, repeat: int) -> list[Row]:
    """Check all contenders, then time them. They take turns, sample by sample.

    Each sample stands between two copies. So a machine that is slow for seconds is slow in both.
    """
    rows = [Row(name, trial.title, trial.n) for name in trial.names]
    needed, room = trial.need(machine), min(comm.allgather(machine.free()))
    fault: MemoryError | str = ""
    if needed > ROOM * room:
        fault = f"takes {needed / 2**30:.1f} GiB a rank, {room / 2**30:.1f} are free"
    try:
        if not fault:
            trial.draw(comm, machine)
            entries = trial.entries(rows)
            take_turns(comm, machine, entries, repeat)
            trial.finish(entries)
    except MemoryError as error:  # on all ranks: another program has taken the memory
        fault = error
    finally:
        trial.data = None
    for row in rows if fault else ():
        row.fail("skipped", fault)
    return rows


def take_turns(comm: Comm, machine: Host, entries: list[Entry], repeat: int) -> None:
    """Take ``repeat`` samples of each, in turns; one that fails is removed from ``entries``."""
    which = count()  # each sample has other buffers, so that no buffer is still in the cache
    copy = next((entry for entry in entries if entry.row.contender == "copy"), None)
    for turn in range(-WARM_UPS, repeat):
        before = Samples([], [])
        if copy is not None:
            sample(comm, machine, copy.calls, next(which), before)
        for entry in [entry for entry in entries if entry is not copy]:
            samples, after = Samples([], []), Samples([], [])
            try:
                sample(comm, machine, entry.calls, next(which), samples)
            except Exception as error:
                entry.row.fail("error", error)
                entries.remove(entry)
                continue
            if copy is not None:
                sample(comm, machine, copy.calls, next(which), after)
            if turn >= 0:
                entry.samples.add(samples)
                entry.copies.add(before, after)
            before = after
        if turn >= 0 and copy is not None:
            copy.samples.add(before)
            copy.copies.add(before, before)


def set_times(comm: Comm, entries: Sequence[Entry]) -> None:
    """Set the times of all rows from their samples."""
    for entry in entries:
        device, wall = (slowest(comm, samples) for samples in entry.samples)
        entry.row.device_us = stats(device) if device.size else None
        entry.row.wall_us = stats(wall) if wall.size else None


def set_share(comm: Comm, entry: Entry, *, device: bool, device_copy: bool) -> NDArray[np.float64]:
    """Set a row's share of the copy's speed, and return that of each sample.

    Both times are on the device's clock or on the wall's. The time of the copy is the mean of the
    copies before and after the sample.
    """
    times = slowest(comm, entry.samples.device if device else entry.samples.wall)
    copies = slowest(comm, entry.copies.device if device_copy else entry.copies.wall)
    share: NDArray[np.float64] = copies.reshape(-1, 2).mean(axis=1) / times
    median, q1, q3, _ = stats(share)
    entry.row.share, entry.row.spread = median, (q3 - q1) / median
    return share


def clock(rows: Sequence[Row], ranks: int) -> str:
    """Return the time that counts: one rank's device time if there is one, else the wall clock."""
    return "device_us" if ranks == 1 and any(row.device_us for row in rows) else "wall_us"
