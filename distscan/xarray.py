"""Scans of xarray's objects, whose slabs along one dimension lie on the ranks; xarray is an extra.

Each rank has a slab of the whole, as of ``isel``. The slabs are joined along ``dim`` in rank order,
and the scan goes through all of them. Labels, coordinates, names and attributes stay; of a Dataset,
variables without ``dim`` stay as they are. The memory is that of NumPy or of CuPy. Other libraries'
arrays, such as dask's, are loaded by the caller first.

>>> import numpy as np, xarray
>>> import distscan.xarray
>>> rain = xarray.DataArray([[1, 2], [3, 4]], dims=("time", "x"), coords={"time": [10, 20]})
>>> distscan.xarray.cumsum(distscan.xarray.slab(rain, "time"), "time").values
array([[1, 2],
       [4, 6]])
"""

from collections.abc import Hashable
from typing import Any, TypeVar

import numpy as np
import xarray

from .core import arrays
from .core.form import bounds
from .core.operators import SKIPPING_NAN
from .mpi.agree import Agreement, Terms, body, collective
from .mpi.communicators import Comm, communicator
from .options import Op
from .scan import scan as _scan_array

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
) -> Labelled:
    """Scan along a dimension, which is spread over the ranks; collective over ``comm``.

    Parameters
    ----------
    x
        This rank's slab: a DataArray, or a Dataset.
    dim
        The dimension along which the slabs are joined, and scanned.
    op, comm, exclusive, initial, reverse, dtype
        As in ``distscan.scan``.
    segments
        Where independent scans begin, as those of groups along ``dim``: the name of a coordinate
        [n], or an array [n], of which neighbours of one segment are equal; or bools, True at the
        first element of each.

    Returns
    -------
    DataArray or Dataset
        This rank's slab of the scan.

    Raises
    ------
    TypeError, ValueError, MemoryError, DisagreementError
        On every rank, as ``distscan.scan`` does.
    """
    form = {"exclusive": exclusive, "initial": initial, "reverse": reverse, "dtype": dtype}
    return _scan(call, x, dim, op, skipna=False, segments=segments, **form)


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
) -> Labelled:
    """Return cumulative sums along a dimension over all ranks, as ``x.cumsum(dim)`` does.

    ``skipna`` None takes NaN of floats and complex numbers as 0, as xarray does.
    """
    return _scan(
        call, x, dim, "sum", skipna=skipna, segments=segments, reverse=reverse, dtype=dtype
    )


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
) -> Labelled:
    """Return cumulative products along a dimension over all ranks, as ``x.cumprod(dim)`` does.

    ``skipna`` None takes NaN of floats and complex numbers as 1, as xarray does.
    """
    return _scan(
        call, x, dim, "prod", skipna=skipna, segments=segments, reverse=reverse, dtype=dtype
    )


@collective
def cummax(
    call: Agreement,
    x: Labelled,
    dim: Hashable,
    *,
    comm: Comm | None = None,
    reverse: bool = False,
    segments: Any = None,
) -> Labelled:
    """Return cumulative maxima along a dimension over all ranks; NaN stays, as in NumPy."""
    return _scan(call, x, dim, "max", skipna=False, segments=segments, reverse=reverse)


@collective
def cummin(
    call: Agreement,
    x: Labelled,
    dim: Hashable,
    *,
    comm: Comm | None = None,
    reverse: bool = False,
    segments: Any = None,
) -> Labelled:
    """Return cumulative minima along a dimension over all ranks; NaN stays, as in NumPy."""
    return _scan(call, x, dim, "min", skipna=False, segments=segments, reverse=reverse)


def _scan(
    call: Agreement,
    x: Any,
    dim: Hashable,
    op: Op,
    *,
    skipna: bool | None,
    segments: Any,
    **form: Any,
) -> Any:
    """Scan the variables of ``x`` that have a dimension, one after the other."""
    if not isinstance(x, xarray.DataArray | xarray.Dataset):
        raise TypeError(f"x is {type(x).__name__}, and no DataArray or Dataset of xarray")
    if dim not in x.dims:
        raise ValueError(f"there is no dimension {dim!r}; x has {', '.join(map(str, x.dims))}")
    if dim in getattr(x, "chunksizes", {}):
        raise TypeError("x has chunks, as of dask: load it first, x.load()")
    if isinstance(segments, str):
        segments = x.coords[segments] if segments in x.coords else _no_coordinate(x, segments)
    marks = None if segments is None else np.asarray(segments)
    form |= {"skipna": skipna, "marks": marks}
    if isinstance(x, xarray.DataArray):
        return _scan_one(call, x, dim, op, **form)
    names = [name for name, each in x.data_vars.items() if dim in each.dims]
    call.same = Terms({"the function": "distscan.xarray", "variables": names, "dim": dim})
    scanned = {}
    for name in names:
        call.begin()
        scanned[name] = _scan_one(call, x[name], dim, op, **form)
    return x.assign(scanned)


def _no_coordinate(x: Any, name: str) -> Any:
    known = ", ".join(map(str, x.coords))
    raise ValueError(f"there is no coordinate {name!r} for segments; x has {known}")


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
    if (skipna is not False) and given.dtype.kind in "fc" and op in SKIPPING_NAN:
        if marks is None:
            op = SKIPPING_NAN[str(op)]
        else:  # segments along an axis are for built-in operators
            given = xp.where(xp.isnan(given), 0 if op == "sum" else 1, given)
    if marks is not None:
        form["segments"] = xp.asarray(marks)
    rows = given if axis == 0 else xp.moveaxis(given, axis, 0)
    y = body(_scan_array)(call, rows, op, axis=0, **form)
    return x.copy(data=y if axis == 0 else xp.moveaxis(y, 0, axis))
