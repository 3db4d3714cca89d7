"""Scan and reduce of NumPy arrays [outer, n, inner] along n, in chunks that fit in cache.

The segmented scan of arrays [n] works in chunks, too; it calls NumPy for many segments at once.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.form import Form
from ..core.operators import Operator, load_into

# Elements of a chunk. A chunk is scanned, then the running total is combined into it: it is small,
# so that it is still in cache, and chains of roundings are short. 2^25 float32 on one CPU core:
#
#     elements      4096  8192  16384
#     milliseconds   456   343    327
CHUNK = 8192
# The same for operators that are functions of Python: each call takes microseconds.
_CHUNK_OF_CALLS = 1 << 17
_PIECE = 16  # elements that such an operator combines one after the other; see ``_scan_in_pieces``
_WIDTH = 1024  # columns of a chunk: whole cache lines, and enough for one NumPy call
_HALVES = 4096  # sums of at least so many elements are faster as two halves at a time
_FEW_SEGMENTS = 32  # up to so many segments in a chunk, a call for each is faster than tables
_FEW = 16  # up to so many steps along n, or columns, a call for each is faster than one for all

Part = tuple[slice, slice, slice]


def parts(
    shape: tuple[int, int, int], chunk: int = CHUNK, row: int = 0
) -> Iterator[Iterator[Part]]:
    """Yield the strips of [outer, n, inner] along n; each strip yields its chunks in order.

    The array may have some columns of longer rows, of ``row`` elements. They then have the chunks
    of these rows, and so the bits of the scan of all columns.
    """
    outer, n, inner = shape
    width = min(max(row, inner), _WIDTH)
    length = max(1, min(n, chunk // max(width, 1)))
    height = max(1, chunk // max(width * length, 1)) if length == n else 1
    for top in range(0, outer, height):
        for first in range(0, inner, max(width, 1)):
            rows, columns = slice(top, top + height), slice(first, first + width)
            yield ((rows, slice(low, low + length), columns) for low in range(0, n, length))


def in_scan_order(array: NDArray[Any], form: Form) -> NDArray[Any]:
    """View an array as [outer, n, inner], with the first element in scan order first."""
    if array.ndim != 3:  # else it may have some of the columns
        array = array.reshape(form.extents.outer, form.extents.length, form.extents.inner)
    return array[:, ::-1] if form.reverse else array


def before(carry: NDArray[Any] | None, part: Part) -> NDArray[Any] | None:
    """Return the part of a carry, 0-d or [inner], that belongs to a strip; it broadcasts."""
    return carry if carry is None or carry.ndim == 0 else carry[part[2]]


@np.errstate(all="ignore")  # once per scan: once per chunk would take a tenth of the time
def scan(
    op: Operator,
    x: NDArray[Any],
    out: NDArray[Any],
    carry: NDArray[Any] | None,
    acc: np.dtype[Any],
    *,
    exclusive: bool,
    row: int = 0,
    totals: NDArray[Any] | None = None,
) -> None:
    """Scan ``x`` into ``out``, which may be ``x``, seeded with ``carry``.

    Elements are combined in type ``acc``. An exclusive scan without a carry does not write the
    first element of ``out``. The totals of columns are stored in ``totals`` [inner] unless None.
    For ``row`` see ``parts``.
    """
    combine, chunk = op.function, _chunk_of(op)
    direct = acc == out.dtype and not exclusive and isinstance(out, np.ndarray)
    spare = np.empty(0 if direct else min(x.size, chunk), acc)
    pairs = None if acc == out.dtype else _pairs(op, x, acc)
    for strip in parts(x.shape, chunk, row):
        last = None
        for part in strip:
            if last is None:
                last = before(carry, part)
            target = out[part]
            piece = target if direct else spare[: target.size].reshape(target.shape)
            if pairs is not None and piece.size >= _HALVES:
                _sums(load(op, x[part], acc)[0, :, 0], piece[0, :, 0], pairs)
            else:
                accumulate(op, load(op, x[part], acc), piece)
            if last is not None:
                combine(last, piece, out=piece)
            if exclusive:
                if last is not None:
                    target[:, :1] = last
                target[:, 1:] = piece[:, :-1]
            elif not direct:
                target[...] = piece
            last = piece[:, -1:].copy()
            columns = part[2]
        if totals is not None and last is not None:
            totals[columns] = last[-1, 0]


@np.errstate(all="ignore")
def add(
    op: Operator, local: NDArray[Any], offset: NDArray[Any] | None, out: NDArray[Any] | None
) -> None:
    """Combine ``offset``, 0-d or [inner], into each element of ``local``, in place.

    If ``out`` is not None, the results are also stored there, in its type.
    """
    for strip in parts(local.shape, _chunk_of(op)):
        for part in strip:
            piece = local[part]
            if offset is not None:
                op.function(before(offset, part), piece, out=piece)
            if out is not None:
                out[part] = piece


def store(piece: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy running values to ``out``, rounded or truncated to its type."""
    with np.errstate(all="ignore"):
        out[...] = piece


