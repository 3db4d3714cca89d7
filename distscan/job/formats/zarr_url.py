"""Zarr stores by URL, an ``interface.Format``: ranks read, and write, chunks as objects.

While a job writes one, there are::

    PART             the claim on the URL, and the array's name     a part file, as of any URL
    PART.whole/      the store without the array's chunks           likewise
    URL/.distscan-*  the claim                                      by rank 0, before all others
    URL/c/0/1        chunks                                         by all ranks, side by side
    URL/zarr.json    the documents that make it a store             by rank 0, when it is whole

Objects that were under the URL before are neither replaced nor removed: a URL is claimed if there
are none. So no two jobs write under one URL, and what a failed job removes is its own.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

from numpy.typing import NDArray

from ...core.errors import InputError, OutputError
from ...core.fingerprint import digest
from . import files, remote, zarr
from .interface import (
    HTTP,
    NUMBERS,
    REMOTE_READERS,
    WINDOW,
    BoxFill,
    BoxPut,
    Layout,
    Location,
    Source,
    Url,
    option,
    unlinked,
    whole_of,
)

#: The names of documents, in the order in which they are written: an array, or a group, appears
#: with all its attributes.
_DOCUMENTS = (".zattrs", ".zarray", ".zgroup", "zarr.json", ".zmetadata")
_CLAIM = ".distscan-"  # the prefix of claims
_MOST = 1 << 16  # bytes of a part file, which has a URL and two names


class Folder(remote.Store):
    """The objects under a URL, by their keys, such as "c/0/1"."""

    def names(self) -> set[str]:
        """Return the first components of all keys."""
        self.fs.invalidate_cache()
        try:
            paths = self.fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return set()
        names = {path.rstrip("/") for path in paths} - {self.path.rstrip("/")}
        return {path.rpartition("/")[2] for path in names}

    def all_keys(self) -> list[str]:
        """Return the keys of all objects."""
        self.fs.invalidate_cache()
        prefix = f"{self.path.rstrip('/')}/"
        return [path.removeprefix(prefix) for path in self.fs.find(self.path)]

    def get(self, key: str) -> bytes | None:
        """Return the contents of an object; None if there is none."""
        try:
            return bytes(self.fs.cat_file(self._path(key)))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def put(self, key: str, contents: bytes) -> None:
        """Write an object; it is there, and durable, when the store has confirmed it."""
        self.make_folders([key])
        self.fs.pipe_file(self._path(key), contents)

    def make_folders(self, keys: Iterable[str]) -> None:
        """Make the folders of keys, in a store that is no object store."""
        if not self.fs.async_impl:
            for folder in {self._path(key).rpartition("/")[0] for key in keys}:
                self.fs.makedirs(folder, exist_ok=True)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        self.each(self._remove, list(keys))

    def remove_folders(self, keys: Iterable[str]) -> None:
        """Remove the folders of keys that are empty, in a store that is no object store."""
        if not self.fs.async_impl:
            folders = {str(each) for key in keys for each in PurePosixPath(key).parents}
            for folder in sorted(folders, key=lambda each: -len(PurePosixPath(each).parts)):
                with suppress(OSError):  # it is not empty
                    self.fs.rmdir(self.path if folder == "." else self._path(folder))

    def each(self, function: Callable[[str], Any], keys: Sequence[str]) -> list[Any]:
        """Call a function with every key; several at once, if the store can."""
        if not self.fs.async_impl or len(keys) < 2:
            return [function(key) for key in keys]
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few jobs need it

        with ThreadPoolExecutor(REMOTE_READERS) as threads:
            return list(threads.map(function, keys))

    def in_zarr(self, *, read_only: bool) -> Any:
        """Return the store as zarr has it."""
        store = zarr.package().storage.FsspecStore
        return store.from_url(self.url.text, read_only=read_only)

    def sync(self) -> None:
        """Return when all objects are durable. They are, but in a folder of this machine."""
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415

        if isinstance(self.fs, LocalFileSystem):
            zarr.sync_file_system(Path(self.path))

    def _remove(self, key: str) -> None:
        with suppress(FileNotFoundError):  # another rank has removed it
            self.fs.rm_file(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self.path.rstrip('/')}/{key}"


# ---- input -----------------------------------------------------------------------------------


def inspect(path: Any, kinds: str = NUMBERS, member: str = "") -> Source:
    """Find an array of a store, and check it; without a name, it is the only one."""
    with remote.explained(path):
        folder = Folder(path)
        if not any(_documents(folder, "")):
            raise InputError(f"{path} is no Zarr store: it has no {', '.join(zarr.METADATA)}")
        store = folder.in_zarr(read_only=True)
    try:
        x = zarr.find(store, Location(path, member))
    except InputError as error:
        if path.scheme in HTTP and not member:  # it lists no names
            raise InputError(f"{error}; by HTTP, ::NAME names it") from None
        raise
    with remote.explained(path):
        version = _version(folder, x.path)
    file = remote.RemoteFile(path, x.dtype, x.shape, 0, version, member=x.path)
    files.check(file, kinds)
    return zarr.refuse_missing(RemoteArray(file, tuple(x.chunks)), x)


class RemoteArray(zarr.Array):
    """An array of a store: see ``Source``. Its version is that of the documents alone.

    Chunks are many objects: to look at all of them would take longer than many a job.
    """

    def __init__(self, file: remote.RemoteFile, tile: tuple[int, ...]) -> None:
        super().__init__(cast(files.File, file), tile)
        self._url, self._version = file.path, file.version

    def store(self) -> Any:
        """Return the store, as zarr takes it."""
        with remote.explained(self._url):
            return Folder(self._url).in_zarr(read_only=True)

    def is_changed(self) -> bool:
        """Return whether the documents are other ones than they were."""
        with remote.explained(self._url):
            return _version(Folder(self._url), self.member) != self._version


def _documents(folder: Folder, member: str) -> list[bytes]:
    """Return the documents of a group or an array; b"" for those that there are not."""
    prefix = f"{member}/" if member else ""
    found = folder.each(folder.get, [f"{prefix}{name}" for name in _DOCUMENTS])
    return [each or b"" for each in found]


def _version(folder: Folder, member: str) -> remote.Version:
    """Return the version of an array: of its documents, and of those of the store."""
    texts = _documents(folder, "") + (_documents(folder, member) if member else [])
    content = digest(b"".join(b"%d:%b" % (len(text), text) for text in texts))
    return remote.Version(sum(map(len, texts)), f"{content:016x}", "")


# ---- output ----------------------------------------------------------------------------------


class Claim(NamedTuple):
    """The claim of a job on a URL, as its part file has it."""

    url: Url
    name: str  # of an object under the URL
    member: str  # the name of the array; "" if the store is one array

    @classmethod
    def of(cls, part: Path) -> "Claim | None":
        """Return the claim in a part file; None if it is of another format."""
        import json  # noqa: PLC0415 - few jobs need it

        try:
            with open(part, "rb", opener=unlinked) as stream:
                url, name, member = json.loads(stream.read(_MOST))["a Zarr store"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(Url(url), name, member)

    def write(self, part: Path) -> None:
        """Write it to the part file, and then under the URL, if there is nothing.

        The name comes first, then the look: of two jobs at the same time, one sees the other.
        """
        import json  # noqa: PLC0415

        contents = json.dumps({"a Zarr store": [self.url.text, self.name, self.member]})
        part.write_text(contents)
        with remote.explained(self.url, "write"):
            folder = Folder(self.url)
            folder.put(self.name, contents.encode())
            names = folder.names() - {self.name}
            if names:
                raise OutputError(_refusal(self.url, names))

    def release(self) -> None:
        """Remove it from under the URL; errors are ignored: they must hide no fault."""
        with suppress(Exception):
            folder = Folder(self.url)
            folder.remove([self.name])
            folder.remove_folders([self.name])


def check_output(url: Url, parts: Sequence[Path], resumable: Path | None) -> None:
    """Check, before any work, that a store can be written; raise ``OutputError``.

    ``parts`` are the part files of this output. What a killed job has left is no fault: it is
    removed with its part file, or, by that of ``resumable``, gone on with.
    """
    remote.check_place(url)
    with remote.explained(url, "write"):
        folder = Folder(url)
        info, names = folder.info_or_none(), folder.names()
    if info is not None and info["type"] != "directory":
        raise OutputError(f"{url} is an object, and no Zarr store: name another")
    known = [resumable] if resumable is not None and names.intersection(_DOCUMENTS) else parts
    claims = {claim.name for part in known if (claim := Claim.of(part)) is not None}
    if names and (not names & claims or (names.intersection(_DOCUMENTS) and resumable is None)):
        raise OutputError(_refusal(url, names))


def _refusal(url: Url, names: set[str]) -> str:
    """Return the message for a URL under which there is something."""
    if names.intersection(_DOCUMENTS):
        return (
            f"{url} exists, and is not replaced, not even by {option('force')}: its chunks "
            "would change while others read them: delete it, or name another"
        )
    if any(name.startswith(_CLAIM) for name in names):
        return (
            f"another job writes {url}, or was killed: delete it if so, or name another; "
            f"{option('resume')} goes on with a job of this option"
        )
    return f"{url} has other objects, such as {min(names)}: delete them, or name another"


class StoreInPlace(zarr.Store):
    """A ``Target``: an array of a new store, whose chunks the ranks write where they will be."""

    def __init__(self, store: zarr.Store, url: Url, metadata: Any) -> None:
        """``store`` is that of the part file, which other nodes need not see."""
        super().__init__(store.file, store.tile)
        self.url, self._metadata = url, metadata

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[BoxFill]:
        """Yield a function that fills arrays."""
        with remote.explained(self.url):
            array = self._open("r")
        yield zarr.Reader(self.url, array, window or WINDOW)

    def _open(self, mode: str) -> Any:
        """Return the array without its documents, which are not there yet."""
        package = zarr.package()
        store = Folder(self.url).in_zarr(read_only=mode == "r")
        path = package.storage.StorePath(store, self.member)
        return package.Array(package.AsyncArray(metadata=self._metadata, store_path=path))

    def check_shared(self) -> None:
        """Check that this rank has the packages of the store."""
        with remote.explained(self.url, "write"):
            self._open("r+")

    @contextmanager
    def writing(self) -> Iterator[BoxPut]:
        """Yield a writer of elements."""
        with remote.explained(self.url, "write"):
            writer = _Writer(self, self._open("r+"))
        yield writer


class _Writer(zarr.Writer):
    """Writes elements that are whole chunks, or shards, as objects: a ``BoxPut``."""

    def __init__(self, target: StoreInPlace, array: Any) -> None:
        super().__init__(target.path, array)
        self._folder = Folder(target.url)

    def box(self, array: NDArray[Any], box: tuple[slice, ...]) -> None:
        """Write a box of the array: zarr returns when the store has confirmed all objects."""
        with remote.explained(self._folder.url, "write"):
            self._folder.make_folders(_chunk_keys(self._array, box))
            self._array[box] = array

    def sync(self) -> None:
        """Return when all objects are durable."""
        with remote.explained(self._folder.url, "write"):
            self._folder.sync()


def _chunk_keys(x: Any, box: tuple[slice, ...]) -> Iterator[str]:
    """Yield the keys of the chunks, or shards, that have elements of a box of an array."""
    tile, prefix = x.shards or x.chunks, f"{x.path}/" if x.path else ""
    numbers = [
        range(part.start // length, -(-part.stop // length))
        for part, length in zip(box, tile, strict=True)
    ]
    for number in itertools.product(*numbers):
        yield prefix + x.metadata.encode_chunk_key(number)


def create(path: Path, layout: Layout) -> StoreInPlace:
    """Make a store without chunks in the folder of part files, and claim the URL."""
    withdraw(path)
    store = zarr.create(path, layout)
    target = _in_place(store, layout)
    claim = Claim(target.url, f"{_CLAIM}{os.urandom(8).hex()}", store.member)
    try:
        claim.write(path)
    except BaseException:
        claim.release()  # the store may have it, whatever it has answered
        shutil.rmtree(whole_of(path), ignore_errors=True)
        path.write_text("")
        raise
    return target


def reopen(path: Path, layout: Layout) -> StoreInPlace | None:
    """Return the store that ``create`` has made, if it is still there, and of the same array."""
    claim, store = Claim.of(path), zarr.store_of(path, layout)
    if claim is None or store is None:
        return None
    with remote.explained(claim.url, "write"):
        is_there = claim.name in Folder(claim.url).names()
    return _in_place(store, layout) if is_there else None


def _in_place(store: zarr.Store, layout: Layout) -> StoreInPlace:
    assert layout.url is not None
    return StoreInPlace(store, layout.url, _without_chunks(store.path, store.member).metadata)


def _without_chunks(part: Path, member: str) -> Any:
    """Return the array of a part file's store, as zarr has it."""
    return zarr.package().open_array(store=str(whole_of(part)), path=member, mode="r")


