"""Scans over ranks: JAX calls the host back, in the order of the program; with gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from ..core.operators import in_segments
from ..core.steps import wait_limit
from ..mpi.agree import Agreement, Terms, collective
from ..mpi.communicators import Comm, communicator, derived_key, gradients
from ..scan import scan as scan_shards
from ..uses.recurrence import linear_recurrence as solve_shards

Array = Any

_comms: dict[int, Comm] = {}  # by their names in `Way`


class Way(NamedTuple):
    """The ranks of a scan, its axis and its form: what is constant in a compiled program."""

    ranks: int  # the name of the communicator
    axis: int
    reverse: bool
    exclusive: bool = False
    is_backward: bool = False

    @classmethod
    def of(cls, comm: Comm | None, axis: int, *, reverse: bool, exclusive: bool = False) -> "Way":
        """Name a communicator; None is ``MPI.COMM_WORLD``."""
        ranks = communicator(comm)
        _comms[id(ranks)] = ranks
        return cls(id(ranks), axis, bool(reverse), bool(exclusive))

    def other(self) -> "Way":
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
            ranks = comm
            if self.is_backward:  # which a rank may leave out
                ranks = gradients(comm)
            elif comm.size > 1 and comm.Get_attr(derived_key("gradients")) is None:
                _prepare(comm=comm)
            given = [np.asarray(array) for array in arrays]
            result = function(*given, comm=ranks, reverse=self.reverse)
            return np.ascontiguousarray(result, like.dtype).reshape(like.shape)

        result = jax.ShapeDtypeStruct(like.shape, like.dtype)
        return io_callback(call, result, *arrays, ordered=True)


@collective
def _prepare(call: Agreement, *, comm: Comm) -> None:
    """Make what the backward pass needs, where all ranks are."""
    call.same = Terms({"the function": "distscan.jax"})
    wait_limit()  # a wrong setting is a fault here, not in the backward pass
    call.settle()
    gradients(call.comm)
    call.begin()


def scan(x: Array, op: str, way: Way, heads: Array | None = None) -> Array:
    """Scan by an operator, without derivatives; ``heads`` [n] say where segments begin."""
    if heads is None:
        form = {"axis": 0, "exclusive": way.exclusive, "dtype": x.dtype}
        return way.call(partial(scan_shards, op=op, **form), x, x)

    def call(x: Any, begins: Any, **options: Any) -> Any:
        rows = np.moveaxis(x, way.axis, 0)
        flags = np.broadcast_to(begins.reshape(-1, *[1] * (rows.ndim - 1)), rows.shape)
        y, _ = scan_shards((rows, flags), in_segments(op), axis=0, **options)
        return np.moveaxis(y, 0, way.axis)

    return way.call_plainly(call, x, x, heads_in_order(heads, way))


def replace(where: Array, value: Any, x: Array) -> Array:
    """Return ``x`` with a value at some places.

    ``jnp.where`` of arrays without elements forgets ``x`` in derivatives. A rank without elements
    would then be missing in the backward pass.
    """
    return jnp.where(where, value, x) if x.size else x


def heads_in_order(heads: Array, way: Way) -> Array:
    """Return bools [n]: where segments begin, in the order of the scan.

    In a reverse scan, it is the element before the head of the next segment.
    """
    return way._replace(axis=0).call(_shifted, heads, heads) if way.reverse else heads


def starts(heads: Array | None, n: int, way: Way, *, has_initial: bool = False) -> Array:
    """Return bools [n]: the first element of each segment, and of all, in the order of the scan.

    The ranks must agree on ``has_initial``.
    """
    number = jax.ShapeDtypeStruct((), np.int32)
    place = way.call_plainly(partial(_place, n, (has_initial, False)), number)
    begins = jnp.zeros(n, bool) if heads is None else heads_in_order(heads, way)
    if n == 0:
        return begins
    at = n - 1 if way.reverse else 0
    return begins.at[at].set(begins[at] | (place == _FIRST))


def places(n: int, way: Way, integer: Any) -> Array:
    """Return the places [n] of this rank's elements among those of all ranks."""
    start = way.call_plainly(partial(_start, n), jax.ShapeDtypeStruct((), integer))
    return (start + jnp.arange(n)).astype(integer)


@collective
def _start(call: Agreement, n: int, *, comm: Comm, reverse: bool) -> int:
    """Return the number of elements on all ranks before this one."""
    call.same = Terms({"the function": "the places of elements"})
    call.settle()
    lengths = call.comm.allgather(n)
    call.begin()
    return sum(lengths[: call.comm.rank])


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
def sums(x: Array, way: Way) -> Array:
    """Return cumulative sums."""
    return scan(x, "sum", way)


