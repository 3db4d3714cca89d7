"""The file formats, by the suffixes of file names; and the input of a job in any of them. No MPI.

A format is one module that implements ``interface.Format``, such as ``npy``, and one line in
``_FORMATS``. ``files`` and ``storage`` serve formats whose elements lie in one file, one after the
other.
"""

import math
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DistscanError, InputError, OutputError
from ...core.operators import Operator
from ...options import ScanOptions
from . import arrow, files, hdf5, netcdf, npy, npz, parquet, remote, zarr, zarr_url
from .interface import NUMBERS, Fill, Format, Location, Source, Url, option
from .table import Column, columns_of

_FORMATS: dict[str, Format] = {
    ".npy": npy,
    ".npz": npz,
    **dict.fromkeys((".h5", ".hdf5"), hdf5),
    **dict.fromkeys((".nc", ".nc4"), netcdf),
    ".zarr": zarr,
    **dict.fromkeys((".parquet", ".pq"), parquet),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), arrow),
}


def of(path: Path | Url) -> Format:
    """Return the format of a file, or of a URL; that of any other name is ``.npy``."""
    form = _FORMATS.get(path.suffix.lower(), npy)
    return zarr_url if form is zarr and isinstance(path, Url) else form


def is_store(path: Path) -> bool:
    """Return whether a folder is a file of a format, which a job may replace."""
    return of(path) is zarr and zarr.is_store(path)


def check_url(path: Url, kind: type[DistscanError] = InputError) -> None:
    """Raise an error of this kind for a URL of a format that needs a file."""
    if of(path) not in {npy, zarr_url}:
        raise kind(
            f"{path}: {path.suffix} is read and written as a file, by URL are .npy, raw and .zarr: "
            "copy it to a file first"
        )


def is_in_place(path: Path | Url) -> bool:
    """Return whether ranks write an output where it will be, and not into a part file."""
    return of(path) is zarr_url


def scanned_name(name: str) -> str:
    """Return the default name of the output of a job, by that of its input.

    >>> scanned_name("x.npy"), scanned_name("x.h5"), scanned_name("x.bin")
    ('x.scan.npy', 'x.scan.h5', 'x.bin.scan.npy')
    """
    path = Path(name)
    if of(path) in {npy, npz}:
        return f"{name.removesuffix('.npy').removesuffix('.npz')}.scan.npy"
    return f"{path.stem}.scan{path.suffix}"


def parts(location: Location) -> list[Location]:
    """Return the arrays of an input: of a folder, those of its Parquet files, by their names."""
    path = location.path
    if isinstance(path, Url) or of(path) is zarr or not path.is_dir():
        return [location]
    names = sorted(path.glob("*.parquet"))
    return [Location(name, location.member) for name in names] or [location]


# ---- inputs ---------------------------------------------------------------------------------


def inspect(
    locations: Sequence[Location],
    op: Any,
    *,
    raw: np.dtype[Any] | None = None,
    shape: tuple[int, ...] | None = None,
) -> Source:
    """Check the input, and return its elements; several files are one array.

    ``raw`` is the type of files without a header, ``shape`` their shape. Structures are for
    operators of the caller. Raises ``InputError``.
    """
    if not locations:
        raise InputError("input is empty: a job reads at least one file")
    kinds = f"{NUMBERS}V" if isinstance(op, Operator) else NUMBERS
    sources = [
        _inspect(location, kinds) if raw is None else _inspect_raw(location.path, raw, shape, kinds)
        for location in locations
    ]
    return sources[0] if len(sources) == 1 else JoinedFiles(sources)


def _inspect(location: Location, kinds: str) -> Source:
    path, member = location
    if isinstance(path, Url):
        check_url(path)
        if of(path) is npy:
            return remote.inspect(path, kinds)
    return of(path).inspect(path, kinds, member)


def _inspect_raw(
    path: Path | Url, raw: np.dtype[Any], shape: tuple[int, ...] | None, kinds: str
) -> Source:
    if isinstance(path, Url):
        return remote.inspect_raw(path, raw, shape, kinds)
    return files.inspect_raw(path, raw, shape, kinds)


