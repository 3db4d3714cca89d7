"""A client's part of the memory that it shares with a service on its host: see ``buffers.py``.

A buffer is this client's as long as its file is open and locked. An array in it keeps it. When the
array is gone, the buffer waits for the next one.
"""

import errno
import fcntl
import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_IDLE = 3  # buffers that wait for the next scan: of x, out, segments
_TRIES = 5


class Segment:
    """A buffer that this client has locked and mapped."""

    def __init__(self, found: dict[str, Any]) -> None:
        """Take the buffer of which a service has told.

        Raises OSError if there is no such file here, BlockingIOError if another client has it.
        """
        self.path = str(found["path"])
        file = os.open(self.path, os.O_RDWR)
        self._close = weakref.finalize(self, os.close, file)
        status = os.fstat(file)
        if (status.st_dev, status.st_ino) != (found["device"], found["inode"]):
            raise FileNotFoundError(errno.ENOENT, "the service is on another host", self.path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.size = status.st_size
        self.memory = mmap.mmap(file, self.size)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data


class Shared:
    """The buffers of a client. Threads may share it."""

    def __init__(self, ask: Callable[[int], dict[str, Any]]) -> None:
        """``ask`` asks the service for a buffer of so many bytes."""
        self._ask = ask
        self._begin()
        _every.add(self)

    def _begin(self) -> None:
        self._idle: deque[Segment] = deque(maxlen=_IDLE)
        self._used = weakref.WeakValueDictionary[int, Segment]()  # by address
        self._here, self._lock = True, threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an array in C order in a buffer; None if the service is on another host."""
        nbytes = math.prod(shape) * dtype.itemsize
        segment = self._segment(max(nbytes, 1)) if self._here else None
        if segment is None:
            return None
        # Views of this array keep it, and it keeps the buffer.
        whole: NDArray[np.uint8] = np.frombuffer(segment.memory, np.uint8)
        with self._lock:
            self._used[segment.address] = segment
        weakref.finalize(whole, self._idle.append, segment).atexit = False
        return whole[:nbytes].view(dtype).reshape(shape)

    def place(self, array: NDArray[Any]) -> dict[str, Any] | None:
        """Return where in a buffer an array is; None if it is elsewhere, or not in C order."""
        if not array.flags.c_contiguous or not array.dtype.isnative:
            return None
        address = array.ctypes.data
        with self._lock:
            used = list(self._used.values())
        for segment in used:
            offset = address - segment.address
            if offset >= 0 and offset + array.nbytes <= segment.size:
                return {
                    "path": segment.path,
                    "offset": offset,
                    "dtype": str(array.dtype),
                    "shape": list(array.shape),
                }
        return None

    def hold(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """Return an array if it is in a buffer, else a copy that is; None as for ``empty``."""
        if self.place(array) is not None:
            return array
        if (copy := self.empty(array.shape, array.dtype.newbyteorder("="))) is not None:
            copy[...] = array
        return copy

    def forget(self) -> None:
        """Use no buffer of before again: the service may still write to it."""
        self._idle = deque(maxlen=_IDLE)

    def close(self) -> None:
        """Let go of all buffers in which no array is."""
        self.forget()
        self._here = False

    def _segment(self, size: int) -> Segment | None:
        """Return a buffer of at least so many bytes, but not of many more."""
        for _ in range(len(self._idle)):
            with suppress(IndexError):  # another thread has taken it
                segment = self._idle.popleft()
                if size <= segment.size < 4 * max(size, 1 << 20):
                    return segment
                self._idle.append(segment)
        for _ in range(_TRIES):
            found = self._ask(size)
            try:
                return Segment(found)
            except BlockingIOError:  # another client was faster
                continue
            except OSError:
                self._here = False
                return None
        return None


# A process that is forked has the parent's arrays. Neither uses their memory for another array.
_every = weakref.WeakSet[Shared]()


def _before_fork() -> None:
    for shared in _every:
        shared.forget()


def _in_child() -> None:
    for shared in _every:
        shared._begin()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
