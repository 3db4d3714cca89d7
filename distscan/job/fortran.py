"""A file in Fortran order, read as if it were in C order. No MPI.

The array [[0 1 2] [3 4 5]] lies in the file as 0 3 1 4 2 5. So neighbours of the flattened array
lie far apart in the file. Many of them are brought to memory at once, and wait there::

    file -> tiles -> window, in C order -> arrays of the caller

The file is not mapped: who reads a mapped file that has become shorter ends by SIGBUS.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .interface import READERS, WINDOW

TILE = 1 << 19  # bytes; with 256 KiB and with 1 MiB, jobs on an EPYC took longer
#: The seconds of a read, of each byte of it, and of each line of neighbours that is stored. They
#: were measured with preadv from /dev/shm, on one core of an EPYC in a virtual machine.
_CALL, _BYTE, _STORE = 1.5e-6, 1 / 3.5e9, 20e-9
_LINES = 64, 128, 256  # bytes of such a line
#: Reads are twice as fast if they go to places like those that they come from, modulo so much.
_ALIGNED = 64
_LONG = 1024  # bytes of runs that have a gap behind them, so that they share no sets of caches
_MULTIPLE = 64  # of elements: runs of so many begin at multiples of 64 bytes

Read = Callable[[memoryview, int], None]  # fills memory with the bytes of a file from a place on
Box = tuple[range, ...]  # a part of an array: its indices along each axis


class Window:
    """A part of the flattened array in memory: whole rows, or a part of one row.

    There is one window at a time. Several threads may call ``fill``. Those that wait for the next
    window load it together, each of them a tile at a time.
    """

    def __init__(
        self, shape: Sequence[int], dtype: np.dtype[Any], start: int, read: Read, most: int = WINDOW
    ) -> None:
        """Take at most ``most`` bytes. Element 0 is at byte ``start`` of what ``read`` reads."""
        self._shape = tuple(length for length in shape if length != 1) or (1,)
        self._dtype, self._start, self._read = dtype, start, read
        self._most_tile = min(TILE, most // (2 * READERS))
        room = max(1, (most - READERS * self._most_tile) // dtype.itemsize)
        # A window has one index of each axis before this one, and all indices of those after it.
        self._axis = len(self._shape) - 1
        while self._axis > 0 and math.prod(self._shape[self._axis :]) <= room:
            self._axis -= 1
        self._length = self._shape[self._axis]
        self._inner = math.prod(self._shape[self._axis + 1 :])
        height = max(1, min(self._length, room // max(1, self._inner)))
        if _MULTIPLE < height < self._length:
            height -= height % _MULTIPLE
        self._height, self._each = height, -(-self._length // height)  # windows of an index before
        self._buffer: NDArray[Any] | None = None
        # What follows is of the window in memory, and is changed by one thread at a time.
        self._changed = threading.Condition()
        self._number, self._users, self._missing = -1, 0, 0  # missing: tiles not yet loaded
        self._tiles: Iterator[Box] = iter(())
        self._failed: BaseException | None = None

    def close(self) -> None:
        """Free the memory."""
        self._buffer, self._number = None, -1

    def fill(self, elements: NDArray[Any], low: int) -> None:
        """Fill an array with the elements from number ``low`` on, in its byte order."""
        parts, at, high = [], low, low + elements.size
        while at < high:
            number, first, end = self._around(at)
            parts.append((number, first, at, min(end, high)))
            at = end
        if parts and parts[-1][0] == self._number:  # in reverse scans: it is not loaded twice
            parts.reverse()
        for number, first, begin, end in parts:
            with self._holding(number) as held:
                elements[begin - low : end - low] = held[begin - first : end - first]

    def _around(self, at: int) -> tuple[int, int, int]:
        """Return the number of the window that has an element, its first element, and its end."""
        before, index = divmod(at // self._inner, self._length)
        part = index // self._height
        low, high = part * self._height, min((part + 1) * self._height, self._length)
        row = before * self._length
        return before * self._each + part, (row + low) * self._inner, (row + high) * self._inner

    def _box(self, number: int) -> Box:
        """Return the indices that a window has along each axis."""
        before, part = divmod(number, self._each)
        low = part * self._height
        box = [range(low, min(low + self._height, self._length))]
        for length in reversed(self._shape[: self._axis]):
            before, index = divmod(before, length)
            box.insert(0, range(index, index + 1))
        return *box, *map(range, self._shape[self._axis + 1 :])

    @contextmanager
    def _holding(self, number: int) -> Iterator[NDArray[Any]]:
        """Yield the elements of a window, which stays in memory until the end of the block."""
        with self._changed:
            self._changed.wait_for(lambda: self._number == number or self._users == 0)
            if self._number != number:
                self._begin(number)
            self._users += 1
        try:
            self._load()
            yield self._array.reshape(-1).view(self._dtype)
        except BaseException as error:
            self._failed = error
            raise
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _begin(self, number: int) -> None:
        """Let threads load a window."""
        item, box = self._dtype.itemsize, self._box(number)
        if self._buffer is None:
            kind = f"u{item}" if item in (1, 2, 4, 8) else f"V{item}"  # what NumPy moves fast
            self._buffer = np.empty(self._height * self._inner, kind)
        lengths = [*map(len, box)]
        self._array: NDArray[Any] = self._buffer[: math.prod(lengths)].reshape(lengths)
        self._cut: _Tiles = _cut_box(self._shape, item, box, self._most_tile)
        self._tiles, self._missing, self._number = iter(self._cut), self._cut.number, number

    def _load(self) -> None:
        """Load tiles until none is left; wait for those that other threads load."""
        while self._failed is None:
            with self._changed:
                tile = next(self._tiles, None)
                if tile is None:
                    break
            self._cut.load(tile, self._array, self._read, self._start)
            with self._changed:
                self._missing -= 1
                if self._missing == 0:
                    self._changed.notify_all()
        with self._changed:
            self._changed.wait_for(lambda: self._missing == 0 or self._failed is not None)
        if self._failed is not None:
            raise self._failed


# ---- tiles: they stay in the caches while they are transposed ------------------------------
#
# A tile is several runs of neighbours in the file. Runs of a few bytes cost more than what lies
# between them. Then some axes are read whole, from axis 0 on, and NumPy takes what is wanted.


class _Tiles(NamedTuple):
    """How a box of an array is cut into tiles."""

    shape: tuple[int, ...]  # of the whole array
    item: int  # bytes of an element
    box: Box
    whole: int  # the number of axes, from axis 0 on, that are read whole
    steps: tuple[int, ...]  # the shape of a tile

    def __iter__(self) -> Iterator[Box]:
        """Yield the tiles, as parts of the array."""
        pairs = zip(self.box, self.steps, strict=True)
        yield from product(*([r[i : i + s] for i in range(0, len(r), s)] for r, s in pairs))

    @property
    def number(self) -> int:
        """The number of tiles."""
        return math.prod(-(-len(r) // s) for r, s in zip(self.box, self.steps, strict=True))

    @property
    def seconds(self) -> float:
        """About the time that they take."""
        lengths, axes = self._read(self.steps)
        calls, size = math.prod(lengths[axes:]), math.prod(lengths) * self.item
        lines = math.prod(self.steps[:-1])
        return self.number * (calls * _CALL + size * _BYTE + lines * _STORE)

    def _read(self, steps: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the shape of what is read for a tile, and the number of axes that a run has."""
        lengths, axes = (*self.shape[: self.whole], *steps[self.whole :]), 1
        while axes < len(lengths) and lengths[axes - 1] == self.shape[axes - 1]:
            axes += 1
        return lengths, axes

    def load(self, tile: Box, to: NDArray[Any], read: Read, start: int) -> None:
        """Read a tile of a file whose element 0 is at byte ``start`` into its part of the box.

        ``to`` has the shape of the box, and elements of so many bytes.
        """
        lengths, axes = self._read([*map(len, tile)])
        run = math.prod(lengths[:axes]) * self.item
        places = np.array([start])
        for i, stride in enumerate(_strides(self.shape, self.item)):
            indices = np.arange(lengths[i]) + (0 if i < self.whole else tile[i].start)
            # Those along the axes of a run follow the first one.
            places = np.add.outer(indices[: 1 if i < axes else None] * stride, places).ravel()
        pitch = run if run < _LONG else (-(-run // _ALIGNED) + 1) * _ALIGNED
        buffer = np.empty(pitch * len(places) + 2 * _ALIGNED, np.uint8)
        first = -buffer.ctypes.data % _ALIGNED + int(places[0]) % _ALIGNED
        memory = memoryview(buffer)  # type: ignore[arg-type]
        for at, place in zip(range(first, len(buffer), pitch), places.tolist(), strict=False):
            read(memory[at : at + run], place)
        strides = *_strides(lengths[:axes], self.item), *_strides(lengths[axes:], pitch)
        found: NDArray[Any] = np.ndarray(lengths, to.dtype, buffer, first, strides)
        wanted = tuple(slice(r.start, r.stop) for r in tile[: self.whole])
        inside = zip(tile, self.box, strict=True)
        to[tuple(slice(r.start - b.start, r.stop - b.start) for r, b in inside)] = found[wanted]


def _strides(lengths: Sequence[int], step: int) -> Iterator[int]:
    """Yield the bytes from one index to the next along each axis; axis 0 varies fastest."""
    for length in lengths:
        yield step
        step *= length


def _cut_box(shape: tuple[int, ...], item: int, box: Box, most: int) -> _Tiles:
    """Return the fastest way to read a box, in tiles of at most ``most`` bytes."""
    room = max(1, most // item)
    ways = [_cut(shape, item, box, room, whole=0, line=line) for line in _LINES]
    for whole in range(1, len(shape) + 1):
        if math.prod(shape[:whole]) > room:
            break
        ways += [_cut(shape, item, box, room, whole=whole, line=line) for line in _LINES]
    return min(ways, key=lambda way: way.seconds)


def _cut(
    shape: tuple[int, ...], item: int, box: Box, room: int, *, whole: int, line: int
) -> _Tiles:
    """Return tiles of ``room`` elements: a line along the last axis, then as far as runs go."""
    room //= math.prod(shape[:whole])
    lengths = [*map(len, box)]
    steps = lengths[:whole] + [1] * (len(shape) - whole)
    if whole < len(shape):
        steps[-1] = max(1, min(lengths[-1], line // item, room))
        for i in range(whole, len(shape)):
            others = math.prod(steps[whole:]) // steps[i]
            steps[i] = min(lengths[i], max(1, room // others))
    return _Tiles(shape, item, box, whole, tuple(steps))
