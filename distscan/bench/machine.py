"""The chip that is measured: a CPU with NumPy, or the current GPU with CuPy."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

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
