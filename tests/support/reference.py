"""The scan of a whole array as its definition reads: flip, accumulate, concatenate.

Written apart from the code under test, one line of elements at a time.
"""

import numpy as np


def scan(combine, x, *, axis=None, acc=None, exclusive=False, initial=None, identity=None,
         reverse=False, heads=None):  # fmt: skip
    """Scan ``x`` with a function of two elements; heads [x.size] flags where segments begin.

    The result has the type in which elements are combined: ``acc``, or that of ``x``.
    """
    acc = np.dtype(acc or x.dtype)
    first = initial if initial is not None else identity if exclusive else None
    if axis is None:
        x, axis = x.reshape(-1), 0
    elif x.ndim == 0:
        x = x.reshape(1)
    lines = np.moveaxis(x, axis, -1)
    result = np.empty(lines.shape, acc)
    for place in np.ndindex(lines.shape[:-1]):
        result[place] = line(combine, lines[place].astype(acc), first, exclusive, reverse, heads)
    return np.moveaxis(result, -1, axis)


def line(combine, x, first, exclusive, reverse, heads):
    """Scan [n]: cut it into its segments, and scan each."""
    cuts = [] if heads is None else [int(i) for i in np.flatnonzero(heads) if i > 0]
    pieces = [
        segment(combine, piece[::-1] if reverse else piece, first, exclusive)
        for piece in np.split(x, cuts)
    ]
    return np.concatenate([piece[::-1] if reverse else piece for piece in pieces])


def segment(combine, x, first, exclusive):
    """Scan [n] from its first element to its last."""
    every = list(x) if first is None else [x.dtype.type(first), *x]
    running = every[:1]
    with np.errstate(all="ignore"):
        for element in every[1:]:
            running.append(x.dtype.type(combine(running[-1], element)))
    if first is not None:
        running = running[:-1] if exclusive else running[1:]
    return np.array(running, x.dtype)


def heads_of(segments):
    """Flag where segments begin, from flags or keys of the whole."""
    flat = np.asarray(segments).reshape(-1)
    if flat.dtype == bool:
        return flat
    return np.array([i == 0 or bool(flat[i] != flat[i - 1]) for i in range(flat.size)], bool)
