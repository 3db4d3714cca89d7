"""Segments: from flags or keys to head flags inside a shard, and edges between shards."""

from typing import Any

import numpy as np

from .extents import Extents
from .steps import Edges


def check_type(segments: np.dtype[Any], extents: Extents) -> None:
    """Check that arrays of a type can be flags or keys of a shard; raise TypeError, ValueError."""
    if extents.axis is not None:
        raise ValueError(f"segments= goes with axis=None, not axis={extents.axis}")
    if segments.hasobject or segments.names is not None:
        raise TypeError(f"segments is {segments}; flags are bool, keys numbers, dates or text")


def check_shape(segments: Any, x: Any) -> None:
    """Check that there is a flag or a key for each element of ``x``; raise ValueError."""
    if segments.shape not in (x.shape, (x.size,)):
        raise ValueError(f"segments has shape {segments.shape}; x has {x.shape}")


def edge_dtype(segments: np.dtype[Any] | None) -> np.dtype[Any] | None:
    """Return the type of the edges of flags or keys; the edges of text are digests, as S32."""
    if segments is None or segments.kind not in "SU":
        return segments
    return np.dtype("S32")


def heads(segments: Any, buffer: Any, *, reverse: bool) -> Any:
    """Return the head flags inside a shard, bool [n], from flags (bool) or keys [n].

    ``buffer``, bool [n], is overwritten if it is needed. For keys and for reverse scans, the flag
    of the first element in scan order is False: the edges tell whether a segment begins there.

    >>> heads(np.array([7, 7, 8]), np.empty(3, np.bool_), reverse=False)
    array([False, False,  True])
    """
    if needs_no_buffer(segments, reverse=reverse):
        return segments
    flags = segments.dtype == np.bool_
    if flags and not reverse:
        buffer[...] = segments
    elif len(segments) > 0:
        # In reverse, an element is a head if the next element in memory begins another segment.
        inner, buffer[-1 if reverse else 0] = buffer[:-1] if reverse else buffer[1:], False
        if flags:
            inner[...] = segments[1:]
        else:
            np.not_equal(segments[1:], segments[:-1], out=inner)
    return buffer


def needs_no_buffer(segments: Any, *, reverse: bool) -> bool:
    """Return whether ``heads`` returns ``segments`` itself: forward, contiguous flags."""
    return bool(segments.dtype == np.bool_ and not reverse and segments.flags.c_contiguous)


def edges(segments: Any, *, reverse: bool) -> Edges | None:
    """Return the edges of a shard: its first and last key in scan order, or flags in their place.

    None for an empty shard.
    """
    if len(segments) == 0:
        return None
    if segments.dtype == np.bool_:  # in a forward scan, the shard's own head flags have it
        return Edges(False, reverse and bool(segments[0]))
    ends = segments[:: max(len(segments) - 1, 1)]
    low, high = (ends if isinstance(ends, np.ndarray) else ends.get())[[0, -1]]
    if segments.dtype.kind in "SU":
        low, high = _digest(low), _digest(high)
    return Edges(high, low) if reverse else Edges(low, high)


def _digest(text: Any) -> bytes:
    import hashlib  # noqa: PLC0415 - only keys of text need it, and it loads OpenSSL

    data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()
