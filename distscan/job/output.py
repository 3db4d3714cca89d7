"""The files that a job writes: part files, which get their names when they are whole. No MPI.

The part file is a hidden file beside the output, the state or the trace. Its name has the host and
the process that writes it, and that process holds a lock on it. If there is no lock and no such
process, the file was left by a job that was killed. The part files of ``--resume`` and ``--state``
have names that the next job can find. So others can predict these names: see ``_open_part``.
"""

import ctypes
import errno
import fcntl
import glob
import os
import platform
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import NamedTuple

from ..core.errors import OutputError
from ..core.fingerprint import digest
from . import formats
from .formats import remote, zarr_url
from .formats.interface import (
    Layout,
    Show,
    Target,
    Url,
    delete,
    naming_output,
    option,
    renaming,
    unlinked,
    whole_of,
)

_ATTEMPTS, _PAUSE = 10, 0.05  # seconds, more after each attempt
_renameat2 = ctypes.CDLL(None).renameat2  # Python has none
_renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


def check(path: Path, *, force: bool) -> Path:
    """Check, before any work, that the output can be published; return its path.

    A symbolic link is followed, not replaced. Raises ``OutputError``.
    """
    with naming_output(path):
        try:
            path = path.resolve()
        except RuntimeError as error:
            raise OutputError(f"{path} is a symbolic link to itself") from error
        if not path.parent.is_dir():
            raise OutputError(
                f"there is no directory {path.parent}; create it: mkdir -p {path.parent}"
            )
        mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode) and not formats.is_store(path):
        raise OutputError(f"{path} is a directory; name a file with -o")
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OutputError(f"{path} is not a regular file, and is not replaced; name another")
    if mode is not None and not force:
        raise OutputError(f"{path} exists; {option('force')} replaces it")
    return path


