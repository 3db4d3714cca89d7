"""The format HDF5, an ``interface.Format``; h5py is imported where it is used.

A contiguous data set is a range of bytes of its file. So ranks and threads read and write it as
they do a ``.npy`` file, without the HDF5 library. All others are read by h5py, by a handle of each
rank: in chunks, compressed, or of a type that HDF5 converts. The output is contiguous, or with
``--like`` chunked and compressed as the input: one rank writes it then, by h5py.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError, OutputError
from . import files, npy
from .files import Encode, File, Indirect, Staging
from .interface import (
    NUMBERS,
    WINDOW,
    Fill,
    Layout,
    Location,
    Show,
    Source,
    imported,
    naming_input,
    option,
)

#: Filters by their numbers, and what brings them.
_FILTERS = MappingProxyType(
    {
        32001: "blosc",
        32004: "lz4",
        32008: "bitshuffle",
        32013: "zfp",
        32015: "zstd",
        32026: "blosc2",
    }
)
#: Attributes that are of the file's structure.
_STRUCTURE = {"DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "DIMENSION_LABELS"}
_DEFAULT = "/data"  # the name of an output whose input has none


_h5py = partial(imported, "h5py", "hdf5")


# ---- input -----------------------------------------------------------------------------------


def inspect(path: Path, kinds: str = NUMBERS, member: str = "") -> Source:
    """Find a data set, and check it; without a name, it is the only one of the file."""
    with files.opened(path) as stream, naming_input(path):
        stamp = files.stamp_of(stream)
        reason = "" if is_hdf5(path) else files.other_format(stream)
    with opened(path, reason) as file, explained(path):
        name = member or _only_name(file, path)
        dataset = find(file, path, name)
        dtype, start = _type_of(dataset, path, name), _place_of(dataset)
        shape, chunks = dataset.shape, dataset.chunks
        if start is None:
            _check_filters(dataset, path, name)
    found = File(path, dtype, shape, start or 0, stamp, member=name)
    files.check(found, kinds)
    if start is None:
        return Dataset(found, chunks)
    if stamp.size < found.end:
        raise InputError(f"{path} is truncated: {stamp.size} of {found.end} bytes")
    return found


@contextmanager
def opened(
    path: Path, reason: str = "", *, locking: bool | str = "best-effort", **options: Any
) -> Iterator[Any]:
    """Open an HDF5 file for reading; raise ``InputError`` if it cannot be opened.

    Programs that read a file may share it, with a program that writes it they may not. A part file
    has a lock of the job itself.
    """
    h5py = _h5py()
    try:
        file = h5py.File(path, "r", locking=locking, **options)
    except OSError as error:
        if "unable to lock" in str(error):
            reason = "another program has opened it for writing"
        elif "truncated" in str(error):
            reason = f"it is truncated ({error})"
        raise InputError(f"cannot read {path} as HDF5: {reason or error}") from error
    with file:
        yield file


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the errors of the library for what is damaged into an ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def find(file: Any, path: Path, member: str) -> Any:
    """Return the data set of a name; raise ``InputError`` if there is none in this file."""
    name, h5py = Location(path, member), _h5py()
    try:
        found = file[member]
    except KeyError:
        known = names(file)
        listed = ", ".join(known[:8]) + ", ..." * (len(known) > 8)
        raise InputError(f"there is no {name}; data sets: {listed or 'none'}") from None
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"{name} is a {type(found).__name__.lower()}, and no data set")
    if not os.path.samefile(found.file.filename, path):
        raise InputError(f"{name} is a link to {found.file.filename}: name that file")
    if found.shape is None:
        raise InputError(f"{name} is empty: it has no shape")
    if found.is_virtual:
        raise InputError(f"{name} is virtual, a view of other files: name these, or copy it")
    if found.external:
        outside = ", ".join(str(each) for each, *_ in found.external)
        raise InputError(f"the elements of {name} are in other files, {outside}: read these as raw")
    return found


def names(file: Any) -> list[str]:
    """Return the names of all data sets of a file that are no scales of others.

    PyTables, and so pandas, hides the indices of its tables by such names, too.
    """
    h5py, known = _h5py(), []

    def note(name: str, each: Any) -> None:
        hidden = name.startswith("_i_") or "/_i_" in name
        if isinstance(each, h5py.Dataset) and not hidden and not h5py.h5ds.is_scale(each.id):
            known.append(f"/{name}")

    file.visititems(note)
    return known


def _only_name(file: Any, path: Path) -> str:
    known = names(file)
    if len(known) != 1:
        shown = ", ".join(known[:8]) + ", ..." * (len(known) > 8)
        raise InputError(
            f"{path} has the data sets {shown}: name one, such as {Location(path, known[0])}"
            if known
            else f"{path} has no data set"
        )
    return known[0]


def _type_of(dataset: Any, path: Path, member: str) -> np.dtype[Any]:
    """Return NumPy's type of the elements; raise ``InputError`` for what are no numbers."""
    h5py, name = _h5py(), Location(path, member)
    try:
        dtype: np.dtype[Any] = dataset.dtype
    except TypeError as error:
        raise InputError(f"{name} has a type that NumPy has not: {error}") from error
    what = ""
    if h5py.check_enum_dtype(dtype):
        what = "an enumeration"
    elif h5py.check_string_dtype(dtype):
        what = "text"
    elif h5py.check_ref_dtype(dtype):
        what = "references"
    elif h5py.check_vlen_dtype(dtype):
        what = "arrays of various lengths"
    elif h5py.check_opaque_dtype(dtype) or (dtype.kind == "V" and not dtype.names):
        what = "opaque bytes"
    if what and not (what == "text" and dtype.kind == "S"):  # keys may be text of a fixed length
        raise InputError(f"{name} holds {what}; a scan takes numbers")
    return dtype


