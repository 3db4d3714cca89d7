"""Objects of stores, by URL: ``.npy`` and raw. Ranks read ranges of bytes, one rank uploads.

fsspec knows the stores. It is imported where it is used. Stores have no partial writes: ranks write
a part file, which ``upload`` sends when it is whole.
"""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...core.errors import InputError, OutputError
from ...core.fingerprint import digest
from . import files, npy
from .interface import HTTP, NUMBERS, WINDOW, Fill, Location, Show, Url, option

_REQUEST = 1 << 22  # bytes of a request, at most; a file system that can has several at once
_HEAD = 1 << 18  # bytes that are read first: more than the longest header of NumPy has
#: What changes when an object does, by the names that stores give it, the clearest one first.
_TAGS = ("ETag", "etag", "generation", "md5Hash", "Content-MD5", "content_md5", "md5", "Digest")
_TIMES = (
    *("LastModified", "Last-Modified", "last_modified"),
    *("mtime", "updated", "modified", "created"),
)
_PERIOD = 0.1  # seconds between two looks at the progress of an upload


# ---- stores ----------------------------------------------------------------------------------


class Store:
    """The file system of a URL, and the path in it.

    Threads share a file system whose calls are asynchronous. Of any other, each has its own.
    """

    def __init__(self, url: Url) -> None:
        self.url, self._thread = url, threading.local()
        self.fs, self.path = _open(url)
        self._thread.fs = self.fs

    def info(self) -> dict[str, Any]:
        """Return what the store knows of the object now."""
        self.fs.invalidate_cache()
        return dict(self.fs.info(self.path))

    def info_or_none(self) -> dict[str, Any] | None:
        """Return what the store knows of the object now; None if there is none."""
        try:
            return self.info()
        except FileNotFoundError:
            return None

    def read(self, memory: memoryview, at: int) -> None:
        """Fill memory with the bytes of the object from a place on."""
        if len(memory) == 0:
            return
        with explained(self.url):
            if not self.fs.async_impl and not hasattr(self._thread, "fs"):
                self._thread.fs, _ = _open(self.url)
            fs = self.fs if self.fs.async_impl else self._thread.fs
            cuts = range(at, at + len(memory), _REQUEST)[1:]
            starts, ends = [at, *cuts], [*cuts, at + len(memory)]
            parts = fs.cat_ranges([self.path] * len(starts), starts, ends)
            for part in parts:
                if isinstance(part, Exception):
                    raise part
        for start, end, part in zip(starts, ends, parts, strict=True):
            if len(part) < end - start:
                raise files.shorter(self.url)
            if len(part) > end - start:
                raise InputError(f"{self.url} is on a server that sends no ranges: {_COPY}")
            memory[start - at : end - at] = part

    def bytes(self, low: int, high: int) -> bytes:
        """Return the bytes of a range."""
        data = bytearray(high - low)
        self.read(memoryview(data), low)
        return bytes(data)

    @property
    def renames(self) -> bool:
        """Whether it renames objects; else an object appears when it is whole."""
        from fsspec import AbstractFileSystem  # noqa: PLC0415

        return type(self.fs).mv is not AbstractFileSystem.mv


_COPY = "copy it to a file first"


def _open(url: Url) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - few jobs need it, and it takes 60 ms
    except ImportError as error:
        raise ImportError(f"fsspec is missing: pip install 'distscan[remote]' ({error})") from None
    try:
        fs, path = url_to_fs(url.text)
    except ImportError as error:
        from fsspec.registry import known_implementations  # noqa: PLC0415

        package = known_implementations.get(url.scheme, {}).get("class", "").partition(".")[0]
        package = "'fsspec[http]'" if url.scheme in HTTP else package
        remedy = "" if package in {"", "fsspec"} else f": pip install {package}"
        raise ImportError(f"{error}{remedy}") from None
    return fs, path


