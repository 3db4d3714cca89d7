"""The segmented scan on NumPy arrays [n], in cache-sized chunks; no call for single elements."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.operators import Operator
from ..core.shards import chunks
from .chunked import CHUNK, accumulate

_FEW = 32  # segments in a chunk up to which a call for each is faster than tables


@np.errstate(all="ignore")
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
        piece = x[low:high].astype(acc)
        if first is not None and starts.size:
            piece[starts] = op.combine(first, piece[starts])
        _accumulate(op, piece, starts)
        if carry is not None:
            ours = piece[: starts[0]] if starts.size else piece
            op.combine(carry, ours, out=ours)
        if exclusive:
            target[1:] = piece[:-1]
            if carry is not None:
                target[:1] = carry
            target[starts] = first
        else:
            target[...] = piece
        carry = np.array(piece[-1])


def _accumulate(op: Operator, piece: NDArray[Any], starts: NDArray[np.intp]) -> None:
    """Scan one chunk [n] in place; each of ``starts`` begins again with its own element."""
    begins = starts if starts.size and starts[0] == 0 else np.concatenate([[0], starts])
    lengths = np.diff(begins, append=piece.size)
    if begins.size <= _FEW:
        for begin, length in zip(begins, lengths, strict=True):
            part = piece[None, begin : begin + length, None]
            accumulate(op, part, part)
        return
    # Segments of 2, 3 to 4, 5 to 8, ... elements each fill the rows of one table.
    width = np.exp2(np.ceil(np.log2(lengths))).astype(np.intp)
    for columns in np.unique(width[width > 1]):
        alike = width == columns
        place = begins[alike, None] + np.arange(columns)
        table = piece[np.minimum(place, piece.size - 1), None]
        accumulate(op, table, table)
        inside = np.arange(columns) < lengths[alike, None]
        piece[place[inside]] = table[inside, 0]
