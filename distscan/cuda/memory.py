"""Memory on a GPU: allocation of arrays, and copies of a file's pieces to and from them."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from .definitions import type_name


def empty(n: int, dtype: np.dtype[Any]) -> Any:
    """Allocate an array [n] on the current GPU."""
    type_name(dtype)
    return cupy.empty(n, dtype)


def staging(size: int) -> NDArray[np.uint8]:
    """Allocate ``size`` bytes of pinned host memory."""
    memory: NDArray[np.uint8] = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
    return memory


def upload(piece: NDArray[Any], array: Any) -> None:
    """Copy a piece in host memory into ``array``. Afterwards the piece may be overwritten."""
    array.set(piece)
    synchronize()  # from pinned memory, CuPy only queues the copy


def download(array: Any, buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """Copy ``array`` to the start of ``buffer``, in host memory; return that part as an array."""
    host: NDArray[Any] = buffer[: array.nbytes].view(array.dtype)
    array.get(out=host)
    return host


def synchronize() -> None:
    """Wait for all work on the current stream."""
    cupy.cuda.get_current_stream().synchronize()
