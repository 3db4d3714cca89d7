"""Linear recurrences over data spread over ranks: scans whose operator composes affine maps."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import NDArray

from ..core import arrays, dtypes
from ..core import segments as segmented
from ..core.arrays import HostFields
from ..core.form import Extents, Pieces, axis_number, is_long
from ..core.operators import GRADIENT_MAPS, MAPS, MAPS_IN_SEGMENTS, matrix_maps
from ..core.scalars import exact_scalar
from ..core.signatures import Array, Numbers
from ..engine.array_scan import check_memory
from ..engine.shard_scan import PeerAccess
from ..engine.tuple_scan import TupleScan
from ..mpi.agree import Agreement, Terms, collective
from ..mpi.communicators import Comm
from ..options import ScanOptions

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class Options(TypedDict, total=False):
        """The arguments of ``linear_recurrence`` that do not change the type of its result."""

        axis: int
        comm: Comm | None
        reverse: bool
        segments: Any


@overload
def linear_recurrence(
    a: Any,
    b: NDArray[Any],
    initial: Any = None,
    *,
    return_last: Literal[False] = False,
    **options: "Unpack[Options]",
) -> NDArray[Any]: ...
@overload
def linear_recurrence(
    a: Any,
    b: NDArray[Any],
    initial: Any = None,
    *,
    return_last: Literal[True],
    **options: "Unpack[Options]",
) -> tuple[NDArray[Any], Any]: ...
@overload
def linear_recurrence(
    a: Any,
    b: Array,
    initial: Any = None,
    *,
    return_last: Literal[False] = False,
    **options: "Unpack[Options]",
) -> Array: ...
@overload
def linear_recurrence(
    a: Any,
    b: Array,
    initial: Any = None,
    *,
    return_last: Literal[True],
    **options: "Unpack[Options]",
) -> tuple[Array, Any]: ...
@overload
def linear_recurrence(
    a: Any,
    b: Numbers,
    initial: Any = None,
    *,
    return_last: Literal[False] = False,
    **options: "Unpack[Options]",
) -> NDArray[Any]: ...
@overload
def linear_recurrence(
    a: Any,
    b: Numbers,
    initial: Any = None,
    *,
    return_last: Literal[True],
    **options: "Unpack[Options]",
) -> tuple[NDArray[Any], Any]: ...
@collective
def linear_recurrence(
    call: Agreement,
    a: Any,
    b: Any,
    initial: Any = None,
    *,
    axis: int = 0,
    comm: Comm | None = None,
    reverse: bool = False,
    segments: Any = None,
    return_last: bool = False,
) -> Any:
    """Solve ``h[t] = a[t] * h[t-1] + b[t]`` along axis 0 of data spread over ranks; collective.

    Parameters
    ----------
    a
        The factors: this rank's shard, of the shape of ``b``; or one number for all elements; or
        [...], a factor for each column of ``b`` [n, ...].
    b
        This rank's shard [n, ...], as for ``scan``, in the memory of the same device. The
        recurrences of its columns are independent. The result has the type of ``a`` and ``b``
        together, where a number of Python's has no type: bool and integers become float64. float16
        and bfloat16 accumulate in float32, and are rounded on the store.
    initial
        ``h`` before the first element, and before each segment: a number; or [...], without
        segments. It must be the same on every rank. None is 0.
    axis
        0 is the axis that is spread over the ranks. Along any other one, the recurrences of each
        rank are its own; there are no segments then, ``initial`` is a number, and there is no
        ``return_last``.
    comm
        An mpi4py intracommunicator, or a process group of ``torch.distributed``. None is
        ``MPI.COMM_WORLD``; where torchrun has started the ranks, it is the default group.
    reverse
        Whether the last element comes first: ``h[t] = a[t] * h[t+1] + b[t]``, as a backward pass
        needs it.
    segments
        Where independent recurrences begin, such as packed sequences: flags or keys [n] as for
        ``scan``. They are those of all columns.
    return_last
        Whether to return the last state of all ranks, too.

    Returns
    -------
    array, of the shape of ``b``
        This rank's part of ``h``, of the kind and on the device of ``b``.
    last
        With ``return_last``: ``h`` of the last element in the order of the recurrence, a number or
        [...], the same on every rank; ``initial`` if no rank has elements. To go on with further
        elements, pass it as ``initial``.

    Raises
    ------
    TypeError, ValueError, NotImplementedError, MemoryError
        On every rank, even if one rank alone is at fault. The message names the ranks at fault.

    Notes
    -----
    Each element is the map h -> a h + b. Composition of maps is associative, so a scan of the maps
    solves the recurrence (Blelloch, 1990). Products of consecutive ``a`` must stay in the range of
    the type.

    Examples
    --------
    A value that decays by half at each step:

    >>> import distscan
    >>> distscan.linear_recurrence([0.5, 0.5, 0.5], [8.0, 0.0, 1.0])
    array([8., 4., 3.])
    """
    heads = None  # of columns
    if axis_number(axis) is None:
        raise TypeError("axis must be an integer, not None")
    if segments is not None:
        heads = _heads_of_columns(call, segments, b, reverse=reverse)
        segments = segments if heads is None else None
    reverse, return_last = bool(reverse), bool(return_last)
    terms = arrays.as_native(b, "b")
    with arrays.on_device(terms):
        coefficients = arrays.as_native(a, "a")
        factors, number = _factors(a, coefficients, terms)
        axis = normalize_axis_index(axis, terms.ndim)
        if axis and (segments is not None or heads is not None or return_last or np.ndim(initial)):
            raise ValueError(
                f"along axis {axis}, initial is a number, and segments and return_last are not for "
                "it: they are for the axis that is spread over the ranks, 0"
            )
        flags = None if segments is None else arrays.as_native(segments, "segments")
        start = np.zeros((), number) if initial is None else _start_state(initial, terms, number)
        if start.ndim > 0 and (flags is not None or heads is not None):
            raise ValueError(f"initial has shape {start.shape}; segments need one number")
        shape = terms.shape
        (factors, terms), restore = _as_scanned(axis, factors, terms)
        x, op, result, acc = [factors, terms], MAPS, number, _acc(number)
        if heads is not None:
            heads_of_all = arrays.namespace(terms).broadcast_to(heads[:, None], terms.shape)
            op = MAPS_IN_SEGMENTS
            seed = start.astype(acc[0])
            if seed.any():
                x, result = _seed_segments(factors, terms, heads, seed), acc[0]
            x, acc = [*x, heads_of_all], dtypes.fields([acc[0], acc[0], np.dtype(np.bool_)])
        options = ScanOptions(
            op,
            axis=None if terms.ndim == 1 else terms.ndim - 2,
            reverse=reverse,
            initial=None if start.size == 0 else _maps(start.reshape(-1), acc),
        )
        types = acc, np.dtype([("x1", result)])
        ranks = 1 if axis else call.comm.size  # along other axes there is no exchange
        scan = TupleScan(options, x, flags=flags, types=types, ranks=ranks)
    call.same = Terms(
        scan.terms
        | {
            "the function": "linear_recurrence",
            "axis": axis,
            "the shape beyond axis 0": shape[1:],
            "return_last": return_last,
        }
    )
    call.has_elements = scan.part.has_elements
    (h,) = scan.run(call)
    with scan.device:
        if result != number:
            h = dtypes.cast(h, number)
        h = restore(h)
        convert = arrays.converter(b)
        last = _last_state(h, start, call, reverse=reverse) if return_last else None
        states = h if convert is None else convert(h)
        arrays.release((b, terms), (a, coefficients), (segments, flags))
        if not return_last:
            return states
        if arrays.is_cuda(h):
            last = arrays.namespace(h).asarray(last)
        return states, last if convert is None else convert(last)


# ---- recurrences of rows [n, m], or [outer, n, m] on one rank, of native contiguous arrays ------


def solve_native(
    call: Agreement,
    a: Any,
    b: Any,
    h: Any,
    *,
    reverse: bool,
    initial: Any = None,
    before: Any = None,
    peers: PeerAccess | None = None,
) -> None:
    """Solve the recurrences of rows ``b`` into ``h``; collective.

    The arrays have one shape, and one type of floats or complex numbers. ``initial`` [m] is in host
    memory. ``before`` [m], of the type of the running value, gets the state before this rank's
    first row; where no rows come before it, it is left alone. For ``peers`` see ``scan_array``.
    """
    acc = _acc(b.dtype)
    seed = None if initial is None or not initial.size else _maps(initial, acc)
    types = acc, np.dtype([("x1", b.dtype)])
    with arrays.on_device(b):
        (a, b), shaped = _as_scanned(b.ndim - 2, a, b)
        to = h if h.shape == b.shape else np.empty_like(b)
        options = ScanOptions(MAPS, axis=b.ndim - 2, reverse=reverse, initial=seed)
        scan = TupleScan(options, [a, b], [to], types=types, ranks=call.comm.size, peers=peers)
        call.same, call.has_elements = scan.terms, scan.part.has_elements
        scan.run(call, lambda offset: _put_states(before, offset, acc))
        if to is not h:
            h[...] = shaped(to)


def find_native_gradients(
    call: Agreement,
    a: Any,
    h: Any,
    dh: Any,
    results: tuple[Any, Any],
    *,
    reverse: bool,
    peers: PeerAccess | None = None,
) -> None:
    """Store ``results``: the gradients of ``a`` and ``b`` of a recurrence, from that of its ``h``.

    Collective; of rows of at least 2 columns on GPUs. ``reverse`` is that of the recurrence. The
    gradient of ``a`` of this rank's first row, in the order of the recurrence, is as if the state
    before it were 0: the caller knows better.

    What comes from later rows, g, is a recurrence from the other end, and its scan leaves out each
    row's own: g[t] = a[t] (dh[t] + g[t+1]), db[t] = dh[t] + g[t+1], da[t] = db[t] h[t-1]. For
    arrays of n bytes, 5 n bytes are moved on one rank, 7 n on several. Complex numbers are copied,
    to be conjugated.
    """
    options = ScanOptions(GRADIENT_MAPS, axis=dh.ndim - 2, reverse=not reverse, exclusive=True)
    with arrays.on_device(dh):
        if dh.dtype.kind == "c":
            a, h = a.conj(), h.conj()
        types = _acc(dh.dtype), None
        ranks = call.comm.size
        scan = TupleScan(options, [a, dh], [*results, h], types=types, ranks=ranks, peers=peers)
        call.same, call.has_elements = scan.terms, scan.part.has_elements
        scan.run(call)


def solve_native_matrices(
    call: Agreement, a: Any, b: Any, heads: Any = None, *, reverse: bool
) -> Any:
    """Return ``h[t] = a[t] h[t-1] + b[t]`` of matrices and vectors, along axis 0; collective.

    ``a`` is [n, m, k, k], ``b`` [n, m, k], of one type of floats or complex numbers; so is the
    result. They are scanned as a tuple of k * k + k arrays [n, m]. h is 0 before the first element,
    and where ``heads``, bools [n, m], say that a segment begins.
    """
    with arrays.on_device(b):
        (n, m, size), xp = b.shape, arrays.namespace(b)
        parts = [
            *xp.ascontiguousarray(xp.moveaxis(a.reshape(n, m, size * size), -1, 0)),
            *xp.ascontiguousarray(xp.moveaxis(b, -1, 0)),
            *([] if heads is None else [heads]),
        ]
        op, first = matrix_maps(size, segments=heads is not None), size * size
        result = np.dtype([(f"x{i}", b.dtype) for i in range(first, first + size)])
        options = ScanOptions(op, axis=0, reverse=reverse)
        scan = TupleScan(options, parts, types=(None, result), ranks=call.comm.size)
        call.same, call.has_elements = scan.terms, scan.part.has_elements
        return xp.stack(scan.run(call), axis=-1)


def _acc(number: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the running maps of a recurrence of numbers."""
    state = np.dtype(np.float32) if number.itemsize == 2 else number
    return dtypes.fields([state, state])


