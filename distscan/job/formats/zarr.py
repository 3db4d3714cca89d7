"""The format Zarr, versions 2 and 3, an ``interface.Format``; zarr is imported where it is used.

A store is a folder, and a chunk of an array is a file. Each chunk is decompressed, and written, by
one rank: see ``chunks.Tiles``. Of an array with shards, this holds of shards when they are written.
"""

import ctypes
import math
import os
import stat
import threading
import warnings
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError, OutputError
from ...core.fingerprint import digest
from . import conventions, files, remote
from .files import File, Indirect, Stamp
from .interface import (
    NUMBERS,
    WINDOW,
    BoxFill,
    BoxPut,
    Layout,
    Location,
    Show,
    Source,
    Url,
    delete,
    imported,
    naming_input,
    naming_output,
    whole_of,
)

package = partial(imported, "zarr", "zarr")
#: The metadata of a group or an array, one of which is in its folder.
METADATA = ("zarr.json", ".zarray", ".zgroup")
_DIMENSIONS = "_ARRAY_DIMENSIONS"  # the attribute of version 2 with the names of dimensions
_CHUNK = 8 << 20  # bytes of a chunk of a new array
#: Codecs that return the bytes that they were given; other ones may round.
_LOSSLESS = {"blosc", "zstd", "gzip", "zlib", "lz4", "bz2", "lzma", "crc32c", "shuffle"}
_PART = "the part file of a Zarr store\n"  # the contents of a part file whose store is made
_syncfs = ctypes.CDLL(None, use_errno=True).syncfs


# ---- input -----------------------------------------------------------------------------------


def inspect(path: Path, kinds: str = NUMBERS, member: str = "") -> Source:
    """Find an array of a store, and check it; without a name, it is the only one."""
    with naming_input(path):
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    if not is_store(path):
        reason = f"it has no {', '.join(METADATA)}"
        if not is_folder:
            with files.opened(path) as stream:
                reason = files.other_format(stream) or "it is a file, and no folder"
        raise InputError(f"{path} is no Zarr store: {reason}")
    x = find(str(path), Location(path, member))
    stamp = _stamp_of(path / x.path)
    file = File(path, x.dtype, x.shape, 0, stamp, member=x.path)
    files.check(file, kinds)
    return refuse_missing(Array(file, tuple(x.chunks)), x)


def find(store: Any, location: Location) -> Any:
    """Return an array of a store, as zarr has it; without a name, it is the only one."""
    path, member = location
    with explained(path):
        node = opened(store)
        if not hasattr(node, "shape"):
            member = member or _only_name(node, path)
        name = str(Location(path, member))
        x = _find(node, member, name)
        if x.dtype.hasobject or x.dtype.kind not in f"{NUMBERS}VSU":
            raise InputError(f"{name} holds {x.dtype}; a scan takes numbers")
        if any(each.elementsize == 0 for each in _shuffles(x)) and not _is_of_netcdf(node, x):
            raise InputError(
                f"{name} is shuffled in elements of 0 bytes, which NetCDF and numcodecs take for "
                "different ones: write it again without this filter"
            )
        return sized(x)


def _shuffles(array: Any) -> list[Any]:
    """Return the filters of numcodecs that shuffle bytes of an array of version 2.

    The netCDF library writes the size of elements as a text, or as 0, until 4.10 at least.
    """
    codecs = (*array.filters, *array.compressors) if array.metadata.zarr_format == 2 else ()
    found = [each for each in codecs if each.codec_id == "shuffle"]
    for each in found:
        each.elementsize = int(each.elementsize)
    return found


def _is_of_netcdf(root: Any, array: Any) -> bool:
    """Return whether the netCDF library has written a store."""
    return "_NCProperties" in root.attrs or "_nczarr_array" in array.attrs


def sized(array: Any) -> Any:
    """Return an array whose filters have the size of elements that netCDF means by 0."""
    for each in _shuffles(array):
        each.elementsize = each.elementsize or array.dtype.itemsize
    return array


def refuse_missing(source: "Array", x: Any) -> Source:
    """Return a source that refuses missing values, by the attributes of its array in zarr."""
    with explained(source.path):
        attributes = _attributes(x)
    return conventions.check(source, attributes)


