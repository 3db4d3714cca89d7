"""Segments: from flags or keys to head flags inside a shard, and edges between shards."""

from typing import Any

import numpy as np

from .dtypes import is_bfloat16
from .form import Extents, Form
from .steps import Edges


def check_type(segments: np.dtype[Any], extents: Extents) -> None:
    """Check that arrays of a type can be flags or keys of a shard; raise TypeError, ValueError."""
    if extents.axis is not None:
        raise ValueError(f"segments= goes with axis=None, not axis={extents.axis}")
    check_kind(segments)


def check_kind(segments: np.dtype[Any]) -> None:
    """Check that arrays of a type can be flags or keys; raise TypeError."""
    if segments.hasobject or segments.names is not None:
        raise TypeError(f"segments is {segments}; flags are bool, keys numbers, dates or text")


def check_shape(segments: Any, x: Any) -> None:
    """Check that there is a flag or a key for each element of ``x``; raise ValueError."""
    if segments.shape not in (x.shape, (x.size,)):
        raise ValueError(f"segments has shape {segments.shape}; x has {x.shape}")


def check_steps(segments: Any, x: Any, axis: int) -> None:
    """Check flags or keys for each step of an axis of ``x``; raise TypeError or ValueError."""
    n = x.shape[axis]
    if segments.shape != (n,):
        raise ValueError(
            f"segments has shape {segments.shape}; along axis {axis} of x it is ({n},)"
        )
    check_kind(segments.dtype)


def edge_dtype(segments: np.dtype[Any] | None) -> np.dtype[Any] | None:
    """Return the type of the edges of flags or keys; the edges of text are digests, as S32."""
    if segments is None or segments.kind not in "SU":
        return segments
    return np.dtype("S32")


def term_of(segments: np.dtype[Any] | None) -> Any:
    """Return what must be the same on every rank: the type, but for the width of text."""
    if segments is None or segments.kind not in "SU":
        return segments
    return f"text, {segments.kind}"


def compared(segments: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the type as which kernels compare keys; None for flags, and for types of other keys.

    Integers are compared by their bits. Floats are compared by value. Of dates and durations, NaT
    is equal to nothing.

    >>> compared(np.dtype("i4")), compared(np.dtype("m8[s]")), compared(np.dtype("U3"))
    (dtype('uint32'), dtype('<M8'), None)
    """
    if not segments.isnative:
        return None
    if segments.kind in "iu":
        return np.dtype(f"u{segments.itemsize}")
    if segments.kind in "mM":
        return np.dtype("M8")
    floats = segments.kind == "f" and segments.itemsize <= 8
    return segments if floats or is_bfloat16(segments) else None


def find_heads(segments: Any, buffer: Any, *, reverse: bool) -> None:
    """Store the head flags inside a shard in ``buffer``, bool [n], from flags (bool) or keys [n].

    For keys and for reverse scans, the flag of the first element in scan order is False: the edges
    tell whether a segment begins there.

    >>> buffer = np.empty(3, np.bool_)
    >>> find_heads(np.array([7, 7, 8]), buffer, reverse=False)
    >>> buffer
    array([False, False,  True])
    """
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


def are_read_in_place(segments: Any, form: Form) -> bool:
    """Return whether kernels read ``segments`` as they are: contiguous keys or forward flags."""
    if form.keys is None and (form.reverse or segments.dtype != np.bool_):
        return False
    return bool(segments.flags.c_contiguous)


def as_read(segments: Any, form: Form, work: Any) -> Any:
    """Return ``segments`` if kernels read them in place, else the buffer of a workspace ``work``.

    The buffer is the same for every call. It has a copy of keys that kernels compare. Other
    segments become head flags.
    """
    if are_read_in_place(segments, form):
        return segments
    buffer, compares = work.segments, form.keys is not None
    if buffer is None:
        buffer = work.hold_segments(form.extents.length, segments.dtype if compares else np.bool_)
    if compares:
        buffer[...] = segments
    else:
        find_heads(segments, buffer, reverse=form.reverse)
    return buffer


def edges(segments: Any, *, reverse: bool) -> Edges | None:
    """Return the edges of a shard: its first and last key in scan order, or flags in their place.

    None for an empty shard. Keys in the memory of a GPU are copied to the host.
    """
    if len(segments) == 0:
        return None
    if segments.dtype == np.bool_:  # in a forward scan, the shard's own head flags have it
        return Edges(False, reverse and bool(segments[0]))
    ends = segments[:: max(len(segments) - 1, 1)]
    low, high = (ends if isinstance(ends, np.ndarray) else ends.get())[[0, -1]]
    if segments.dtype.kind in "SU":
        low, high = _digest(low), _digest(high)
    return between(low, high, reverse=reverse)


def between(low: Any, high: Any, *, reverse: bool) -> Edges:
    """Return the edges of a shard from its first and its last key in memory."""
    return Edges(high, low) if reverse else Edges(low, high)


def _digest(text: Any) -> bytes:
    import hashlib  # noqa: PLC0415 - only keys of text need it, and it loads OpenSSL

    data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()
