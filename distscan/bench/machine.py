"""The chip that is measured: NumPy on a CPU, CuPy on the GPU that is current."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

_MOST_PAIRS = 256
_BATCH = 32  # calls back to back on a GPU, at most
_BATCH_BYTES = 256 << 20  # which together touch no more than this
_BALLAST = 1 << 30  # bytes
_MOST_CPU_CACHE = 64 << 20  # bytes; clouds report the cache of a whole socket, cores have a share


class Host:
    """A CPU. ``Gpu`` has the same calls."""

    backend: Literal["cpu", "cuda"] = "cpu"
    xp: Any = np

    def __init__(self, name: str, ranks: int = 1) -> None:
        """Look at the chip; ``ranks`` share its memory."""
        self.name, self._ranks = name, ranks
        self.cache = min(_sysconf("SC_LEVEL3_CACHE_SIZE") or 32 << 20, _MOST_CPU_CACHE)  # bytes
        #: Bytes per second that the memory moves at best, by its clock; None where that is unknown.
        self.peak: float | None = None

    def free(self) -> int:
        """Bytes of memory that this rank may still take."""
        return _sysconf("SC_AVPHYS_PAGES") * _sysconf("SC_PAGE_SIZE") // self._ranks

    def pairs(self, size: int) -> int:
        """How many pairs of buffers calls rotate among, where a pair has ``size`` bytes.

        Enough for 4 caches, so that data comes from memory: here from 512 KiB a pair on. Emptying
        the cache instead would empty it of the program too.
        """
        return max(1, min(-(-4 * self.cache // size), _MOST_PAIRS))

    def flush(self) -> None:
        """Fill the cache with other data, where that leaves the program alone."""

    def occupy(self) -> None:
        """Keep the device busy for a while, where it is not the host itself."""

    def synchronize(self) -> None:
        """Wait for all work of this process."""

    def elapsed(self, work: Callable[[], None]) -> float | None:
        """Seconds on the device's own clock; a CPU has none besides the host's."""
        return None

    def release(self) -> None:
        """Give memory that is no longer used back to the system."""

    def versions(self) -> dict[str, str]:
        """Return what the figures depend on beside NumPy and MPI."""
        return {}


class Gpu(Host):
    """The current GPU and its current stream."""

    backend = "cuda"

    def __init__(self, name: str, ranks: int = 1) -> None:
        """Look at the chip; ``ranks`` share its memory."""
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
        """One pair for each call of a batch; ``flush`` empties the cache before it."""
        return max(1, min(_BATCH, _BATCH_BYTES // size))

    def flush(self) -> None:
        """Read 4 caches of other data; a write would leave the cache lines to be written back."""
        if self._scratch is None:
            self._scratch = self.xp.ones(4 * self.cache // 8, self.xp.int64)
        self._scratch.max()

    def occupy(self) -> None:
        """Queue 2 copies of 1 GiB, a millisecond on an H200; they empty the cache, too."""
        if self._ballast is None:
            self._ballast = [self.xp.empty(_BALLAST, np.uint8) for _ in range(2)]
        for x, out in (self._ballast, self._ballast[::-1]):
            out.data.copy_from_device_async(x.data, _BALLAST)

    def synchronize(self) -> None:
        """Wait for all work on the device, whichever library's stream it is on."""
        self.xp.cuda.runtime.deviceSynchronize()

    def elapsed(self, work: Callable[[], None]) -> float | None:
        """Seconds between two events on the current stream, around ``work``."""
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
        """CuPy's, the driver's and the CUDA runtime's."""
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
    """Return bytes per second: a bus of so many bits, 2 transfers per cycle of so many kHz.

    >>> _peak({"MemoryClockRate": 3_201_000, "GlobalMemoryBusWidth": 6144}) / 1e12  # an H200
    4.916736
    """
    clock, bits = attributes.get("MemoryClockRate", 0), attributes.get("GlobalMemoryBusWidth", 0)
    return 2 * clock * 1e3 * bits / 8 if clock > 0 and bits > 0 else None


def _driver() -> dict[str, str]:
    """Return the version of NVIDIA's driver, where Linux tells it."""
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
