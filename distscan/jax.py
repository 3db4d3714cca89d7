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
) -> Array:
    """Solve ``h[t] = a[t] * h[t-1] + b[t]`` along ``axis``, over all shards; h is 0 before them.

    ``a`` and ``b`` have one shape and one type of floats or complex numbers. See ``cumsum``.

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
    if axis_name is not None:
        identity = jnp.ones((), b.dtype), jnp.zeros((), b.dtype)
        local = lax.associative_scan(_then, (a, b), reverse=reverse, axis=axis)
        before = _before(local, _then, identity, axis, axis_name, reverse=reverse)
        h: Array = _then(before, local)[1]
        return h
    return _recurrence(a, b, _Way.of(comm, axis, reverse=reverse))


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
        comm, axis = _comms[self.ranks], self.axis

        def call(*arrays: Any) -> Any:
            if self.is_backward:
                meet(comm)
            elif comm.size > 1 and comm.Get_attr(derived_key("gradients")) is None:
                _prepare(comm=comm)
            moved = [np.moveaxis(np.asarray(array), axis, 0) for array in arrays]
            result = function(*moved, comm=comm, reverse=self.reverse)
            return np.ascontiguousarray(np.moveaxis(np.asarray(result), 0, axis))

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
