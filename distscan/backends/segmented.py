"""The segmented scan on NumPy arrays [n], in cache-sized chunks; no step for single elements."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..operators import Operator
from ..shards import chunks
from .chunked import CHUNK, accumulate, store

_FEW = 64  # segments in a chunk up to which a call for each is faster than doubling


def scan(
    op: Operator,
    x: NDArray[Any],
    out: NDArray[Any],
    heads: NDArray[Any],
    carry: NDArray[Any] | None,
    *,
    first: NDArray[Any] | None,
    acc: np.dtype[Any],
    exclusive: bool,
) -> None:
    """Scan ``x`` into ``out``, which may be ``x``: behind ``first`` from each head on.

    What comes before the first head goes on from ``carry``. Elements are combined in type ``acc``.
    """
    for low, high in chunks(0, x.size, CHUNK):
        target = out[low:high]
        starts = np.flatnonzero(heads[low:high])
        piece = np.empty(high - low, acc)
        store(x[low:high], piece)
        if first is not None and starts.size:
            piece[starts] = op.combine(first, piece[starts])
        _accumulate(op, piece, starts)
        if carry is not None:
            ours = piece[: starts[0]] if starts.size else piece
            op.combine(carry, ours, out=ours)
        if exclusive:
            store(piece[:-1], target[1:])
            if carry is not None:
                store(carry, target[:1])
            target[starts] = _cast(first, out.dtype)
        else:
            store(piece, target)
        carry = np.array(piece[-1])


def _accumulate(op: Operator, piece: NDArray[Any], starts: NDArray[np.intp]) -> None:
    """Scan one chunk [n] in place; each of ``starts`` begins again with its own element."""
    if starts.size <= _FEW:
        for low, high in zip((0, *starts), (*starts, piece.size), strict=True):
            if low < high:
                part = piece[None, low:high, None]
                accumulate(op, part, part)
        return
    # Log-step doubling (Hillis and Steele, 1986) of those that are as far from their head.
    index = np.arange(piece.size)
    begins = np.zeros_like(index)
    begins[starts] = starts
    depth = index - np.maximum.accumulate(begins)
    step = 1
    while (index := index[depth[index] >= step]).size:
        piece[index] = op.combine(piece[index - step], piece[index])
        step *= 2


def _cast(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    cast = np.empty((), dtype)
    store(value, cast)
    return cast
