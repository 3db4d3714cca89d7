"""Segments along an axis: one flag or key for each step of it, for all columns.

An element is scanned as a pair: itself, and whether a segment begins there (Blelloch, 1990). What
comes before a segment is left out when pairs are combined.
"""

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..core import arrays, dtypes
from ..core.form import seed_value
from ..core.operators import BUILTIN, in_segments
from ..core.segments import check_steps, term_of
from ..mpi.agree import Agreement, Terms
from ..options import ScanRequest
from .array_scan import check_memory, check_out, scan_array
from .tuple_scan import scan_tuple


def scan_along_axis(call: Agreement, request: ScanRequest) -> Any:
    """Scan an array in segments along an axis, and return the result; collective.

    The last step of the agreement stays open.
    """
    x, out, segments, options, _ = request
    array, marks = arrays.as_native(x), arrays.as_native(segments, "segments")
    op: Any = options.op
    axis = normalize_axis_index(options.axis or 0, array.ndim)
    if array.ndim == 1:
        return scan_array(call, request._replace(options=options._replace(axis=None)))
    built_in = BUILTIN.get(op.name) is op
    if not built_in:
        raise TypeError(f"segments along an axis are for built-in operators, not for {op.name!r}")
    check_steps(marks, array, axis)
    check_memory("segments", marks, array)
    target = None if out is None else arrays.as_target(out)
    if target is not None:
        check_out(out, target, array)
        if target.shape != array.shape:
            raise ValueError(f"out has shape {target.shape}; the result has {array.shape}")
    wanted = None if target is None else target.dtype
    types = dtypes.resolve(op, array.dtype, options.dtype, wanted)
    with arrays.on_device(array):
        heads = _heads(call, marks, reverse=options.reverse, across=axis == 0)
        heads = heads.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        identity = op.identity(types.acc)
        first = (identity, False) if options.exclusive else None
        xp, pair = arrays.namespace(array), in_segments(op.name)
        asked = options._replace(op=pair, axis=axis, dtype=None, segments=None, initial=first)
        given = array.astype(types.acc, copy=False), xp.broadcast_to(heads, array.shape)
        y, _ = scan_tuple(call, request._replace(x=given, out=None, segments=None, options=asked))
        with np.errstate(all="ignore"):
            if options.exclusive:
                y = xp.where(heads, identity, y)
            seed = seed_value(op, types.acc, options.initial, exclusive=False)
            if seed is not None:
                y = op.numpy(seed[()], y)
            y = y.astype(types.out, copy=False)
        arrays.release((x, array), (segments, marks), (out, target))
        if target is not None:
            target[...] = y
            return out
        convert = arrays.converter(x)
        return y if convert is None else convert(y)


def _heads(call: Agreement, marks: Any, *, reverse: bool, across: bool) -> Any:
    """Return bools [n]: whether a segment begins, in the order of the scan; collective."""
    call.same = Terms({"the function": "scan", "the dtype of segments": term_of(marks.dtype)})
    flags, n = marks.dtype == np.bool_, len(marks)
    if flags and not reverse:
        return marks
    heads = arrays.namespace(marks).ones(n, np.bool_)
    inner = heads[:-1] if reverse else heads[1:]
    inner[...] = marks[1:] if flags else marks[1:] != marks[:-1]
    if not (across and call.several):
        return heads
    ends = None
    if n:
        edges = marks[:: max(n - 1, 1)]
        ends = (edges if isinstance(edges, np.ndarray) else edges.get())[[0, -1]]
    call.settle()
    every = call.comm.allgather(ends)
    call.begin()
    rank = call.comm.rank
    others = every[rank + 1 :] if reverse else every[:rank][::-1]
    nearest = next((each for each in others if each is not None), None)
    if nearest is not None and ends is not None:
        if reverse:
            heads[-1] = nearest[0] if flags else ends[1] != nearest[0]
        else:
            heads[0] = nearest[1] != ends[0]
    return heads
