"""Selection over ranks: the elements that a mask or a predicate keeps, and where they begin."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core import arrays
from ..core.operators import Predicate
from ..core.signatures import selected_like_x
from ..engine import cache
from ..engine.array_scan import check_memory
from ..mpi.agree import Agreement, Terms, collective
from ..mpi.communicators import Comm

if TYPE_CHECKING:
    from ..cuda.compaction import Compactor

_SHORT = 4096  # up to so many elements, x[mask] of NumPy is faster for any mask


@selected_like_x
@collective
def compact(call: Agreement, x: Any, mask: Any, *, comm: Comm | None = None) -> tuple[Any, int]:
    """Keep the elements of ``x`` where ``mask`` is True, in order, each on its rank; collective.

    Parameters
    ----------
    x
        This rank's shard [n, ...] of any type; shards are joined along axis 0. Or a tuple of such
        arrays, of one length n and in the memory of the same device, which one mask compacts. A
        tuple without an array is one array, as in NumPy.
    mask
        Bool [n], in the memory of the same device: True where an element, or row, is kept.
    comm
        An mpi4py intracommunicator, or a process group of ``torch.distributed``. None is
        ``MPI.COMM_WORLD``; where torchrun has started the ranks, it is the default group.

    Returns
    -------
    elements
        A new array [count, ...], of the array library and on the device of ``x``; a tuple of them
        if ``x`` is a tuple of arrays.
    start
        The number of elements that earlier ranks keep: the global index of the first kept element.

    Raises
    ------
    TypeError, ValueError, MemoryError
        On every rank; the message names the ranks at fault.

    Notes
    -----
    Only the numbers of kept elements cross ranks. On a GPU, the host waits for the number, and the
    work on the current stream goes on. One pass over memory does all the work: it reads the array
    and the mask, and writes the kept elements. Rows of other sizes than 1, 2, 4, 8 and 16 bytes
    take a second pass, which copies rows by their indices.

    On a GPU, the result may be a view of a buffer with room for all n elements, because one pass
    knows the number only at its end. At least a quarter of the buffer is then in use: fewer
    elements are copied to another array. ``copy()`` of the result frees the rest of the buffer.

    Counts of tiles are scanned as in Billeter, Olsson and Assarsson, "Efficient Stream Compaction
    on Wide SIMD Many-Core Architectures", 2009, in one pass as in Merrill and Garland, "Single-pass
    Parallel Prefix Scan with Decoupled Look-back", 2016.

    Examples
    --------
    >>> import distscan, numpy
    >>> x = numpy.array([3, -1, 4])
    >>> distscan.compact(x, x > 0)
    (array([3, 4]), 0)
    >>> distscan.compact((x, x * 10), x > 0)
    ((array([3, 4]), array([30, 40])), 0)
    """
    several = isinstance(x, tuple) and any(map(_is_array, x))
    members = x if several else (x,)
    names = [f"x[{i}]" for i in range(len(members))] if several else ["x"]
    native = [arrays.as_native(*pair) for pair in zip(members, names, strict=True)]
    keep = arrays.as_native(mask, "mask")
    for name, array in zip(names, native, strict=True):
        _check(name, array, keep)
    call.same = _terms("compact", *((array.dtype, array.shape[1:]) for array in native))
    converters = [arrays.converter(member) for member in members]
    with arrays.on_device(keep):
        results, call.contribution = _compact(native, keep)
        arrays.release((mask, keep))  # the conversion of a result releases its array
        results = [
            result if convert is None else convert(result)
            for result, convert in zip(results, converters, strict=True)
        ]
    return tuple(results) if several else results[0], _start(call)


@selected_like_x
@collective
def select(
    call: Agreement, x: Any, predicate: Predicate, *, comm: Comm | None = None
) -> tuple[Any, int]:
    """Keep the elements of ``x`` for which a predicate is true, in order; collective.

    It is ``compact`` without a mask in memory: a GPU evaluates the predicate where it reads ``x``.

    Parameters
    ----------
    x
        This rank's shard [n]; shards are joined. On a GPU, of a type that a scan takes.
    predicate
        A ``Predicate``, with ``cuda`` for arrays on a GPU.
    comm
        An mpi4py intracommunicator, or a process group of ``torch.distributed``. None is
        ``MPI.COMM_WORLD``; where torchrun has started the ranks, it is the default group.

    Returns
    -------
    elements
        A new array [count], of the array library and on the device of ``x``; see ``compact``.
    start
        The number of elements that earlier ranks keep: the global index of the first kept element.

    Raises
    ------
    TypeError, ValueError, MemoryError, KernelError
        On every rank; the message names the ranks at fault.

    Examples
    --------
    >>> import distscan, numpy
    >>> positive = distscan.Predicate("positive", numpy=lambda x: x > 0, cuda="x > 0")
    >>> distscan.select(numpy.array([3.5, -1.0, 4.0]), positive)
    (array([3.5, 4. ]), 0)
    """
    if not isinstance(predicate, Predicate):
        raise TypeError(f"predicate must be a Predicate, not {type(predicate).__name__}")
    array = arrays.as_native(x)
    if array.ndim != 1:
        raise ValueError(f"x has shape {array.shape}; select takes [n]")
    kind = array.dtype, array.shape[1:]
    call.same = _terms("select", kind, predicate=predicate.name)
    convert = arrays.converter(x)
    with arrays.on_device(array):
        result, call.contribution = _select(array, predicate)
        result = result if convert is None else convert(result)
    return result, _start(call)


# ---- arguments --------------------------------------------------------------------------------


def _is_array(member: Any) -> bool:
    """Return whether a member of a tuple is an array with elements, not a number."""
    return hasattr(member, "__dlpack__") and getattr(member, "ndim", 1) > 0


def _check(name: str, array: Any, keep: Any) -> None:
    """Raise TypeError or ValueError if the mask does not fit the array."""
    check_memory(name, array, keep, "mask")
    if keep.dtype != np.bool_:
        raise TypeError(f"mask is {keep.dtype}, not bool")
    if array.ndim == 0 or keep.shape != array.shape[:1]:
        raise ValueError(f"mask has shape {keep.shape}, {name} {array.shape}: [n] and [n, ...]")


@lru_cache(64)
def _terms(
    function: str, *kinds: tuple[np.dtype[Any], tuple[int, ...]], predicate: str | None = None
) -> Terms:
    """Return the terms of a call: the types of the arrays, and the shapes of their rows."""
    same = Terms({"the function": function, "the number of arrays": len(kinds)})
    if predicate is not None:
        same["predicate"] = predicate
    for i, (dtype, shape) in enumerate(kinds):
        name = "x" if len(kinds) == 1 else f"x[{i}]"
        same[f"the dtype of {name}"] = dtype
        same["the shape beyond axis 0" + f" of {name}" * (len(kinds) > 1)] = shape
    return same


def _start(call: Agreement) -> int:
    """Return the number of elements that earlier ranks keep; collective."""
    call.settle()
    return sum(call.contributions()[: call.comm.rank])


# ---- this rank's part -------------------------------------------------------------------------


def _compact(native: list[Any], keep: Any) -> tuple[list[Any], int]:
    """Return the kept rows of each array, and their number."""
    if arrays.is_cuda(keep):
        with _compactor(keep) as compactor:
            return compactor.compact(native, keep)
    if _is_ragged(keep) or any(array.ndim > 1 for array in native):
        index = np.flatnonzero(keep)
        return [np.take(array, index, axis=0) for array in native], index.size
    results = [array[keep] for array in native]
    return results, len(results[0])


def _select(array: Any, predicate: Predicate) -> tuple[Any, int]:
    """Return the elements that a predicate keeps, and their number."""
    if arrays.is_cuda(array):
        with _compactor(array) as compactor:
            return compactor.select(array, predicate)
    (result,), count = _compact([array], predicate.mask(array))
    return result, count


def _is_ragged(keep: NDArray[np.bool_]) -> bool:
    """Return whether a long mask in host memory changes often.

    ``x[mask]`` of NumPy is fast if the processor predicts its branches. For 2^22 float32 and a
    random mask it takes 45 ms, and indices 10 ms; for runs of 100 elements it takes 6 ms, and
    indices 11 ms.
    """
    if keep.size < _SHORT:
        return False
    return 5 * int(np.count_nonzero(keep[1:] != keep[:-1])) > keep.size


@contextmanager
def _compactor(array: Any) -> Iterator["Compactor"]:
    """Take a ``Compactor`` for the current GPU and stream out of the cache, and put it back."""
    from ..cuda.compaction import Compactor  # noqa: PLC0415 - a CPU job need not have CuPy

    gpu, _, stream = arrays.where(array)
    key = "compact", gpu, stream
    compactor, kind = cache.acquire(key)
    compactor = compactor or Compactor()
    yield compactor
    cache.release(key, compactor, kind)