def _attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of an array, with its missing value as xarray has it.

    In version 3, that of floats is the text of 8 bytes. In version 2, it is the value of chunks
    that are not stored, if dimensions have names; 0 is what zarr chooses for all arrays.
    """
    attributes: dict[str, Any] = array.attrs.asdict()
    value = attributes.get("_FillValue")
    if isinstance(value, str) and array.dtype.kind == "f":
        with suppress(ValueError):
            attributes["_FillValue"] = np.frombuffer(b64decode(value), "<f8")[0]
    if array.metadata.zarr_format == 2 and _DIMENSIONS in attributes and array.fill_value:
        attributes.setdefault("_FillValue", array.fill_value)
    return attributes


def is_store(path: Path) -> bool:
    """Return whether a folder holds a Zarr array or group."""
    return any((path / name).is_file() for name in METADATA)


def opened(store: Any) -> Any:
    """Open the array or the group of a store; no warnings of what other versions may read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return package().open(store=store, mode="r")


@contextmanager
def explained(path: Path | Url) -> Iterator[None]:
    """Turn the errors of the library, of its codecs, and of stores, into an ``InputError``."""
    by_url = remote.explained(path) if isinstance(path, Url) else nullcontext()
    try:
        with by_url:
            yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"cannot read {path}: {type(error).__name__}: {error}") from None


def _find(node: Any, member: str, name: str) -> Any:
    """Return the array of a name; raise ``InputError`` if there is none."""
    if hasattr(node, "shape"):
        if member:
            raise InputError(f"there is no {name}: the store is one array")
        return node
    try:
        found = node[member]
    except KeyError:
        known = [f"/{each}" for each, _ in _arrays(node)]
        listed = ", ".join(known[:8]) + ", ..." * (len(known) > 8)
        raise InputError(f"there is no {name}; arrays: {listed or 'none'}") from None
    if not hasattr(found, "shape"):
        raise InputError(f"{name} is a group, and no array")
    return found


def _arrays(group: Any) -> list[tuple[str, Any]]:
    """Return all arrays of a store, with their names."""
    members = sorted(group.members(max_depth=None), key=lambda member: member[0])
    return [(name, each) for name, each in members if hasattr(each, "shape")]


def _only_name(group: Any, path: Path | Url) -> str:
    arrays = _arrays(group)
    coordinates = {name for _, each in arrays for name in _coordinate_names(each)}
    known = [name for name, _ in arrays if PurePosixPath(name).name not in coordinates]
    if len(known) != 1:
        shown = ", ".join(known[:8]) + ", ..." * (len(known) > 8)
        raise InputError(
            f"{path} has the arrays {shown}: name one, such as {Location(path, known[0])}"
            if known
            else f"{path} has no array"
        )
    return known[0]


def _dimensions(array: Any) -> tuple[str, ...]:
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get(_DIMENSIONS, ())
    return tuple(str(name) for name in names)


def _coordinate_names(array: Any) -> list[str]:
    return conventions.coordinate_names(_dimensions(array), array.attrs)


def _stamp_of(folder: Path) -> Stamp:
    """Return the stamp of an array: of its metadata, and of the sizes and times of all files."""
    size = latest = 0
    with naming_input(folder):
        for parent, _, names in os.walk(folder):
            for name in names:
                status = os.stat(os.path.join(parent, name))
                size, latest = size + status.st_size, max(latest, status.st_mtime_ns)
        texts = [(folder / name).read_bytes() for name in METADATA if (folder / name).is_file()]
    return Stamp(size, f"{digest(b''.join(texts)):016x}", latest)


class Array(Indirect):
    """An array of a store."""

    def __init__(self, file: File, tile: tuple[int, ...]) -> None:
        super().__init__(file)
        self.tile = tile

    def store(self) -> Any:
        """Return the store, as zarr takes it."""
        return str(self.path)

    def is_changed(self) -> bool:
        """Return whether the array is another one than it was when it was inspected."""
        return bool(_stamp_of(self.path / self.member) != self.file.stamp)

    def needs_window(self, *, flattened: bool) -> bool:
        """Return whether elements are read in order: chunks are decompressed once for many."""
        return flattened

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[BoxFill]:
        """Open the store, and yield a function that fills arrays."""
        with explained(self.path):
            array = sized(package().open_array(store=self.store(), path=self.member, mode="r"))
        if (array.shape, array.dtype, array.chunks) != (self.shape, self.dtype, self.tile):
            raise InputError(
                f"{self.name} is not as the consolidated metadata says: consolidate it again"
            )
        yield Reader(self.path, array, window or WINDOW)
        if self.is_changed():
            raise InputError(f"{self.path} was changed while it was read")


