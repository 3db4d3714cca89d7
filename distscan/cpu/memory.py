"""Memory of the CPU backend: arrays, and copies of a file's pieces to and from them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def empty(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array [n]."""
    return np.empty(n, dtype)


def staging(size: int) -> NDArray[np.uint8]:
    """Allocate ``size`` bytes of host memory for ``upload`` and ``download``."""
    return np.empty(size, np.uint8)


def upload(piece: NDArray[Any], array: NDArray[Any]) -> None:
    """Copy a piece in host memory into ``array``."""
    array[...] = piece


def download(array: NDArray[Any], buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """Return ``array`` in host memory; ``buffer`` is not needed, because it is there already."""
    return array


def synchronize() -> None:
    """Wait for all work on this backend."""
