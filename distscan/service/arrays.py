"""Arrays of clients: their memory, the maps of the ranks, and their scans.

::

    Pool      rank 0 alone: sealed files in memory, which clients on its host use, too
    Maps      every rank: the files that it has mapped, and pinned for its GPU
    Scanner   every rank: scans an array of the host, by one rank or by all
"""

import fcntl
import math
import mmap
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..binding import Binding
from ..core import dtypes
from ..core.errors import InputError
from ..core.form import bounds
from ..cpu import memory as host
from ..cpu import threads
from ..cpu.threads import usable
from ..job.formats import files, npy
from ..mpi.agree import agreed
from ..mpi.communicators import Comm, alone
from ..options import number
from ..scan import scan
from . import protocol
from .errors import BusyError, NotFoundError, ServiceError, TooLargeError

# ---- buffers: memory that a service shares with clients of its host ------------------------------

# Who uses a buffer holds its lock, which the system lets go of when a process ends. So a buffer
# whose client was killed is free again. A used buffer's pages are there already: to fill one of
# 64 MiB takes 5 ms, a new one 98.
#
# A buffer is sealed: nobody can change its size. A client that could truncate it would end every
# rank that maps it, by SIGBUS. Only files of memfd_create(2) can be sealed. They have no name: a
# link with a random name leads to rank 0's descriptor:
#
#     /dev/shm/distscan-UID-PID-.../TOKEN -> /proc/PID/fd/N

_SMALLEST = 1 << 20  # bytes
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_PROMISE_SECONDS = 1.0  # seconds that a client has to lock its buffer


class Buffer:
    """A sealed file in memory, and its users."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.file = os.memfd_create("distscan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(self.file, 0o600)
            os.ftruncate(self.file, size)
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, _SEALS)
            path.symlink_to(f"/proc/{os.getpid()}/fd/{self.file}")
        except BaseException:
            self.close()
            raise
        self.users = 0  # requests that work on it
        self.has_writer = False  # whether one of them writes to it
        self.promise_end = 0.0  # the time until which a client may lock it

    def lock(self) -> bool:
        """Lock the buffer, unless a client has; return whether this call did."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let clients lock the buffer."""
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Remove the file. The memory is free when nobody maps it any more."""
        self.path.unlink(missing_ok=True)
        os.close(self.file)


class Pool:
    """The buffers of a service. All methods may be called by any thread."""

    def __init__(self, folder: Path, limit: int) -> None:
        """Have at most ``limit`` bytes, in files of a folder in memory."""
        self._folder, self.limit = folder, limit
        self._buffers, self._lock = dict[str, Buffer](), threading.Lock()

    def offer(self, size: int) -> dict[str, Any]:
        """Return where a buffer of at least ``size`` bytes is, for a client, which must lock it.

        The file's numbers tell a client on another host that a file of this name is not the one.
        """
        with self._locked(size) as buffer:
            buffer.promise_end = monotonic() + _PROMISE_SECONDS
            buffer.unlock()
            status = os.fstat(buffer.file)
            return {
                "path": str(buffer.path),
                "bytes": buffer.size,
                "device": status.st_dev,
                "inode": status.st_ino,
            }

    @contextmanager
    def reserve(self, size: int) -> Iterator[Buffer]:
        """Yield a buffer of at least ``size`` bytes for this service itself."""
        with self._locked(size) as buffer:
            buffer.users += 1
        try:
            yield buffer
        finally:
            with self._lock:
                buffer.users -= 1
                buffer.unlock()

    @contextmanager
    def use(self, path: str, *, write: bool = False) -> Iterator[None]:
        """Keep a client's buffer during a request: no other client gets it, even if this one ends.

        Raises ``BusyError`` if another request writes to it. That may be an earlier one of the same
        client, which has lost its connection.
        """
        with self._lock:
            if (buffer := self._buffers.get(path)) is None:
                raise NotFoundError(f"there is no buffer {path}")
            if buffer.has_writer or (write and buffer.users):
                raise BusyError("an earlier request still uses the buffer; try again later")
            buffer.users += 1
            buffer.has_writer = write
        try:
            yield
        finally:
            with self._lock:
                buffer.users -= 1
                buffer.has_writer = False

    @property
    def size(self) -> int:
        """The bytes of all buffers."""
        with self._lock:
            return self._total()

    def close(self) -> None:
        """Remove all buffers."""
        with self._lock:
            for buffer in self._buffers.values():
                buffer.close()
            self._buffers.clear()

    @contextmanager
    def _locked(self, size: int) -> Iterator[Buffer]:
        """Yield a locked buffer of at least ``size`` bytes, a free one or a new one, to be taken.

        Evicted buffers are closed after the lock is free: that takes long for large ones. The limit
        holds meanwhile, since a new buffer has no pages yet.
        """
        evicted = list[Buffer]()
        try:
            with self._lock:
                yield self._acquire(size, evicted)
        finally:
            for buffer in evicted:
                buffer.close()

    def _acquire(self, size: int, evicted: list[Buffer]) -> Buffer:
        size = max(_SMALLEST, 1 << (size - 1).bit_length())
        if size > self.limit:
            raise TooLargeError(f"a buffer of {size} bytes is more than the {self.limit} of all")
        now = monotonic()
        free = [
            buffer
            for buffer in self._buffers.values()
            if not buffer.users and buffer.promise_end < now
        ]
        for buffer in free:
            if buffer.size == size and buffer.lock():
                return buffer
        for buffer in free:  # make room for a new one
            if self._total() + size <= self.limit:
                break
            if buffer.lock():
                evicted.append(self._buffers.pop(str(buffer.path)))
        if self._total() + size > self.limit:
            raise BusyError("all memory for arrays is in use; try again later")
        buffer = Buffer(self._folder / secrets.token_hex(8), size)
        self._buffers[str(buffer.path)] = buffer
        buffer.lock()
        return buffer

    def _total(self) -> int:
        return sum(buffer.size for buffer in self._buffers.values())


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Make a folder in memory for arrays on their way; remove those of services that were killed.

    A service holds a lock in its folder.
    """
    shared = Path("/dev/shm")  # nosec B108 # the folder made in it has a random name and mode 0700
    if not os.access(shared, os.W_OK):
        shared = Path(tempfile.gettempdir())
    prefix = f"distscan-{os.getuid()}-"
    for path in shared.glob(f"{prefix}*/lock"):
        with suppress(OSError, ServiceError):
            protocol.check_private(path.parent)  # a file of another user may block
            with path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=shared) as folder,
        Path(folder, "new").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(folder, "new").rename(Path(folder, "lock"))  # nobody sees it without its lock
        yield Path(folder)


