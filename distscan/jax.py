"""Differentiable scans of JAX arrays whose shards lie on several ranks, or on several devices.

::

    y = distscan.jax.cumsum(x, 1)                      # over the ranks of MPI, also in jax.jit
    y = distscan.jax.cumsum(x, 1, axis_name="shards")  # in jax.shard_map, over a mesh's axis

``axis`` is the one along which the shards are joined, and scanned. There are two ways:

over ranks (``comm``)
    Each process has a shard, and the host scans it: JAX calls it back, in the order of the program.
    Shards may differ in length there. Arrays on a GPU are copied to the host and back, so this way
    is for CPUs and for tests. All ranks must take part in the backward pass, which is a scan, too.
    A rank that does not come makes the others raise after ``DISTSCAN_WAIT`` seconds. JAX finds some
    faults of arguments before it calls back, such as a wrong ``axis``. Then that rank alone raises.
over devices (``axis_name``)
    XLA scans each shard, gathers the totals, and each device combines those before its own. Nothing
    leaves the devices: this is the fast way where one program has all devices.

======================  ==========================================  ==============
function                backward, over ranks                        it keeps
======================  ==========================================  ==============
``cumsum``              a sum from the other end                    nothing
``cumprod``             a product and a recurrence; right at zeros  x
``linear_recurrence``   a recurrence from the other end             a, the result
``cumlogsumexp``        two ``cumlogsumexp`` from the other end     x, the result
``cummax``, ``cummin``  a recurrence; to the last element that won  a mask
======================  ==========================================  ==============

Sums, products and recurrences have derivatives of any order, the others of the first.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from .mpi.agree import Agreement, Terms, collective
from .mpi.communicators import Comm, communicator, derived_key, gradients
from .mpi.meeting import meet
from .scan import scan
from .uses.recurrence import linear_recurrence as solve

Array = Any

__all__ = ["cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "linear_recurrence"]


def cumsum(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    exclusive: bool = False,
    reverse: bool = False,
) -> Array:
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

    Returns
    -------
    array, of the shape and the type of ``x``
        This shard of the result.

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
    return _scanned(_SUM, x, axis, comm, axis_name, exclusive=exclusive, reverse=reverse)


def cumprod(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    exclusive: bool = False,
    reverse: bool = False,
) -> Array:
    """Return the cumulative product; as ``jax.lax.cumprod``. See ``cumsum``."""
    return _scanned(_PRODUCT, x, axis, comm, axis_name, exclusive=exclusive, reverse=reverse)


def cumlogsumexp(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    reverse: bool = False,
) -> Array:
    """Return log(sum of exp(x)), cumulatively; as ``jax.lax.cumlogsumexp``. See ``cumsum``."""
    return _scanned(_LOG_SUM, x, axis, comm, axis_name, reverse=reverse)


def cummax(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    reverse: bool = False,
) -> Array:
    """Return the cumulative maximum; as ``jax.lax.cummax``. See ``cumsum``.

    Over ranks, the last of equal elements gets the gradient; JAX divides it among them.
    """
    return _scanned(_MAXIMUM, x, axis, comm, axis_name, reverse=reverse)


def cummin(
    x: Array,
    axis: int,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    reverse: bool = False,
) -> Array:
    """Return the cumulative minimum; as ``jax.lax.cummin``. See ``cummax``."""
    return _scanned(_MINIMUM, x, axis, comm, axis_name, reverse=reverse)


def linear_recurrence(
    a: Array,
    b: Array,
    axis: int = 0,
    *,
    comm: Comm | None = None,
    axis_name: str | None = None,
    reverse: bool = False,
    initial: Array | None = None,
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
    if axis_name is None:
        way = _Way.of(comm, axis, reverse=reverse)
        h, last = _solved(a, b, None if initial is None else first, way, return_last=return_last)
    else:
        h, last = _solved_over_devices(
            a, b, None if initial is None else first, axis, axis_name, reverse=reverse
        )
        last = first if last is None else last
    return (h, last) if return_last else h


def _solved_over_devices(
    a: Array, b: Array, first: Array | None, axis: int, name: str, *, reverse: bool
) -> tuple[Array, Array | None]:
    """Return this device's part of h, and the last state of all devices; None if there is none."""
    identity = jnp.ones((), b.dtype), jnp.zeros((), b.dtype)
    local = lax.associative_scan(_then, (a, b), reverse=reverse, axis=axis)
    before = _before(local, _then, identity, axis, name, reverse=reverse)
    if first is not None:
        state = jnp.expand_dims(first, axis)
        before = _then((jnp.ones_like(state), state), before)
    h = _then(before, local)[1]
    if h.shape[axis] == 0:  # so it is on all devices
        return h, None
    row = lax.index_in_dim(h, 0 if reverse else -1, axis, keepdims=False)
    ends = lax.axis_index(name) == (0 if reverse else lax.psum(1, name) - 1)
    return h, lax.psum(jnp.where(ends, row, 0), name)


