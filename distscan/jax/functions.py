"""The functions of ``distscan.jax``: their arguments, and the two ways to scan."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..mpi.communicators import Comm
from . import devices, ranks
from .devices import along
from .ranks import Way
from .signatures import with_indices, with_last, with_total


@with_total
def cumsum(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    return_total: bool = False,
) -> Any:
    """Return the cumulative sum along ``axis`` over all shards, as ``jax.lax.cumsum``.

    Parameters
    ----------
    x
        This shard.
    axis
        The axis along which the shards are joined, and scanned.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.
    axis_name
        In ``jax.shard_map``: the axis of the mesh over which the shards lie. ``comm`` is not used.
    exclusive
        Whether each result leaves out its own element.
    reverse
        Whether to scan from the last element.
    return_total
        Whether to return the sum of all shards along ``axis``, too.

    Returns
    -------
    array, of the shape and the type of ``x``
        This shard of the result.
    total
        With ``return_total``: of the shape of ``x`` without ``axis``, the same for all shards. Over
        ranks, all use it in their losses, or none: the gradients are added up.

    Examples
    --------
    On one rank:

    >>> import distscan.jax, jax, jax.numpy as jnp
    >>> x = jnp.array([1.0, 2.0])
    >>> distscan.jax.cumsum(x, 0)
    Array([1., 3.], dtype=float32)
    >>> jax.grad(lambda x: distscan.jax.cumsum(x, 0).sum())(x)
    Array([2., 1.], dtype=float32)
    """
    form: Any = {"exclusive": exclusive, "reverse": reverse, "return_total": return_total}
    return _scanned(_SUM, x, axis, comm, axis_name, **form)


@with_total
def cumprod(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    return_total: bool = False,
) -> Any:
    """Return the cumulative product; as ``jax.lax.cumprod``. See ``cumsum``."""
    form: Any = {"exclusive": exclusive, "reverse": reverse, "return_total": return_total}
    return _scanned(_PRODUCT, x, axis, comm, axis_name, **form)


@with_total
def cumlogsumexp(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    reverse: bool = False,
    return_total: bool = False,
) -> Any:
    """Return log(sum of exp(x)), cumulatively; as ``jax.lax.cumlogsumexp``. See ``cumsum``."""
    form: Any = {"reverse": reverse, "return_total": return_total}
    return _scanned(_LOG_SUM, x, axis, comm, axis_name, **form)


@with_indices
def cummax(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    reverse: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the cumulative maximum; as ``jax.lax.cummax``. See ``cumsum``.

    Over ranks, the last of equal elements gets the gradient; JAX divides it among them. With
    ``return_indices``, a pair is returned: the maxima, and the places of these elements among those
    of all shards, of equal ones the last in the order of the scan.
    """
    y = _scanned(_MAXIMUM, x, axis, comm, axis_name, reverse=reverse)
    return (y, _places(x, y, axis, comm, axis_name, reverse=reverse)) if return_indices else y


