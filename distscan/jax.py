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
    heads = None if segments is None else jnp.asarray(segments)
    if heads is not None and (heads.dtype != bool or heads.shape != (b.shape[axis],)):
        raise ValueError(
            f"segments are {heads.dtype}{list(heads.shape)}, not bool[{b.shape[axis]}]"
        )
    if heads is not None and initial is not None:
        raise ValueError("initial is not for segments")
    start = None if initial is None else first
    if axis_name is None:
        way = _Way.of(comm, axis, reverse=reverse)
        h, last = _solved(a, b, start, heads, way, return_last=return_last)
    else:
        h, last = _solved_over_devices((a, b), start, heads, axis, axis_name, reverse=reverse)
        last = first if last is None else last
    return (h, last) if return_last else h


def _solved_over_devices(
    maps: tuple[Array, ...],
    first: Array | None,
    heads: Array | None,
    axis: int,
    name: str,
    *,
    reverse: bool,
) -> tuple[Array, Array | None]:
    """Return this device's part of h, and the last state of all devices; None if there is none."""
    b = maps[1]
    identity: tuple[Array, ...] = jnp.ones((), b.dtype), jnp.zeros((), b.dtype)
    if heads is not None:
        heads = _heads_over_devices(heads, name) if reverse else heads
        begins = heads.reshape([-1 if i == axis else 1 for i in range(b.ndim)])
        maps = *maps, jnp.broadcast_to(begins, b.shape)
        identity = *identity, jnp.zeros((), bool)
    local = lax.associative_scan(_then, maps, reverse=reverse, axis=axis)
    before = _before(local, _then, identity, axis, name, reverse=reverse)
    if first is not None:
        state = jnp.expand_dims(first, axis)
        before = _then((jnp.ones_like(state), state), before)
    h = _then(before, local)[1]
    return h, _last_over_devices(h, axis, name, reverse=reverse)


def _last_over_devices(y: Array, axis: int, name: str, *, reverse: bool) -> Array | None:
    """Return the last row of all devices, on each; None if there is none."""
    if y.shape[axis] == 0:  # so it is on all devices
        return None
    row = lax.index_in_dim(y, 0 if reverse else -1, axis, keepdims=False)
    ends = lax.axis_index(name) == (0 if reverse else lax.psum(1, name) - 1)
    return lax.psum(jnp.where(ends, row, 0), name)


def _heads_over_devices(heads: Array, name: str) -> Array:
    """Return where segments begin in a reverse scan: the element before the head of the next."""
    if not len(heads):
        return heads
    device, devices = lax.axis_index(name), lax.psum(1, name)
    every = lax.all_gather(heads[0], name)  # [devices]
    behind = jnp.where(device + 1 < devices, every[jnp.minimum(device + 1, devices - 1)], False)
    return jnp.append(heads[1:], behind)


def _then(earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
    """Compose maps h -> a h + b. Where a third array says so, a segment begins, from h = 0."""
    a, b, *begins = earlier
    if begins:
        a, b = jnp.where(later[2], 0, a), jnp.where(later[2], 0, b)
        begins = [begins[0] | later[2]]
    return later[0] * a, later[0] * b + later[1], *begins


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
    return_total: bool = False,
) -> Any:
    """Return this shard of a scan; with ``return_total``, the total of all shards, too."""
    x = jnp.asarray(x)
    axis = _axis(x, axis)
    combine, identity = function.combine, jnp.asarray(function.identity(x.dtype), x.dtype)
    if axis_name is None:
        way = _Way.of(comm, axis, reverse=reverse, exclusive=exclusive)
        y, n = function.over_ranks(x, way), x.shape[axis]
        if not return_total:
            return y
        number = jax.ShapeDtypeStruct((), np.int32)
        place = way.call_plainly(partial(_place, n, (False, True)), number)
        total = _last(combine(y, x) if exclusive else y, way, n)
        return y, jnp.where(place == _NOBODY, identity, total)
    local = function.local(x, axis=axis, reverse=reverse)
    before = _before(local, combine, identity, axis, axis_name, reverse=reverse)
    y = combine(before, local)
    total = _last_over_devices(y, axis, axis_name, reverse=reverse)
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
    way = None if axis_name is not None else _Way.of(comm, axis, reverse=reverse)
    n = x.shape[axis]
    if way is None:
        start = n * lax.axis_index(axis_name)
    else:
        start = way.call_plainly(partial(_start, n), jax.ShapeDtypeStruct((), integer))
    places = (start + jnp.arange(n)).astype(integer)
    places = places.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    none = jnp.asarray(jnp.iinfo(integer).max if reverse else -1, integer)
    own = jnp.where((x == y) | jnp.isnan(x), places, none)
    latest = _MINIMUM if reverse else _MAXIMUM
    return _scanned(latest, own, axis, comm, axis_name, reverse=reverse)


@collective
def _start(call: Agreement, n: int, *, comm: Comm, reverse: bool) -> int:
    """Return the number of elements on all ranks before this one."""
    call.same = Terms({"the function": "the places of elements"})
    call.settle()
    lengths = call.comm.allgather(n)
    call.begin()
    return sum(lengths[: call.comm.rank])


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


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _recurrence(a: Array, b: Array, heads: Array | None, way: _Way) -> Array:
    if heads is None:
        return way.call(solve, b, a, b)

    def call(a: Any, b: Any, heads: Any, **options: Any) -> Any:
        rows = (np.moveaxis(each, way.axis, 0) for each in (a, b))
        return np.moveaxis(solve(*rows, segments=heads, **options), 0, way.axis)

    return way.call_plainly(call, b, a, b, heads)


def _recurrence_forward(a: Array, b: Array, heads: Array | None, way: _Way) -> tuple[Array, Any]:
    h = _recurrence(a, b, heads, way)
    return h, (a, h, heads)


def _recurrence_backward(way: _Way, kept: Any, dh: Array) -> tuple[Array, Array, None]:
    """db[t] = dh[t] + a[t+1] db[t+1]; da[t] = db[t] h[t-1], without that of another segment."""
    a, h, heads = kept
    other, again = way.other(), way._replace(is_backward=True)
    db = _recurrence(_shift(a, other), dh, heads, other)
    before = _shift(h, again)
    if heads is not None:
        # Of a reverse scan, the first element of a segment is the one before the head of the next.
        along = again._replace(axis=0)
        begins = along.call(_shifted, heads, heads) if way.reverse else heads
        shape = [-1 if i == way.axis else 1 for i in range(h.ndim)]
        before = jnp.where(begins.reshape(shape), 0, before)
    return db * before, db, None


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)


def _solved(
    a: Array,
    b: Array,
    first: Array | None,
    heads: Array | None,
    way: _Way,
    *,
    return_last: bool,
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
    h, last = _recurrence(a, b, heads, way), None
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
        return (before * _shift(_recurrence(x, dy, None, other), other),)
    return (before * _recurrence(_shift(x, other), dy, None, other),)


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
        return (jnp.where(wins, _recurrence(goes_on, dy, None, other), 0),)

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