sums.defvjp(
    lambda x, way: (sums(x, way), None),
    lambda way, _, dy: (sums(dy, way.other()),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def shift(x: Array, way: Way) -> Array:
    """Return x[t-1]; 0 before the first element."""
    return way.call(_shifted, x, x)


shift.defvjp(
    lambda x, way: (shift(x, way), None),
    lambda way, _, dy: (shift(dy, way.other()),),
)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def recurrence(a: Array, b: Array, heads: Array | None, way: Way) -> Array:
    """Return h[t] = a[t] h[t-1] + b[t]; ``heads`` [n] say where segments begin, from h = 0."""
    if heads is None:
        return way.call(solve_shards, b, a, b)

    def call(a: Any, b: Any, heads: Any, **options: Any) -> Any:
        rows = (np.moveaxis(each, way.axis, 0) for each in (a, b))
        return np.moveaxis(solve_shards(*rows, segments=heads, **options), 0, way.axis)

    return way.call_plainly(call, b, a, b, heads)


def _recurrence_forward(a: Array, b: Array, heads: Array | None, way: Way) -> tuple[Array, Any]:
    h = recurrence(a, b, heads, way)
    return h, (a, h, heads)


def _recurrence_backward(way: Way, kept: Any, dh: Array) -> tuple[Array, Array, None]:
    """db[t] = dh[t] + a[t+1] db[t+1]; da[t] = db[t] h[t-1], without that of another segment."""
    a, h, heads = kept
    other, again = way.other(), way._replace(is_backward=True)
    db = recurrence(shift(a, other), dh, heads, other)
    before = shift(h, again)
    if heads is not None:
        begins = heads_in_order(heads, again)
        shape = [-1 if i == way.axis else 1 for i in range(h.ndim)]
        before = replace(begins.reshape(shape), 0, before)
    return db * before, db, None


recurrence.defvjp(_recurrence_forward, _recurrence_backward)


def solve(
    a: Array,
    b: Array,
    first: Array | None,
    heads: Array | None,
    way: Way,
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
    h, last = recurrence(a, b, heads, way), None
    if return_last:
        last = last_row(h, way, n)
        if first is not None:
            last = jnp.where(place == _NOBODY, first, last)
    return h, last


_NOBODY, _FIRST, _LATER = range(3)  # which rank has the first element: none, this one, another


def total(y: Array, identity: Array, way: Way) -> Array:
    """Return the last row of inclusive results, the same on every rank; ``identity`` of none."""
    n = y.shape[way.axis]
    number = jax.ShapeDtypeStruct((), np.int32)
    place = way.call_plainly(partial(_place, n, (False, True)), number)
    return jnp.where(place == _NOBODY, identity, last_row(y, way, n))


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
def last_row(h: Array, way: Way, n: int) -> Array:
    """Return the last state of all ranks; this one has ``n``."""
    shape = *h.shape[: way.axis], *h.shape[way.axis + 1 :]

    def call(h: Any, **options: Any) -> Any:
        return _row_of_owner(np.moveaxis(h, way.axis, 0), **options)

    return way.call_plainly(call, jax.ShapeDtypeStruct(shape, h.dtype), h)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _to_last(x: Array, way: Way, n: int) -> Array:
    """Return ``n`` states of zeros; the last one of all ranks is the sum of their x."""
    shape = *x.shape[: way.axis], n, *x.shape[way.axis :]

    def call(x: Any, **options: Any) -> Any:
        return np.moveaxis(_sum_for_owner(x, n, **options), 0, way.axis)

    return way.call_plainly(call, jax.ShapeDtypeStruct(shape, x.dtype), x)


last_row.defvjp(
    lambda h, way, n: (last_row(h, way, n), None),
    lambda way, n, _, dy: (_to_last(dy, way._replace(is_backward=True), n),),
)
_to_last.defvjp(
    lambda x, way, n: (_to_last(x, way, n), None),
    lambda way, n, _, dy: (last_row(dy, way._replace(is_backward=True), n),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def products(x: Array, way: Way) -> Array:
    """Return cumulative products."""
    return scan(x, "prod", way)


def _product_backward(way: Way, x: Array, dy: Array) -> tuple[Array]:
    """dx[t] = (product before t) r[t]; r[t] = dy[t] + x[t+1] r[t+1], or exclusively so."""
    other = way.other()._replace(exclusive=False)
    before = products(x, way._replace(exclusive=True, is_backward=True))
    if way.exclusive:
        return (before * shift(recurrence(x, dy, None, other), other),)
    return (before * recurrence(shift(x, other), dy, None, other),)


products.defvjp(lambda x, way: (products(x, way), x), _product_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def log_sums(x: Array, heads: Array | None, way: Way) -> Array:
    """Return logarithms of cumulative sums of exponentials."""
    return scan(x, "logaddexp", way, heads)


def _log_sums_forward(x: Array, heads: Array | None, way: Way) -> tuple[Array, Any]:
    y = log_sums(x, heads, way)
    return y, (x, y, heads)


def _log_sums_backward(way: Way, kept: Any, dy: Array) -> tuple[Array, None]:
    """dx[t] = sum of dy[j] exp(x[t] - y[j]) over j from t on, by logarithms of both signs."""
    x, y, heads = kept
    logs = jnp.where(y == -jnp.inf, -jnp.inf, jnp.log(jnp.abs(dy)) - y)
    parts = [
        jnp.exp(x + scan(jnp.where(sign, logs, -jnp.inf), "logaddexp", way.other(), heads))
        for sign in (dy > 0, dy < 0)
    ]
    return parts[0] - parts[1], None


log_sums.defvjp(_log_sums_forward, _log_sums_backward)


def _extremes(op: str) -> Any:
    """Return the cumulative maximum or minimum."""

    @partial(jax.custom_vjp, nondiff_argnums=(2,))
    def extremes(x: Array, heads: Array | None, way: Way) -> Array:
        return scan(x, op, way, heads)

    def forward(x: Array, heads: Array | None, way: Way) -> tuple[Array, Any]:
        y = extremes(x, heads, way)
        return y, ((x == y) | jnp.isnan(x), heads)

    def backward(way: Way, kept: Any, dy: Array) -> tuple[Array, None]:
        # An element that wins gets dy up to the next one that wins.
        (wins, heads), other = kept, way.other()
        goes_on = shift((~wins).astype(dy.dtype), other)
        return jnp.where(wins, recurrence(goes_on, dy, heads, other), 0), None

    extremes.defvjp(forward, backward)
    return extremes


maxima, minima = _extremes("max"), _extremes("min")
