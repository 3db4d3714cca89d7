"""The chip that is measured, and the times of a call, on the device's clock and on the host's.

device
    The time between CUDA events around a batch of calls back to back, divided by their number. Each
    call of a batch has its own buffers. From 256 MiB per call on, a batch is one call.
wall
    The time on the host's clock of one call and a synchronisation of the device, after a barrier.
queued
    The same as device, behind a copy. While the device copies, the host queues all calls. So the
    time has no gaps between calls for which the host was too slow. For tuning.

Inputs come from memory. Before every sample, the GPU's cache is filled with other data. On a CPU,
the calls rotate among buffers. With several ranks, each sample is that of the slowest rank.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..mpi.agree import agreed
from ..mpi.communicators import Comm

Call = Callable[[], object]
WARM_UPS = 3  # samples that are not counted


# ---- the chip: a CPU with NumPy, or the current GPU with CuPy -------------------------------

_MOST_PAIRS = 256
_BATCH = 32  # the most calls back to back on a GPU
_BATCH_BYTES = 256 << 20  # the most bytes that the calls of a batch touch together
_BALLAST = 1 << 30  # bytes
_MOST_CPU_CACHE = 64 << 20  # bytes; clouds report the cache of a socket, a core has a share of it


class Host:
    """A CPU. ``Gpu`` has the same methods."""

    backend: Literal["cpu", "cuda"] = "cpu"
    xp: Any = np

    def __init__(self, name: str, ranks: int = 1) -> None:
        """Find the properties of the chip, whose memory ``ranks`` ranks share."""
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

    def elapsed(self, work: Callable[[], None]) -> float | None:
        """Seconds of ``work`` on the device's own clock; None on a CPU, which has no such clock."""
        return None

    def release(self) -> None:
        """Give unused memory back to the system."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the software that the times depend on, beside NumPy and MPI."""
        return {}


class Gpu(Host):
    """The current GPU and its current stream."""

    backend = "cuda"

    def __init__(self, name: str, ranks: int = 1) -> None:
        """Find the properties of the chip, whose memory ``ranks`` ranks share."""
        super().__init__(name, ranks)
        import cupy  # noqa: PLC0415 - a CPU run need not have CuPy

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
        return max(1, min(_BATCH, _BATCH_BYTES // size))

    def flush(self) -> None:
        """Read 4 caches of other data. Written cache lines would be written back later."""
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

    def elapsed(self, work: Callable[[], None]) -> float | None:
        """Seconds of ``work``, between two events on the current stream."""
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end)) / 1e3

    def release(self) -> None:
        """Give the memory that CuPy and torch hold in their pools back to the device."""
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
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return {"driver": found.group()} if found else {}


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


def sample(comm: Comm, machine: Host, calls: Sequence[Call], which: int, into: Samples) -> None:
    """Take one sample of each kind; collective. If the call fails on one rank, every rank raises.

    The device's clock measures all ``calls``. The host's clock measures one of them: number
    ``which``, modulo their number. Before both, the call before that one runs without a clock,
    because after another contender the caches hold that contender's code.
    """
    call = calls[which % len(calls)]

    def batch() -> None:
        for each in calls:
            each()

    def warm_up() -> None:
        with agreed(comm):
            calls[(which - 1) % len(calls)]()
        machine.flush()

    if machine.backend == "cuda":  # a CPU has no clock of its own
        warm_up()
        comm.Barrier()
        with agreed(comm):
            device = machine.elapsed(batch)
            if device is not None:
                into.device.append(device / len(calls) * 1e6)
    warm_up()
    machine.synchronize()
    comm.Barrier()
    with agreed(comm):
        begin = perf_counter()
        call()
        machine.synchronize()
        into.wall.append((perf_counter() - begin) * 1e6)


def queued(
    machine: Host,
    calls: Sequence[Call],
    before: Call = lambda: None,
    *,
    repeat: int = 11,
) -> Stats:
    """Time batches on the device's clock, each behind a copy; for one rank with a GPU.

    Returns microseconds per call. ``before`` is called before each batch, and is not timed.
    """

    def batch() -> None:
        for each in calls:
            each()

    samples = []
    for turn in range(-WARM_UPS, repeat):
        before()
        machine.occupy()
        seconds = machine.elapsed(batch)
        if seconds is None:
            raise NotImplementedError("a CPU has no clock of its own")
        if turn >= 0:
            samples.append(seconds / len(calls) * 1e6)
    return stats(samples)


def of_all_ranks(comm: Comm, samples: Sequence[float]) -> Stats | None:
    """Return the quartiles of ``slowest``; None without samples; collective."""
    slow = slowest(comm, samples)
    return stats(slow) if slow.size else None


def slowest(comm: Comm, samples: Sequence[float]) -> NDArray[np.float64]:
    """Return each sample of the rank that was slowest in it; collective.

    All ranks must have the same number of samples.
    """
    found: NDArray[np.float64] = np.array(comm.allgather(list(samples))).max(axis=0)
    return found


def stats(samples: Sequence[float] | NDArray[np.float64]) -> Stats:
    """Return the median, the quartiles and the number of samples.

    >>> stats([4.0, 1.0, 3.0, 2.0, 5.0])
    Stats(median=3.0, q1=2.0, q3=4.0, samples=5)
    """
    q1, median, q3 = (float(q) for q in np.percentile(samples, [25, 50, 75]))
    return Stats(median, q1, q3, len(samples))