def _then(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose maps h -> a h + b."""
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


# ---- over devices --------------------------------------------------------------------------------


def _axis(x: Array, axis: int) -> int:
    """Return an axis, counted from the front; raise ValueError if there is none."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis}; the array has {x.ndim} dimensions")
    return int(axis % x.ndim)


def _before(
    local: Any,
    combine: Callable[[Any, Any], Any],
    identity: Any,
    axis: int,
    name: str,
    *,
    reverse: bool,
) -> Any:
    """Return the combination of the totals of all shards before this device's, in their order.

    ``local`` is the inclusive scan of this shard. The identity stands for shards without elements.
    """

    def total(scanned: Array, nothing: Array) -> Array:
        if scanned.shape[axis] == 0:
            shape = *scanned.shape[:axis], 1, *scanned.shape[axis + 1 :]
            return jnp.broadcast_to(nothing, shape)
        return lax.index_in_dim(scanned, 0 if reverse else -1, axis)

    own = jax.tree.map(total, local, identity)
    every = jax.tree.map(lambda each: lax.all_gather(each, name), own)  # [devices, ...]
    device, devices = lax.axis_index(name), lax.psum(1, name)
    before = jax.tree.map(
        lambda each, nothing: jnp.broadcast_to(nothing, each.shape), own, identity
    )
    for other in range(devices)[:: -1 if reverse else 1]:
        # What is not before is replaced, not passed over: so no NaN of it is in a gradient.
        choose = partial(jnp.where, other > device if reverse else other < device)
        totals = jax.tree.map(lambda each, other=other: each[other], every)
        before = combine(before, jax.tree.map(choose, totals, identity))
    return before


# ---- over ranks ----------------------------------------------------------------------------------

_comms: dict[int, Comm] = {}  # by their names in `_Way`


class _Way(NamedTuple):
    """The ranks of a scan, its axis and its form: what is constant in a compiled program."""

    ranks: int  # the name of the communicator
    axis: int
    reverse: bool
    exclusive: bool = False
    is_backward: bool = False

    @classmethod
    def of(cls, comm: Comm | None, axis: int, *, reverse: bool, exclusive: bool = False) -> "_Way":
        ranks = communicator(comm)
        _comms[id(ranks)] = ranks
        return cls(id(ranks), axis, bool(reverse), bool(exclusive))

    def other(self) -> "_Way":
        """Return the opposite direction, that of the backward pass."""
        return self._replace(reverse=not self.reverse, is_backward=True)

    def call(self, function: Callable[..., Any], like: Array, *arrays: Array) -> Array:
        """Call a function of NumPy arrays back, whose scanned axis is the first one."""
        axis = self.axis

        def call(*arrays: Any, **options: Any) -> Any:
            moved = [np.moveaxis(array, axis, 0) for array in arrays]
            return np.moveaxis(np.asarray(function(*moved, **options)), 0, axis)

        return self.call_plainly(call, like, *arrays)

    def call_plainly(self, function: Callable[..., Any], like: Array, *arrays: Array) -> Array:
        """Call a function of NumPy arrays back. Its result is ``like`` an array."""
        comm = _comms[self.ranks]

        def call(*arrays: Any) -> Any:
            if self.is_backward:
                meet(comm)
            elif comm.size > 1 and comm.Get_attr(derived_key("gradients")) is None:
                _prepare(comm=comm)
            given = [np.asarray(array) for array in arrays]
            result = function(*given, comm=comm, reverse=self.reverse)
            return np.ascontiguousarray(result, like.dtype).reshape(like.shape)

        result = jax.ShapeDtypeStruct(like.shape, like.dtype)
        return io_callback(call, result, *arrays, ordered=True)


@collective
def _prepare(call: Agreement, *, comm: Comm) -> None:
    """Make what the backward pass needs, where all ranks are."""
    call.same = Terms({"the function": "distscan.jax"})
    call.settle()
    gradients(call.comm)
    call.begin()


class _Function(NamedTuple):
    """A function of one array: over ranks; and over devices, by a local scan and the operator."""

    over_ranks: Callable[[Array, _Way], Array]
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
) -> Array:
    x = jnp.asarray(x)
    axis = _axis(x, axis)
    if axis_name is None:
        return function.over_ranks(x, _Way.of(comm, axis, reverse=reverse, exclusive=exclusive))
    combine, identity = function.combine, jnp.asarray(function.identity(x.dtype), x.dtype)
    local = function.local(x, axis=axis, reverse=reverse)
    before = _before(local, combine, identity, axis, axis_name, reverse=reverse)
    y = combine(before, local)
    if not exclusive or y.shape[axis] == 0:
        return y
    some = lax.slice_in_dim(y, *((1, None) if reverse else (0, -1)), axis=axis)
    return jnp.concatenate([some, before] if reverse else [before, some], axis)


