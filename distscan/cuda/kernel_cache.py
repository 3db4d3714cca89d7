"""A folder of compiled kernels that processes share. An entry that is not whole is made again."""

import fcntl
import functools
import hashlib
import os
import stat
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

Built = tuple[bytes, str]  # machine code, and the assembler's report

FORMAT = "distscan 1"  # the format of an entry; part of its key
_LOCK_SECONDS = 300.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LENGTHS = struct.Struct("<QQ")
_DIGEST = hashlib.sha256().digest_size


def kept(key: str, make: Callable[[], Built]) -> Built:
    """Return the entry of ``key``. If there is none, ``make`` makes it, and it is kept.

    One process makes an entry, and the others of the node wait for it. An entry is made again if it
    is not whole, or if another user may have written it. If there is no folder, each process makes
    its own.
    """
    where = folder()
    if where is None:
        return make()
    path = where / f"{key}.kernel"
    entry = _read(path)
    if entry is not None:
        return entry
    with _locked(path.with_suffix(".lock")):
        entry = _read(path)  # another process may have made it meanwhile
        if entry is None:
            entry = make()
            with suppress(OSError):  # if the disk is full, the next process compiles again
                _write(path, entry)
    return entry


@functools.cache
def folder() -> Path | None:
    """Return the folder of the entries; None if there is none, or if others may write to it."""
    given, caches = os.environ.get("DISTSCAN_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    try:
        where = Path(given or Path(caches or Path.home() / ".cache") / "distscan")
        if not where.exists():
            where.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another process has made it meanwhile
                where.mkdir(mode=0o700)
        status = where.stat()
        if not given and status.st_uid == os.geteuid() and status.st_mode & _OTHERS_WRITE:
            with suppress(OSError):  # an earlier version made it, under a umask such as 002
                where.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
            status = where.stat()
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None
    if not _trusted(status):
        warnings.warn(
            f"kernels are compiled anew by each process: other users may write {where}, the folder "
            f"for compiled kernels (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}); "
            f"make it yours (chmod go-w {where}), or set DISTSCAN_CACHE_DIR to a folder that is",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return where


def _trusted(status: os.stat_result) -> bool:
    """Return whether only this user and root may have written a file or folder."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & _OTHERS_WRITE


def _read(path: Path) -> Built | None:
    """Return the entry in a file; None if it is not whole, or cannot be trusted."""
    with suppress(OSError), path.open("rb") as file:
        if _trusted(os.fstat(file.fileno())):
            return unpacked(path.stem, file.read())
    return None


def _packed(key: str, entry: Built) -> bytes:
    """Lay out an entry as a file: digest, length of the code, length of the report, code, report.

    The digest covers the key and all that follows. So a file under the wrong name is noticed.
    """
    report = entry[1].encode(errors="replace")
    content = _LENGTHS.pack(len(entry[0]), len(report)) + entry[0] + report
    return digest(key, content) + content


def unpacked(key: str, file: bytes) -> Built | None:
    """Return the entry that ``_packed`` laid out for ``key``; None for any other content."""
    content = file[_DIGEST:]
    if len(content) < _LENGTHS.size or digest(key, content) != file[:_DIGEST]:
        return None
    code, report = _LENGTHS.unpack_from(content)
    end = _LENGTHS.size + code
    if end + report != len(content):
        return None
    return content[_LENGTHS.size : end], content[end:].decode(errors="replace")


def digest(key: str, content: bytes) -> bytes:
    """Return the bytes in front of ``content``: they tell whether an entry is whole."""
    return hashlib.sha256(key.encode() + b"\0" + content).digest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock. If the process dies, the system releases it.

    After a time limit, and where files cannot be locked, the block runs without the lock: two
    processes may then do the same work.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(path.open("a"))
            limit = time.monotonic() + _LOCK_SECONDS
            while time.monotonic() < limit:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
        yield


def _write(path: Path, entry: Built) -> None:
    """Write an entry to a temporary file, and rename it. So each file name is of a whole entry."""
    part = path.with_suffix(f".{uuid4().hex[:8]}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(part, "wb", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
            file.write(_packed(path.stem, entry))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
