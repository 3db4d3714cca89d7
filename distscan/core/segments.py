"""Where segments begin: from flags or keys to what the steps and the exchange work with."""

import hashlib
from typing import Any

import numpy as np

from . import arrays
from .forms import Edges


def edge_dtype(marks: np.dtype[Any] | None) -> np.dtype[Any] | None:
    """Return the type of the edges of flags or keys; text, of any width, travels as a digest."""
    if marks is None or marks.kind not in "SU":
        return marks
    return np.dtype("S32")


def heads(marks: Any, buffer: Any, *, reverse: bool) -> Any:
    """Return where segments begin inside a shard, bool [n], from flags (bool) or keys [n].

    ``buffer``, bool [n], is overwritten if it is needed. Whether a segment begins at the first
    element in scan order is known from the edges, or from flags of a forward scan.

    >>> heads(np.array([7, 7, 8]), np.empty(3, np.bool_), reverse=False)
    array([False, False,  True])
    """
    if needs_no_buffer(marks, reverse=reverse):
        return marks
    flags = marks.dtype == np.bool_
    if flags and not reverse:
        buffer[...] = marks
    elif len(marks) > 0:
        # In reverse, an element begins a segment where the next in memory begins another.
        inner, buffer[-1 if reverse else 0] = buffer[:-1] if reverse else buffer[1:], False
        if flags:
            inner[...] = marks[1:]
        else:
            np.not_equal(marks[1:], marks[:-1], out=inner)
    return buffer


def needs_no_buffer(marks: Any, *, reverse: bool) -> bool:
    """Whether flags are what ``heads`` returns, as they stand."""
    return bool(marks.dtype == np.bool_ and not reverse and marks.flags.c_contiguous)


def edges(marks: Any, *, reverse: bool) -> Edges | None:
    """Return what tells of a segment between two shards: keys that differ, or a flag.

    None is an empty shard.
    """
    if len(marks) == 0:
        return None
    if marks.dtype == np.bool_:  # a forward scan has it among its own heads
        return Edges(False, reverse and arrays.to_host(marks[:1])[0])
    low, high = arrays.to_host(marks[:: max(len(marks) - 1, 1)])[[0, -1]]
    if marks.dtype.kind in "SU":
        low, high = _digest(low), _digest(high)
    return Edges(high, low) if reverse else Edges(low, high)


def _digest(text: Any) -> bytes:
    data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()
