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

from .functions import (
    cumlogsumexp,
    cummax,
    cummin,
    cumprod,
    cumsum,
    linear_recurrence,
    scan,
)

__all__ = [
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "linear_recurrence",
    "scan",
]