@with_indices
def cummin(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    reverse: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the cumulative minimum; as ``jax.lax.cummin``. See ``cummax``."""
    y = _scanned(_MINIMUM, x, axis, comm, axis_name, reverse=reverse)
    return (y, _places(x, y, axis, comm, axis_name, reverse=reverse)) if return_indices else y


def scan(
    x: Array,
    axis: int,
    op: str = "sum",
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Array | None = None,
    segments: Array | None = None,
) -> Array:
    """Scan ``x`` along ``axis`` over all shards. See ``cumsum``.

    Parameters
    ----------
    op
        "sum", "prod", "max", "min" or "logaddexp".
    exclusive
        Whether each result leaves out its own element; the first one is ``initial``, or the
        operator's identity.
    initial
        What comes before the first element, and before each segment: of the shape of ``x`` without
        ``axis``, the same for all shards. Over ranks, each has the gradient of its own results: add
        them up.
    segments
        Where independent scans begin, as in ``linear_recurrence``.

    Examples
    --------
    Two independent sums, on one rank:

    >>> import distscan.jax, jax.numpy as jnp
    >>> x, heads = jnp.array([1.0, 2.0, 3.0]), jnp.array([True, False, True])
    >>> distscan.jax.scan(x, 0, segments=heads)
    Array([1., 3., 3.], dtype=float32)
    """
    function, x = _OPERATORS.get(op) if isinstance(op, str) else None, jnp.asarray(x)
    if function is None:
        raise ValueError(f"op is {op!r}; it is one of {', '.join(_OPERATORS)}")
    axis = _axis(x, axis)
    heads = None if segments is None else _heads(segments, x, axis)
    shape = *x.shape[:axis], *x.shape[axis + 1 :]
    first = None if initial is None else jnp.asarray(initial)
    if first is not None and (first.shape != shape or jnp.result_type(x, first) != x.dtype):
        raise ValueError(f"initial is {first.dtype}{list(first.shape)}, not {x.dtype}{list(shape)}")
    if heads is None:
        y = _scanned(function, x, axis, comm, axis_name, reverse=reverse)
    elif axis_name is None:
        y = function.in_segments(x, heads, Way.of(comm, axis, reverse=reverse))
    else:
        identity = jnp.asarray(function.identity(x.dtype), x.dtype)
        place: Any = {"axis": axis, "name": axis_name, "reverse": reverse}
        y = devices.scan_in_segments(x, heads, function.combine, identity, **place)
    if axis_name is None and (exclusive or first is not None):
        way, n = Way.of(comm, axis, reverse=reverse), x.shape[axis]
        begins = ranks.starts(heads, n, way, has_initial=first is not None)
    if exclusive:
        if axis_name is None:
            before = ranks.shift(y, way)
        else:
            begins = devices.starts(heads, x.shape[axis], axis_name, reverse=reverse)
            before = devices.shift(y, axis, axis_name, reverse=reverse)
        y = ranks.replace(along(begins, x, axis), function.identity(x.dtype), before)
    return y if first is None else function.combine(jnp.expand_dims(first, axis), y)


@with_last
def linear_recurrence(
    a: Array,
    b: Array,
    axis: int = 0,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    reverse: bool = False,
    initial: Array | None = None,
    segments: Array | None = None,
    return_last: bool = False,
) -> Any:
    """Solve ``h[t] = a[t] * h[t-1] + b[t]`` along ``axis``, over all shards. See ``cumsum``.

    Parameters
    ----------
    a, b
        These shards, of one shape and one type of floats or complex numbers.
    initial
        The state before the first element: of the shape of ``b`` without ``axis``, the same for all
        shards. None is 0. Over ranks, its gradient is on the rank with the first element, and 0 on
        the others: add them up.
    segments
        Where independent recurrences begin, such as packed sequences: bools [n], n the length of
        this shard along ``axis``, True at the first element of each. Not with ``initial``.
    return_last
        Whether to return the state after the last element, too, the same for all shards. If there
        are no elements, it is ``initial``, or 0. Over ranks, all use it in their losses, or none:
        the gradients are added up.

    Examples
    --------
    A value that decays by half at each step, on one rank:

    >>> import distscan.jax, jax.numpy as jnp
    >>> distscan.jax.linear_recurrence(jnp.full(3, 0.5), jnp.array([8.0, 0.0, 1.0]))
    Array([8., 4., 3.], dtype=float32)
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"a is {a.dtype}{list(a.shape)}, b {b.dtype}{list(b.shape)}: not alike")
    if not jnp.issubdtype(b.dtype, jnp.inexact):
        raise TypeError(f"b is {b.dtype}; a recurrence takes floats or complex numbers")
    axis = _axis(b, axis)
    shape = *b.shape[:axis], *b.shape[axis + 1 :]
    if initial is not None and jnp.result_type(b, initial) != b.dtype:
        raise TypeError(f"initial is {jnp.asarray(initial).dtype}; the states are {b.dtype}")
    first = jnp.zeros(shape, b.dtype) if initial is None else jnp.asarray(initial, b.dtype)
    if first.shape != shape:
        raise ValueError(f"initial has shape {list(first.shape)}; the states have {list(shape)}")
    heads = None if segments is None else _heads(segments, b, axis)
    if heads is not None and initial is not None:
        raise ValueError("initial is not for segments")
    start = None if initial is None else first
    if axis_name is None:
        way = Way.of(comm, axis, reverse=reverse)
        h, last = ranks.solve(a, b, start, heads, way, return_last=return_last)
    else:
        h, last = devices.solve((a, b), start, heads, axis, axis_name, reverse=reverse)
        last = first if last is None else last
    return (h, last) if return_last else h


def _heads(segments: Any, x: Array, axis: int) -> Array:
    """Return where segments begin; raise ValueError if these are no such bools."""
    heads, n = jnp.asarray(segments), x.shape[axis]
    if heads.dtype != bool or heads.shape != (n,):
        raise ValueError(f"segments are {heads.dtype}{list(heads.shape)}, not bool[{n}]")
    return heads


