"""The format NetCDF-4, an ``interface.Format``: HDF5 with named dimensions, by h5netcdf.

A variable is read as a data set of HDF5. Numbers that stand for other ones are refused: packed
ones, and those of missing values. The output has the names, dimensions, coordinates and attributes
of the input.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from ...core.errors import InputError, OutputError
from . import conventions, hdf5, npy
from .files import File, Staging, opened
from .interface import NUMBERS, Fill, Layout, Show, Source, imported

#: The number types of NetCDF.
_TYPES = {"f4", "f8", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8))}


_h5netcdf = partial(imported, "h5netcdf", "netcdf")


# ---- input -----------------------------------------------------------------------------------


def inspect(path: Path, kinds: str = NUMBERS, member: str = "") -> Source:
    """Find a variable, and check it; without a name, it is the only one beside coordinates."""
    with opened(path) as stream:
        if stream.read(4) in {b"CDF\x01", b"CDF\x02", b"CDF\x05"}:
            raise InputError(f"{path} is NetCDF-3: convert it, nccopy -k nc4 {path} new.nc")
    source: Any = hdf5.inspect(path, kinds, member)
    with hdf5.opened(path) as file, hdf5.explained(path):
        attributes = dict(file[source.member].attrs)
    return conventions.check(source, attributes)


# ---- output ----------------------------------------------------------------------------------


def create(path: Path, layout: Layout) -> File | Staging:
    """Make a file of one variable, with what belongs to that of ``like``; see ``hdf5.create``."""
    dtype, name = layout.dtype, hdf5.member_of(path, layout)
    if f"{dtype.kind}{dtype.itemsize}" not in _TYPES:
        raise OutputError(f"{path}: NetCDF has no {dtype}: choose another dtype")
    if layout.packed:
        hdf5.packing_of(path, layout)
        return Staging(npy.create(path, layout), layout, encode)
    _make(path, layout, fill_time="never")
    with hdf5.writing(path, "r+") as plain:
        hdf5.allocate(plain[name])
    return hdf5.placed(path, layout, name)


def reopen(path: Path, layout: Layout) -> File | Staging | None:
    """Return the target in a file that ``create`` has made, if it has this name, type and shape."""
    return hdf5.reopen(path, layout, encode)


def encode(fill: Fill, layout: Layout, path: Path, show: Show) -> None:
    """Write elements into a variable that is chunked and compressed as that of ``like``."""
    storage = hdf5.packing_of(path, layout)
    del storage["maxshape"]  # that of its dimensions, which do not grow
    pairs = zip(storage["chunks"], layout.shape, strict=True)
    storage["chunks"] = tuple(min(chunk, max(length, 1)) for chunk, length in pairs)
    _make(path, layout, **storage)
    with hdf5.writing(path, "r+") as plain:
        hdf5.write_boxes(plain[hdf5.member_of(path, layout)], fill, show)


def _make(path: Path, layout: Layout, **storage: Any) -> None:
    """Make a file of one variable without its elements."""
    dtype, shape, *_ = layout
    name, h5netcdf = hdf5.member_of(path, layout), _h5netcdf()
    try:
        with _variable(layout) as (source, x), h5netcdf.File(path, "w", locking=False) as file:
            names = tuple(f"x{axis}" for axis in range(len(shape))) if x is None else x.dimensions
            _make_dimensions(file, names, shape)
            y = file.create_variable(name, names, dtype, **storage)
            if x is not None:
                _copy_attributes(source, file)
                _copy_attributes(x, y)
                _copy_coordinates(source, x, file)
    except (h5netcdf.CompatibilityError, ValueError, TypeError, KeyError) as error:
        raise OutputError(f"cannot write {path} as NetCDF: {error}") from error


@contextmanager
def _variable(layout: Layout) -> Iterator[tuple[Any, Any]]:
    """Open the input, if it is NetCDF and has this shape; yield its file and variable, or None."""
    like = hdf5.source_of(layout)
    if like is None or like.shape != layout.shape:
        yield None, None
        return
    with _h5netcdf().File(like.path, "r", phony_dims="access") as source:
        yield source, source[like.member]


def _make_dimensions(file: Any, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    for name, length in zip(names, shape, strict=True):
        if name not in file.dimensions:
            file.dimensions[name] = length or None  # one that can grow


def _copy_coordinates(source: Any, x: Any, file: Any) -> None:
    """Copy the coordinates of a variable, to the root of the file."""
    for name, coordinate in _coordinates(source, x):
        if name in file.variables:
            continue
        _make_dimensions(file, coordinate.dimensions, coordinate.shape)
        given: Any = {"data": coordinate[...], "fillvalue": coordinate.attrs.get("_FillValue")}
        made = file.create_variable(name, coordinate.dimensions, coordinate.dtype, **given)
        _copy_attributes(coordinate, made, beside={"_FillValue"})


def _coordinates(source: Any, x: Any) -> Iterator[tuple[str, Any]]:
    """Yield the coordinates of a variable, of its group or of one around it, and their bounds."""
    wanted = conventions.coordinate_names(x.dimensions, x.attrs)
    groups = [str(group) for group in PurePosixPath(x.name).parents]
    for name in wanted:
        for group in groups:
            folder = source if group == "/" else source[group]
            if name in folder.variables:
                found = folder.variables[name]
                yield name, found
                bounds = found.attrs.get("bounds")
                if bounds is not None and bounds in folder.variables:
                    yield bounds, folder.variables[bounds]
                break


def _copy_attributes(source: Any, target: Any, beside: set[str] = conventions.OF_VALUES) -> None:
    for name, value in source.attrs.items():
        if name not in beside and name not in target.attrs:
            target.attrs[name] = value
