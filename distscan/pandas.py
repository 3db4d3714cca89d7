"""Scans of pandas' objects, whose rows lie on the ranks; pandas is an extra.

Each rank has some rows of the whole, a Series or a DataFrame. The rows are joined in rank order,
and the scan goes through all of them. Index and names stay. Missing values are as in pandas: with
``skipna`` they stay, and count for nothing; without it, all results after one are missing.

>>> import pandas
>>> import distscan.pandas
>>> distscan.pandas.cumsum(pandas.Series([1.0, None, 2.0], index=["a", "b", "c"], name="x"))
a    1.0
b    NaN
c    3.0
Name: x, dtype: float64
"""

from collections.abc import Hashable
from typing import Any, TypeVar

import numpy as np
import pandas

from .core.operators import BUILTIN
from .mpi.agree import Agreement, Terms, body, collective
from .mpi.communicators import Comm
from .scan import scan

Frame = TypeVar("Frame", pandas.Series, pandas.DataFrame)

__all__ = ["cummax", "cummin", "cumprod", "cumsum"]


@collective
def cumsum(
    call: Agreement,
    x: Frame,
    *,
    skipna: bool = True,
    segments: Any = None,
    comm: Comm | None = None,
) -> Frame:
    """Return cumulative sums of all ranks' rows, as ``x.cumsum()`` does; collective over ``comm``.

    Parameters
    ----------
    x
        This rank's rows: a Series, or a DataFrame, of bool, numbers, timedelta64 or datetime64 in
        NumPy's memory. The columns are the same on every rank.
    skipna
        Whether missing values count for nothing.
    segments
        Where independent sums begin: an array or a Series [rows], of which neighbours of one
        segment are equal, as those of sorted groups; or bools, True at the first row of each.
    comm
        As in ``distscan.scan``.

    Returns
    -------
    Series or DataFrame
        This rank's rows of the result.

    Raises
    ------
    TypeError, ValueError, MemoryError, DisagreementError
        On every rank, as ``distscan.scan`` does.
    """
    return _scan(call, x, "sum", skipna=skipna, segments=segments)


@collective
def cumprod(
    call: Agreement,
    x: Frame,
    *,
    skipna: bool = True,
    segments: Any = None,
    comm: Comm | None = None,
) -> Frame:
    """Return cumulative products of all ranks' rows, as ``x.cumprod()`` does. See ``cumsum``."""
    return _scan(call, x, "prod", skipna=skipna, segments=segments)


@collective
def cummax(
    call: Agreement,
    x: Frame,
    *,
    skipna: bool = True,
    segments: Any = None,
    comm: Comm | None = None,
) -> Frame:
    """Return cumulative maxima of all ranks' rows, as ``x.cummax()`` does. See ``cumsum``."""
    return _scan(call, x, "max", skipna=skipna, segments=segments)


@collective
def cummin(
    call: Agreement,
    x: Frame,
    *,
    skipna: bool = True,
    segments: Any = None,
    comm: Comm | None = None,
) -> Frame:
    """Return cumulative minima of all ranks' rows, as ``x.cummin()`` does. See ``cumsum``."""
    return _scan(call, x, "min", skipna=skipna, segments=segments)


def _scan(call: Agreement, x: Any, op: str, *, skipna: bool, segments: Any) -> Any:
    """Scan the columns one after the other."""
    marks = None if segments is None else np.asarray(segments)
    if isinstance(x, pandas.Series):
        return pandas.Series(_scan_column(call, x, op, skipna, marks), x.index, name=x.name)
    if not isinstance(x, pandas.DataFrame):
        raise TypeError(f"x is {type(x).__name__}, and no Series or DataFrame of pandas")
    columns: list[Hashable] = list(x.columns)
    call.same = Terms({"the function": "distscan.pandas", "columns": columns})
    scanned = []
    for i in range(len(columns)):
        call.begin()
        scanned.append(_scan_column(call, x.iloc[:, i], op, skipna, marks))
    result = pandas.DataFrame(dict(enumerate(scanned)), x.index)
    result.columns = x.columns
    return result


def _scan_column(call: Agreement, x: Any, op: str, skipna: bool, marks: Any) -> Any:
    if not isinstance(x.dtype, np.dtype):
        raise TypeError(
            f"{x.name!r} is {x.dtype}, which is not in NumPy's memory: convert it first"
        )
    values, missing = x.to_numpy(), None
    if skipna and values.dtype.kind in "fcmM":
        missing = np.asarray(x.isna())
        if missing.any():
            identity: Any = BUILTIN[op].identity
            values = np.where(missing, identity(values.dtype), values)
    y = body(scan)(call, values, op, segments=marks)
    if missing is not None:
        y[missing] = np.array("NaT", y.dtype) if y.dtype.kind in "mM" else np.nan
    return y