class Reader:
    """Fills arrays with the elements of an array of a store: a ``BoxFill``.

    Elements in order are neighbours in few of the chunks. So chunks are decompressed into a window,
    which has whole rows of chunks, if there is memory for one.
    """

    def __init__(self, path: Path | Url, array: Any, most: int) -> None:
        self._path, self._array, self._lock = path, array, threading.Lock()
        self._shape, self._axis, self._height = array.shape, 0, 1
        room, tile = max(1, most // array.dtype.itemsize), array.chunks
        for axis in range(len(self._shape)):
            inner = math.prod(self._shape[axis + 1 :])
            self._axis, self._height = axis, room // max(1, inner)
            if self._height >= min(tile[axis], self._shape[axis]):
                self._height -= self._height % tile[axis] if self._height > tile[axis] else 0
                break
        self._height = max(1, self._height)
        self._first, self._window = 0, np.empty(0, array.dtype)
        buffers = imported("zarr.buffer", "zarr").default_buffer_prototype()
        self._buffer = buffers.nd_buffer.from_numpy_array

    def __call__(self, elements: NDArray[Any], low: int) -> None:
        """Fill an array with the elements from number ``low`` on."""
        at, high = low, low + elements.size
        if len(self._shape) == 1 and self._is_whole(low, high):
            self.box(elements, (slice(low, high),))
            return
        while at < high:
            first, window = self._around(at)
            stop = min(first + window.size, high)
            elements[at - low : stop - low] = window[at - first : stop - first]
            at = stop

    def _is_whole(self, low: int, high: int) -> bool:
        """Return whether elements of an array of one axis are whole chunks."""
        (chunk,), (n,) = self._array.chunks, self._shape
        return bool(low % chunk == 0 and (high % chunk == 0 or high == n))

    def box(self, array: NDArray[Any], box: tuple[slice, ...]) -> None:
        """Fill an array with those of a box."""
        with explained(self._path):
            if array.flags.c_contiguous and array.dtype == self._array.dtype:  # without a copy
                self._array.get_basic_selection(box, out=self._buffer(array))
            else:
                array[...] = self._array[box]

    def _around(self, at: int) -> tuple[int, NDArray[Any]]:
        """Return the window that has an element, and the number of its first element."""
        with self._lock:
            if not self._first <= at < self._first + self._window.size:
                shape, axis = self._shape, self._axis
                *before, row = np.unravel_index(at, shape)[: axis + 1] if shape else [0]
                low = int(row) // self._height * self._height
                box = [slice(int(i), int(i) + 1) for i in before]
                if shape:
                    box.append(slice(low, min(low + self._height, shape[axis])))
                    box += [slice(0, length) for length in shape[axis + 1 :]]
                with explained(self._path):
                    self._window = np.asarray(self._array[tuple(box)]).reshape(-1)
                start = [part.start for part in box]
                self._first = int(np.ravel_multi_index(start, shape)) if shape else 0
            return self._first, self._window


# ---- output ----------------------------------------------------------------------------------


class Store(Indirect):
    """A ``Target``: an array of a new store, which the ranks write side by side."""

    def __init__(self, file: File, tile: tuple[int, ...]) -> None:
        super().__init__(file)
        self._folder, self.tile = whole_of(file.path), tile

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[BoxFill]:
        """Open the store, and yield a function that fills arrays."""
        with explained(self._folder):
            array = self._open("r")
        yield Reader(self._folder, array, window or WINDOW)

    def _open(self, mode: str) -> Any:
        # A look for chunks of the fill value alone, which need not be stored, takes a fifth of the
        # time; and zarr takes -0.0 of complex numbers for 0.
        zarr = package()
        with zarr.config.set({"array.write_empty_chunks": True}):
            return zarr.open_array(store=str(self._folder), path=self.member, mode=mode)

    def check_shared(self) -> None:
        """Check that this rank sees the store of rank 0."""
        try:
            if self._open("r").shape == self.shape:
                return
            reason = "another store"
        except (OSError, ValueError) as error:
            reason = str(error)
        raise OutputError(
            f"{self.path.parent} is not as rank 0 sees it ({reason}); "
            "put the output on a file system that all ranks share and may write"
        )

    @contextmanager
    def writing(self) -> Iterator[BoxPut]:
        """Open the store, and yield a writer of elements."""
        yield Writer(self.path, self._open("r+"))

    def finish(self, show: Show) -> None:
        """Consolidate the metadata of a group: programs then open one file for all arrays."""
        if self.member:
            _consolidate(self._folder)
            sync_file_system(self._folder)


def _consolidate(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not in the specification of version 3 yet
        package().consolidate_metadata(str(folder))


class Writer:
    """Writes elements that are whole chunks, or shards: a ``BoxPut``."""

    parallel = True

    def __init__(self, part: Path, array: Any) -> None:
        self._part, self._array = part, array

    def __call__(self, elements: NDArray[Any], index: int) -> None:
        """Write elements of an array of one axis."""
        box = (slice(index, index + elements.size),) if self._array.shape else ()
        self.box(elements.reshape([-1] * len(box)), box)

    def box(self, array: NDArray[Any], box: tuple[slice, ...]) -> None:
        """Write a box of the array."""
        with naming_output(self._part):
            self._array[box] = array

    def allocate(self, runs: Iterable[tuple[int, int]], threads: int) -> None:
        """Do nothing: files are created chunk by chunk."""

    def sync(self) -> None:
        """Return when all files of the file system are on the disk: the store has many."""
        with naming_output(self._part):
            sync_file_system(self._part)


def sync_file_system(path: Path) -> None:
    """Return when all files of the file system of a path are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        if _syncfs(opened):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(opened)


def create(path: Path, layout: Layout) -> Store:
    """Make a store of one array, with what belongs to that of ``like``, in its chunks."""
    if layout.fortran:
        raise OutputError(f"{path}: Zarr has no Fortran order, which the input has: write .npy")
    folder, name = whole_of(path), _member_of(layout)
    delete(folder)
    folder.mkdir(0o777 if path.stat().st_mode & 0o077 else 0o700)
    try:
        _make(folder, name, layout)
    except InputError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise OutputError(f"cannot write {path} as Zarr: {error}") from error
    store = _target(path, layout, name)
    path.write_text(_PART)
    return store


def _make(folder: Path, name: str, layout: Layout) -> None:
    """Make the array of a store, the groups around it, and its coordinates."""
    zarr, (source, x) = package(), _input(layout)
    version = 3 if x is None else x.metadata.zarr_format
    options = _options_of(x, layout)
    if x is not None and x.shape == layout.shape:
        options["fill_value"] = _fill_value(x, layout.dtype)
    if not name:
        zarr.create_array(str(folder), zarr_format=version, **options)
        return
    attributes = {} if source is None else _attributes_beside_netcdf(source)
    group = zarr.create_group(str(folder), zarr_format=version, attributes=attributes)
    *parents, last = PurePosixPath(name).parts
    for parent in parents:
        group = group.create_group(parent)
    group.create_array(last, **options)
    if source is not None and x.shape == layout.shape:
        _copy_coordinates(source, x, group, cast(Array, layout.like).path)


def reopen(path: Path, layout: Layout) -> Store | None:
    """Return the store that ``create`` has made, if its array has this name, type and shape."""
    return store_of(path, layout) if path.read_text(errors="replace") == _PART else None


def store_of(path: Path, layout: Layout) -> Store | None:
    """Return the store beside a part file, if its array is that of the layout."""
    if whole_of(path).is_symlink():
        return None
    try:
        with explained(path):
            return _target(path, layout, _member_of(layout))
    except (InputError, OutputError):
        return None


def _target(path: Path, layout: Layout, member: str) -> Store:
    """Return the store of a part file, whose array has a name."""
    array = package().open_array(store=str(whole_of(path)), path=member, mode="r")
    if (array.dtype, array.shape) != layout[:2]:
        raise OutputError(f"Zarr cannot hold {layout.dtype} as it is in memory: choose another")
    file = File(path, layout.dtype, layout.shape, 0, member=member)
    return Store(file, tuple(array.shards or array.chunks))


def _member_of(layout: Layout) -> str:
    """Return the name of an output's array; "" if the store is one array."""
    name: str = (layout.member or getattr(layout.like, "member", "")).strip("/")
    if any(part in {".", "..", *METADATA} or part.startswith("__") for part in name.split("/")):
        raise OutputError(f"{name} is no name of an array of Zarr")
    return name


def _input(layout: Layout) -> tuple[Any, Any]:
    """Return the group and the array of the input, if it is in a Zarr store; else None."""
    like = getattr(layout.like, "source", layout.like)
    if not isinstance(like, Array):
        return None, None
    with explained(like.path):
        root = opened(like.store())
        if hasattr(root, "shape"):
            return None, sized(root)
        return root, sized(root[like.member])


def _options_of(x: Any, layout: Layout) -> dict[str, Any]:
    """Return the arguments that create an array as ``x`` is, but of the layout's type and shape."""
    dtype, shape, *_ = layout
    options: dict[str, Any] = {"shape": shape, "dtype": dtype}
    if x is None or x.shape != shape:
        chunks = _chunks(shape, dtype.itemsize)
        if x is None:
            tile = getattr(layout.like, "tile", ())
            same = tile and getattr(layout.like, "shape", ()) == shape
            return options | {"chunks": tuple(map(min, tile, shape)) if same else chunks}
        return options | {"chunks": chunks, "compressors": _compressors(x, dtype)}
    attributes = _attributes_beside_netcdf(x)
    for name in conventions.OF_VALUES & attributes.keys():
        del attributes[name]
    options |= {
        "chunks": x.chunks,
        "shards": x.shards,
        "compressors": _compressors(x, dtype),
        "attributes": attributes,
    }
    if x.metadata.zarr_format == 2:
        separator = x.metadata.dimension_separator
        return options | {"chunk_key_encoding": {"name": "v2", "separator": separator}}
    return options | {
        "chunk_key_encoding": x.metadata.chunk_key_encoding,
        "dimension_names": x.metadata.dimension_names,
    }


def _attributes_beside_netcdf(node: Any) -> dict[str, Any]:
    """Return the attributes of a group or an array, without those of the netCDF library.

    It lists all arrays of a store there, and opens none that lacks one of them.
    """
    return {
        name: value
        for name, value in node.attrs.asdict().items()
        if not name.lower().startswith(("_nczarr_", "_ncproperties"))
    }


def _chunks(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of chunks of about 8 MiB, which have whole rows if they can.

    >>> _chunks((1000, 512, 512), 8)
    (4, 512, 512)
    """
    chunks, room = list(shape), max(1, _CHUNK // itemsize)
    for axis in reversed(range(len(shape))):
        chunks[axis] = max(1, min(shape[axis], room))
        room = max(1, room // chunks[axis])
    return tuple(chunks)


def _compressors(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return the compressors of an array, for elements of another type; zarr's, if one rounds."""
    if x.metadata.zarr_format == 2:
        fits = all(
            each.codec_id in _LOSSLESS and dtype.itemsize % getattr(each, "elementsize", 1) == 0
            for each in x.compressors
        )
        return (x.compressors or None) if fits else "auto"
    codecs = [each.to_dict() for each in x.compressors]
    if any(codec["name"].removeprefix("numcodecs.") not in _LOSSLESS for codec in codecs):
        return "auto"
    for codec in codecs:
        options = codec.get("configuration", {})
        options.update(dict.fromkeys({"typesize", "elementsize"} & options.keys(), dtype.itemsize))
    return codecs or None


def _fill_value(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return the value of chunks that are not stored, if the type has it; else 0.

    In version 2, xarray takes elements of that value for missing ones. The result of a scan has
    none but NaN.
    """
    value, version = x.fill_value, x.metadata.zarr_format
    if value is None:
        return None
    with np.errstate(all="ignore"):
        cast = np.asarray(value).astype(dtype)[()]
        is_nan = bool(cast != cast)  # noqa: PLR0124
    if version == 2 and _DIMENSIONS in x.attrs and not is_nan:
        return None
    return cast if is_nan or cast == value else np.zeros((), dtype)[()]


def _copy_coordinates(source: Any, x: Any, target: Any, path: Path | Url) -> None:
    """Copy the coordinates of an array, from its group in the store at ``path``, to another."""
    parent, names = str(PurePosixPath(x.path).parent), _coordinate_names(x)
    group = source if parent == "." else source[parent]
    for name in names:
        if name not in group or name in target or not hasattr(group[name], "shape"):
            continue
        coordinate = sized(group[name])
        names.append(str(coordinate.attrs.get("bounds", "")))
        options = _options_of(coordinate, Layout(coordinate.dtype, coordinate.shape))
        attributes = _attributes_beside_netcdf(coordinate)
        options |= {"attributes": attributes, "fill_value": coordinate.fill_value}
        with explained(path):
            values = coordinate[...]
        target.create_array(name, **options)[...] = values