def publish(part: Path) -> None:
    """Write all that a store has beside the array's chunks, the documents of its root last.

    If that fails, none of it is there.
    """
    try:
        _publish(part)
    except BaseException:
        unpublish(part)
        raise


def _publish(part: Path) -> None:
    claim, whole = Claim.of(part), whole_of(part)
    assert claim is not None
    with remote.explained(claim.url, "write"):
        folder = Folder(claim.url)
        names = folder.names()
        if claim.name not in names:
            raise OutputError(f"what the job has written under {claim.url} was removed meanwhile")
        if any(_is_foreign(folder, whole, name) for name in names - {claim.name}):
            raise OutputError(f"{claim.url} was created meanwhile by another program")
        keys = _keys(whole)
        documents = [key for key in keys if _is_document(key)]
        documents.sort(key=lambda key: (-key.count("/"), _DOCUMENTS.index(Path(key).name)))
        folder.each(
            lambda key: folder.put(key, (whole / key).read_bytes()),
            [key for key in keys if not _is_document(key)],
        )
        for key in documents:
            folder.put(key, (whole / key).read_bytes())


def unpublish(part: Path) -> None:
    """Remove what ``publish`` has written; errors are ignored: they must hide no fault."""
    claim, whole = Claim.of(part), whole_of(part)
    with suppress(Exception):
        assert claim is not None
        folder = Folder(claim.url)
        if claim.name in folder.names():
            folder.remove(key for key in _keys(whole) if not _is_foreign(folder, whole, key))


def withdraw(part: Path) -> None:
    """Remove what the job of a part file has written under a URL, and its claim.

    Nothing is removed if the claim is not there: what is there is another job's.
    """
    claim, whole = Claim.of(part), whole_of(part)
    if claim is None:
        return
    folder = Folder(claim.url)
    if claim.name not in folder.names():
        return
    x = _without_chunks(part, claim.member)
    written = {*_chunk_keys(x, tuple(slice(0, length) for length in x.shape)), *_keys(whole)}
    keys = [key for key in folder.all_keys() if key in written]
    folder.remove(key for key in keys if not _is_foreign(folder, whole, key))
    folder.remove([claim.name])
    folder.remove_folders([*written, claim.name])


def _keys(whole: Path) -> list[str]:
    """Return the keys of all files of the store of a part file."""
    return [str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()]


def _is_document(key: str) -> bool:
    return PurePosixPath(key).name in _DOCUMENTS


def _is_foreign(folder: Folder, whole: Path, key: str) -> bool:
    """Return whether an object is a claim, or a document, that the job has not written."""
    if not _is_document(key):
        return key.startswith(_CLAIM)
    file = whole / key
    return not file.is_file() or folder.get(key) != file.read_bytes()