def _put_states(to: Any, offset: Any, acc: np.dtype[Any]) -> None:
    """Store the states of the maps that come before a shard; on a GPU they stay there."""
    if to is None or offset is None:
        return
    if isinstance(offset, HostFields):
        states = offset.arrays[1]
    elif isinstance(offset, np.ndarray):
        states = offset["x1"]
    else:
        states = offset.field(acc, "x1", to.size)
    if isinstance(states, np.ndarray) and arrays.is_cuda(to):
        to.set(np.broadcast_to(states, to.shape))
    else:
        to[...] = states


# ---- the arguments of linear_recurrence ---------------------------------------------------------


def _heads_of_columns(call: Agreement, segments: Any, b: Any, *, reverse: bool) -> Any:
    """Return the head flags [n] of the rows of ``b`` [n, ...] from flags or keys; collective.

    None for ``b`` [n], whose segments the scan itself takes.
    """
    terms, flags = arrays.as_native(b, "b"), arrays.as_native(segments, "segments")
    reverse = bool(reverse)
    call.same = Terms(
        {"the function": "linear_recurrence with segments", "the dimensions of b": terms.ndim}
    )
    if terms.ndim > 1:
        check_memory("segments", flags, terms, "b")
        if flags.shape != terms.shape[:1]:
            raise ValueError(f"segments has shape {flags.shape}, b {terms.shape}")
        segmented.check_type(flags.dtype, Extents.of(flags.shape, None))
        with arrays.on_device(terms):
            heads = arrays.namespace(terms).empty(flags.shape, bool)
            segmented.find_heads(flags, heads, reverse=reverse)
            local = segmented.edges(flags, reverse=reverse)
        call.same["the dtype of segments"] = segmented.edge_dtype(flags.dtype)
    call.settle()
    comm = call.comm
    edges = comm.allgather(local) if terms.ndim > 1 else []
    call.begin()
    if terms.ndim < 2:
        return None
    before = edges[comm.rank + 1 :] if reverse else edges[: comm.rank][::-1]  # the nearest first
    earlier = next((edge for edge in before if edge is not None), None)
    with arrays.on_device(terms):
        if local is not None and earlier is not None and earlier.leaves != local.enters:
            heads[-1 if reverse else 0] = True
        arrays.release((segments, flags), (b, terms))
    return heads


