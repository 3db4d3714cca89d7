"""Memory on the host: arrays, and pieces of a file on their way to them and back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def empty(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array [n]."""
    return np.empty(n, dtype)


def staging(size: int) -> NDArray[np.uint8]:
    """Allocate ``size`` bytes of the host memory that ``upload`` and ``download`` like best."""
    return np.empty(size, np.uint8)


def upload(piece: NDArray[Any], array: NDArray[Any]) -> None:
    """Copy a piece in host memory into ``array``."""
    array[...] = piece


def download(array: NDArray[Any], buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """Return ``array`` in host memory, in ``buffer`` if it is not there already."""
    return array


def synchronize() -> None:
    """Wait for all work on this backend."""
