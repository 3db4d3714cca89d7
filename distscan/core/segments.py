"""Where segments begin: from flags or keys to what the steps and the exchange work with."""

import hashlib
from typing import Any

import numpy as np

from .steps import Edges


def edge_dtype(segments: np.dtype[Any] | None) -> np.dtype[Any] | None:
    """Return the type of the edges of flags or keys; text, of any width, travels as a digest."""
    if segments is None or segments.kind not in "SU":
        return segments
    return np.dtype("S32")


def heads(segments: Any, buffer: Any, *, reverse: bool) -> Any:
    """Return where segments begin inside a shard, bool [n], from flags (bool) or keys [n].

    ``buffer``, bool [n], is overwritten if it is needed. Whether a segment begins at the first
    element in scan order is known from the edges, or from flags of a forward scan.

    >>> heads(np.array([7, 7, 8]), np.empty(3, np.bool_), reverse=False)
    array([False, False,  True])
    """
    if needs_no_buffer(segments, reverse=reverse):
        return segments
    flags = segments.dtype == np.bool_
    if flags and not reverse:
        buffer[...] = segments
    elif len(segments) > 0:
        # In reverse, an element begins a segment where the next in memory begins another.
        inner, buffer[-1 if reverse else 0] = buffer[:-1] if reverse else buffer[1:], False
        if flags:
            inner[...] = segments[1:]
        else:
            np.not_equal(segments[1:], segments[:-1], out=inner)
    return buffer


def needs_no_buffer(segments: Any, *, reverse: bool) -> bool:
    """Whether flags are what ``heads`` returns, as they stand."""
    return bool(segments.dtype == np.bool_ and not reverse and segments.flags.c_contiguous)


def edges(segments: Any, *, reverse: bool) -> Edges | None:
    """Return what tells of a segment between two shards: keys that differ, or a flag.

    None is an empty shard.
    """
    if len(segments) == 0:
        return None
    if segments.dtype == np.bool_:  # a forward scan has it among its own heads
        return Edges(False, reverse and bool(segments[0]))
    ends = segments[:: max(len(segments) - 1, 1)]
    low, high = (ends if isinstance(ends, np.ndarray) else ends.get())[[0, -1]]
    if segments.dtype.kind in "SU":
        low, high = _digest(low), _digest(high)
    return Edges(high, low) if reverse else Edges(low, high)


def _digest(text: Any) -> bytes:
    data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()