# ---- maps: each rank maps a buffer once, and pins it once if its GPU is to copy from and to it ---


class Place(NamedTuple):
    """An array in C order in a buffer."""

    path: str
    offset: int  # bytes
    dtype: str
    shape: tuple[int, ...]


def array_in(
    memory: memoryview, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any = "C"
) -> NDArray[Any]:
    """Return the array that is at an offset in memory, as a client says.

    Raises ``InputError`` if it is not inside. NumPy alone would take any bytes for addresses of
    objects, and divide by an element's 0 bytes at a shape of (-1,). Its sum of ``offset`` and the
    array's bytes may overflow: it would then read other memory. Python's integers do not.
    """
    if dtype.hasobject or dtype.itemsize == 0 or any(n < 0 for n in shape):
        raise InputError(f"no array of {dtype} and of shape {shape} can be sent")
    if math.prod(n or 1 for n in shape) * dtype.itemsize >= 1 << 63:
        raise InputError(f"an array of {dtype} and of shape {shape} has too many bytes")
    end = offset + math.prod(shape) * dtype.itemsize
    if end > memory.nbytes:
        raise InputError(
            f"the array is not inside its buffer: it would end at byte {end} of {memory.nbytes}"
        )
    try:
        return np.ndarray(shape, dtype, memory, offset, order=order)
    except (TypeError, ValueError) as error:
        raise InputError(f"the array is not inside its buffer: {error}") from error


class Maps:
    """The buffers that this process maps. All methods may be called by any thread."""

    def __init__(self, memory: Any) -> None:
        """``memory`` is the backend's module of that name."""
        self._memory, self._lock = memory, threading.Lock()
        self._maps = dict[str, NDArray[np.uint8]]()

    def bytes(self, path: str) -> NDArray[np.uint8]:
        """Return the memory of a buffer, as an array of bytes."""
        with self._lock:
            if path not in self._maps:
                self._forget_removed()
                file = os.open(path, os.O_RDWR)
                try:
                    _check_sealed(file, path)
                    self._maps[path] = np.frombuffer(mmap.mmap(file, 0), np.uint8)
                finally:
                    os.close(file)
                self._memory.pin(self._maps[path])
            return self._maps[path]

    def __del__(self) -> None:
        """Unpin the maps: CUDA would take the next map at an address for the pinned one."""
        for memory in self._maps.values():
            self._memory.unpin(memory)

    def array(self, place: Place) -> NDArray[Any]:
        """Return an array in a buffer; raise ``InputError`` if it is not inside."""
        dtype, memory = dtypes.parse(place.dtype), self.bytes(place.path).data
        return array_in(memory, place.offset, dtype, place.shape)

    def _forget_removed(self) -> None:
        """Let go of buffers that the service has removed."""
        for path in [path for path in self._maps if not os.path.exists(path)]:
            self._memory.unpin(self._maps.pop(path))


