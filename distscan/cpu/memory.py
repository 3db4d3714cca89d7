"""Memory of the CPU backend: arrays, and the way of a file's chunks to and from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .free_memory import free_memory


def empty(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array [n]."""
    return np.empty(n, dtype)


class Lane:
    """The way of chunks between host and device, of one thread: here both are the same memory."""

    def __init__(self, size: int, gpu: None = None) -> None:
        """Do nothing: no chunk is copied."""

    def landing(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return memory of the host for what is to be uploaded to ``array``: the array itself."""
        return array

    def upload(self, array: NDArray[Any]) -> None:
        """Do nothing: what has landed is there."""

    def download(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the elements of ``array`` in host memory: the array itself."""
        return array


@contextmanager
def staged(gpu: None, out: NDArray[Any], *inputs: Any) -> Iterator[tuple[Any, ...]]:
    """Yield ``out`` and the inputs: host arrays are where they are needed."""
    yield out, *inputs


def pin(array: NDArray[Any]) -> None:
    """Do nothing: no GPU copies from this memory."""


unpin = pin


def synchronize() -> None:
    """Wait for all work on this backend."""


def current_gpu() -> None:
    """Return None: there is no GPU."""


def available() -> int:
    """Return the bytes of memory that this machine and this process's control group have free."""
    return free_memory()
