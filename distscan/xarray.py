"""Scans of xarray's objects, whose slabs along one dimension lie on the ranks; xarray is an extra.

Each rank has a slab of the whole, as of ``isel``. The slabs are joined along ``dim`` in rank order,
and the scan goes through all of them. Labels, coordinates, names and attributes stay; of a Dataset,
variables without ``dim`` stay as they are. The memory is that of NumPy or of CuPy. Other libraries'
arrays, such as dask's, are loaded by the caller first.

With ``output=``, a variable of a NetCDF-4 file or a Zarr store is scanned where it lies, by a file
job, into a new file or store. Each rank then has the whole DataArray, which nobody loads::

    rain = xarray.open_zarr("rain.zarr").rain
    total = distscan.xarray.cumsum(rain, "time", output="total.zarr")

>>> import numpy as np, xarray
>>> import distscan.xarray
>>> rain = xarray.DataArray([[1, 2], [3, 4]], dims=("time", "x"), coords={"time": [10, 20]})
>>> distscan.xarray.cumsum(distscan.xarray.slab(rain, "time"), "time").values
array([[1, 2],
       [4, 6]])
"""

import os
from collections.abc import Hashable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xarray

from .core import arrays
from .core.form import bounds
from .core.operators import SKIPPING_NAN
from .mpi.agree import Agreement, Terms, body, collective
from .mpi.communicators import Comm, communicator
from .options import Op
from .scan import scan as _scan_array
from .scan_file import scan_file

_Path = str | os.PathLike[str]
Labelled = TypeVar("Labelled", xarray.DataArray, xarray.Dataset)

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "scan", "slab"]


def slab(x: Labelled, dim: Hashable, comm: Comm | None = None) -> Labelled:
    """Return this rank's slab along a dimension; local.

    Slabs differ in length by at most one. Data that is not loaded, as of ``open_dataset``, is not
    loaded here.
    """
    ranks = communicator(comm)
    low, high = bounds(x.sizes[dim], ranks.size, ranks.rank)
    return x.isel({dim: slice(low, high)})


@collective
def scan(
    call: Agreement,
    x: Labelled,
    dim: Hashable,
    op: Op = "sum",
    *,
    comm: Comm | None = None,
    exclusive: bool = False,
    initial: Any = None,
    reverse: bool = False,
    dtype: Any = None,
    segments: Any = None,
    output: _Path | None = None,
    force: bool = False,
) -> Labelled:
    """Scan along a dimension, which is spread over the ranks; collective over ``comm``.

    Parameters
    ----------
    x
        This rank's slab: a DataArray, or a Dataset. With ``output``, the whole DataArray.
    dim
        The dimension along which the slabs are joined, and scanned.
    op, comm, exclusive, initial, reverse, dtype
        As in ``distscan.scan``.
    segments
        Where independent scans begin, as those of groups along ``dim``: the name of a coordinate
        [n], or of a part of one, as "time.month"; or an array [n], such as a DataArray; neighbours
        of one segment are equal. Or bools, True at the first element of each.
    output
        A new Zarr store, or a new NetCDF-4 file, for the scan of a variable that is not loaded.
        ``x`` must be the variable as it lies in a store, or in a file, of this format on the disk:
        as of ``open_zarr`` or ``open_dataset``, with chunks of dask or without. All ranks have the
        same ``x``. ``segments`` are not for this.
    force
        Whether to replace an existing output.

    Returns
    -------
    DataArray or Dataset
        This rank's slab of the scan. With ``output``, the whole scan, not loaded.

    Raises
    ------
    TypeError, ValueError, MemoryError, DisagreementError
        On every rank, as ``distscan.scan`` does; with ``output``, all that ``scan_file`` raises.
        ``x`` that may not be what lies in its file is refused by ValueError.
    """
    form = {"exclusive": exclusive, "initial": initial, "reverse": reverse, "dtype": dtype}
    return _scan(
        call, x, dim, op, skipna=False, segments=segments, output=output, force=force, **form
    )


@collective
def cumsum(
    call: Agreement,
    x: Labelled,
    dim: Hashable,
    *,
    skipna: bool | None = None,
    comm: Comm | None = None,
    reverse: bool = False,
    dtype: Any = None,
    segments: Any = None,
    output: _Path | None = None,
    force: bool = False,
) -> Labelled:
    """Return cumulative sums along a dimension over all ranks, as ``x.cumsum(dim)`` does.

    ``skipna`` None takes NaN of floats and complex numbers as 0, as xarray does. All others are as
    in ``scan``.
    """
    form = {"segments": segments, "reverse": reverse, "dtype": dtype}
    return _scan(call, x, dim, "sum", skipna=skipna, output=output, force=force, **form)