@contextmanager
def explained(url: Url, verb: str = "read") -> Iterator[None]:
    """Turn all errors of a store, which are of many types, into those of a file."""
    try:
        yield
    except (InputError, OutputError, MemoryError):
        raise
    except Exception as error:
        text = f"cannot {verb} {url}: {_reason(error)}"
        if verb == "read":
            raise InputError(text) from error
        wrong = FileNotFoundError, PermissionError, ImportError, ValueError
        raise (OutputError if isinstance(error, wrong) else OSError)(text) from error


def _reason(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    if isinstance(error, FileNotFoundError):
        cause = str(error.__cause__ or "").partition("\n")[0]  # HTTP: of any answer but the object
        return f"there is no such object, or bucket{cause and f' ({cause})'}"
    if isinstance(error, PermissionError):
        return f"permission denied ({text})"
    return text or type(error).__name__


# ---- input -----------------------------------------------------------------------------------


class Version(NamedTuple):
    """Properties by which different objects of the same URL differ, the clearest one first."""

    size: int
    content: str  # the store's tag, or a digest of the beginning and the end
    time: str  # the time of the last change, as the store writes it


class RemoteFile(NamedTuple):
    """Elements in an object, a ``Source``: type, shape, position."""

    path: Url
    dtype: np.dtype[Any]  # in the object's byte order
    shape: tuple[int, ...]
    start: int  # the position of element 0, in bytes
    version: Version
    fortran: bool = False  # whether axis 0 varies fastest, of several axes
    member: str = ""  # its name, where the URL is that of several arrays

    @property
    def n(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def tile(self) -> tuple[int, ...]:
        """The shape of boxes that are stored each for itself: there are none."""
        return ()

    @property
    def name(self) -> str:
        """The name for messages."""
        return str(Location(self.path, self.member))

    def terms(self) -> dict[str, object]:
        """Return what must be the same on every rank, by name."""
        return {
            f"the {name} of {self.path}": value for name, value in self.version._asdict().items()
        }

    def needs_window(self, *, flattened: bool) -> bool:
        """Return False: each request is for the elements of one chunk."""
        return False

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[Fill]:
        """Yield a function that fills arrays, by a request each."""
        if flattened and self.fortran:
            raise InputError(
                f"{self.path} is in Fortran order, which is flattened from a file only: {_COPY}, "
                f"or name {option('axis', 'K', 'K')}"
            )
        with explained(self.path):
            store = Store(self.path)
        yield files.reader(self, store.read)
        with explained(self.path):
            version = _version(store)
        if version != self.version:
            raise InputError(f"{self.path} was changed while it was read")


def inspect(url: Url, kinds: str = NUMBERS) -> RemoteFile:
    """Read the header of a ``.npy`` object, as ``npy.inspect`` does of a file."""
    with explained(url):
        store = Store(url)
        version = _version(store)
        stream = BytesIO(store.bytes(0, min(version.size, _HEAD)))
        shape, fortran, dtype = npy.header_at(stream, url)
    file = RemoteFile(url, dtype, shape, stream.tell(), version, fortran)
    files.check(file, kinds)
    npy.check_size(file, version.size)
    return file


def inspect_raw(
    url: Url, dtype: np.dtype[Any], shape: tuple[int, ...] | None, kinds: str = NUMBERS
) -> RemoteFile:
    """Check an object that holds elements of ``dtype`` and nothing else, in C order."""
    with explained(url):
        version = _version(Store(url))
    file = RemoteFile(url, dtype, (0,) if shape is None else shape, 0, version)
    files.check(file, kinds)
    return file._replace(shape=files.raw_shape(url, dtype, shape, version.size))


def _version(store: Store) -> Version:
    """Return the version of an object."""
    info = store.info()
    if info["type"] == "directory":
        raise InputError(f"{store.url} is a folder: name an object")
    size = info["size"]
    if size is None:
        raise InputError(f"{store.url} is on a server that does not say its size: {_COPY}")
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    if not tag:
        ends = store.bytes(0, min(size, files.ENDS)), store.bytes(max(size - files.ENDS, 0), size)
        tag = f"{digest(b''.join(ends)):016x}"
    time = next((str(info[key]) for key in _TIMES if info.get(key)), "")
    return Version(size, tag, time)


# ---- output ----------------------------------------------------------------------------------


def check_output(url: Url, *, force: bool) -> None:
    """Check, before any work, that an object can be uploaded; raise ``OutputError``."""
    check_place(url)
    with explained(url, "write"):
        info = Store(url).info_or_none()
        if info is not None and info["type"] == "directory":
            raise OutputError(f"{url} is a folder; name an object with -o")
        if info is not None and not force:
            raise OutputError(f"{url} exists; {option('force')} replaces it")


def check_place(url: Url) -> None:
    """Check that objects may be at a URL; raise ``OutputError`` if there is no bucket or folder."""
    if url.scheme in HTTP:
        raise OutputError(f"{url}: a server of HTTP is read, not written; name a store or a file")
    with explained(url, "write"):
        store = Store(url)
        folder = store.fs._parent(store.path) if store.renames else store.path.partition("/")[0]
        if folder and folder != store.path and _is_missing(store.fs, folder):
            raise OutputError(f"there is no {'folder' if store.renames else 'bucket'} {folder}")


def _is_missing(fs: Any, folder: str) -> bool:
    """Return whether a store says that there is no such folder, or bucket."""
    try:
        fs.info(folder)
    except FileNotFoundError:
        return True
    except Exception:  # a store may keep it to itself
        return False
    return False


def exists(url: Url) -> bool:
    """Return whether there is an object."""
    with explained(url, "write"):
        return Store(url).info_or_none() is not None


def upload(part: Path, url: Url, *, force: bool, show: Show) -> None:
    """Send a file to a store, where it appears when it is whole; the old object stays until then.

    Without ``force``, never replace an object, as far as the store can tell.
    """
    with explained(url, "write"):
        store = Store(url)
        before = store.info_or_none()
        if before is not None and not force:
            raise _created(url)
        fs, path = store.fs, store.path
        hidden = f"{fs._parent(path)}/.{url.name[:32]}.distscan-{os.urandom(4).hex()}.upload"
        to = hidden if store.renames else path
        try:
            _put(fs, part, to, new=not force, show=show)
            if store.renames:
                if not force and store.info_or_none() is not None:
                    raise FileExistsError
                fs.mv(to, path)
        except BaseException as error:
            created = isinstance(error, FileExistsError)
            with suppress(Exception):
                if store.renames:
                    fs.rm_file(to)
                elif not (fs.async_impl or created) and store.info() != before:  # it is cut off
                    fs.rm_file(path)
            if created:
                raise _created(url) from None
            raise


def _created(url: Url) -> OutputError:
    return OutputError(f"{url} was created meanwhile; {option('force')} replaces it")


def _put(fs: Any, part: Path, path: str, *, new: bool, show: Show) -> None:
    """Upload a file, and show the progress; a call that is interrupted ends the upload."""
    import asyncio  # noqa: PLC0415 - few jobs need them
    from concurrent.futures import wait  # noqa: PLC0415
    from inspect import signature  # noqa: PLC0415

    from fsspec.callbacks import Callback  # noqa: PLC0415

    size = part.stat().st_size
    put = fs._put_file if fs.async_impl else fs.put_file
    # A store that can refuse to replace an object does so by itself.
    mode = {"mode": "create"} if new and "mode" in signature(put).parameters else {}
    if not fs.async_impl:
        hooks = {"show": lambda _, value, **__: show("upload", value, size)}
        put(str(part), path, callback=Callback(hooks=hooks), **mode)
        return
    progress = Callback()
    sending = put(str(part), path, callback=progress, **mode)
    call = asyncio.run_coroutine_threadsafe(sending, fs.loop)
    try:
        while not wait([call], _PERIOD).done:
            show("upload", progress.value, size)
        call.result()
    except BaseException:
        call.cancel()
        raise


def remove(url: Url) -> None:
    """Remove an object; errors are ignored: they must hide no fault."""
    with suppress(Exception):
        store = Store(url)
        store.fs.rm_file(store.path)
