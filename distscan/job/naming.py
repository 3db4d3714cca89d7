"""Errors of the system become errors of the library, with the name of the file.

Messages name options as the caller writes them.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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


def unlinked(path: str, flags: int) -> int:
    """Open a file, unless its name is a symbolic link or a pipe: an opener for ``open``."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


@contextmanager
def renaming(part: Path, path: Path) -> Iterator[None]:
    """Let errors of a part file name the output, which is the name that its user knows."""
    try:
        yield
    except (OSError, OutputError) as error:
        if len(error.args) == 1:
            error.args = (str(error).replace(str(part), str(path)),)
        raise


# ---- options -------------------------------------------------------------------------------

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
