"""Writers of a job's part file, the fastest one for each file system. No MPI.

Measured on a host with 16 cores, Linux 6.18, 4 GiB, GB/s::

    writers (ranks x threads)    1 x 1   1 x 4   1 x 8   2 x 4   8 x 1
    tmpfs, pwrite                  3.1     2.2     1.8
    tmpfs, mappings                1.4     3.2     4.0     4.2     5.1
    ext4, pwrite                   4.1     3.8
    ext4, mappings                 2.4

Writers of one file take turns inside ``pwrite``: they lock its inode. Page faults of mappings do
not, but each page has its own. On two cores of a Xeon, 2 x 1 writers had 4.4 by pwrite, and 3.0 by
mappings.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.form import chunks
from ...cpu.threads import of_node, unbind
from .interface import naming_output

_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14; Python has no name for it
# Python's own call of madvise would keep all threads from running.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_sync_file_range = ctypes.CDLL(None).sync_file_range
_sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE
_FEW = 2  # cores, on which writers do not wait for each other
_FEWEST = 1 << 18  # bytes: to start the disk for fewer would cost more than it gains
_ALLOCATED = 1 << 25  # bytes of the pages that a thread allocates at a time


class Elements(Protocol):
    """Elements one after the other in a file."""

    @property
    def path(self) -> Path:
        """The path of the file."""

    @property
    def start(self) -> int:
        """The position of element 0, in bytes."""

    @property
    def end(self) -> int:
        """The position after the last element, in bytes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their type."""


def file_system(path: Path) -> str:
    """Return the type of the file system that has a file, such as "ext4"; "" if unknown."""
    try:
        device = os.stat(path).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == number:
                    return fields[fields.index("-") + 1]
    except (OSError, ValueError):
        pass
    return ""


def is_in_memory(path: Path) -> bool:
    """Return whether a file is on a file system whose files are in memory, such as /dev/shm."""
    return file_system(path) in _IN_MEMORY


def place(path: Path) -> str:
    """Return where a file is, for a report, such as "disk, ext4" or "memory, tmpfs"."""
    system = file_system(path)
    return f"{'memory' if system in _IN_MEMORY else 'disk'}, {system or 'unknown'}"


def is_mapped(path: Path) -> bool:
    """Return whether writers of a file are faster through mappings: many of them, into memory."""
    return is_in_memory(path) and of_node() > _FEW


def can_populate() -> bool:
    """Return whether the system reports that a mapped page cannot be allocated."""
    return bool(_madvise(None, 0, _POPULATE_WRITE) == 0)


class Writer:
    """Writes elements at their places in a part file; several threads may do so at once.

    It writes by ``pwrite``, and tells the system to bring the bytes to the disk meanwhile.
    """

    parallel = False

    def __init__(self, file: Elements) -> None:
        self._file = file
        with naming_output(file.path):
            self._opened = os.open(file.path, os.O_RDWR | os.O_NOFOLLOW)

    def __call__(self, elements: NDArray[Any], index: int) -> None:
        """Write contiguous elements, the first of which is the file's element ``index``."""
        start = at = self._file.start + index * elements.itemsize
        rest = memoryview(elements.view(np.uint8))  # type: ignore[arg-type]
        with naming_output(self._file.path):
            while len(rest) > 0:
                written = os.pwrite(self._opened, rest, at)
                rest, at = rest[written:], at + written
        if elements.nbytes >= _FEWEST:
            _sync_file_range(self._opened, start, elements.nbytes, _START_WRITING)

    def allocate(self, runs: Iterable[tuple[int, int]], threads: int) -> None:
        """Begin to allocate memory for runs of elements, (first, last), before they are written."""

    def sync(self) -> None:
        """Return when all elements that this node has written are on the disk."""
        with naming_output(self._file.path):
            os.fsync(self._opened)

    def close(self) -> None:
        """Close the file."""
        os.close(self._opened)


class MappedWriter(Writer):
    """A ``Writer`` that copies into a mapping, for files in memory.

    Pages are allocated before elements are copied to them, by a call that reports a full file
    system. A copy to a page that cannot be allocated would kill the process.
    """

    parallel = True

    def __init__(self, file: Elements) -> None:
        super().__init__(file)
        self._bytes = np.frombuffer(mmap.mmap(self._opened, file.end), np.uint8)
        self._allocators: list[threading.Thread] = []
        self._closing = False

    def __call__(self, elements: NDArray[Any], index: int) -> None:
        """Write contiguous elements, the first of which is the file's element ``index``."""
        low = self._file.start + index * elements.itemsize
        high = low + elements.nbytes
        if number := self._populate(low, high):
            # A page that cannot be allocated is reported as a bad address.
            number = errno.ENOSPC if number in (errno.EFAULT, errno.ENOMEM) else number
            with naming_output(self._file.path):
                raise OSError(number, os.strerror(number))
        self._bytes[low:high] = elements.view(np.uint8)

    def allocate(self, runs: Iterable[tuple[int, int]], threads: int) -> None:
        """Begin to allocate pages for runs of elements, in threads of their own."""
        start, size = self._file.start, self._file.dtype.itemsize
        pieces = (
            piece
            for low, high in runs
            for piece in chunks(start + low * size, start + high * size, _ALLOCATED)
        )
        lock = threading.Lock()

        def work() -> None:
            unbind()
            while not self._closing:
                with lock:
                    piece = next(pieces, None)
                # A full file system is reported by the writer that finds it full.
                if piece is None or self._populate(*piece):
                    return

        for _ in range(threads):
            thread = threading.Thread(target=work, name="distscan allocator", daemon=True)
            self._allocators.append(thread)
            thread.start()

    def _populate(self, low: int, high: int) -> int:
        """Allocate the pages of bytes ``low..high``; return the number of an error, or 0."""
        page = low // mmap.PAGESIZE * mmap.PAGESIZE
        address = self._bytes.ctypes.data + page
        return ctypes.get_errno() if _madvise(address, high - page, _POPULATE_WRITE) else 0

    def sync(self) -> None:
        """Do nothing: the file is in memory."""

    def close(self) -> None:
        """Wait for the threads that allocate, and close the file."""
        self._closing = True
        for thread in self._allocators:
            thread.join()
        super().close()


@contextmanager
def writing(file: Elements, *, mapped: bool) -> Iterator[Writer]:
    """Open a part file; ``mapped`` writes through a mapping of the file."""
    writer = MappedWriter(file) if mapped and can_populate() else Writer(file)
    try:
        yield writer
    finally:
        writer.close()
