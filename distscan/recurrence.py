"""Linear recurrences over data spread over ranks: scans whose operator composes affine maps."""

import zlib
from typing import Any

import numpy as np

from . import plan_cache
from .build import CompiledScan, make
from .core import arrays, dtypes
from .core.extents import Extents
from .core.operators import Operator
from .mpi.agree import Agreement, Terms, collective
from .mpi.communicators import Comm
from .scan import Call, run, where


def _then(earlier: Any, later: Any) -> Any:
    """Compose the maps h -> a h + b: first ``earlier``, then ``later``."""
    composed = np.empty(np.broadcast_shapes(earlier.shape, later.shape), later.dtype)
    composed["a"] = later["a"] * earlier["a"]
    composed["b"] = later["a"] * earlier["b"] + later["b"]
    return composed


MAPS = Operator(
    "linear_recurrence", _then, "T{b.a * a.a, b.a * a.b + b.b}", identity=(1, 0)
)  # fmt: skip


@collective
def linear_recurrence(
    a: Any, b: Any, initial: Any = None, *, comm: Comm | None = None, reverse: bool = False
) -> Any:
    """Solve ``h[t] = a[t] * h[t-1] + b[t]`` along axis 0 of data spread over ranks; collective.

    Parameters
    ----------
    a, b
        This rank's shards [n] or [n, m], as for ``scan``. Both have the same shape, and are in
        the memory of the same device. The m recurrences of [n, m] are independent. The result is
        of floats or complex numbers: bool and integers become float64, floats narrower than
        float32 become float32.
    initial
        ``h`` before the first element: a number, or [m]; the same on every rank. None is 0.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.
    reverse
        Whether the last element comes first: ``h[t] = a[t] * h[t+1] + b[t]``.

    Returns
    -------
    array, of the shape of ``b``
        This rank's part of ``h``, of the kind and on the device of ``b``.

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
    with Agreement(comm) as arguments:
        factors, terms = arrays.as_native(a), arrays.as_native(b)
        pair = _pair(factors, terms)
        convert = arrays.converter(b)
        before = None if initial is None else _before(initial, terms, pair["a"])
        gpu, device, stream = where(terms)
        with device:
            given = MAPS, terms.shape, pair, bool(reverse), arguments.comm.size
            key = gpu, stream(), *given
            kind = plan_cache.kinds.get(key)
            try:
                maps_scan: CompiledScan = kind.pop()  # type: ignore[union-attr]
            except (AttributeError, IndexError):
                maps_scan = make(
                    *(Extents.of(terms.shape, axis=0), pair, gpu, MAPS),
                    reverse=bool(reverse),
                    ranks=arguments.comm.size,
                )
            xp, extents = arrays.namespace(terms), maps_scan.form.extents
            maps = xp.empty((*terms.shape, 2), pair["a"])
            maps[..., 0], maps[..., 1] = factors, terms
            shard = arrays.structures(maps, pair, (extents.outer, extents.n, extents.inner))
        row = before if before is None or before.ndim == 0 else _digest(before)
        asked = {"the function": "linear_recurrence", "initial": row}
        arguments.same = Terms({**maps_scan.terms, **asked})
        arguments.has_elements = maps_scan.has_elements
    with device, np.errstate(all="ignore"):
        call = Call(maps_scan, arguments.comm)
        call.begin(shard, shard)
        run(call, arguments)
        plan_cache.keep(key, maps_scan)
        h = maps[..., 1].copy()
        if before is not None:
            h += maps[..., 0] * xp.asarray(before)
        h = h if convert is None else convert(h)
        arrays.release((a, factors))
        return h


def _pair(a: Any, b: Any) -> np.dtype[Any]:
    """Check the arrays and return the type of a map: a structure of two numbers."""
    if arrays.gpu(a) != arrays.gpu(b):
        raise TypeError(f"a is in the memory of {arrays.device(a)}, b of {arrays.device(b)}")
    if a.shape != b.shape or a.ndim not in (1, 2):
        raise ValueError(f"a and b have the shapes {a.shape} and {b.shape}: [n] or [n, m], alike")
    for name, array in (("a", a), ("b", b)):
        if not dtypes.is_number(array.dtype):
            raise TypeError(f"{name} is {array.dtype}; a recurrence takes numbers")
    number = np.result_type(a.dtype, b.dtype).newbyteorder("=")
    if number.kind in "biu":
        number = np.dtype(np.float64)
    elif number.itemsize < np.dtype(np.float32).itemsize:
        number = np.dtype(np.float32)
    return np.dtype([("a", number), ("b", number)])


def _before(initial: Any, b: Any, number: np.dtype[Any]) -> Any:
    """Check ``initial`` and return it, 0-d or [m], in host memory and in the type of the result."""
    before = arrays.as_native(initial)
    if before.shape not in ((), b.shape[1:]):
        raise ValueError(f"initial has shape {before.shape}; a number or {b.shape[1:]} is needed")
    if not np.can_cast(before.dtype, number, "same_kind"):
        raise TypeError(f"initial is {before.dtype}; the recurrence is in {number}")
    return dtypes.cast(before.get() if arrays.is_cuda(before) else before, number)


def _digest(row: Any) -> int:
    """Return a checksum of a row of numbers; the bytes that pad long doubles do not count."""
    with np.errstate(all="ignore"):
        return zlib.crc32(row.astype(np.complex128).tobytes())
