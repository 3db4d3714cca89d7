"""What a rank does while its GPU starts: it reads ahead, and allocates the output."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..core.shards import chunks
from ..cpu import cores
from .decided import Decided
from .interface import Put, Source

_AHEAD = 1 << 20  # bytes that are read at a time
#: Files of NVIDIA's driver, on Linux and on Windows' subsystem for Linux.
_DRIVERS = ("/proc/driver/nvidia/version", "/dev/dxg")


def may_have_gpu() -> bool:
    """Return whether this machine has NVIDIA's driver; it takes no time, unlike CUDA's answer."""
    return any(Path(driver).exists() for driver in _DRIVERS)


@contextmanager
def meanwhile(decided: Decided, source: Source, put: Put, threads: int) -> Iterator[None]:
    """Read ahead during the ``with`` block, and begin to allocate the output, by ``threads``."""
    start, size = decided.start, decided.form.extents.size
    put.allocate(start, start + size, threads)
    ended = threading.Event()
    reader = threading.Thread(target=_read_ahead, args=(decided, source, ended), daemon=True)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()


def _read_ahead(decided: Decided, source: Source, ended: threading.Event) -> None:
    """Read elements in the order of the scan, so that the system has them in memory."""
    cores.unbind()
    start, size = decided.start, decided.form.extents.size
    scratch = np.empty(max(1, _AHEAD // decided.types.x.itemsize), decided.types.x)
    try:
        with source.reading() as fill:
            for low, high in chunks(0, size, scratch.size):
                if ended.is_set():
                    return
                first = size - high if decided.form.reverse else low
                fill(scratch[: high - low], start + first)
    except Exception:  # the sweeps will find the fault, and say it
        return