def _scan(x: Array, op: str, way: _Way) -> Array:
    scanned = partial(scan, op=op, axis=0, exclusive=way.exclusive, dtype=x.dtype)
    return way.call(scanned, x, x)


@collective
def _shifted(call: Agreement, x: Any, *, comm: Comm, reverse: bool) -> Any:
    """Return x[t-1], with the last row of the rank before; 0 before the first row."""
    call.same = Terms({"the function": "a shift by one row", "reverse": reverse})
    edge = x[:1] if reverse else x[-1:]
    call.settle()
    edges, rank = call.comm.allgather(edge), call.comm.rank
    call.begin()
    if not len(x):
        return x
    before = edges[rank + 1 :] if reverse else edges[:rank][::-1]  # the nearest first
    row = next((each for each in before if len(each)), np.zeros_like(edge))
    return np.concatenate([x[1:], row] if reverse else [row, x[:-1]])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _sum(x: Array, way: _Way) -> Array:
    return _scan(x, "sum", way)


_sum.defvjp(
    lambda x, way: (_sum(x, way), None),
    lambda way, _, dy: (_sum(dy, way.other()),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _shift(x: Array, way: _Way) -> Array:
    return way.call(_shifted, x, x)


_shift.defvjp(
    lambda x, way: (_shift(x, way), None),
    lambda way, _, dy: (_shift(dy, way.other()),),
)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _recurrence(a: Array, b: Array, way: _Way) -> Array:
    return way.call(solve, b, a, b)


def _recurrence_forward(a: Array, b: Array, way: _Way) -> tuple[Array, Any]:
    h = _recurrence(a, b, way)
    return h, (a, h)


def _recurrence_backward(way: _Way, kept: Any, dh: Array) -> tuple[Array, Array]:
    """db[t] = dh[t] + a[t+1] db[t+1]; da[t] = db[t] h[t-1]."""
    a, h = kept
    other = way.other()
    db = _recurrence(_shift(a, other), dh, other)
    return db * _shift(h, way._replace(is_backward=True)), db


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)


def _solved(
    a: Array, b: Array, first: Array | None, way: _Way, *, return_last: bool
) -> tuple[Array, Any]:
    """Return this rank's part of h, and the last state of all ranks if it is asked for."""
    axis, n, place = way.axis, b.shape[way.axis], None
    if first is not None or return_last:
        number = jax.ShapeDtypeStruct((), np.int32)
        asked = first is not None, return_last
        place = way.call_plainly(partial(_place, n, asked), number)
        if n and first is not None:
            at = n - 1 if way.reverse else 0
            term = lax.index_in_dim(a, at, axis) * jnp.expand_dims(first, axis)
            index = (slice(None),) * axis + (slice(at, at + 1),)
            b = b.at[index].add(jnp.where(place == _FIRST, term, 0))
    h, last = _recurrence(a, b, way), None
    if return_last:
        last = _last(h, way, n)
        if first is not None:
            last = jnp.where(place == _NOBODY, first, last)
    return h, last


_NOBODY, _FIRST, _LATER = range(3)  # which rank has the first element: none, this one, another


@collective
def _place(call: Agreement, n: int, asked: tuple[bool, bool], *, comm: Comm, reverse: bool) -> int:
    """Return which rank has the first element; ``asked``: initial and last states."""
    names = "whether there is an initial state", "return_last"
    same = dict(zip(names, asked, strict=True))
    call.same = Terms({"the function": "the first element", "reverse": reverse, **same})
    call.settle()
    ranks, rank = np.flatnonzero(call.comm.allgather(n > 0)), call.comm.rank
    call.begin()
    if not ranks.size:
        return _NOBODY
    return _FIRST if ranks[-1 if reverse else 0] == rank else _LATER


@collective
def _row_of_owner(call: Agreement, h: Any, *, comm: Comm, reverse: bool) -> Any:
    """Return the last row [...] of all ranks' h [n, ...]; 0 if no rank has rows."""
    call.same = Terms({"the function": "the last row", "reverse": reverse})
    row = h[:1] if reverse else h[-1:]
    call.settle()
    rows = [each for each in call.comm.allgather(row) if len(each)]
    call.begin()
    return rows[0 if reverse else -1][0] if rows else np.zeros(h.shape[1:], h.dtype)


@collective
def _sum_for_owner(call: Agreement, x: Any, n: int, *, comm: Comm, reverse: bool) -> Any:
    """Return [n, ...] of zeros; of all ranks' rows the last one is the sum of their x [...]."""
    call.same = Terms({"the function": "the gradient of the last row", "reverse": reverse})
    rows = np.zeros((n, *x.shape), x.dtype)
    call.settle()
    parts = call.comm.allgather((n > 0, x))
    owners = [rank for rank, (some, _) in enumerate(parts) if some]
    call.begin()
    if owners and owners[0 if reverse else -1] == call.comm.rank:
        rows[0 if reverse else -1] = sum(part for _, part in parts)
    return rows


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _last(h: Array, way: _Way, n: int) -> Array:
    """Return the last state of all ranks; this one has ``n``."""
    shape = *h.shape[: way.axis], *h.shape[way.axis + 1 :]

    def call(h: Any, **options: Any) -> Any:
        return _row_of_owner(np.moveaxis(h, way.axis, 0), **options)

    return way.call_plainly(call, jax.ShapeDtypeStruct(shape, h.dtype), h)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _to_last(x: Array, way: _Way, n: int) -> Array:
    """Return ``n`` states of zeros; the last one of all ranks is the sum of their x."""
    shape = *x.shape[: way.axis], n, *x.shape[way.axis :]

    def call(x: Any, **options: Any) -> Any:
        return np.moveaxis(_sum_for_owner(x, n, **options), 0, way.axis)

    return way.call_plainly(call, jax.ShapeDtypeStruct(shape, x.dtype), x)


_last.defvjp(
    lambda h, way, n: (_last(h, way, n), None),
    lambda way, n, _, dy: (_to_last(dy, way._replace(is_backward=True), n),),
)
_to_last.defvjp(
    lambda x, way, n: (_to_last(x, way, n), None),
    lambda way, n, _, dy: (_last(dy, way._replace(is_backward=True), n),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _product(x: Array, way: _Way) -> Array:
    return _scan(x, "prod", way)


def _product_backward(way: _Way, x: Array, dy: Array) -> tuple[Array]:
    """dx[t] = (product before t) r[t]; r[t] = dy[t] + x[t+1] r[t+1], or exclusively so."""
    other = way.other()._replace(exclusive=False)
    before = _product(x, way._replace(exclusive=True, is_backward=True))
    if way.exclusive:
        return (before * _shift(_recurrence(x, dy, other), other),)
    return (before * _recurrence(_shift(x, other), dy, other),)


_product.defvjp(lambda x, way: (_product(x, way), x), _product_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _log_sum(x: Array, way: _Way) -> Array:
    return _scan(x, "logaddexp", way)


def _log_sum_forward(x: Array, way: _Way) -> tuple[Array, Any]:
    y = _log_sum(x, way)
    return y, (x, y)


def _log_sum_backward(way: _Way, kept: Any, dy: Array) -> tuple[Array]:
    """dx[t] = sum of dy[j] exp(x[t] - y[j]) over j from t on, by logarithms of both signs."""
    x, y = kept
    logs = jnp.where(y == -jnp.inf, -jnp.inf, jnp.log(jnp.abs(dy)) - y)
    parts = [
        jnp.exp(x + _scan(jnp.where(sign, logs, -jnp.inf), "logaddexp", way.other()))
        for sign in (dy > 0, dy < 0)
    ]
    return (parts[0] - parts[1],)


_log_sum.defvjp(_log_sum_forward, _log_sum_backward)


def _extreme(op: str) -> Any:
    """Return the cumulative maximum or minimum."""

    @partial(jax.custom_vjp, nondiff_argnums=(1,))
    def extreme(x: Array, way: _Way) -> Array:
        return _scan(x, op, way)

    def forward(x: Array, way: _Way) -> tuple[Array, Array]:
        y = extreme(x, way)
        return y, (x == y) | jnp.isnan(x)

    def backward(way: _Way, wins: Array, dy: Array) -> tuple[Array]:
        # An element that wins gets dy up to the next one that wins.
        other = way.other()
        goes_on = _shift((~wins).astype(dy.dtype), other)
        return (jnp.where(wins, _recurrence(goes_on, dy, other), 0),)

    extreme.defvjp(forward, backward)
    return extreme


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


_SUM = _Function(_sum, lax.cumsum, jnp.add, lambda dtype: 0)
_PRODUCT = _Function(_product, lax.cumprod, jnp.multiply, lambda dtype: 1)
_LOG_SUM = _Function(_log_sum, lax.cumlogsumexp, jnp.logaddexp, _lowest)
_MAXIMUM = _Function(_extreme("max"), lax.cummax, jnp.maximum, _lowest)
_MINIMUM = _Function(_extreme("min"), lax.cummin, jnp.minimum, _highest)