def _axis(x: Array, axis: int) -> int:
    """Return an axis, counted from the front; raise ValueError if there is none."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis}; the array has {x.ndim} dimensions")
    return int(axis % x.ndim)


class _Function(NamedTuple):
    """A function of one array: over ranks; and over devices, by a local scan and the operator."""

    over_ranks: Callable[[Array, Way], Array]
    in_segments: Callable[[Array, Array, Way], Array]  # over ranks
    local: Callable[..., Array]
    combine: Callable[[Array, Array], Array]
    identity: Callable[[Any], Any]


def _scanned(
    function: _Function,
    x: Array,
    axis: int,
    comm: Comm | None,
    axis_name: str | None,
    *,
    reverse: bool,
    exclusive: bool = False,
    return_total: bool = False,
) -> Any:
    """Return this shard of a scan; with ``return_total``, the total of all shards, too."""
    x = jnp.asarray(x)
    axis = _axis(x, axis)
    combine, identity = function.combine, jnp.asarray(function.identity(x.dtype), x.dtype)
    if axis_name is None:
        way = Way.of(comm, axis, reverse=reverse, exclusive=exclusive)
        y = function.over_ranks(x, way)
        if not return_total:
            return y
        return y, ranks.total(combine(y, x) if exclusive else y, identity, way)
    local = function.local(x, axis=axis, reverse=reverse)
    before = devices.before_shard(local, combine, identity, axis, axis_name, reverse=reverse)
    y = combine(before, local)
    total = devices.last_row(y, axis, axis_name, reverse=reverse)
    if exclusive and y.shape[axis]:
        some = lax.slice_in_dim(y, *((1, None) if reverse else (0, -1)), axis=axis)
        y = jnp.concatenate([some, before] if reverse else [before, some], axis)
    if total is None:
        total = jnp.full((*x.shape[:axis], *x.shape[axis + 1 :]), identity)
    return (y, total) if return_total else y


def _places(
    x: Array, y: Array, axis: int, comm: Comm | None, axis_name: str | None, *, reverse: bool
) -> Array:
    """Return the place of the element that each cumulative maximum or minimum is."""
    x, y = lax.stop_gradient(jnp.asarray(x)), lax.stop_gradient(y)
    axis, integer = _axis(x, axis), jnp.asarray(0).dtype
    n = x.shape[axis]
    if axis_name is None:
        places = ranks.places(n, Way.of(comm, axis, reverse=reverse), integer)
    else:
        places = (n * lax.axis_index(axis_name) + jnp.arange(n)).astype(integer)
    none = jnp.asarray(jnp.iinfo(integer).max if reverse else -1, integer)
    own = jnp.where((x == y) | jnp.isnan(x), along(places, x, axis), none)
    latest = _MINIMUM if reverse else _MAXIMUM
    return _scanned(latest, own, axis, comm, axis_name, reverse=reverse)


def _sums_in_segments(x: Array, heads: Array, way: Way) -> Array:
    """Return sums over ranks: of floats by a recurrence, which has gradients."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return ranks.scan(x, "sum", way, heads)
    return ranks.recurrence(jnp.ones_like(x), x, heads, way)


def _products_in_segments(x: Array, heads: Array, way: Way) -> Array:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return ranks.scan(x, "prod", way, heads)
    begins = along(ranks.starts(heads, x.shape[way.axis], way), x, way.axis)
    factors, terms = ranks.replace(begins, 1, x), ranks.replace(~begins, 0, x)
    return ranks.recurrence(factors, terms, heads, way)


def _without(function: Callable[..., Array]) -> Callable[[Array, Way], Array]:
    """Return a function over ranks without segments."""
    return lambda x, way: function(x, None, way)


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


_SUM = _Function(ranks.sums, _sums_in_segments, lax.cumsum, jnp.add, lambda dtype: 0)
_PRODUCT = _Function(
    ranks.products, _products_in_segments, lax.cumprod, jnp.multiply, lambda dtype: 1
)
_LOG_SUM = _Function(
    _without(ranks.log_sums), ranks.log_sums, lax.cumlogsumexp, jnp.logaddexp, _lowest
)
_MAXIMUM = _Function(_without(ranks.maxima), ranks.maxima, lax.cummax, jnp.maximum, _lowest)
_MINIMUM = _Function(_without(ranks.minima), ranks.minima, lax.cummin, jnp.minimum, _highest)
_OPERATORS = {
    "sum": _SUM,
    "prod": _PRODUCT,
    "max": _MAXIMUM,
    "min": _MINIMUM,
    "logaddexp": _LOG_SUM,
}