def _check_sealed(file: int, path: str) -> None:
    """Raise ``InputError`` if a file could become shorter: reads of its map would raise SIGBUS."""
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:  # no file in memory
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise InputError(f"{path} is no buffer: it has no F_SEAL_SHRINK")


# ---- scans: by rank 0 alone, or by all ranks of one host -----------------------------------------

# An array is in the memory of the host. On CPUs, rank 0 alone scans it by all cores of the node:
# one sweep over the array, and no exchange. On GPUs, rank 0's GPU does, or for a large array every
# rank's GPU, since each has its own bus.

SMALL = 1 << 20  # bytes of an array below which a GPU, or a turn among large arrays, costs time
_LARGE = 1 << 26  # bytes of an array above which several GPUs share it
_HEADER = 1 << 16  # bytes of a .npy file in which its header must be


class Task(NamedTuple):
    """The scan of an array in a buffer into another place, for all ranks."""

    x: Place
    out: Place
    segments: Place | None
    options: dict[str, Any]  # of ``distscan.scan``, in a form that JSON has


class Scanner:
    """Scans arrays of this host's memory."""

    def __init__(self, comm: Comm, bound: Binding) -> None:
        self._comm, self._bound, self._gpu = comm, bound, bound.memory.current_gpu()
        self.maps = Maps(bound.memory)

    def needs_all(self, x: NDArray[Any]) -> bool:
        """Whether all ranks are to scan an array."""
        several = self._comm.size > 1 and self._bound.nodes == 1
        return several and self._gpu is not None and x.nbytes > _LARGE

    def gpu_memory(self) -> tuple[int, int]:
        """Return the bytes of memory of this rank's GPU that are in use, and all bytes."""
        usage: tuple[int, int] = self._bound.memory.usage(self._gpu)
        return usage

    def scan_by_one(self, x: Any, out: Any, segments: Any, options: dict[str, Any]) -> None:
        """Scan an array into another one by this rank alone; any thread calls this."""
        threads.unbind()
        memory = host if x.nbytes <= SMALL else self._bound.memory
        self._scan(alone(), memory, (out, x, segments), options)

    def scan_by_all(self, task: Task) -> None:
        """Scan this rank's part of an array; collective."""
        axis = task.options.get("axis")

        def part(place: Place | None, *, of_axis: bool = False) -> NDArray[Any] | None:
            if place is None:
                return None
            array = self.maps.array(place)
            if of_axis:  # flags or keys of an axis that lies on each rank
                return array
            rows = array.reshape(-1) if axis is None else array
            return rows[slice(*bounds(len(rows), self._comm.size, self._comm.rank))]

        with agreed(self._comm):
            out, x = part(task.out), part(task.x)
            of_axis = axis is not None and x is not None and axis % x.ndim != 0
            arrays = out, x, part(task.segments, of_axis=of_axis)
        self._scan(self._comm, self._bound.memory, arrays, task.options)

    def _scan(
        self, comm: Comm, memory: Any, arrays: tuple[Any, Any, Any], options: dict[str, Any]
    ) -> None:
        """Scan host arrays (out, x, segments), by the backend that has ``memory``; collective."""
        if isinstance(initial := options.get("initial"), str):
            options = options | {"initial": number(initial)}
        with ExitStack() as stack:
            with agreed(comm):
                staged = stack.enter_context(memory.staged(self._gpu, *arrays))
            out, x, segments = staged
            scan(x, comm=comm, out=out, segments=segments, threads=usable(1), **options)
            with agreed(comm):
                stack.close()


# ---- the format .npy, in memory ------------------------------------------------------------------


def parse(body: memoryview) -> tuple[NDArray[Any], int]:
    """Return the array in a ``.npy`` file, without a copy, and the number of bytes of the file."""
    stream = BytesIO(body[:_HEADER])
    try:
        shape, fortran, dtype = npy.read_header(stream)
        files.check_shape("it", shape, dtype)
        x = array_in(body, stream.tell(), dtype, shape, "F" if fortran else "C")
    except Exception as error:  # NumPy's parser raises many types for a wrong header
        raise InputError(f"the body is not a .npy file: {error}") from error
    return x, stream.tell() + x.nbytes
