"""Shared memory between a service and clients of its host: a pool of files in memory.

Who uses a buffer holds its lock, which the system lets go of when a process ends. So a buffer whose
client was killed is free again. A used buffer's pages are there already: to fill one of 64 MiB
takes 5 ms, a new one 98.

A buffer is sealed: nobody can change its size. A client that could truncate it would end every rank
that maps it, by SIGBUS. Only files of memfd_create(2) can be sealed. They have no name: a link with
a random name leads to rank 0's descriptor::

    /dev/shm/distscan-UID-PID-.../TOKEN -> /proc/PID/fd/N
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from . import protocol
from .errors import BusyError, NotFoundError, ServiceError, TooLargeError

_LEAST = 1 << 20  # bytes
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_PROMISED = 1.0  # seconds that a client has to lock what it was given


class Buffer:
    """A sealed file in memory, and who uses it."""

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
        self.written = False  # whether one of them writes to it
        self.promised = 0.0  # when the time of the client that was given it is over

    def lock(self) -> bool:
        """Take it, unless a client has it; return whether it was taken."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let clients take it."""
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Remove the file. The memory is free when nobody maps it any more."""
        self.path.unlink(missing_ok=True)
        os.close(self.file)


class Pool:
    """The buffers of a service. All methods may be called by any thread."""

    def __init__(self, folder: Path, most: int) -> None:
        """Have at most ``most`` bytes, in files of a folder in memory."""
        self._folder, self.most = folder, most
        self._buffers, self._lock = dict[str, Buffer](), threading.Lock()

    def give(self, size: int) -> dict[str, Any]:
        """Return where a buffer of at least ``size`` bytes is, for a client, which must lock it.

        The file's numbers tell a client on another host that a file of this name is not the one.
        """
        with self._free(size) as buffer:
            buffer.promised = monotonic() + _PROMISED
            buffer.unlock()
            found = os.fstat(buffer.file)
            return {
                "path": str(buffer.path),
                "bytes": buffer.size,
                "device": found.st_dev,
                "inode": found.st_ino,
            }

    @contextmanager
    def own(self, size: int) -> Iterator[Buffer]:
        """Yield a buffer of at least ``size`` bytes for this service itself."""
        with self._free(size) as buffer:
            buffer.users += 1
        try:
            yield buffer
        finally:
            with self._lock:
                buffer.users -= 1
                buffer.unlock()

    @contextmanager
    def using(self, path: str, *, write: bool = False) -> Iterator[None]:
        """Keep a client's buffer during a request; nobody else gets it, even if the client ends.

        Raises ``BusyError`` if another request writes to it. That may be an earlier one of the same
        client, which has lost its connection.
        """
        with self._lock:
            if (buffer := self._buffers.get(path)) is None:
                raise NotFoundError(f"there is no buffer {path}")
            if buffer.written or (write and buffer.users):
                raise BusyError("an earlier request still uses the buffer; try again later")
            buffer.users += 1
            buffer.written = write
        try:
            yield
        finally:
            with self._lock:
                buffer.users -= 1
                buffer.written = False

    @property
    def used(self) -> int:
        """The bytes of all buffers."""
        with self._lock:
            return self._used()

    def close(self) -> None:
        """Remove all buffers."""
        with self._lock:
            for buffer in self._buffers.values():
                buffer.close()
            self._buffers.clear()

    @contextmanager
    def _free(self, size: int) -> Iterator[Buffer]:
        """Yield a locked buffer of at least ``size`` bytes, a free one or a new one, to be taken.

        Buffers that make room are closed behind that: the system needs a while for large ones. No
        more than all memory is in use, since a new buffer has no pages yet.
        """
        removed = list[Buffer]()
        try:
            with self._lock:
                yield self._taken(size, removed)
        finally:
            for each in removed:
                each.close()

    def _taken(self, size: int, removed: list[Buffer]) -> Buffer:
        size = max(_LEAST, 1 << (size - 1).bit_length())
        if size > self.most:
            raise TooLargeError(f"a buffer of {size} bytes is more than the {self.most} of all")
        now = monotonic()
        free = [each for each in self._buffers.values() if not each.users and each.promised < now]
        for buffer in free:
            if buffer.size == size and buffer.lock():
                return buffer
        for buffer in free:  # make room for a new one
            if self._used() + size <= self.most:
                break
            if buffer.lock():
                removed.append(self._buffers.pop(str(buffer.path)))
        if self._used() + size > self.most:
            raise BusyError("all memory for arrays is in use; try again later")
        buffer = Buffer(self._folder / secrets.token_hex(8), size)
        self._buffers[str(buffer.path)] = buffer
        buffer.lock()
        return buffer

    def _used(self) -> int:
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
            protocol.check_private(path.parent)  # what another user has put there may block
            with path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=shared) as made,
        Path(made, "new").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(made, "new").rename(Path(made, "lock"))  # nobody sees it without its lock
        yield Path(made)
