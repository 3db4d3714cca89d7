"""File -> shard: each rank reads only its own part of a ``.npy`` or raw file. No MPI."""

import mmap
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..core.digest import digest
from ..core.errors import InputError

NUMBERS = "biufc"  # the kinds of NumPy's types that a scan takes
_ENDS = 1 << 16  # bytes at a file's beginning and at its end that are compared between ranks


class Stamp(NamedTuple):
    """Properties by which different files of the same path differ, the clearest one first."""

    size: int
    content: str  # a digest of the file's beginning and end
    mtime_ns: int  # the time of the last change


class Source(Protocol):
    """What a job reads: elements of one type, in one order. A format implements this."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, in the byte order in which they are stored."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""

    @property
    def fortran(self) -> bool:
        """Whether axis 0 varies fastest, of several axes."""

    @property
    def n(self) -> int:
        """The number of elements."""

    @property
    def name(self) -> str:
        """The name for messages."""

    def terms(self) -> dict[str, object]:
        """Return what must be the same on every rank, by name."""

    def reading(self, *, flattened: bool = False) -> AbstractContextManager["Fill"]:
        """Open the source, and yield a function that fills arrays: see ``Fill``.

        The elements are counted as they are stored; ``flattened`` counts them as ``numpy.ravel``
        does, which differs in Fortran order. Raises ``InputError`` if the source has changed since
        it was inspected: at once if it is too short, else at the end of the ``with`` block.
        """


#: Fills a contiguous array with the elements from a number on, in the machine's byte order. Several
#: threads may call it at once.
Fill = Callable[[NDArray[Any], int], None]


class File(NamedTuple):
    """A ``.npy`` or raw file: its type, its shape, and the position of its elements."""

    path: Path
    dtype: np.dtype[Any]  # in the file's byte order
    shape: tuple[int, ...]
    start: int  # the position of element 0, in bytes
    stamp: Stamp | None = None  # inputs have one
    fortran: bool = False  # whether axis 0 varies fastest, of several axes

    @property
    def n(self) -> int:
        """The number of elements."""
        n = 1
        for length in self.shape:
            n *= length
        return n

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
    def reading(self, *, flattened: bool = False) -> Iterator[Fill]:
        """Open the file, and yield a function that fills arrays."""
        with _reading(self.path) as stream:
            gather = flattened and self.fortran
            with _naming(self.path):
                fill = _gathering(self, stream) if gather else _reader(self, stream)
            yield fill
            now, stamp = os.fstat(stream.fileno()), self.stamp
            if stamp and (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
                raise InputError(f"{self.path} was changed while it was read")


def inspect(path: Path, kinds: str = NUMBERS) -> File:
    """Read the header of a ``.npy`` file, version 1 to 3, and check that its data is complete.

    ``kinds`` are those of NumPy's types that it may hold. Raises
    ``InputError`` if the file is missing, pickled, truncated, or not a ``.npy`` file.
    """
    with _reading(path) as stream, _naming(path):
        stamp = _stamp(stream)
        try:
            version = npy.read_magic(stream)
            # Version 3 differs from 2 only in the encoding of field names; inputs have no fields.
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy warns of headers that Python 2 wrote
                shape, fortran, dtype = read(stream)
        except OSError:
            raise
        except Exception as error:  # NumPy's parser raises many types for a wrong header
            reason = str(error).split("\n")[0].rstrip(".")
            raise InputError(f"{path} is not a .npy file: {reason}") from error
        fortran = bool(fortran) and len(shape) > 1
        file = File(path, dtype, shape, stream.tell(), stamp, fortran)
    _check(file, kinds)
    whole = file.start + file.n * dtype.itemsize
    if stamp.size < whole:
        raise InputError(f"{path} is truncated: {stamp.size} of {whole} bytes")
    return file


def inspect_raw(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...] | None, kinds: str = NUMBERS
) -> File:
    """Check a file that holds elements of ``dtype`` and nothing else, in C order.

    ``shape`` None is one axis, as long as the file. Raises ``InputError`` if the file is missing,
    or has not as many bytes as such elements.
    """
    with _reading(path) as stream, _naming(path):
        stamp = _stamp(stream)
    file = File(path, dtype, (0,) if shape is None else shape, 0, stamp)
    _check(file, kinds)
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


def _check(file: File, kinds: str) -> None:
    """Raise ``InputError`` for a type that cannot be scanned, and for an impossible shape."""
    path, dtype = file.path, file.dtype
    if dtype.hasobject:
        raise InputError(f"{path} holds pickled Python objects; a scan takes numbers")
    if dtype.kind not in kinds:
        raise InputError(
            f"{path} holds {dtype}; a scan takes bool, integer, float and complex types"
        )
    if min(file.shape, default=0) < 0:
        raise InputError(f"{path} has the impossible shape {file.shape}")


def _reader(file: File, stream: BufferedReader) -> Fill:
    """Return a function that reads elements in file order."""
    opened = stream.fileno()

    def fill(elements: NDArray[Any], low: int) -> None:
        rest, at = memoryview(elements.view(np.uint8)), file.start + low * elements.itemsize  # type: ignore[arg-type]
        while len(rest) > 0:
            with _naming(file.path):
                read = os.preadv(opened, [rest], at)
            if read == 0:
                raise InputError(f"{file.path} became shorter while it was read")
            rest, at = rest[read:], at + read
        if file.dtype.names:  # each field has its own byte order
            elements[...] = elements.view(file.dtype)
        elif not file.dtype.isnative:
            elements.byteswap(inplace=True)

    return fill


def _gathering(file: File, stream: BufferedReader) -> Fill:
    """Return a function that reads a file in Fortran order, flattened.

    The array [[0 1 2] [3 4 5]] lies in the file as 0 3 1 4 2 5. The file is mapped, because
    neighbours of the flattened array lie far apart in it.
    """
    mapped: NDArray[Any] = np.ndarray(
        file.shape,
        file.dtype,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if file.n else b"",
        file.start if file.n else 0,
        order="F",
    )
    width = file.n // max(file.shape[0], 1)  # elements of a row

    def fill(elements: NDArray[Any], low: int) -> None:
        if os.fstat(stream.fileno()).st_size < file.start + mapped.nbytes:
            raise InputError(f"{file.path} became shorter while it was read")
        high = low + elements.size
        # Whole rows are copied at once, parts of a row element by element.
        first, last = -(-low // width), high // width
        if first >= last:
            elements[...] = mapped.flat[low:high]
            return
        head, tail = first * width - low, last * width - low
        elements[:head] = mapped.flat[low : low + head]
        elements[head:tail].reshape(last - first, *file.shape[1:])[...] = mapped[first:last]
        elements[tail:] = mapped.flat[low + tail : high]

    return fill


def _stamp(stream: BufferedReader) -> Stamp:
    """Return the stamp of a file that is open at its beginning, and go back to the beginning."""
    status = os.fstat(stream.fileno())
    ends = stream.read(_ENDS)
    stream.seek(max(status.st_size - _ENDS, 0))
    ends += stream.read(_ENDS)
    stream.seek(0)
    return Stamp(status.st_size, f"{digest(ends):016x}", status.st_mtime_ns)


@contextmanager
def _reading(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file; every OSError becomes an ``InputError``."""
    with _naming(path):
        # To open a pipe would wait for a writer, perhaps for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path} is not a regular file")
        stream = path.open("rb")
    with stream:
        yield stream


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn every OSError of the ``with`` block into an ``InputError`` that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
