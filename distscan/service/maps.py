"""The buffers that a rank maps: once, and pinned once if its GPU is to copy from and to them."""

import fcntl
import math
import mmap
import os
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core import dtypes
from ..core.errors import InputError


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
    array's bytes may overflow: it would then read what is outside. Python's integers do not.
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
                opened = os.open(path, os.O_RDWR)
                try:
                    _check_sealed(opened, path)
                    self._maps[path] = np.frombuffer(mmap.mmap(opened, 0), np.uint8)
                finally:
                    os.close(opened)
                self._memory.pin(self._maps[path])
            return self._maps[path]

    def __del__(self) -> None:
        """Unpin what is mapped: CUDA takes what is mapped there next for what it has pinned."""
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
    """Raise ``InputError`` if a file could become shorter: whoever maps it would get SIGBUS."""
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:  # no file in memory
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise InputError(f"{path} is no buffer: it has no F_SEAL_SHRINK")
