"""Cumulative sums and products with the signatures of NumPy and of the Array API."""

from typing import Any

from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import DTypeLike

from .core import arrays, dtypes, operators
from .core.extents import axis_number
from .decide import check_out
from .mpi.agree import Agreement, Terms, body, collective
from .mpi.communicators import Comm
from .scan import scan

_scan = body(scan)


@collective
def cumulative_sum(
    call: Agreement,
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    include_initial: bool = False,
    comm: Comm | None = None,
) -> Any:
    """Cumulative sum over all ranks, with the signature of ``numpy.cumulative_sum``.

    x [n] or, with ``axis``, [n, ...], of bool, integers, floats or complex numbers. With
    ``include_initial`` the result begins with 0, and has one more element along the axis. Along
    axis 0, only rank 0's part has this element; along any other axis, every rank's part has it.
    ``out`` must have room for it. The Array API has the same signature, without ``out``. Raises as
    ``scan`` does; ValueError for several axes without ``axis``.

    >>> import distscan
    >>> distscan.cumulative_sum([1, 2, 3], include_initial=True)
    array([0, 1, 3, 6])
    """
    return _cumulative(
        call, x, "sum", 0, axis=axis, dtype=dtype, out=out, include_initial=include_initial
    )


@collective
def cumulative_prod(
    call: Agreement,
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    include_initial: bool = False,
    comm: Comm | None = None,
) -> Any:
    """Cumulative product over all ranks, with the signature of ``numpy.cumulative_prod``.

    x [n] or, with ``axis``, [n, ...], of bool, integers, floats or complex numbers. With
    ``include_initial`` the result begins with 1, and has one more element along the axis. Along
    axis 0, only rank 0's part has this element; along any other axis, every rank's part has it.
    ``out`` must have room for it. The Array API has the same signature, without ``out``. Raises as
    ``scan`` does; ValueError for several axes without ``axis``.

    >>> import distscan
    >>> distscan.cumulative_prod([1, 2, 3], include_initial=True)
    array([1, 1, 2, 6])
    """
    return _cumulative(
        call, x, "prod", 1, axis=axis, dtype=dtype, out=out, include_initial=include_initial
    )


def _cumulative(
    call: Agreement,
    x: Any,
    op: str,
    first: int,
    *,
    axis: int | None,
    dtype: DTypeLike | None,
    out: Any,
    include_initial: bool,
) -> Any:
    """Scan ``x``; with ``include_initial`` the result begins with ``first``."""
    array = arrays.as_native(x)
    if axis is None and array.ndim > 1:
        raise ValueError(f"x has shape {array.shape}; axis= is needed")
    along = normalize_axis_index(axis_number(axis) or 0, max(array.ndim, 1))
    call.same = Terms(
        {"the function": f"cumulative_{op}", "include_initial": bool(include_initial)}
    )
    whole = None
    if include_initial and (along > 0 or call.comm.rank == 0):
        convert = arrays.converter(x if out is None else out)
        shape = list(array.shape or (1,))
        shape[along] += 1
        if out is None:
            types = dtypes.resolve(operators.resolve(op), array.dtype, dtype)
            with arrays.on_device(array):
                whole = arrays.namespace(array).empty(shape, types.out)
        else:
            whole = arrays.as_target(out)
            check_out(out, whole, array)
            if whole.shape != tuple(shape):
                raise ValueError(f"out has shape {whole.shape}; the result has {tuple(shape)}")
        first_axis = whole.swapaxes(0, along)  # a view whose first axis is scanned
    call.begin()  # the ranks have agreed on what the result begins with
    if whole is None:
        return _scan(call, x, op, axis=axis, dtype=dtype, out=out)
    _scan(call, x, op, axis=along, dtype=dtype, out=first_axis[1:].swapaxes(0, along))
    with arrays.on_device(whole):
        first_axis[:1] = first  # after the scan, because out may share the memory of x
        result = whole if convert is None else convert(whole)
    return result if out is None else out