def _place_of(dataset: Any) -> int | None:
    """Return the position of element 0 in the file; None if h5py must read the elements."""
    h5py, plain = _h5py(), dataset.id.get_create_plist()
    if plain.get_layout() != h5py.h5d.CONTIGUOUS or plain.get_nfilters():
        return None
    try:
        stored = h5py.h5t.py_create(dataset.dtype, logical=True)
    except TypeError:
        return None
    if not stored.equal(dataset.id.get_type()):  # such as integers of 24 bits
        return None
    place: int | None = dataset.id.get_offset()
    return place


def _check_filters(dataset: Any, path: Path, member: str) -> None:
    """Raise ``InputError`` for a filter that is not there."""
    h5py, plain = _h5py(), dataset.id.get_create_plist()
    numbers = [plain.get_filter(i)[0] for i in range(plain.get_nfilters())]
    if all(map(h5py.h5z.filter_avail, numbers)):
        return
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401, PLC0415 - it registers filters
    for number in numbers:
        if not h5py.h5z.filter_avail(number):
            raise InputError(
                f"{Location(path, member)} is compressed by {_FILTERS.get(number, 'a filter')}, "
                f"filter {number} of HDF5, which is missing: pip install hdf5plugin"
            )


class Dataset(Indirect):
    """A data set that h5py reads."""

    def __init__(self, file: File, chunks: tuple[int, ...] | None) -> None:
        super().__init__(file)
        self.chunks = chunks
        self.tile = chunks or ()

    def needs_window(self, *, flattened: bool) -> bool:
        """Return whether the library keeps chunks."""
        return self.chunks is not None

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[Fill]:
        """Open the file, and yield a function that fills arrays.

        The library keeps the chunks that rows of the data set meet, if they fit ``window`` bytes:
        so it decompresses each chunk once.
        """
        rows, *columns = self.chunks or (1,)
        widths = zip(self.shape[1:], columns, strict=bool(self.chunks))
        row = rows * math.prod(-(-length // chunk) * chunk for length, chunk in widths)
        row *= self.dtype.itemsize
        cache: Any = {
            "rdcc_nbytes": min(max(2 * row, 1 << 20), window or WINDOW),
            "rdcc_nslots": 10_007,
        }
        with opened(self.path, **cache) as file:
            dataset = find(file, self.path, self.member)

            yield _Reader(self, dataset)
        assert self.file.stamp is not None
        files.check_unchanged(self.path, self.file.stamp)


class _Reader:
    """Fills arrays with the elements of a data set: a ``BoxFill``."""

    def __init__(self, source: Dataset, dataset: Any) -> None:
        self._source, self._dataset = source, dataset

    def __call__(self, elements: NDArray[Any], low: int) -> None:
        """Fill an array with the elements from number ``low`` on."""
        at = 0
        for box in boxes(self._source.shape, low, low + elements.size):
            shape = tuple(part.stop - part.start for part in box)
            high = at + math.prod(shape)
            self.box(elements[at:high].reshape(shape), box)
            at = high

    def box(self, array: NDArray[Any], box: tuple[slice, ...]) -> None:
        """Fill an array with those of a box."""
        target = array if array.flags.c_contiguous else np.empty_like(array, order="C")
        with explained(self._source.path):
            self._dataset.read_direct(target, box)
        if target is not array:
            array[...] = target


def boxes(shape: tuple[int, ...], low: int, high: int) -> Iterator[tuple[slice, ...]]:
    """Yield the boxes of an array in C order that together are its elements ``low..high``.

    >>> [[(part.start, part.stop) for part in box] for box in boxes((4, 3), 2, 10)]
    [[(0, 1), (2, 3)], [(1, 3), (0, 3)], [(3, 4), (0, 1)]]
    """
    if low >= high:
        return
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    first, last = -(-low // inner), high // inner  # whole rows
    if first > last:  # all in one row
        yield from _in_row(shape, last, low, high)
        return
    yield from _in_row(shape, first - 1, low, first * inner)
    if first < last:
        yield (slice(first, last), *(slice(0, length) for length in shape[1:]))
    yield from _in_row(shape, last, last * inner, high)


def _in_row(shape: tuple[int, ...], row: int, low: int, high: int) -> Iterator[tuple[slice, ...]]:
    start = row * math.prod(shape[1:])
    for box in boxes(shape[1:], low - start, high - start):
        yield (slice(row, row + 1), *box)


# ---- output ----------------------------------------------------------------------------------


def create(path: Path, layout: Layout) -> File | Staging:
    """Make a file of one contiguous data set, with the attributes and scales of that of ``like``.

    Its space is allocated, but not written. A data set that is chunked as that of ``like`` is made
    by ``encode``.
    """
    name = member_of(path, layout)
    if layout.packed:
        packing_of(path, layout)
        return Staging(npy.create(path, layout), layout, encode)
    with _making(path, layout, fill_time="never") as dataset:
        allocate(dataset)
    return placed(path, layout, name)


@contextmanager
def _making(path: Path, layout: Layout, **storage: Any) -> Iterator[Any]:
    """Make a file, and yield its data set, with the attributes and scales of that of ``like``."""
    source = source_of(layout)
    with writing(path) as file:
        name = member_of(path, layout)
        dataset = file.create_dataset(name, layout.shape, layout.dtype, **storage)
        if source is not None:
            with opened(source.path) as other:
                _carry_over(other, other[source.member], dataset)
        yield dataset


def encode(fill: Fill, layout: Layout, path: Path, show: Show) -> None:
    """Write elements into a data set that is chunked and compressed as that of ``like``."""
    with _making(path, layout, **packing_of(path, layout)) as dataset:
        write_boxes(dataset, fill, show)


def member_of(path: Path, layout: Layout) -> str:
    """Return the name of an output's array: that of the input, if it has one."""
    if layout.fortran:
        raise OutputError(f"{path}: HDF5 has no Fortran order, which the input has: write .npy")
    return layout.member or getattr(layout.like, "member", "") or _DEFAULT


def source_of(layout: Layout) -> File | Indirect | None:
    """Return the input, if it is in an HDF5 file."""
    like = layout.like
    in_hdf5 = isinstance(like, File | Indirect) and is_hdf5(like.path)
    return cast(File | Indirect, like) if in_hdf5 else None


@contextmanager
def writing(path: Path, mode: str = "w") -> Iterator[Any]:
    """Open a file for writing, alone; its bytes are on the disk at the end."""
    h5py = _h5py()
    try:
        with h5py.File(path, mode, libver=("earliest", "v110"), locking=False) as file:
            yield file
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise OutputError(f"cannot write {path} as HDF5: {error}") from error
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)  # other hosts will write into its pages
    finally:
        os.close(descriptor)


def allocate(dataset: Any) -> None:
    """Let HDF5 find the place of a contiguous data set, as it does when one element is written."""
    if dataset.size:
        dataset[(0,) * dataset.ndim] = np.zeros((), dataset.dtype)


def placed(path: Path, layout: Layout, member: str) -> File:
    """Return the target over the bytes of a data set; the file is as long as they need."""
    with opened(path, locking=False) as file:
        dataset = file[member]
        place = _place_of(dataset) if dataset.size else 0
    if place is None:
        raise OutputError(
            f"HDF5 cannot hold {layout.dtype} as it is in memory: choose another dtype"
        )
    target = File(path, layout.dtype, layout.shape, place, member=member)
    if os.stat(path).st_size < target.end:
        os.truncate(path, target.end)
    return target


def reopen(path: Path, layout: Layout, encode: Encode = encode) -> File | Staging | None:
    """Return the target in a file that ``create`` has made, if it has this name, type and shape."""
    name = member_of(path, layout)
    if layout.packed:
        packing_of(path, layout)
        file = npy.reopen(path, layout)
        return None if file is None else Staging(file, layout, encode)
    if not is_hdf5(path):
        return None
    try:
        with opened(path, locking=False) as file, explained(path):
            dataset = find(file, path, name)
            same = (dataset.dtype, dataset.shape) == layout[:2]
            return placed(path, layout, name) if same else None
    except InputError:
        return None


# ---- output that is chunked and compressed -----------------------------------------------------
#
# The chunks of a box are written at once: it has as many elements as fit into a part of memory, and
# whole chunks, so that none is compressed twice.

#: Filters that keep every bit of any type, and how many of their first numbers they add themselves.
_LOSSLESS = MappingProxyType(
    {1: 0, 2: 0, 3: 0, 307: 0, 32000: 0, 32001: 0, 32004: 0, 32008: 3, 32015: 0, 32026: 0}
)


def chunked(source: Source | None) -> Dataset | None:
    """Return the data set of an input that is chunked; None for another input."""
    source = getattr(source, "source", source)
    return source if isinstance(source, Dataset) and source.chunks else None


def packing_of(path: Path, layout: Layout) -> dict[str, Any]:
    """Return how a data set is created that is chunked and compressed as that of ``like``."""
    h5py, source = _h5py(), chunked(layout.like)
    if source is None or source.shape != layout.shape:
        raise OutputError(
            f"{path}: chunks of shape {getattr(source, 'chunks', None)} do not fit a result of "
            f"shape {layout.shape}: {option('axis', 'K', '...')} keeps that of the input"
        )
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    with opened(source.path) as file, explained(source.path):
        dataset = file[source.member]
        limits, stored = dataset.maxshape, dataset.id.get_create_plist()
        filters = [stored.get_filter(i) for i in range(stored.get_nfilters())]
    for number, flags, values, name in filters:
        if number not in _LOSSLESS:
            raise OutputError(
                f"{path}: {source.name} has filter {number} of HDF5, {name.decode()}, which may "
                f"change a result: leave out {option('like')}"
            )
        if number == h5py.h5z.FILTER_DEFLATE:
            plist.set_deflate(*values)
        elif number == h5py.h5z.FILTER_SHUFFLE:  # by the size of an element of the result
            plist.set_shuffle()
        elif number == h5py.h5z.FILTER_FLETCHER32:
            plist.set_fletcher32()
        else:
            plist.set_filter(number, flags, values[_LOSSLESS[number] :])
    storage = {"chunks": source.chunks, "maxshape": limits, "dcpl": plist, "fill_time": "never"}
    try:
        with h5py.File("x", "w", driver="core", backing_store=False) as file:
            file.create_dataset("x", layout.shape, layout.dtype, **storage)
    except (ValueError, TypeError, RuntimeError) as error:  # of a filter that cannot write
        raise OutputError(f"cannot write {path} as HDF5, as the input is: {error}") from error
    return storage


def write_boxes(dataset: Any, fill: Fill, show: Show) -> None:
    """Write all elements of a data set in boxes of whole chunks."""
    shape, dtype, done = dataset.shape, dataset.dtype, 0
    for box in chunk_boxes(shape, dataset.chunks, WINDOW // dtype.itemsize):
        elements = np.empty([part.stop - part.start for part in box], dtype)
        for low, run in _runs(shape, box, elements):
            fill(run, low)
        dataset[box] = elements
        done += elements.nbytes
        show("encode", done, dataset.size * dtype.itemsize)


def chunk_boxes(
    shape: tuple[int, ...], chunks: tuple[int, ...], most: int
) -> Iterator[tuple[slice, ...]]:
    """Yield boxes of whole chunks that together are an array, of about ``most`` elements each.

    >>> [[(part.start, part.stop) for part in box] for box in chunk_boxes((3, 5), (2, 2), 8)]
    [[(0, 2), (0, 4)], [(0, 2), (4, 5)], [(2, 3), (0, 4)], [(2, 3), (4, 5)]]
    """
    steps = [*chunks]
    for axis in reversed(range(len(shape))):  # neighbours in memory first
        steps[axis] *= max(1, most // math.prod(steps))
        if steps[axis] < shape[axis]:
            break
        steps[axis] = max(shape[axis], 1)
    pairs = zip(shape, steps, strict=True)
    parts = [
        [slice(low, min(low + step, length)) for low in range(0, length, step)]
        for length, step in pairs
    ]
    yield from product(*parts)


def _runs(
    shape: tuple[int, ...], box: tuple[slice, ...], elements: NDArray[Any]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the parts of a box that are neighbours in the array: their first index, and memory."""
    axes = len(shape) - 1  # before a run
    while axes > 0 and elements.shape[axes] == shape[axes]:
        axes -= 1
    inner = math.prod(shape[axes + 1 :])
    for index in np.ndindex(elements.shape[:axes]):
        row = 0
        for part, i, length in zip(box, index, shape, strict=False):
            row = row * length + part.start + i
        low = (row * shape[axes] + box[axes].start) * inner
        yield low, elements[index].reshape(-1)


def is_hdf5(path: Any) -> bool:
    """Return whether a file is one of HDF5."""
    return bool(_h5py().is_hdf5(path))


def _carry_over(source: Any, x: Any, y: Any) -> None:
    """Copy the attributes of a data set, its groups and its file, and its dimensions' scales."""
    for name in {"/", x.parent.name}:
        target = y.file.require_group(name)
        _copy_attributes(source[name], target)
    _copy_attributes(x, y)
    for axis, (dimension, target) in enumerate(zip(x.dims, y.dims, strict=False)):
        if x.shape[axis] != y.shape[axis]:
            continue
        if dimension.label:
            target.label = dimension.label
        for label, scale in dimension.items():
            if scale.name not in y.file:
                y.file.create_dataset(scale.name, data=scale[...])
                _copy_attributes(scale, y.file[scale.name])
                y.file[scale.name].make_scale(label)
            target.attach_scale(y.file[scale.name])


def _copy_attributes(source: Any, target: Any) -> None:
    """Copy attributes, but those that tell of the file's structure, or refer to other objects."""
    h5py = _h5py()
    for name in source.attrs:
        stored = source.attrs.get_id(name)
        if name not in _STRUCTURE and h5py.check_ref_dtype(stored.dtype) is None:
            target.attrs.create(name, source.attrs[name], stored.shape, stored.dtype)
