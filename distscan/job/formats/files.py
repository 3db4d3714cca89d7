"""Elements that lie in a file one after the other, from a known position on. No MPI.

Raw files are such files, and ``.npy`` files. Each rank reads and writes only its part of them.
"""

import math
import os
import re
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from io import BufferedReader
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError, OutputError
from ...core.fingerprint import digest
from . import storage
from .interface import (
    NUMBERS,
    READERS,
    WINDOW,
    Fill,
    Layout,
    Location,
    Put,
    Show,
    Url,
    begin_whole,
    naming_input,
    naming_output,
    option,
    unlinked,
)

_MOST_AXES = 64  # of NumPy's arrays
Read = Callable[[memoryview, int], None]  # fills memory with bytes, from a position on
ENDS = 1 << 16  # bytes at a file's beginning and at its end that are compared between ranks


class Stamp(NamedTuple):
    """Properties by which different files of the same path differ, the clearest one first."""

    size: int
    content: str  # a digest of the file's beginning and end
    mtime_ns: int  # the time of the last change


class File(NamedTuple):
    """Elements in a file, a ``Source`` and a ``Target``: type, shape, position."""

    path: Path
    dtype: np.dtype[Any]  # in the file's byte order
    shape: tuple[int, ...]
    start: int  # the position of element 0, in bytes
    stamp: Stamp | None = None  # inputs have one
    fortran: bool = False  # whether axis 0 varies fastest, of several axes
    member: str = ""  # its name, where the file holds several arrays

    @property
    def n(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def tile(self) -> tuple[int, ...]:
        """None: each element is stored for itself."""
        return ()

    @property
    def end(self) -> int:
        """The position after the last element, in bytes."""
        return self.start + self.n * self.dtype.itemsize

    @property
    def name(self) -> str:
        """The name for messages."""
        return str(Location(self.path, self.member))

    def terms(self) -> dict[str, object]:
        """Return what must be the same on every rank, by name."""
        # Nodes may have different files under the same path, on their own disks.
        shared = f"{self.name}, which must be on a file system that all ranks share"
        stamp = {} if self.stamp is None else self.stamp._asdict()
        return {f"the {name} of {shared}": value for name, value in stamp.items()}

    def needs_window(self, *, flattened: bool) -> bool:
        """Return whether the elements are read in another order."""
        return flattened and self.fortran

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[Fill]:
        """Open the file, and yield a function that fills arrays."""
        with opened(self.path) as stream:
            read = _reading_bytes(self.path, stream.fileno())
            if flattened and self.fortran:
                part = FlatWindow(self.shape, self.dtype, self.start, read, window)
                with closing(part):
                    yield _flattening(self, part, stream)
            else:
                yield reader(self, read)
            if self.stamp:
                check_unchanged(self.path, self.stamp, stream.fileno())

    def check_shared(self) -> None:
        """Check that this rank sees the part file of rank 0, in the same folder."""
        try:
            with open(self.path, "r+b", opener=unlinked) as stream:
                size, reason = os.fstat(stream.fileno()).st_size, "another file"
        except OSError as error:
            size, reason = -1, error.strerror or str(error)
        if size < self.end:
            raise OutputError(
                f"{self.path.parent} is not as rank 0 sees it ({reason}: {self.path.name}); "
                "put the output on a file system that all ranks share and may write"
            )

    def writing(self) -> AbstractContextManager[Put]:
        """Open the file, and yield a writer of elements, the fastest one for its file system."""
        return storage.writing(self, mapped=storage.is_mapped(self.path))

    def finish(self, show: Show) -> None:
        """Do nothing: the file is whole."""


class Indirect(ABC):
    """An array of a file whose bytes are not read as they lie: a ``Source``.

    Attributes
    ----------
    file
        The array as if they were.
    """

    def __init__(self, file: File) -> None:
        self.file, self.tile = file, tuple[int, ...]()
        self.path, self.member, self.dtype, self.shape = (
            file.path,
            file.member,
            file.dtype,
            file.shape,
        )
        self.fortran, self.n, self.name = file.fortran, file.n, file.name

    def terms(self) -> dict[str, object]:
        """Return what must be the same on every rank, by name."""
        return self.file.terms()

    def needs_window(self, *, flattened: bool) -> bool:
        """Return whether the elements are read in another order."""
        return self.file.needs_window(flattened=flattened)

    @abstractmethod
    def reading(
        self, *, flattened: bool = False, window: int = WINDOW
    ) -> AbstractContextManager[Fill]:
        """Open the file, and yield a function that fills arrays."""


class Staging(Indirect):
    """A ``Target`` whose elements wait in a part file until one rank writes them in their format.

    So ranks write side by side into formats that are written in order, and a killed job goes on.
    """

    def __init__(self, file: File, layout: Layout, encode: "Encode") -> None:
        """``file`` is as ``npy.create`` has made it; ``encode`` is a function of a module."""
        super().__init__(file)
        self._layout, self._encode = layout, encode

    def reading(
        self, *, flattened: bool = False, window: int = WINDOW
    ) -> AbstractContextManager[Fill]:
        """Open the file, and yield a function that fills arrays."""
        return self.file.reading(flattened=flattened, window=window)

    def check_shared(self) -> None:
        """Check that this rank sees the part file of rank 0, in the same folder."""
        self.file.check_shared()

    def writing(self) -> AbstractContextManager[Put]:
        """Open the part file, and yield a writer of elements."""
        return self.file.writing()

    def finish(self, show: Show) -> None:
        """Write the elements in their format."""
        whole = begin_whole(self.path)
        with naming_output(self.path), self.file.reading() as fill:
            self._encode(fill, self._layout, whole, show)
            descriptor = os.open(whole, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


#: Writes elements, and what belongs to them, into an empty file.
Encode = Callable[[Fill, Layout, Path, Show], None]


def check_unchanged(path: Path, stamp: Stamp, descriptor: int | None = None) -> None:
    """Raise ``InputError`` if a file, open or by its name, has changed since it had its stamp."""
    with naming_input(path):
        now = os.stat(path if descriptor is None else descriptor)
    if (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
        raise InputError(f"{path} was changed while it was read")


def inspect_raw(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...] | None, kinds: str = NUMBERS
) -> File:
    """Check a file that holds elements of ``dtype`` and nothing else, in C order.

    ``shape`` None is one axis, as long as the file. Raises ``InputError`` if the file is missing,
    or has not as many bytes as such elements.
    """
    with opened(path) as stream, naming_input(path):
        stamp = stamp_of(stream)
    file = File(path, dtype, (0,) if shape is None else shape, 0, stamp)
    check(file, kinds)
    return file._replace(shape=raw_shape(path, dtype, shape, stamp.size))


def raw_shape(
    path: Path | Url, dtype: np.dtype[Any], shape: tuple[int, ...] | None, size: int
) -> tuple[int, ...]:
    """Return the shape of so many bytes of elements; raise ``InputError`` if it is another one."""
    if shape is None:
        length, rest = divmod(size, dtype.itemsize)
        if rest:
            raise InputError(
                f"{path} has {size} bytes, no multiple of the {dtype.itemsize} of {dtype}; "
                "check the type"
            )
        return (length,)
    if size != math.prod(shape) * dtype.itemsize:
        raise InputError(
            f"{path} has {size} bytes; {dtype} of shape {shape} has "
            f"{math.prod(shape) * dtype.itemsize}; check the type and the shape"
        )
    return shape


class Header(Protocol):
    """What a header says of the elements of a file, or of an object."""

    @property
    def path(self) -> Path | Url:
        """Where they are."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their type, in the byte order in which they are stored."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""

    @property
    def start(self) -> int:
        """The position of element 0, in bytes."""


def check(file: Header, kinds: str) -> None:
    """Raise ``InputError`` for a type that cannot be scanned, and for an impossible shape."""
    path, dtype, shape = file.path, file.dtype, file.shape
    if dtype.hasobject:
        raise InputError(
            f"{path} holds pickled Python objects; a scan takes numbers: "
            "save x.astype(float), or another type"
        )
    if dtype.kind not in kinds or dtype.itemsize == 0:
        remedy = "a scan takes bool, integer, float and complex types: convert it by astype"
        if dtype.names:
            operator = option("op", "MODULE:NAME", "distscan.Operator(...)")
            remedy += f"; structures take an operator of your own, {operator}"
        raise InputError(f"{path} holds {dtype}; {remedy}")
    check_shape(str(path), shape, dtype)


def check_shape(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ``InputError`` for a shape that no array has."""
    if not all(type(length) is int and length >= 0 for length in shape):
        raise InputError(f"{name} has the impossible shape {shape}: lengths are whole numbers")
    if len(shape) > _MOST_AXES:
        raise InputError(f"{name} has {len(shape)} axes, more than the {_MOST_AXES} of NumPy")
    # As in NumPy, a length of 0 does not make the others possible.
    if math.prod(filter(None, shape)) * dtype.itemsize >= 1 << 63:
        raise InputError(f"{name} has the impossible shape {shape}: 2^63 bytes or more")


def reader(file: Header, read: Read) -> Fill:
    """Return a function that reads elements in file order."""

    def fill(elements: NDArray[Any], low: int) -> None:
        memory = memoryview(elements.view(np.uint8))  # type: ignore[arg-type]
        read(memory, file.start + low * elements.itemsize)
        if file.dtype.names:  # each field has its own byte order
            elements[...] = elements.view(file.dtype)
        elif not file.dtype.isnative:
            elements.byteswap(inplace=True)

    return fill


def _flattening(file: File, window: "FlatWindow", stream: BufferedReader) -> Fill:
    """Return a function that reads elements of a file in Fortran order as they are flattened."""

    def fill(elements: NDArray[Any], low: int) -> None:
        if file.dtype.names:  # bytes between fields are not copied
            elements.view(np.uint8)[...] = 0
        if os.fstat(stream.fileno()).st_size < file.end:  # the window may be in memory
            raise shorter(file.path)
        window.fill(elements, low)

    return fill


def _reading_bytes(path: Path, descriptor: int) -> Read:
    """Return a function that fills memory with the bytes of a file from a place on."""

    def read(rest: memoryview, at: int) -> None:
        while len(rest) > 0:
            with naming_input(path):
                count = os.preadv(descriptor, [rest], at)
            if count == 0:
                raise shorter(path)
            rest, at = rest[count:], at + count

    return read


def shorter(path: Path | Url) -> InputError:
    """Return the error for a source that has fewer bytes than it had."""
    return InputError(f"{path} became shorter while it was read")


#: The first bytes of other formats, and a remedy. Text, which begins with anything, comes last.
_FORMATS = (
    (rb"PK[\x03\x05]", "an archive; name it .npz if numpy.savez has made it, "
     "or unpack it first, such as one of a Zarr store"),
    (rb"\x89HDF\r\n", "an HDF5 file; name it .h5, or .nc if it is NetCDF-4"),
    (rb"CDF[\x01\x02\x05]", "NetCDF-3; convert it: nccopy -k nc4 x.nc new.nc"),
    (rb"II[*+]\0|MM\0[*+]", "a TIFF; convert it: numpy.save('x.npy', tifffile.imread('x.tif'))"),
    (rb"\x80[\x02-\x05][^\x00]", "a pickle; save the array in it: numpy.save('x.npy', array)"),
    (rb"PAR1", "a Parquet file; name it .parquet"),
    (rb"ARROW1", "a file of Arrow; name it .arrow"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd", "compressed; decompress it first"),
    (rb'\s*\{\s*"(version": [01],|refs"|[^"]*(\.z(group|array|attrs)|zarr\.json)")',
     "a list of parts of other files, as fsspec and kerchunk have it; copy the store that it "
     "stands for: zarr.create_array('x.zarr', data=...)"),
    (rb"[\t\n\r -~]+\Z", "text, such as CSV; convert it: "
     "numpy.save('x.npy', numpy.loadtxt('x.csv', delimiter=','))"),
)  # fmt: skip


def other_format(stream: BinaryIO) -> str:
    """Return the format of a file by its first bytes, with a remedy; "" if it is unknown.

    >>> from io import BytesIO
    >>> other_format(BytesIO(b"1.0,2.0"))[:17]
    'it is text, such '
    """
    stream.seek(0)
    start = stream.read(256)
    return next((f"it is {text}" for sign, text in _FORMATS if re.match(sign, start)), "")


def stamp_of(stream: BufferedReader) -> Stamp:
    """Return the stamp of a file that is open at its beginning, and go back to the beginning."""
    status = os.fstat(stream.fileno())
    ends = stream.read(ENDS)
    stream.seek(max(status.st_size - ENDS, 0))
    ends += stream.read(ENDS)
    stream.seek(0)
    return Stamp(status.st_size, f"{digest(ends):016x}", status.st_mtime_ns)


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file; every OSError becomes an ``InputError``."""
    with naming_input(path):
        # To open a pipe would wait for a writer, perhaps for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(
                f"{path} is not a regular file; name a file, or files as '{path}/*.npy'"
            )
        stream = path.open("rb")
    with stream:
        yield stream


# ---- Fortran order, read as if it were C order ----------------------------------------------
#
# The array [[0 1 2] [3 4 5]] lies in the file as 0 3 1 4 2 5. So neighbours of the flattened array
# lie far apart in the file. Many of them are loaded into memory at once, and wait there::
#
#     file -> tiles -> window, in C order -> arrays of the caller
#
# The file is not mapped: to read a mapped file that has become shorter ends the process by SIGBUS.

TILE = 1 << 19  # bytes; with 256 KiB and with 1 MiB, jobs on an EPYC took longer
#: The seconds of a read, of each byte of it, and of each line of neighbours that is stored. They
#: were measured with preadv from /dev/shm, on one core of an EPYC in a virtual machine.
_CALL, _BYTE, _STORE = 1.5e-6, 1 / 3.5e9, 20e-9
_LINES = 64, 128, 256  # bytes of such a line
#: Reads are twice as fast if memory and file positions are equal modulo so many bytes.
_ALIGNED = 64
_LONG = 1024  # bytes of runs that have a gap after them, so that they share no sets of caches
_MULTIPLE = 64  # of elements: runs of so many begin at multiples of 64 bytes

Box = tuple[range, ...]  # a part of an array: its indices along each axis


class FlatWindow:
    """A part of the flattened array in memory: whole rows, or a part of one row.

    There is one window at a time. Several threads may call ``fill``. Those that wait for the next
    window load it together, each of them a tile at a time.
    """

    def __init__(
        self, shape: Sequence[int], dtype: np.dtype[Any], start: int, read: Read, most: int = WINDOW
    ) -> None:
        """Take at most ``most`` bytes; ``read`` reads the file, and element 0 is at ``start``."""
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
        # These are of the window in memory. One thread at a time changes them.
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
            with self._loaded(number) as window:
                elements[begin - low : end - low] = window[begin - first : end - first]

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
    def _loaded(self, number: int) -> Iterator[NDArray[Any]]:
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
            kind = f"u{item}" if item in (1, 2, 4, 8) else f"V{item}"  # NumPy moves these fast
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
# A tile is several runs of neighbours in the file. Runs of a few bytes cost more than the bytes
# between them. Then some axes are read whole, from axis 0 on, and NumPy selects the elements.


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
        """Return the shape that is read for a tile, and the number of axes that a run has."""
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
        tiles: NDArray[Any] = np.ndarray(lengths, to.dtype, buffer, first, strides)
        needed = tuple(slice(r.start, r.stop) for r in tile[: self.whole])
        inside = zip(tile, self.box, strict=True)
        to[tuple(slice(r.start - b.start, r.stop - b.start) for r, b in inside)] = tiles[needed]


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
