"""The scans under the names that people look for; each is a call of ``scan``.

All of them share these arguments and results:

- ``x`` is this rank's shard: a NumPy array, a CuPy array, any array that supports DLPack, or a
  sequence. The global array is the shards joined along axis 0, in rank order.
- ``axis=None`` scans the flattened global array, ``axis=0`` scans across the ranks, and any other
  axis is scanned inside each shard.
- ``dtype`` is the type that accumulates, and the type of the result. The result is stored in
  ``out``, if given.
- ``options`` are those of ``scan``: ``comm``, ``exclusive``, ``initial``, ``reverse``,
  ``segments``, ``strategy``, ``threads``.
- The result is this rank's part of the scan, of the same array library and on the same device as
  ``x``. Its shape is [x.size] for ``axis=None``, else the shape of ``x``.
- An error on one rank is raised on every rank: TypeError for types that the operator does not
  take; ValueError for wrong shapes and options, and for ranks that disagree; MemoryError.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import DTypeLike

from .core import arrays, dtypes, operators
from .core.form import axis_number
from .core.operators import SKIPPING_NAN
from .core.signatures import like_x
from .core.steps import Strategy
from .engine.array_scan import check_out
from .mpi.agree import Agreement, Terms, body, collective
from .mpi.communicators import Comm
from .scan import scan

_scan = body(scan)

P = ParamSpec("P")
R = TypeVar("R")


def _names_options(function: Callable[P, R]) -> Callable[P, R]:
    """Put the options of ``scan`` into the signature of a function, in the place of ``options``.

    So help shows them, and a wrong one is an argument that this function does not take.
    """
    signature, options = inspect.signature(function), inspect.signature(scan).parameters.values()
    *first, _ = signature.parameters.values()
    names = {"window", *signature.parameters}
    rest = [each for each in options if each.kind is each.KEYWORD_ONLY and each.name not in names]
    named: Any = function
    named.__signature__ = signature.replace(parameters=[*first, *rest])
    return function


if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class Options(TypedDict, total=False):
        """The arguments that ``cumsum`` and the others pass on to ``scan``."""

        comm: Comm | None
        exclusive: bool
        initial: Any
        reverse: bool
        segments: Any
        strategy: Strategy
        threads: int | None


@like_x
@collective
@_names_options
def cumsum(
    call: Agreement,
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative sum over all ranks, with ``numpy.cumsum``'s signature.

    x [n, ...] of bool, integers, floats or complex numbers; bool and narrow integers sum in the
    platform's widest. The result is [x.size] for ``axis=None``, else of the shape of x. Raises as
    ``scan`` does.

    >>> import distscan
    >>> distscan.cumsum([1, 2, 3])
    array([1, 3, 6])
    """
    return _scan(call, x, "sum", axis=axis, dtype=dtype, out=out, **options)


@like_x
@collective
@_names_options
def cumprod(
    call: Agreement,
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative product over all ranks, with ``numpy.cumprod``'s signature.

    x [n, ...] of bool, integers, floats or complex numbers; bool and narrow integers multiply in
    the platform's widest. The result is [x.size] for ``axis=None``, else of the shape of x. Raises
    as ``scan`` does.

    >>> import distscan
    >>> distscan.cumprod([1, 2, 3])
    array([1, 2, 6])
    """
    return _scan(call, x, "prod", axis=axis, dtype=dtype, out=out, **options)


@like_x
@collective
@_names_options
def cummax(
    call: Agreement,
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative maximum over all ranks; NaN propagates, as in ``numpy.maximum.accumulate``.

    x [n, ...] of bool, integers, floats or complex numbers, whose type stays. The result is
    [x.size] for ``axis=None``, else of the shape of x. Raises as ``scan`` does.

    >>> import distscan
    >>> distscan.cummax([1, 3, 2])
    array([1, 3, 3])
    """
    return _scan(call, x, "max", axis=axis, dtype=dtype, out=out, **options)


@like_x
@collective
@_names_options
def cummin(
    call: Agreement,
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative minimum over all ranks; NaN propagates, as in ``numpy.minimum.accumulate``.

    x [n, ...] of bool, integers, floats or complex numbers, whose type stays. The result is
    [x.size] for ``axis=None``, else of the shape of x. Raises as ``scan`` does.

    >>> import distscan
    >>> distscan.cummin([3, 1, 2])
    array([3, 1, 1])
    """
    return _scan(call, x, "min", axis=axis, dtype=dtype, out=out, **options)


@like_x
@collective
@_names_options
def logcumsumexp(
    call: Agreement,
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Logarithm of the cumulative sum of exponentials, over all ranks, without overflow.

    As ``numpy.logaddexp.accumulate``: x [n, ...] of floats, or of bool and integers, which become
    floats. The result is [x.size] for ``axis=None``, else of the shape of x. Raises as ``scan``
    does; TypeError for complex numbers.

    >>> import distscan
    >>> distscan.logcumsumexp([1000.0, 1000.0])
    array([1000.        , 1000.69314718])
    """
    return _scan(call, x, "logaddexp", axis=axis, dtype=dtype, out=out, **options)


@like_x
@collective
@_names_options
def fcumsum(
    call: Agreement,
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    *,
    window: tuple[int, int] | None = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative sum over all ranks, each exact and rounded once, as ``math.fsum`` rounds.

    x [n, ...] of floats, complex numbers, integers or bool; the result has the type of x, or
    float64 for integers. ``window`` is that of ``scan``. The result is [x.size] for ``axis=None``,
    else of the shape of x. Raises as ``scan`` does.

    >>> import distscan
    >>> distscan.fcumsum([1e16, 1.0, 1.0, -1e16])
    array([1.e+16, 1.e+16, 1.e+16, 2.e+00])
    """
    given: Any = {"axis": axis, "dtype": dtype, "out": out, "window": window}
    return _scan(call, x, "fsum", **given, **options)


@like_x
@collective
@_names_options
def nancumsum(
    call: Agreement,
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative sum over all ranks with NaN as 0, with ``numpy.nancumsum``'s signature.

    Types, shapes and errors are those of ``cumsum``. A complex number is NaN if one of its parts
    is.

    >>> import distscan
    >>> distscan.nancumsum([1.0, float("nan"), 2.0])
    array([1., 1., 3.])
    """
    return _without_nan(call, x, "sum", axis=axis, dtype=dtype, out=out, **options)


@like_x
@collective
@_names_options
def nancumprod(
    call: Agreement,
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative product over all ranks with NaN as 1, with ``numpy.nancumprod``'s signature.

    Types, shapes and errors are those of ``cumprod``. A complex number is NaN if one of its parts
    is.

    >>> import distscan
    >>> distscan.nancumprod([2.0, float("nan"), 3.0])
    array([2., 2., 6.])
    """
    return _without_nan(call, x, "prod", axis=axis, dtype=dtype, out=out, **options)


def _without_nan(call: Agreement, x: Any, op: str, **options: Any) -> Any:
    """Scan ``x`` with ``op``; if its type has NaN, elements are replaced as they are read."""
    dtype = arrays.as_native(x).dtype
    has_nan = dtype.kind in "fc" or dtypes.is_bfloat16(dtype)
    call.begin()  # the ranks have agreed on the function
    return _scan(call, x, SKIPPING_NAN[op] if has_nan else op, **options)


# ---- the signatures of NumPy 2 and of the Array API ----------------------------------------------


@like_x
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


@like_x
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
