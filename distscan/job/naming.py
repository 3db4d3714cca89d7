"""Errors of the system become errors of the library, with the name of the file."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import InputError, OutputError

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