@collective
def cumprod(
    call: Agreement,
    x: Labelled,
    dim: Hashable,
    *,
    skipna: bool | None = None,
    comm: Comm | None = None,
    reverse: bool = False,
    dtype: Any = None,
    segments: Any = None,
    output: _Path | None = None,
    force: bool = False,
) -> Labelled:
    """Return cumulative products along a dimension over all ranks, as ``x.cumprod(dim)`` does.

    ``skipna`` None takes NaN of floats and complex numbers as 1, as xarray does. All others are as
    in ``scan``.
    """
    form = {"segments": segments, "reverse": reverse, "dtype": dtype}
    return _scan(call, x, dim, "prod", skipna=skipna, output=output, force=force, **form)


@collective
def cummax(
    call: Agreement,
    x: Labelled,
    dim: Hashable,
    *,
    comm: Comm | None = None,
    reverse: bool = False,
    segments: Any = None,
    output: _Path | None = None,
    force: bool = False,
) -> Labelled:
    """Return cumulative maxima along a dimension over all ranks; NaN stays, as in NumPy."""
    form = {"segments": segments, "reverse": reverse}
    return _scan(call, x, dim, "max", skipna=False, output=output, force=force, **form)


@collective
def cummin(
    call: Agreement,
    x: Labelled,
    dim: Hashable,
    *,
    comm: Comm | None = None,
    reverse: bool = False,
    segments: Any = None,
    output: _Path | None = None,
    force: bool = False,
) -> Labelled:
    """Return cumulative minima along a dimension over all ranks; NaN stays, as in NumPy."""
    form = {"segments": segments, "reverse": reverse}
    return _scan(call, x, dim, "min", skipna=False, output=output, force=force, **form)


def _scan(
    call: Agreement,
    x: Any,
    dim: Hashable,
    op: Op,
    *,
    skipna: bool | None,
    segments: Any,
    output: _Path | None,
    force: bool,
    **form: Any,
) -> Any:
    """Scan the variables of ``x`` that have a dimension, one after the other."""
    if not isinstance(x, xarray.DataArray | xarray.Dataset):
        raise TypeError(f"x is {type(x).__name__}, and no DataArray or Dataset of xarray")
    if dim not in x.dims:
        raise ValueError(f"there is no dimension {dim!r}; x has {', '.join(map(str, x.dims))}")
    if output is not None:
        if segments is not None:
            raise ValueError("segments= does not go with output=: scan slabs, which are loaded")
        return _scan_stored(call, x, dim, op, skipna=skipna, output=output, force=force, **form)
    if force:
        raise ValueError("force=True goes with output=")
    if dim in getattr(x, "chunksizes", {}):
        raise TypeError("x has chunks, as of dask: load it first, x.load(), or give output=")
    form |= {"skipna": skipna, "marks": _marks(x, dim, segments)}
    if isinstance(x, xarray.DataArray):
        return _scan_one(call, x, dim, op, **form)
    names = [name for name, each in x.data_vars.items() if dim in each.dims]
    call.same = Terms({"the function": "distscan.xarray", "variables": names, "dim": dim})
    scanned = {}
    for name in names:
        call.begin()
        scanned[name] = _scan_one(call, x[name], dim, op, **form)
    return x.assign(scanned)


def _marks(x: Any, dim: Hashable, segments: Any) -> Any:
    """Return flags or keys along a dimension as an array; None without segments."""
    if isinstance(segments, str):
        try:
            segments = x.coords[segments]
        except (KeyError, AttributeError):  # AttributeError: "time.week" is no part of a date
            known = ", ".join(map(str, x.coords))
            raise ValueError(
                f"there is no coordinate {segments!r} for segments; x has {known}"
            ) from None
    if isinstance(segments, xarray.DataArray):
        if segments.dims != (dim,):
            raise ValueError(f"segments has the dimensions {segments.dims}, not {dim!r} alone")
        if dim in x.coords and dim in segments.coords and not x[dim].equals(segments[dim]):
            raise ValueError(f"segments has other labels along {dim!r} than x")
    return None if segments is None else np.asarray(segments)


def _skipping(op: Op, skipna: bool | None, dtype: np.dtype[Any]) -> bool:
    """Return whether NaN counts for nothing."""
    return skipna is not False and dtype.kind in "fc" and op in SKIPPING_NAN


def _scan_one(
    call: Agreement,
    x: xarray.DataArray,
    dim: Hashable,
    op: Op,
    *,
    skipna: bool | None,
    marks: Any,
    **form: Any,
) -> xarray.DataArray:
    axis, given = x.get_axis_num(dim), arrays.as_native(x.data, "x")
    xp = arrays.namespace(given)
    if _skipping(op, skipna, given.dtype):
        if marks is None:
            op = SKIPPING_NAN[str(op)]
        else:  # segments along an axis are for built-in operators
            given = xp.where(xp.isnan(given), 0 if op == "sum" else 1, given)
    if marks is not None:
        form["segments"] = xp.asarray(marks)
    rows = given if axis == 0 else xp.moveaxis(given, axis, 0)
    y = body(_scan_array)(call, rows, op, axis=0, **form)
    return x.copy(data=y if axis == 0 else xp.moveaxis(y, 0, axis))


# ---- variables that are not loaded: a file job ------------------------------------------------

