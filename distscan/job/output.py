"""Shard -> file: ranks write a part file, which becomes the output when it is whole. No MPI.

The part file lies beside the output, hidden, and its name says who makes it. Whoever makes it holds
a lock on it: one without a lock, of a process that is gone, is what a killed job has left.
"""

import errno
import fcntl
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..core.errors import OutputError
from .files import File

# What is wrong with the place that was asked for, not with the machine.
_PLACE = {
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}


def check(path: Path, *, force: bool) -> Path:
    """Refuse, before any work, an output that could not be put in place after it.

    Returns where it really is: a symbolic link is followed, not replaced.
    """
    with _writing(path):
        try:
            path = path.resolve()
        except RuntimeError as error:
            raise OutputError(f"{path} is a symbolic link to itself") from error
        if not path.parent.is_dir():
            raise OutputError(f"there is no directory {path.parent}")
        mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise OutputError(f"{path} is a directory; name a file with -o")
    if mode is not None and not stat.S_ISREG(mode):
        raise OutputError(f"{path} is not a regular file, and is not replaced")
    if mode is not None and not force:
        raise OutputError(f"{path} exists; --force replaces it")
    return path


@contextmanager
def create(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[File]:
    """Make the file that becomes ``path`` when it is whole: header there, data to be written.

    It is locked inside the context, and stays behind it. What killed jobs have left is removed.
    """
    if dtype.kind not in "biufc":
        raise OutputError(f"a .npy file cannot hold {dtype}")
    _remove_dead(path)
    part = path.with_name(f"{_prefix(path)}{os.getpid()}-{uuid4().hex[:8]}.part")
    with _writing(path):
        # Nobody is to read it who may not read the file that it replaces.
        mode = 0o666 if _mode(path) is None else 0o600
        opened = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
    try:
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with _writing(path), part.open("r+b") as stream:
                text = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                npy.write_array_header_1_0(stream, text)
                file = File(part, dtype, shape, stream.tell())
                stream.truncate(_size(file))
                os.fsync(stream.fileno())  # other hosts write into its first page
        except BaseException:
            remove(part)
            raise
        yield file
    finally:
        os.close(opened)


def check_shared(file: File) -> None:
    """Refuse a folder that is not the one in which another rank has made the file."""
    try:
        with file.path.open("r+b") as stream:
            size, reason = os.fstat(stream.fileno()).st_size, "another file"
    except OSError as error:
        size, reason = -1, error.strerror or str(error)
    if size != _size(file):
        raise OutputError(
            f"{file.path.parent} is not as rank 0 sees it ({reason}: {file.path.name}); "
            "put the output on a file system that all ranks share and may write"
        )


def write(file: File, start: int, pieces: Iterable[NDArray[Any]]) -> None:
    """Write a shard that begins at element ``start``, straight at its place in the file."""
    with _writing(file.path), file.path.open("r+b") as stream:
        stream.seek(file.start + start * file.dtype.itemsize)
        for piece in pieces:
            stream.write(piece.data)
        stream.flush()
        os.fsync(stream.fileno())


def publish(part: Path, path: Path, *, force: bool) -> None:
    """Give the whole file its name; without ``force``, never over a file that came meanwhile.

    A file that is replaced hands on its mode, and its owner and group where that is allowed.
    """
    with _writing(path):
        if force:
            with suppress(FileNotFoundError):
                _hand_on(path.stat(), part)
            part.replace(path)
        else:
            try:
                path.hardlink_to(part)
            except FileExistsError:
                raise OutputError(
                    f"{path} came into being meanwhile; --force replaces it"
                ) from None
            except OSError:  # a file system without hard links
                check(path, force=False)
                part.replace(path)
            else:
                part.unlink()
        _sync_folder(path.parent)


def remove(part: Path) -> None:
    """Remove a part file, if it is there; what is wrong then hides no other fault."""
    with suppress(OSError):
        part.unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Name the file with whatever goes wrong; a bad place is an ``OutputError``."""
    try:
        yield
    except OSError as error:
        kind = OutputError if error.errno in _PLACE else OSError
        raise kind(f"cannot write {path}: {error.strerror or error}") from error


def _mode(path: Path) -> int | None:
    """Return the mode of what is there under this name, None for nothing."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _size(file: File) -> int:
    return file.start + file.n * file.dtype.itemsize


def _hand_on(old: os.stat_result, part: Path) -> None:
    """Give a file the owner, the group and the mode of another."""
    mode = old.st_mode & 0o777
    with suppress(PermissionError):
        os.chown(part, old.st_uid, -1)
    try:
        os.chown(part, -1, old.st_gid)
    except PermissionError:  # another group gets no more than everybody
        mode &= 0o707 | (mode & 0o007) << 3
    part.chmod(mode)


def _sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk, where it may be opened and the file system can."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(opened)


# ---- what killed jobs have left ------------------------------------------------------------


def _prefix(path: Path) -> str:
    """Return how the names of this host's part files for ``path`` begin; they end -PID-ID.part."""
    return f".{path.name[:32]}.distscan-{platform.node().replace('/', '-')}-"  # 255 bytes at most


def _remove_dead(path: Path) -> None:
    prefix = _prefix(path)
    with suppress(OSError):  # a folder that may not be listed
        for name in os.listdir(path.parent):
            if name.startswith(prefix):
                made = re.fullmatch(r"(\d{1,9})-[0-9a-f]{8}\.part", name[len(prefix) :])
                if made and _is_dead(path.with_name(name), int(made[1])):
                    remove(path.with_name(name))


def _is_dead(part: Path, pid: int) -> bool:
    """Whether no process makes a part file of this host any more."""
    with suppress(ProcessLookupError, PermissionError):
        if pid != os.getpid():  # one with our number is gone, or in another container
            os.kill(pid, 0)
            return False
    try:
        with part.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # no locks there
    return True
