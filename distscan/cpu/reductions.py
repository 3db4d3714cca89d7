"""Reductions of host arrays beside those of scans: windows of floats, and totals of tiles.

``cuda/reductions.py`` has the same for arrays on a GPU.
"""

import ctypes
import functools
import itertools
from ctypes import POINTER, Structure, c_char_p, c_int64, c_void_p
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.form import chunks
from ..fsum.window import Window
from . import library, threads

# ---- the window of floats: the bits that exact sums need ----------------------------------------

PART = 1 << 20  # bytes that a thread takes at a time: few calls, and even shares


class WindowResult(Structure):
    """``Found`` of kernels/cpu/window.hpp."""

    _fields_: ClassVar = [("low", c_int64), ("high", c_int64), ("special", c_int64)]


class _WindowKernel(Structure):
    """``Window`` of kernels/cpu/window.hpp: the function for a type."""

    _fields_: ClassVar = [
        ("type", c_char_p),
        ("find", ctypes.CFUNCTYPE(None, c_void_p, c_int64, POINTER(WindowResult))),
    ]


def find_window(x: NDArray[Any], most: int) -> tuple[Window, int] | None:
    """Return the window of an array of floats, and the bits of the special values among them.

    The second is that of ``fsum.special.special_bits``. At most ``most`` threads look. None: no
    kernel takes this array, because it is of another type, not contiguous, not aligned or of
    another byte order.
    """
    contiguous = x.flags.c_contiguous or x.flags.f_contiguous
    if not (contiguous and x.flags.aligned) or (loaded := library.load()) is None:
        return None
    if (function := _function(loaded.handle, x.dtype)) is None:
        return None
    address, step = x.__array_interface__["data"][0], PART // x.itemsize
    parts = max(1, -(-x.size // step))
    results = (WindowResult * parts)()
    tickets = itertools.count()  # numbers of parts; next() is atomic

    def work() -> None:
        while (part := next(tickets)) < parts:
            begin = part * step
            size = min(step, x.size - begin)
            function(address + begin * x.itemsize, size, ctypes.byref(results[part]))

    if most == 1 or parts == 1:
        work()
    else:
        threads.run(work, min(most, parts))
    window, special = Window(0, 0, 0), 0
    for result in results:
        window = window.joined(Window(result.low, result.high, 0))
        special |= result.special
    return window._replace(most=x.size), special


@functools.cache
def _function(handle: ctypes.CDLL, dtype: np.dtype[Any]) -> Any:
    """Return a library's function for a type; None if none is compiled."""
    kernels = library.entries(handle, "distscan_windows", _WindowKernel)
    named = (kernel.find for kernel in kernels if kernel.type.decode() == dtype.name)
    return next(named, None) if dtype.isnative else None


# ---- the totals of tiles of weights, and the search for cuts in them -----------------------------

TILE = 1 << 14  # weights; as float64 they fit in the L2 cache


class TileTotals:
    """The running sums of a shard of weights, in float64, at the ends of its tiles.

    Attributes
    ----------
    total
        The sum of all weights. It is not finite if a weight is negative, infinite or NaN, but also
        if the sum is out of range.
    """

    def __init__(self, x: NDArray[Any], most: int) -> None:
        """Sum the weights ``x`` [n] by at most so many threads."""
        self._x = x
        tiles = [*chunks(0, x.size, TILE)]
        totals, numbers = np.zeros(len(tiles)), itertools.count()

        def work() -> None:
            buffer = np.empty(min(TILE, x.size))
            with np.errstate(all="ignore"):
                while (number := next(numbers)) < len(tiles):
                    totals[number] = _total(self._tile(*tiles[number], buffer))

        threads.run(work, max(1, min(most, len(tiles))))
        self._ends = np.cumsum(totals)
        self.total = float(self._ends[-1]) if tiles else 0.0

    def cuts(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of elements before each target: those whose middle is below it.

        The targets rise. The middle of an element is the sum of all earlier weights and of half of
        its own weight.
        """
        tiles = np.searchsorted(self._ends, targets)
        cuts = np.full(targets.size, self._x.size, np.int64)
        numbers, firsts = np.unique(tiles, return_index=True)
        lasts, buffer = np.append(firsts[1:], targets.size), np.empty(TILE)
        for number, first, last in zip(numbers, firsts, lasts, strict=False):
            low = int(number) * TILE
            if low >= self._x.size:
                break
            weights = self._tile(low, low + TILE, buffer)
            ends, group = np.cumsum(weights), targets[first:last]
            if number > 0:
                ends += self._ends[number - 1]
            # The element in which a target falls; the last one, if a rounding puts it later.
            inside = np.minimum(np.searchsorted(ends, group), weights.size - 1)
            cuts[first:last] = low + inside + (ends[inside] - weights[inside] / 2 < group)
        return cuts

    def _tile(self, low: int, high: int, buffer: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights as float64, which may lie in the ``buffer``."""
        tile = self._x[low:high]
        if tile.dtype == np.float64 and tile.flags.c_contiguous:
            return tile
        converted = buffer[: tile.size]
        converted[...] = tile
        return converted


def _total(weights: NDArray[np.float64]) -> float:
    """Return the sum; NaN if a weight is negative."""
    return np.nan if weights.min() < 0 else float(weights.sum())
