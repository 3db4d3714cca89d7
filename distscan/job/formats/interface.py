"""The interface of a file format: a module with the three functions of ``Format``.

::

    input   -> Format.inspect -> Source -> reading -> Fill      elements from a number on
    output  <- Format.create  <- Target <- writing <- Put       likewise

The rest of a job is the same for every format. Formats and the rest of a job raise errors that name
the file, and options as the caller writes them.
"""

import errno
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError, OutputError

NUMBERS = "biufcmM"  # the kinds of NumPy's types that a scan takes
#: Bytes of memory for a file in Fortran order that is flattened, at most: 64 MiB are a row of 16
#: Mi float32, or a thousand rows of 16 Ki. And tiles for the threads that read.
WINDOW = 66 << 20
#: The most threads of a rank that read, and that write, if they do so in parallel: ``storage.py``.
READERS, WRITERS = 4, 8
#: The threads of a rank that read from a store: they wait for the network, so that they need no
#: cores. Chunks have the memory of so many threads in any case.
REMOTE_READERS = 8
#: And those that write into one, chunk by chunk.
REMOTE_WRITERS = 4
#: Fills a contiguous array with the elements from a number on, in the machine's byte order. Several
#: threads may call it at once.
Fill = Callable[[NDArray[Any], int], None]
#: Shows progress: the phase, the bytes done, all bytes.
Show = Callable[[str, int, int], None]

#: ``FILE::PATH``: the suffixes of formats whose files hold several arrays; and ``FOLDER/::PATH``.
_SUFFIXES = "h5|hdf5|nc|nc4|npz|zarr|parquet|pq|arrow|feather|ipc"
_OF_MEMBER = re.compile(rf"(.+?(?:\.(?:{_SUFFIXES})|/))::(.*)", re.IGNORECASE | re.DOTALL)


def imported(name: str, extra: str) -> Any:
    """Import a package, which few jobs need; raise ``InputError`` if there is none."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{extra} needs {name}, which cannot be imported ({error}): "
            f"pip install 'distscan[{extra}]'"
        ) from error


HTTP = {"http", "https"}
#: What distinguishes a URL from a path. ``file://`` is another way to write a path.
_URL = re.compile(r"(?!file://)[a-z][a-z0-9+.-]+://.", re.IGNORECASE)


class Url(NamedTuple):
    """The address of an object in a store, as its user writes it; no path, and no text."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def scheme(self) -> str:
        """The name of the protocol.

        >>> Url("s3://bucket/x.npy").scheme
        's3'
        """
        return self.text.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The last component, without the query of HTTP.

        >>> Url("https://host/a/x.npy?version=2").name
        'x.npy'
        """
        text = re.split(r"[?#]", self.text)[0] if self.scheme in HTTP else self.text
        return text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The suffix of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> "Url":
        """The address of the folder."""
        return Url(self.text.rpartition("/")[0])

    def __truediv__(self, name: str) -> "Url":
        return Url(f"{self.text.rstrip('/')}/{name}")


class Location(NamedTuple):
    """Where an array is: in a file or an object, and for some formats under a name in it."""

    path: Path | Url
    member: str = ""  # "" where the file holds one array

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> "Location":
        """Return the location that a path, a URL, or ``FILE::PATH``, names.

        >>> Location.parse("x.h5::/run/density").member
        '/run/density'
        >>> str(Location.parse("s3://bucket/x.npy"))
        's3://bucket/x.npy'
        """
        found = _OF_MEMBER.fullmatch(os.fspath(text))
        file, member = (found[1], found[2]) if found else (os.fspath(text), "")
        if not _URL.match(file):
            return cls(path_of_file(file), member)
        is_store = file.rstrip("/").lower().endswith(".zarr")  # it may be written as a folder
        return cls(Url(file.rstrip("/") if is_store else file), member)

    def file(self, name: str) -> Path:
        """Return the path, where no URL may be; ``name`` is that of the option."""
        return path_of_file(str(self.path), name)

    def __str__(self) -> str:
        return f"{self.path}::{self.member}" if self.member else str(self.path)


def path_of_file(text: str | os.PathLike[str], name: str = "it") -> Path:
    """Return the path of a file; raise ValueError for a URL, with the ``name`` of the option."""
    if _URL.match(os.fspath(text)):
        raise ValueError(f"{name} must be a file, not the URL {text}")
    return Path(os.fspath(text).removeprefix("file://"))


class Source(Protocol):
    """The elements that a job reads: of one type, in one order."""

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
    def tile(self) -> tuple[int, ...]:
        """The shape of the boxes that are stored each for itself; () if elements are.

        If there are several axes, ``reading`` yields a ``BoxFill``, and ``writing`` a ``BoxPut``.
        """

    @property
    def name(self) -> str:
        """The name for messages."""

    def terms(self) -> dict[str, object]:
        """Return what must be the same on every rank, by name."""

    def needs_window(self, *, flattened: bool) -> bool:
        """Return whether ``reading`` takes ``window`` bytes of memory."""

    def reading(
        self, *, flattened: bool = False, window: int = WINDOW
    ) -> AbstractContextManager[Fill]:
        """Open the source, and yield a function that fills arrays: see ``Fill``.

        The elements are counted as they are stored; ``flattened`` counts them as ``numpy.ravel``
        does, which differs in Fortran order. ``window`` is the most memory, in bytes, to keep what
        is read, or unpacked, for later elements.
        Raises ``InputError`` if the source has changed since it was inspected: at once if it is too
        short, else at the end of the ``with`` block.
        """


class Put(Protocol):
    """Writes elements at their places in a target; several threads may do so at once."""

    @property
    def parallel(self) -> bool:
        """Whether several threads of a rank write faster than one."""

    def __call__(self, elements: NDArray[Any], index: int) -> None:
        """Write contiguous elements, the first of which is the target's element ``index``."""

    def allocate(self, runs: Iterable[tuple[int, int]], threads: int) -> None:
        """Begin to allocate memory for runs of elements, (first, last), before they are written."""

    def sync(self) -> None:
        """Return when all elements that this node has written are on the disk."""


