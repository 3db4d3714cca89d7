"""Where segments begin: from flags or keys to what the backends and the exchange work with."""

from typing import Any, NamedTuple

import numpy as np

from . import arrays
from .forms import Edges


class Segments(NamedTuple):
    """The segments of one shard."""

    heads: Any  # bool [n], in the memory of the keys: where segments begin in scan order
    edges: Edges | None  # None: an empty shard


def find(marks: Any, heads: Any = None, *, reverse: bool) -> Segments:
    """Find where segments begin inside a shard, from flags (bool) or keys ``marks`` [n].

    ``heads`` [n], bool, is overwritten if it is needed; None allocates it. Whether a segment begins
    at the first element in scan order is known from the edges, or from flags of a forward scan.

    >>> find(np.array([7, 7, 8]), reverse=False).heads
    array([False, False,  True])
    """
    flags = marks.dtype == np.bool_
    if flags and not reverse and marks.flags.c_contiguous:
        return Segments(marks, _edges(marks, flags=True, reverse=False))
    heads = np.empty_like(marks, np.bool_, order="C") if heads is None else heads
    if flags and not reverse:
        heads[...] = marks
    elif len(marks) > 0:
        # In reverse, an element begins a segment where the next in memory begins another.
        inner, heads[-1 if reverse else 0] = heads[:-1] if reverse else heads[1:], False
        if flags:
            inner[...] = marks[1:]
        else:
            np.not_equal(marks[1:], marks[:-1], out=inner)
    return Segments(heads, _edges(marks, flags=flags, reverse=reverse))


def _edges(marks: Any, *, flags: bool, reverse: bool) -> Edges | None:
    """Return what tells of a segment between two shards: keys that differ, or a flag."""
    if len(marks) == 0:
        return None
    if flags:  # a forward scan has it among its own heads
        return Edges(False, reverse and arrays.to_host(marks[:1])[0])
    low, high = arrays.to_host(marks[:: max(len(marks) - 1, 1)])[[0, -1]]
    return Edges(high, low) if reverse else Edges(low, high)