@np.errstate(all="ignore")
def reduce(op: Operator, x: NDArray[Any], acc: np.dtype[Any], row: int = 0) -> NDArray[Any]:
    """Return the totals [inner] of ``x`` [1, n, inner] along n, in type ``acc``.

    For ``row`` see ``parts``.
    """
    totals, combine = np.empty(x.shape[2], acc), op.function
    for strip in parts(x.shape, _chunk_of(op), row):
        total: Any = None
        for part in strip:
            chunk = _reduce(op, load(op, x[part], acc)[0], acc)
            total = chunk if total is None else combine(total, chunk)
            columns = part[2]
        totals[columns] = total
    return totals


def _reduce(op: Operator, x: NDArray[Any], acc: np.dtype[Any]) -> Any:
    """Return the totals [inner] of one chunk [n, inner]: x[0] op ... op x[-1], in type ``acc``."""
    if op.is_ufunc:
        ufunc: Any = op.numpy
        # initial=None starts with the first element. To start with 0.0 would change a sum of -0.0.
        kind = _in_ufunc(acc)
        if x.shape[1] > _FEW:
            return ufunc.reduce(x, 0, kind, initial=None)
        return np.array([ufunc.reduce(column, 0, kind, initial=None) for column in x.T], acc)
    # Any vectorised function: combine neighbours in pairs; an odd last element waits.
    x = x.astype(acc)
    while len(x) > 1:
        paired = op.function(x[0 : len(x) // 2 * 2 : 2], x[1::2])
        x = np.concatenate([paired, x[len(x) // 2 * 2 :]])
    return x[0]


def load(op: Operator, x: NDArray[Any], acc: np.dtype[Any]) -> NDArray[Any]:
    """Return elements as an operator loads them, in type ``acc``; without ``load``, as they are."""
    if op.load is None:
        return x.astype(acc, copy=False) if _in_ufunc(acc) is None else x
    elements: NDArray[Any] = np.empty(x.shape, acc)
    load_into(op.name, op.load, x, elements)
    return elements


def _in_ufunc(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the argument of a ufunc for a type; None for times, whose unit it does not take."""
    return None if dtype.kind in "mM" else dtype


def accumulate(op: Operator, x: NDArray[Any], out: NDArray[Any]) -> None:
    """Scan one chunk [outer, n, inner] along n, in the type of ``out``.

    The caller silences overflow.
    """
    n, combine = out.shape[1], op.function
    wide = n <= _FEW or out.shape[2] >= _WIDTH // 4
    if op.is_ufunc and not wide:
        op.numpy.accumulate(x, 1, _in_ufunc(out.dtype), out)  # type: ignore[attr-defined]
        return
    out[...] = x
    if wide:
        for i in range(1, n):
            combine(out[:, i - 1], out[:, i], out=out[:, i])
        return
    _scan_in_pieces(op, out)


def _scan_in_pieces(op: Operator, x: NDArray[Any]) -> None:
    """Scan [outer, n, inner] in place by any vectorised function, in few calls.

    Pieces of elements are scanned side by side, then their totals, which seed the pieces (Sengupta,
    Harris and Garland, 2008). Few elements, and those after the last full piece, are scanned by
    log-step doubling (Hillis and Steele, 1986). Nanoseconds per element, for 2^18 elements::

        pieces of                          1    8   16   32   64
        the latest element that is not 0  24   10   12   15   18
        maps of two float64              349   42   30   30   35
        products of 4 x 4 matrices      3272  465  453  756  907
    """
    (outer, n, inner), combine = x.shape, op.function
    end = n - n % _PIECE if x.size > CHUNK and n >= 4 * _PIECE else 0  # of the pieces
    if end:
        pieces = x[:, :end].reshape(outer, -1, _PIECE, inner, copy=False)
        for i in range(1, _PIECE):
            combine(pieces[:, :, i - 1], pieces[:, :, i], out=pieces[:, :, i])
        totals = pieces[:, :, -1].copy()
        _scan_in_pieces(op, totals)
        combine(totals[:, :-1, None], pieces[:, 1:], out=pieces[:, 1:])
    rest, step = x[:, end:], 1
    while step < n - end:
        rest[:, step:] = combine(rest[:, :-step], rest[:, step:])
        step *= 2
    if 0 < end < n:
        combine(totals[:, -1:], rest, out=rest)


def _chunk_of(op: Operator) -> int:
    return CHUNK if op.is_ufunc else _CHUNK_OF_CALLS


def _pairs(op: Operator, x: NDArray[Any], acc: np.dtype[Any]) -> NDArray[Any] | None:
    """Return the buffer that ``_sums`` needs for chunks of ``x``; None if it cannot sum them."""
    real = x.dtype.kind != "c" and acc == np.float64
    if op.numpy is not np.add or not real or x.shape != (1, x.size, 1):
        return None
    return np.empty((CHUNK + 1) // 2, np.complex128)


def _sums(x: NDArray[Any], out: NDArray[Any], pairs: NDArray[Any]) -> None:
    """Scan one chunk [n] of real numbers by float64 sums: two halves at once, as complex numbers.

    Each addition waits for the previous one. Additions of two numbers take no longer than of one.
    """
    half = -(-x.size // 2)
    pairs = pairs[:half]
    pairs.imag[-1] = 0  # if n is odd, the second half is shorter
    pairs.real, pairs.imag[: x.size - half] = x[:half], x[half:]
    np.add.accumulate(pairs, out=pairs)
    out[:half] = pairs.real
    np.add(out[half - 1], pairs.imag[: x.size - half], out=out[half:])


# ---- segments -----------------------------------------------------------------------------


@np.errstate(all="ignore")
def scan_segments(
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
    """Scan the segments of ``x`` [n] into ``out``, which may be ``x``; each begins with ``first``.

    The elements before the first head continue from ``carry``. Elements are combined in type
    ``acc``.
    """
    combine = op.function
    for low in range(0, x.size, CHUNK):
        high = low + CHUNK
        target = out[low:high]
        starts = np.flatnonzero(heads[low:high])
        piece = load(op, x[low:high], acc).astype(acc)
        if first is not None and starts.size:
            piece[starts] = combine(first, piece[starts])
        _accumulate_segments(op, piece, starts)
        if carry is not None:
            before_head = piece[: starts[0]] if starts.size else piece
            combine(carry, before_head, out=before_head)
        if exclusive:
            target[1:] = piece[:-1]
            if carry is not None:
                target[:1] = carry
            target[starts] = first
        else:
            target[...] = piece
        carry = np.array(piece[-1])


def _accumulate_segments(op: Operator, piece: NDArray[Any], starts: NDArray[np.intp]) -> None:
    """Scan one chunk [n] in place; a new scan begins at each index in ``starts``."""
    begins = starts if starts.size and starts[0] == 0 else np.concatenate([[0], starts])
    lengths = np.diff(begins, append=piece.size)
    if begins.size <= _FEW_SEGMENTS:
        for begin, length in zip(begins, lengths, strict=True):
            part = piece[None, begin : begin + length, None]
            accumulate(op, part, part)
        return
    # Segments of similar length are the rows of a table, which one call scans: there is a table for
    # lengths of 2, one for 3 to 4, one for 5 to 8, ...
    width = np.exp2(np.ceil(np.log2(lengths))).astype(np.intp)
    for columns in np.unique(width[width > 1]):
        alike = width == columns
        indices = begins[alike, None] + np.arange(columns)
        table = piece[np.minimum(indices, piece.size - 1), None]
        accumulate(op, table, table)
        inside = np.arange(columns) < lengths[alike, None]
        piece[indices[inside]] = table[inside, 0]
