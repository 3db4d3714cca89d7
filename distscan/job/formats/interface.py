"""The interface of a file format: a module with the three functions of ``Format``.

::

    input   -> Format.inspect -> Source -> reading -> Fill      elements from a number on
    output  <- Format.create  <- Target <- writing <- Put       likewise

The rest of a job is the same for every format. Formats and the rest of a job raise errors that name
the file, and options as the caller writes them.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
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
#: Fills a contiguous array with the elements from a number on, in the machine's byte order. Several
#: threads may call it at once.
Fill = Callable[[NDArray[Any], int], None]
#: Shows progress: the phase, the bytes done, all bytes.
Show = Callable[[str, int, int], None]

#: ``FILE::PATH``: the suffixes of formats whose files hold several arrays; and ``FOLDER/::PATH``.
_SUFFIXES = "h5|hdf5|nc|nc4|npz|parquet|pq|arrow|feather|ipc"
_OF_MEMBER = re.compile(rf"(.+?(?:\.(?:{_SUFFIXES})|/))::(.*)", re.IGNORECASE | re.DOTALL)


class Location(NamedTuple):
    """Where an array is: in a file, and for some formats under a name in the file."""

    path: Path
    member: str = ""  # "" where the file holds one array

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> "Location":
        """Return the location that a path, or ``FILE::PATH``, names.

        >>> Location.parse("x.h5::/run/density").member
        '/run/density'
        """
        found = _OF_MEMBER.fullmatch(os.fspath(text))
        return cls(Path(found[1]), found[2]) if found else cls(Path(text))

    def __str__(self) -> str:
        return f"{self.path}::{self.member}" if self.member else str(self.path)


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
    def grain(self) -> int:
        """The number of elements, one after the other, that are best read by one rank."""

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

    def allocate(self, low: int, high: int, threads: int) -> None:
        """Begin to allocate memory for elements ``low..high``, before they are written."""

    def sync(self) -> None:
        """Return when all elements that this node has written are on the disk."""


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


class Layout(NamedTuple):
    """The array that a target is made for."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False  # whether axis 0 varies fastest, of several axes
    member: str = ""  # its name in the file, if the caller has given one
    like: Source | None = None  # the input, whose names and attributes are carried over
    packed: bool = False  # whether the array is chunked and compressed as that of the input


class Format(Protocol):
    """A file format."""

    def inspect(self, path: Path, kinds: str = NUMBERS, member: str = "") -> Source:
        """Check a file, and return its elements; ``kinds`` are those of types that it may hold.

        Raises ``InputError``.
        """

    def create(self, path: Path, layout: Layout) -> Target:
        """Give an empty file its whole size, and all that the format has beside the elements.

        Raises ``OutputError`` if the format cannot hold the array.
        """

    def reopen(self, path: Path, layout: Layout) -> Target | None:
        """Return the target in a file that ``create`` has made for the same array; else None."""


def imported(name: str, extra: str) -> Any:
    """Import a package, which few jobs need; raise ``InputError`` if there is none."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{extra} needs {name}, which cannot be imported ({error}): "
            f"pip install 'distscan[{extra}]'"
        ) from error


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
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def naming_output(path: Path) -> Iterator[None]:
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


def begin_whole(part: Path) -> Path:
    """Create an empty file under that path, which the same users may read; return the path."""
    whole = whole_of(part)
    whole.unlink(missing_ok=True)
    mode = part.stat().st_mode & 0o777
    os.close(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    return whole


@contextmanager
def renaming(part: Path, path: Path) -> Iterator[None]:
    """Let errors of a part file name the output, which is the name that its user knows."""
    try:
        yield
    except (OSError, OutputError) as error:
        if len(error.args) == 1:
            text = str(error).replace(str(whole_of(part)), str(path))
            error.args = (text.replace(str(part), str(path)),)
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