def check_output(path: Path | Url, *, force: bool, resume: bool) -> Path | Url:
    """Check the output likewise; it may be an object, which is written as a file before.

    ``resume`` says that it may have been begun by a killed job.
    """
    if not isinstance(path, Url):
        return check(path, force=force)
    formats.check_url(path, OutputError)
    place = stand_in(path)
    folder = place.parent
    if formats.is_in_place(path):
        parts = list(folder.glob(f"{glob.escape(_stem(place))}*.part"))
        zarr_url.check_output(path, parts, resumable(place) if resume else None)
    else:
        remote.check_output(path, force=force)
    with naming_output(folder):
        folder.mkdir(0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid() or not stat.S_ISDIR(folder.lstat().st_mode):
            raise OutputError(f"{folder} is another user's: TMPDIR names the folder around it")
    return path


def stand_in(path: Path | Url) -> Path:
    """Return the path beside which the part files of an output are; for a URL, none is its own.

    It is in a folder of this user, which others may not read, in that of ``TMPDIR``.
    """
    if not isinstance(path, Url):
        return path
    from tempfile import gettempdir  # noqa: PLC0415 - few jobs need it

    number = digest(path.text.encode())
    return Path(gettempdir()) / f"distscan-{os.getuid()}" / f"{number:016x}-{path.name[-100:]}"


def _is_of_url(part: Path) -> bool:
    """Return whether a part file is in the folder for outputs by URL, which others cannot write."""
    folder = part.parent
    return folder.name == f"distscan-{os.getuid()}" and folder == stand_in(Url("")).parent


def identity(path: Path | Url) -> tuple[int, int, str]:
    """Return a key that is the same for all names of a file; it need not exist."""
    if isinstance(path, Url):
        return 0, 0, path.text
    try:
        status = path.stat()
    except OSError:
        with suppress(OSError, RuntimeError):
            path = path.resolve()
        try:
            folder = path.parent.stat()
        except OSError:
            return 0, 0, str(path)
        return folder.st_dev, folder.st_ino, path.name
    return status.st_dev, status.st_ino, ""


def is_part(path: Path | Url, output: Path | Url) -> bool:
    """Return whether a file has a name that a part file, or a journal, of another file may have."""
    output = stand_in(output)
    if isinstance(path, Url):
        return False
    if ".distscan-" not in path.name or not path.name.startswith(_stem(output)):
        return False
    return identity(path.parent) == identity(output.parent)


@contextmanager
def create(path: Path | Url, layout: Layout, *, resume: bool = False) -> Iterator[Target]:
    """Create the part file that becomes ``path`` when it is complete, without its elements.

    The file is locked inside the ``with`` block, and not removed at its end. Part files that killed
    jobs have left are removed first. With ``resume`` the file has the same name in each job, and
    keeps the contents that a killed job has left in it.
    """
    place = stand_in(path)
    layout = layout._replace(url=path if isinstance(path, Url) else None)
    if not resume:
        discard(place)
    with renaming(place, path), _part_file(place, reuse=resume) as (opened, part):
        try:
            with renaming(part, path), naming_output(part):
                form, target = formats.of(path), None
                if resume and journals(part):  # else a job was killed while it was made
                    target = form.reopen(part, layout)
                if target is None:
                    if resume:
                        _begin_anew(part)
                    target = form.create(part, layout)
        except BaseException:
            if not resume or os.fstat(opened).st_size == 0:
                remove(part)
            raise
        yield target


class Draft:
    """A small file in the making: see ``draft``."""

    def __init__(self, path: Path, part: Path, opened: int) -> None:
        self.path, self.part, self._opened = path, part, opened

    def write(self, text: str) -> None:
        """Write the contents; they are on the disk then."""
        with naming_output(self.path), open(self._opened, "w", closefd=False) as stream:
            stream.truncate(0)
            stream.write(text)
            stream.flush()
            os.fsync(self._opened)


@contextmanager
def draft(path: Path, *, use: str | None = None) -> Iterator[Draft]:
    """Create the part file of a small file; it is removed at the end of the ``with`` block.

    With ``use``, such as "uses the state", only one job at a time may have it; the others raise
    ``OutputError``.
    """
    with _part_file(path, reuse=use is not None, use=use or "writes") as (opened, part):
        try:
            yield Draft(path, part, opened)
        finally:
            if _is_at(opened, part):  # else it is published: the name may be another job's by now
                remove(part)


@contextmanager
def _part_file(path: Path, *, reuse: bool, use: str = "is writing") -> Iterator[tuple[int, Path]]:
    """Open and lock the part file of ``path``; return its descriptor and its path."""
    _remove_dead(path)
    part = path.with_name(f"{_prefix(path)}{os.getpid()}-{os.urandom(4).hex()}.part")
    if reuse:
        part = resumable(path)
    # Users that may not read the old file must not read the part file either.
    with naming_output(path):
        mode = 0o666 if _mode(path) is None else 0o600
        opened = _open_part(part, mode, path, use, reuse=reuse)
    try:
        yield opened, part
    finally:
        os.close(opened)


def _open_part(part: Path, mode: int, path: Path, use: str, *, reuse: bool) -> int:
    """Create a part file and lock it; with ``reuse``, one that is there is opened.

    The name may be that of another file: a link that somebody has put there, or the output of
    a job that was killed inside ``publish``. Nothing is written through such a name. It is removed,
    and its file stays as it is.
    """
    for _ in range(_ATTEMPTS):
        try:
            opened = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            if not reuse:
                raise
            try:
                opened = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    part.unlink(missing_ok=True)
                elif error.errno != errno.ENOENT:
                    raise
                continue
        try:
            _lock(opened, path, use)
            # Until it is locked, another job may have renamed or removed it.
            if _is_at(opened, part):
                status = os.fstat(opened)
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                    return opened
                part.unlink(missing_ok=True)
        except BaseException:
            os.close(opened)
            raise
        os.close(opened)
    raise OutputError(f"{part} is replaced again and again by another program")


def _lock(opened: int, path: Path, use: str) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # some file systems have no locks
        if error.errno == errno.EWOULDBLOCK:
            raise OutputError(f"another job {use} {path}") from error


def _is_at(opened: int, part: Path) -> bool:
    """Return whether a name is that of an open file, and no link to it."""
    try:
        named = part.lstat()
    except OSError:
        return False
    status = os.fstat(opened)
    return (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)


def _begin_anew(part: Path) -> None:
    """Remove journals of a part file that is empty; refuse one that another job may go on with."""
    if part.stat().st_size > 0 and journals(part):
        raise OutputError(
            f"{part} was left by a job with another output, which {option('resume')} may finish, "
            f"or with one that was removed; a job without {option('resume')} removes it"
        )
    remove_journals(part)


class Publication(NamedTuple):
    """A part file that is complete, and the name that it gets."""

    part: Path
    path: Path | Url
    force: bool  # whether it may replace a file


def publish_all(files: Sequence[Publication], show: Show) -> None:
    """Publish the files of a job in this order; if one cannot be, none appears.

    An upload, which takes time and ``show`` shows, comes before all others. A store that ranks have
    written in place gets its documents. Its part file stays until all is published: as long as it
    is there, the chunks belong to a job that has not ended.

    The order is trace, output, state. A job that is killed between two of these leaves an output
    and the state before it. The same command then refuses to replace the output, or replaces it by
    the same one: no state is counted twice. (If the state came first, the same command would begin
    after its own elements.) The next job of the series waits for neither: it finds the lock of
    the state, as long as this job lives.
    """
    new: list[Publication] = []
    try:
        for file in sorted(files, key=lambda file: not isinstance(file.path, Url)):
            existed = _exists(file.path)
            _publish_one(file, show)
            if not existed:
                new.append(file)
    except BaseException:
        for file in new:
            _unpublish(file)
        raise
    for file in files:
        if formats.is_in_place(file.path):
            claim = zarr_url.Claim.of(file.part)
            _remove_files(file.part)
            if claim is not None:
                claim.release()


def _exists(path: Path | Url) -> bool:
    """Return whether there is an output; what ranks write in place is new."""
    if isinstance(path, Url):
        return not formats.is_in_place(path) and remote.exists(path)
    return os.path.lexists(path)


def _publish_one(file: Publication, show: Show) -> None:
    path = file.path
    if not isinstance(path, Url):
        publish(file.part, path, force=file.force)
    elif formats.is_in_place(path):
        zarr_url.publish(file.part)
    else:
        remote.upload(file.part, path, force=file.force, show=show)
        remove(file.part)


def _unpublish(file: Publication) -> None:
    """Remove an output that is new; errors are ignored: they must hide no fault."""
    path = file.path
    if not isinstance(path, Url):
        delete(path)
    elif formats.is_in_place(path):
        zarr_url.unpublish(file.part)
    else:
        remote.remove(path)


def publish(part: Path, path: Path, *, force: bool) -> None:
    """Rename the complete part file to ``path``; without ``force``, never replace a file.

    A file that is replaced passes on its mode, and its owner and group if that is permitted.
    What ``whole_of`` names is renamed in place of the part file, if it exists.
    """
    remove_journals(part)
    whole = whole_of(part)
    if whole.exists():
        _publish(whole, path, force=force)
        remove(part)
    else:
        _publish(part, path, force=force)


def _publish(part: Path, path: Path, *, force: bool) -> None:
    with naming_output(path):
        if force:
            with suppress(FileNotFoundError):
                _hand_on(path.stat(), part)
            _replace(part, path)
        else:
            try:
                path.hardlink_to(part)
            except FileExistsError:
                raise OutputError(
                    f"{path} was created meanwhile; {option('force')} replaces it"
                ) from None
            except OSError:  # some file systems have no hard links
                check(path, force=False)
                part.replace(path)
            else:
                part.unlink()
        _sync_folder(path.parent)


def _replace(part: Path, path: Path) -> None:
    """Rename a complete file or folder to a path, in place of what is there."""
    if path.is_dir() and not formats.is_store(path):
        raise OutputError(f"{path} is a directory; name a file with -o")
    if not part.is_dir() or not os.path.lexists(path):
        part.replace(path)
        return
    # A folder that is there cannot be replaced by a rename. It is removed as the part file is.
    if _renameat2(_HERE, os.fsencode(part), _HERE, os.fsencode(path), _EXCHANGE) == 0:
        return
    # Without exchanges, as on NFS, there is no file of this name for a moment. A crash leaves the
    # old one where its user sees it.
    old = path.with_name(f"{path.name}.{os.urandom(4).hex()}.old")
    path.rename(old)
    try:
        part.rename(path)
    except BaseException:
        old.rename(path)
        raise
    delete(old)


def remove(part: Path) -> None:
    """Remove a part file, and what is beside it; errors are ignored: they must hide no fault.

    What its job has written under a URL is removed before. If that fails, the part file stays for
    the next job, which tries again.
    """
    if _is_of_url(part):
        try:
            zarr_url.withdraw(part)
        except Exception:
            return
    _remove_files(part)


def _remove_files(part: Path) -> None:
    """Remove a part file, and what is beside it."""
    whole = whole_of(part)
    for attempt in range(_ATTEMPTS):
        delete(whole)
        if not os.path.lexists(whole):
            break
        sleep(attempt * _PAUSE)  # a rank may still be writing into a folder
    with suppress(OSError):
        remove_journals(part)
    if not os.path.lexists(whole):  # else another job finds them, by the part file
        delete(part)


def discard(path: Path) -> None:
    """Remove the part file and journals of a resumable job for ``path``, unless one is at work."""
    if not _is_locked(resumable(path)):
        remove(resumable(path))


def remove_journals(part: Path) -> None:
    """Remove the journals of a part file, if there are any, before the file itself is gone."""
    for journal in journals(part):
        journal.unlink(missing_ok=True)


def journals(part: Path) -> list[Path]:
    """Return the journals of a part file, and new ones that have not replaced old ones."""
    prefix, names = f"{part.name}.", []
    with suppress(OSError):
        names = os.listdir(part.parent)
    whole = whole_of(part).name
    return [part.with_name(name) for name in names if name.startswith(prefix) and name != whole]


def resumable(path: Path) -> Path:
    """Return the part file for ``path`` that is the same in each job."""
    number = digest(os.fsencode(path.name))
    return path.with_name(f"{_stem(path)}{number:016x}.part")


def _stem(path: Path) -> str:
    """Return the prefix of the names of all part files of ``path``."""
    return f".{path.name[:32]}.distscan-"


def _mode(path: Path) -> int | None:
    """Return the mode of the file of this name; None if there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _hand_on(old: os.stat_result, part: Path) -> None:
    """Give the part file the owner, the group and the mode of the old file."""
    mode = old.st_mode & 0o777
    with suppress(PermissionError):
        os.chown(part, old.st_uid, -1)
    try:
        os.chown(part, -1, old.st_gid)
    except PermissionError:  # the part file's group gets the rights of all other users only
        mode &= 0o707 | (mode & 0o007) << 3
    if part.is_dir():  # it may be in place of a file: who may read it may enter it
        mode |= (mode & 0o444) >> 2
    part.chmod(mode)


def _sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, if permitted, and if the file system can."""
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


# ---- part files of killed jobs -------------------------------------------------------------


def _prefix(path: Path) -> str:
    """Return the prefix of the names of this host's part files for ``path``: PREFIXPID-ID.part."""
    return f"{_stem(path)}{platform.node().replace('/', '-')}-"  # 255 bytes at most


def _remove_dead(path: Path) -> None:
    prefix = _prefix(path)
    with suppress(OSError):  # some folders may not be listed
        for name in os.listdir(path.parent):
            if name.startswith(prefix):
                match = re.fullmatch(r"(\d{1,9})-[0-9a-f]{8}\.part", name[len(prefix) :])
                if match and _is_dead(path.with_name(name), int(match[1])):
                    remove(path.with_name(name))


def _is_locked(part: Path) -> bool:
    """Return whether a process has locked a part file, as far as the file system can tell."""
    try:
        with open(part, "rb", opener=unlinked) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    return False


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended, and waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return False


def _is_dead(part: Path, pid: int) -> bool:
    """Return whether no process of this host writes a part file any more."""
    with suppress(ProcessLookupError, PermissionError):
        if pid != os.getpid():  # a file with our number is of a dead process or another container
            os.kill(pid, 0)
            return _is_zombie(pid)
    try:
        with open(part, "rb", opener=unlinked) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # No locks there, or a link that somebody has put there.
        return error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.ELOOP)
    return True