class Box(NamedTuple):
    """A box of an array, and how a scan has it in memory: the scanned axis first."""

    bounds: tuple[tuple[int, int], ...]  # first and last index along each axis
    axis: int  # the scanned one

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index of the array."""
        return tuple(slice(low, high) for low, high in self.bounds)

    def view(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Return elements [rows, columns] as a view with the axes of the array.

        >>> Box(((0, 2), (5, 8)), axis=1).view(np.arange(6))
        array([[0, 2, 4],
               [1, 3, 5]])
        """
        lengths = [high - low for low, high in self.bounds]
        rows = lengths.pop(self.axis)
        return np.moveaxis(elements.reshape(rows, *lengths), 0, self.axis)

    def element(self, number: int, shape: tuple[int, ...]) -> int:
        """Return the index, in an array of such a shape, of an element of [rows, columns].

        >>> Box(((0, 2), (5, 8)), axis=0).element(3, (2, 10))
        15
        """
        lengths = [high - low for low, high in self.bounds]
        rows = lengths.pop(self.axis)
        inside = list(np.unravel_index(number, (rows, *lengths)))
        inside.insert(self.axis, inside.pop(0))
        place = [low + int(i) for (low, _), i in zip(self.bounds, inside, strict=True)]
        return int(np.ravel_multi_index(place, shape))

    def runs(self, shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of neighbours of an array of such a shape: as ``Chunk.runs``.

        >>> list(Box(((0, 2), (5, 8)), axis=0).runs((2, 10)))
        [(5, 0, 3), (15, 3, 6)]
        """
        lengths, last = [high - low for low, high in self.bounds], len(shape) - 1
        while last > 0 and lengths[last] == shape[last]:
            last -= 1
        run = math.prod(lengths[last:])
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        first = sum(low * stride for (low, _), stride in zip(self.bounds, strides, strict=True))
        for number, index in enumerate(np.ndindex(*lengths[:last])):
            at = first + sum(i * stride for i, stride in zip(index, strides, strict=False))
            yield at, number * run, (number + 1) * run


class BoxFill(Protocol):
    """A ``Fill`` that fills boxes, too."""

    def __call__(self, elements: NDArray[Any], low: int, /) -> None:
        """Fill a contiguous array with the elements from number ``low`` on."""

    def box(self, array: NDArray[Any], box: tuple[slice, ...]) -> None:
        """Fill an array, which need not be contiguous, with those of a box."""


def fill_box(fill: Fill, shape: tuple[int, ...], elements: NDArray[Any], box: Box) -> None:
    """Fill elements [rows, columns] with those of a box of an array of such a shape."""
    if hasattr(fill, "box"):
        fill.box(box.view(elements), box.slices)
        return
    view = box.view(elements)
    array = view if view.flags.c_contiguous else np.empty_like(view, order="C")
    flat = array.reshape(-1)
    for index, low, high in box.runs(shape):
        fill(flat[low:high], index)
    if array is not view:
        view[...] = array


class Target(Source, Protocol):
    """The file that the ranks of a job write, under a temporary name; it can be pickled.

    What appears under the output's name is this file, or that of ``whole_of``, if there is one.
    """

    @property
    def path(self) -> Path:
        """The path of the file."""

    def check_shared(self) -> None:
        """Raise ``OutputError`` if this rank does not see the file that rank 0 has created."""

    def writing(self) -> AbstractContextManager[Put]:
        """Open the target, and yield a writer of elements, which are counted as they are stored."""

    def finish(self, show: Show) -> None:
        """Write all that the format has after the elements; one rank calls it when they are there.

        ``show`` is called with the progress: "encode", bytes of elements done, all their bytes.
        """


class BoxPut(Put, Protocol):
    """A ``Put`` that writes boxes, too."""

    def box(self, array: NDArray[Any], box: tuple[slice, ...]) -> None:
        """Write a box of the array, which is a view of elements in any order."""


def put_box(put: Put, shape: tuple[int, ...], elements: NDArray[Any], box: Box) -> None:
    """Write elements [rows, columns] at the places of a box of an array of such a shape."""
    view = box.view(elements)
    if hasattr(put, "box"):
        put.box(view, box.slices)
        return
    flat = np.ascontiguousarray(view).reshape(-1)
    for index, low, high in box.runs(shape):
        put(flat[low:high], index)


class Layout(NamedTuple):
    """The array that a target is made for."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False  # whether axis 0 varies fastest, of several axes
    member: str = ""  # its name in the file, if the caller has given one
    like: Source | None = None  # the input, whose names and attributes are carried over
    packed: bool = False  # whether the array is chunked and compressed as that of the input
    url: Url | None = None  # where the output will be, if that is no path


class Format(Protocol):
    """A file format."""

    def inspect(self, path: Any, kinds: str = NUMBERS, member: str = "") -> Source:
        """Check a file, and return its elements; ``kinds`` are those of types that it may hold.

        Raises ``InputError``.
        """

    def create(self, path: Path, layout: Layout) -> Target:
        """Give an empty file its whole size, and all that the format has beside the elements.

        Raises ``OutputError`` if the format cannot hold the array.
        """

    def reopen(self, path: Path, layout: Layout) -> Target | None:
        """Return the target in a file that ``create`` has made for the same array; else None."""


# ---- errors of the system become errors of the library, with the file's name ----------------

# Errors of the output's path, which the user can correct. All others are errors of the machine.
_PATH_ERRORS = {
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}


@contextmanager
def naming_input(path: Path) -> Iterator[None]:
    """Turn every OSError of the ``with`` block into an ``InputError`` that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; {_remedy(path, error)}"
        ) from error


def _remedy(path: Path, error: OSError) -> str:
    """Return what a user can do about an input that cannot be read."""
    if "::" in str(path):
        return "FILE::NAME is for files of HDF5, NetCDF-4, Zarr, .npz, Parquet and Arrow"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "its owner can permit it: chmod +r"
    return "check the path"


@contextmanager
def naming_output(path: Path | Url) -> Iterator[None]:
    """Add the file's name to every OSError; an error of the path becomes an ``OutputError``."""
    try:
        yield
    except OSError as error:
        kind = OutputError if error.errno in _PATH_ERRORS else OSError
        raise kind(f"cannot write {path}: {error.strerror or error}") from error


def unlinked(path: str, flags: int) -> int:
    """Open a file, unless its name is a symbolic link or a pipe: an opener for ``open``."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def whole_of(part: Path) -> Path:
    """Return the path of the output that a target's ``finish`` leaves beside the part file."""
    return part.with_name(f"{part.name}.whole")


def delete(path: Path) -> None:
    """Delete a file, a link or a folder, if it is there and can be deleted."""
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def begin_whole(part: Path) -> Path:
    """Create an empty file under that path, which the same users may read; return the path."""
    whole = whole_of(part)
    whole.unlink(missing_ok=True)
    mode = part.stat().st_mode & 0o777
    os.close(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    return whole


@contextmanager
def renaming(part: Path, path: Path | Url) -> Iterator[None]:
    """Let errors of a part file name the output, which is the name that its user knows.

    The part file of a URL is in another place, which is named, too.
    """
    try:
        yield
    except (OSError, OutputError) as error:
        if len(error.args) == 1:
            shown = f"{part}, the part file of {path}" if isinstance(path, Url) else str(path)
            text = str(error).replace(str(whole_of(part)), shown)
            error.args = (text.replace(str(part), shown) if text == str(error) else text,)
        raise


# ---- options in messages --------------------------------------------------------------------

_on_command_line = ContextVar("_on_command_line", default=False)


@contextmanager
def on_command_line() -> Iterator[None]:
    """Name options as on the command line in the messages of a ``with`` block."""
    token = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(token)


def option(name: str, value: str = "", argument: str = "True") -> str:
    """Return an option as the caller writes it, with its value there, and with that in Python.

    ``argument`` "" leaves the name alone.

    >>> option("force")
    'force=True'
    >>> with on_command_line():
    ...     option("force")
    '--force'
    """
    if not _on_command_line.get():
        return f"{name}={argument}" if argument else name
    return f"--{name.replace('_', '-')} {value}".rstrip()
