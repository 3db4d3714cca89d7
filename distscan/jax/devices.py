"""Scans over the devices of a mesh, inside ``jax.shard_map``: XLA scans, and gathers totals."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = Any


def before_shard(
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


def solve(
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
        heads = heads_in_order(heads, name) if reverse else heads
        maps = *maps, jnp.broadcast_to(along(heads, b, axis), b.shape)
        identity = *identity, jnp.zeros((), bool)
    local = lax.associative_scan(_then, maps, reverse=reverse, axis=axis)
    before = before_shard(local, _then, identity, axis, name, reverse=reverse)
    if first is not None:
        state = jnp.expand_dims(first, axis)
        before = _then((jnp.ones_like(state), state), before)
    h = _then(before, local)[1]
    return h, last_row(h, axis, name, reverse=reverse)


def last_row(y: Array, axis: int, name: str, *, reverse: bool) -> Array | None:
    """Return the last row of all devices, on each; None if there is none."""
    if y.shape[axis] == 0:  # so it is on all devices
        return None
    row = lax.index_in_dim(y, 0 if reverse else -1, axis, keepdims=False)
    ends = lax.axis_index(name) == (0 if reverse else lax.psum(1, name) - 1)
    return lax.psum(jnp.where(ends, row, 0), name)


def heads_in_order(heads: Array, name: str) -> Array:
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


def scan_in_segments(
    x: Array,
    heads: Array,
    combine: Callable[[Array, Array], Array],
    identity: Array,
    *,
    axis: int,
    name: str,
    reverse: bool,
) -> Array:
    """Return this device's part of the scans of segments, which begin at ``heads`` [n]."""

    def then(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        joined = jnp.where(later[1], later[0], combine(earlier[0], later[0]))
        return joined, earlier[1] | later[1]

    begins = along(heads_in_order(heads, name) if reverse else heads, x, axis)
    pairs = x, jnp.broadcast_to(begins, x.shape)
    local = lax.associative_scan(then, pairs, reverse=reverse, axis=axis)
    nothing = identity, jnp.zeros((), bool)
    before = before_shard(local, then, nothing, axis, name, reverse=reverse)
    return then(before, local)[0]


def shift(x: Array, axis: int, name: str, *, reverse: bool) -> Array:
    """Return x[t-1] in the order of the scan; 0 before the first element of all devices."""
    if x.shape[axis] == 0:
        return x
    device, devices = lax.axis_index(name), lax.psum(1, name)
    every = lax.all_gather(lax.index_in_dim(x, 0 if reverse else -1, axis), name)  # [devices, ...]
    nearest = device + 1 if reverse else device - 1
    inside = (nearest >= 0) & (nearest < devices)
    row = jnp.where(inside, every[jnp.clip(nearest, 0, devices - 1)], 0)
    some = lax.slice_in_dim(x, *((1, None) if reverse else (0, -1)), axis=axis)
    return jnp.concatenate([some, row] if reverse else [row, some], axis)


def starts(heads: Array | None, n: int, name: str, *, reverse: bool) -> Array:
    """Return bools [n]: the first element of each segment, and of all, in the order of the scan."""
    begins = jnp.zeros(n, bool)
    if heads is not None:
        begins = heads_in_order(heads, name) if reverse else heads
    if n == 0:
        return begins
    at, first = (n - 1, lax.psum(1, name) - 1) if reverse else (0, 0)
    return begins.at[at].set(begins[at] | (lax.axis_index(name) == first))


def along(heads: Array, x: Array, axis: int) -> Array:
    """View flags [n] along an axis of ``x``."""
    return heads.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