#: xarray's wrappers that change no element; ``key`` of one says which elements it takes.
_TRANSPARENT = {
    "CopyOnWriteArray",
    "ImplicitToExplicitIndexingAdapter",
    "LazilyIndexedArray",
    "MemoryCachedArray",
    "NativeEndiannessArray",
}


def _scan_stored(
    call: Agreement,
    x: Any,
    dim: Hashable,
    op: Op,
    *,
    skipna: bool | None,
    output: _Path,
    force: bool,
    **form: Any,
) -> xarray.DataArray:
    """Scan the variable in a file that ``x`` is, by a file job; return the result, not loaded."""
    from .job.formats.interface import Location  # noqa: PLC0415 - slow, as in scan_file

    if not isinstance(x, xarray.DataArray):
        raise TypeError("output= takes one variable of a Dataset, as x['rain']")
    stored, result = _stored(x), Location.parse(output)
    if result.path.suffix.lower() not in stored.suffixes:
        raise ValueError(
            f"x is in {stored.path}: output= must be a {' or '.join(stored.suffixes)}, "
            f"not {result.path}"
        )
    if _skipping(op, skipna, x.dtype):
        op = SKIPPING_NAN[str(op)]
    source, axis = f"{stored.path}::{stored.member}", x.get_axis_num(dim)
    body(scan_file)(call, source, output, op, axis=axis, force=force, **form)
    call.begin()
    member = PurePosixPath("/", result.member or stored.member)
    whole = xarray.open_dataset(
        result.path, group=str(member.parent), decode_cf=False, **stored.options
    )
    y = whole[member.name]
    y = y.chunk(dict(zip(y.dims, x.chunks, strict=True))) if x.chunks else y
    total = x.copy(data=y)  # the labels, name and attributes of x
    total.encoding = y.encoding
    return total


class _Stored(NamedTuple):
    """A variable in a file."""

    path: Path
    member: str
    suffixes: tuple[str, ...]  # of files of this format
    options: dict[str, Any]  # of open_dataset, for a file that a job has written


def _stored(x: xarray.DataArray) -> _Stored:
    """Return the variable that ``x`` is, unchanged and whole; raise ValueError in any doubt.

    xarray wraps the array of a file for each change of its elements or of their order. All wrappers
    that are taken here leave both as they are. dask's arrays have a layer for each operation.
    """
    data = x.variable._data
    if x.chunks is not None:
        layers = getattr(getattr(data, "dask", None), "layers", {})
        name = getattr(data, "name", "")
        if set(layers) != {name, f"original-{name}"}:
            raise _refused(x, "it is computed from others, or has other chunks than it was opened")
        data = next(iter(layers[f"original-{name}"].values()))
        data = getattr(data, "value", data)
    while type(data).__name__ in _TRANSPARENT:
        if hasattr(data, "key") and not _is_whole(data):
            raise _refused(x, "it is a part of a variable, or in another order")
        data = data.array
    wrapper = type(data).__name__
    if wrapper == "ZarrArrayWrapper":
        array = data._array
        root = getattr(array.store, "root", None)
        if not isinstance(root, Path):
            raise _refused(x, f"it is in {array.store}, which is no folder")
        options = {"engine": "zarr", "consolidated": False}
        stored = _Stored(root, array.path, (".zarr",), options)
    elif wrapper in {"H5NetCDFArrayWrapper", "NetCDF4ArrayWrapper"}:
        member = PurePosixPath("/", data.datastore._group or "", data.variable_name)
        path = Path(str(data.datastore._filename))
        stored = _Stored(path, str(member), (".nc", ".nc4"), {"engine": "h5netcdf"})
    elif wrapper in {"_ElementwiseFunctionArray", "BoolTypeArray"}:
        raise _refused(
            x,
            "its numbers are decoded (scale_factor, _FillValue, times). If none is missing or "
            "packed, open it with mask_and_scale=False",
        )
    elif wrapper in {"ndarray", "NumpyIndexingAdapter", "PandasIndexingAdapter"}:
        raise _refused(x, "it is loaded. Give no output=, or open it again")
    else:
        raise _refused(x, f"its data is {wrapper}")
    if x.shape != data.shape or x.dtype != data.dtype.newbyteorder("="):
        raise _refused(x, f"there it has {data.dtype} of shape {data.shape}")
    if stored.path.suffix.lower() not in stored.suffixes:
        raise _refused(x, f"{stored.path} has another suffix than {' or '.join(stored.suffixes)}")
    return stored


def _is_whole(lazy: Any) -> bool:
    """Return whether a lazily indexed array takes all elements in their order."""
    return len(lazy.key.tuple) == len(lazy.array.shape) and all(
        isinstance(each, slice) and each.indices(n) == (0, n, 1)
        for each, n in zip(lazy.key.tuple, lazy.array.shape, strict=True)
    )


def _refused(x: xarray.DataArray, reason: str) -> ValueError:
    return ValueError(
        f"output= takes a variable as it lies in a Zarr store or a NetCDF-4 file; {x.name!r} may "
        f"be another: {reason}. Or write it to a file, and name that to distscan.scan_file"
    )