def _seed_segments(a: Any, b: Any, heads: Any, start: Any) -> list[Any]:
    """Return copies of ``a`` and ``b`` [n, ...] whose first rows are constant maps.

    The first row of a segment gives the state after ``start``, for any state before it.
    """
    factors, terms = a.astype(start.dtype), b.astype(start.dtype)
    with np.errstate(all="ignore"):
        terms[heads] += factors[heads] * start.item()
    factors[heads] = -0.0  # -0.0 times the state before the segment, 0, changes no term
    return [factors, terms]


def _factors(original: Any, a: Any, b: Any) -> tuple[Any, np.dtype[Any]]:
    """Return ``a`` in the shape of ``b``, and the type of the result; check both.

    ``original`` is the caller's ``a``.
    """
    if b.ndim == 0:
        raise ValueError("b is one number: it must be [n, ...]")
    for name, array in (("a", a), ("b", b)):
        if not dtypes.is_number(array.dtype):
            raise TypeError(f"{name} is {array.dtype}; a recurrence takes numbers")
    kind = original if type(original) in {bool, int, float, complex} else a.dtype
    number = np.result_type(kind, b.dtype).newbyteorder("=")
    number = np.dtype(np.float64) if number.kind in "biu" else number
    if a.ndim == 0 and not arrays.is_cuda(a):
        a = arrays.namespace(b).asarray(exact_scalar(a, number, "a"))
    check_memory("a", a, b, "b")
    if a.shape in {(), b.shape[1:]}:
        return arrays.namespace(b).broadcast_to(a.astype(number), b.shape), number
    if a.shape != b.shape:
        raise ValueError(f"a has shape {a.shape}, b {b.shape}: a number, [...], or alike")
    return a, number


