"""Elements that lie in a file one behind the other, at a known place. No MPI.

Each rank reads and writes only its own part of them. Raw files are such files, and ``.npy`` files.
"""

import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.digest import digest
from ..core.errors import InputError, OutputError
from . import storage
from .fortran import Read, Window
from .interface import NUMBERS, WINDOW, Fill, Put, naming_input, option, unlinked

_MOST_AXES = 64  # of NumPy's arrays
_ENDS = 1 << 16  # bytes at a file's beginning and at its end that are compared between ranks


class Stamp(NamedTuple):
    """Properties by which different files of the same path differ, the clearest one first."""

    size: int
    content: str  # a digest of the file's beginning and end
    mtime_ns: int  # the time of the last change


class File(NamedTuple):
    """Elements in a file, a ``Source`` and a ``Target``: their type, their shape, their place."""

    path: Path
    dtype: np.dtype[Any]  # in the file's byte order
    shape: tuple[int, ...]
    start: int  # the position of element 0, in bytes
    stamp: Stamp | None = None  # inputs have one
    fortran: bool = False  # whether axis 0 varies fastest, of several axes

    @property
    def n(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The position behind the last element, in bytes."""
        return self.start + self.n * self.dtype.itemsize

    @property
    def name(self) -> str:
        """The name for messages."""
        return str(self.path)

    def terms(self) -> dict[str, object]:
        """Return what must be the same on every rank, by name."""
        # Nodes may have different files under the same path, on their own disks.
        shared = f"{self.path}, which must be on a file system that all ranks share"
        found = {} if self.stamp is None else self.stamp._asdict()
        return {f"the {what} of {shared}": value for what, value in found.items()}

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[Fill]:
        """Open the file, and yield a function that fills arrays."""
        with opened(self.path) as stream:
            read = _reading_bytes(self.path, stream.fileno())
            if flattened and self.fortran:
                held = Window(self.shape, self.dtype, self.start, read, window)
                with closing(held):
                    yield _flattening(self, held, stream)
            else:
                yield _reader(self, read)
            now, stamp = os.fstat(stream.fileno()), self.stamp
            if stamp and (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
                raise InputError(f"{self.path} was changed while it was read")

    def check_shared(self) -> None:
        """Check that this rank sees the part file of rank 0, in the same folder."""
        try:
            with open(self.path, "r+b", opener=unlinked) as stream:
                size, reason = os.fstat(stream.fileno()).st_size, "another file"
        except OSError as error:
            size, reason = -1, error.strerror or str(error)
        if size != self.end:
            raise OutputError(
                f"{self.path.parent} is not as rank 0 sees it ({reason}: {self.path.name}); "
                "put the output on a file system that all ranks share and may write"
            )

    def writing(self) -> AbstractContextManager[Put]:
        """Open the file, and yield what writes elements in the way that is fastest there."""
        return storage.writing(self, mapped=storage.is_in_memory(self.path))


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
    if shape is None:
        length, rest = divmod(stamp.size, dtype.itemsize)
        if rest:
            raise InputError(
                f"{path} has {stamp.size} bytes, no multiple of the {dtype.itemsize} of {dtype}"
            )
        return file._replace(shape=(length,))
    if stamp.size != file.n * dtype.itemsize:
        raise InputError(
            f"{path} has {stamp.size} bytes; {dtype} of shape {shape} has {file.n * dtype.itemsize}"
        )
    return file


def check(file: File, kinds: str) -> None:
    """Raise ``InputError`` for a type that cannot be scanned, and for an impossible shape."""
    path, dtype, shape = file.path, file.dtype, file.shape
    if dtype.hasobject:
        raise InputError(f"{path} holds pickled Python objects; a scan takes numbers")
    if dtype.kind not in kinds or dtype.itemsize == 0:
        remedy = "a scan takes bool, integer, float and complex types"
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


def _reader(file: File, read: Read) -> Fill:
    """Return a function that reads elements in file order."""

    def fill(elements: NDArray[Any], low: int) -> None:
        memory = memoryview(elements.view(np.uint8))  # type: ignore[arg-type]
        read(memory, file.start + low * elements.itemsize)
        if file.dtype.names:  # each field has its own byte order
            elements[...] = elements.view(file.dtype)
        elif not file.dtype.isnative:
            elements.byteswap(inplace=True)

    return fill


def _flattening(file: File, window: Window, stream: BufferedReader) -> Fill:
    """Return a function that reads elements of a file in Fortran order as they are flattened."""

    def fill(elements: NDArray[Any], low: int) -> None:
        if file.dtype.names:  # bytes between fields are not copied
            elements.view(np.uint8)[...] = 0
        if os.fstat(stream.fileno()).st_size < file.end:  # all that is wanted may be in memory
            raise _shorter(file.path)
        window.fill(elements, low)

    return fill


def _reading_bytes(path: Path, descriptor: int) -> Read:
    """Return a function that fills memory with the bytes of a file from a place on."""

    def read(rest: memoryview, at: int) -> None:
        while len(rest) > 0:
            with naming_input(path):
                count = os.preadv(descriptor, [rest], at)
            if count == 0:
                raise _shorter(path)
            rest, at = rest[count:], at + count

    return read


def _shorter(path: Path) -> InputError:
    return InputError(f"{path} became shorter while it was read")


#: What other formats begin with; text, which begins with anything, comes last.
_FORMATS = (
    (rb"PK[\x03\x05]", "an archive such as .npz; save one array: "
     "numpy.save('x.npy', numpy.load('x.npz')['NAME'])"),
    (rb"\x89HDF\r\n", "an HDF5 file; save one data set: "
     "numpy.save('x.npy', h5py.File('x.h5')['NAME'])"),
    (rb"\x80[\x02-\x05][^\x00]", "a pickle; save the array in it: numpy.save('x.npy', array)"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd", "compressed; decompress it first"),
    (rb"[\t\n\r -~]+\Z", "text, such as CSV; convert it: "
     "numpy.save('x.npy', numpy.loadtxt('x.csv', delimiter=','))"),
)  # fmt: skip


def other_format(stream: BinaryIO) -> str:
    """Return what a file is by its first bytes, and what to do with it; "" if that is unknown.

    >>> from io import BytesIO
    >>> other_format(BytesIO(b"1.0,2.0"))[:17]
    'it is text, such '
    """
    start = stream.read(256)
    return next((f"it is {what}" for sign, what in _FORMATS if re.match(sign, start)), "")


def stamp_of(stream: BufferedReader) -> Stamp:
    """Return the stamp of a file that is open at its beginning, and go back to the beginning."""
    status = os.fstat(stream.fileno())
    ends = stream.read(_ENDS)
    stream.seek(max(status.st_size - _ENDS, 0))
    ends += stream.read(_ENDS)
    stream.seek(0)
    return Stamp(status.st_size, f"{digest(ends):016x}", status.st_mtime_ns)


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file; every OSError becomes an ``InputError``."""
    with naming_input(path):
        # To open a pipe would wait for a writer, perhaps for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path} is not a regular file")
        stream = path.open("rb")
    with stream:
        yield stream