def replace_nulls(source: Source, scan: ScanOptions) -> None:
    """Let the elements of a source without a value count for what the options say."""
    if scan.nulls == "refuse":
        return
    columns = columns_of(source)
    if not columns:
        raise ValueError(
            f"{option('nulls', scan.nulls, repr(scan.nulls))} is for Parquet and Arrow: "
            f"{source.name} has no nulls"
        )
    for column in columns:
        column.replace_nulls(scan)


def check_like(source: Source, output: Path | Url) -> None:
    """Refuse an output that cannot be chunked and compressed as the input is."""
    form = of(output)
    if form not in {hdf5, netcdf}:
        raise OutputError(f"{option('like')} is for outputs of HDF5 and NetCDF-4, not {output}")
    if hdf5.chunked(source) is None:
        raise InputError(
            f"{option('like')} needs an input of HDF5 or NetCDF-4 that is chunked: "
            f"{source.name} is not"
        )


def inspect_segments(location: Location | None, source: Source) -> Source | None:
    """Check the file of flags or keys for the elements of ``source``, and return its contents.

    If there is no such file, this is the name of another column of the same tables.
    """
    if location is None:
        return None
    name = str(location.path)
    is_name = not location.member and "/" not in name and not Path(name).exists()
    columns: list[Column] = columns_of(source) if is_name else []
    names = [Location(each.path, name) for each in columns] or [location]
    keys = [_inspect(each, f"{NUMBERS}SU") for each in names]
    marks = keys[0] if len(keys) == 1 else JoinedFiles(keys)
    if marks.shape not in (source.shape, (source.n,)):
        raise InputError(
            f"{marks.name} has shape {marks.shape}; {source.name} has {source.shape}: segments "
            "have an element for each of the input"
        )
    return marks


# ---- several files as one array -------------------------------------------------------------


class JoinedFiles:
    """A ``Source`` of several files of one type, whose shapes differ in their first axis only."""

    fortran, tile = False, ()

    def __init__(self, files: Sequence[Source]) -> None:
        self.parts, first = files, files[0]
        for file in files:
            if file.fortran:
                raise InputError(f"{file.name} is in Fortran order; parts must be in C order")
            if not file.shape:
                raise InputError(f"{file.name} has no axis along which to join it with others")
            if file.dtype != first.dtype or file.shape[1:] != first.shape[1:]:
                raise InputError(
                    f"{file.name} has {file.dtype} of shape {file.shape}, {first.name} "
                    f"{first.dtype} of shape {first.shape}: parts differ in their first axis only; "
                    "scan each on its own"
                )
        self.dtype: np.dtype[Any] = first.dtype
        self.shape = (sum(file.shape[0] for file in files), *first.shape[1:])
        self._starts = [0, *accumulate(file.n for file in files)]

    @property
    def n(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.parts[0].name} and {len(self.parts) - 1} more"

    def terms(self) -> dict[str, object]:
        """Return what must be the same on every rank, by name."""
        terms: dict[str, object] = {f"the parts of {self.name}": [each.name for each in self.parts]}
        for file in self.parts:
            terms |= file.terms()
        return terms

    def needs_window(self, *, flattened: bool) -> bool:
        """Return whether a file needs one: all are read in order."""
        return any(file.needs_window(flattened=True) for file in self.parts)

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = 0) -> Iterator[Fill]:
        """Yield a function that fills arrays. Each thread's latest file is open, once for all."""
        lock, latest = threading.Lock(), dict[int, int]()  # the files of threads
        opened = dict[int, tuple[ExitStack, Fill]]()

        def change(thread: int, i: int) -> Fill:
            with lock:
                before = latest.pop(thread, None)
                if before is not None and before != i and before not in latest.values():
                    opened.pop(before)[0].close()
                if i not in opened:
                    stack = ExitStack()
                    opened[i] = stack, stack.enter_context(self.parts[i].reading(window=window))
                latest[thread] = i
                return opened[i][1]

        def fill(elements: NDArray[Any], low: int) -> None:
            at, high = low, low + elements.size
            while at < high:
                i = bisect_right(self._starts, at) - 1
                start, end = self._starts[i], min(self._starts[i + 1], high)
                change(threading.get_ident(), i)(elements[at - low : end - low], at - start)
                at = end

        try:
            yield fill
        finally:
            for stack, _ in opened.values():
                stack.close()