def _as_scanned(axis: int, *given: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """Return arrays of one shape as they are scanned, and what gives a result this shape.

    Along axis 0 they are [n], or views [n, m]. Along another one they are views [outer, n, m] on
    GPUs, and copies [n, m] on CPUs.
    """
    shape = given[0].shape
    if len(shape) == 1:
        return list(given), lambda h: h
    flat: tuple[int, ...]
    if axis == 0:
        flat = shape[0], math.prod(shape[1:])
    elif arrays.is_cuda(given[0]):
        flat = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    else:
        moved = [np.ascontiguousarray(np.moveaxis(each, axis, 0)) for each in given]
        rows = moved[0].shape
        flat = rows[0], math.prod(rows[1:])
        return (
            [each.reshape(flat) for each in moved],
            lambda h: np.moveaxis(h.reshape(rows), 0, axis),
        )
    return [each.reshape(flat) for each in given], lambda h: h.reshape(shape)


def _start_state(initial: Any, b: Any, number: np.dtype[Any]) -> Any:
    """Check ``initial``; return it, 0-d or [...], in host memory and in the type of the result."""
    start = arrays.as_native(initial, "initial")
    if start.shape not in ((), b.shape[1:]):
        raise ValueError(f"initial has shape {start.shape}; a number or {b.shape[1:]} is needed")
    if not (np.can_cast(start.dtype, number, "same_kind") or dtypes.is_bfloat16(number)):
        raise TypeError(f"initial is {start.dtype}; the recurrence is in {number}")
    start = start.get() if arrays.is_cuda(start) else start
    return start if start.dtype == number else dtypes.cast(start, number)


def _maps(start: Any, acc: np.dtype[Any]) -> Any:
    """Return the constant maps h -> start in the type of the running value.

    Those of a long row are views.
    """
    if is_long(start.size, acc):
        return HostFields([np.broadcast_to(start.dtype.type(0), start.shape), start], acc)
    maps = np.zeros(() if start.size == 1 else start.size, acc)
    maps["x1"] = start.reshape(maps.shape)
    return maps


def _last_state(h: Any, start: Any, call: Agreement, *, reverse: bool) -> Any:
    """Return the last state of all ranks, in host memory; collective."""
    state = np.array(np.broadcast_to(start, h.shape[1:]), h.dtype)
    if len(h) > 0:
        last = h[0 if reverse else -1]
        state[...] = last.get() if arrays.is_cuda(h) else last
    call.settle()
    ranks = np.flatnonzero(call.comm.allgather(len(h) > 0))
    if ranks.size:
        row = state.reshape(-1).view(np.uint8)
        for piece in Pieces(row.size, row.dtype):
            call.comm.Bcast(row[piece], int(ranks[0 if reverse else -1]))
    call.begin()
    return state
