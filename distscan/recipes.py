"""Common uses of scans over ranks: offsets, compaction, partition, and segments of CSR rows."""

from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .core import arrays, dtypes
from .core.shards import bounds
from .mpi import communicators
from .mpi.agree import agreed, collective
from .mpi.communicators import Comm
from .scan import scan


@collective
def offsets(count: int, *, comm: Comm | None = None) -> tuple[int, int]:
    """Return where this rank's ``count`` elements begin among all ranks' elements; collective.

    Parameters
    ----------
    count
        How many elements this rank has: an integer of any size, not negative.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.

    Returns
    -------
    start, total
        The number of elements on earlier ranks, and on all ranks together; exact.

    Raises
    ------
    TypeError, ValueError
        On every rank; the message names the ranks at fault.

    Examples
    --------
    On two ranks with 3 and 2 elements:

    >>> import distscan
    >>> distscan.offsets(3)  # on two ranks: (0, 5) on rank 0, (3, 5) on rank 1; on one rank:
    (0, 3)
    """
    comm = communicators.communicator(comm)
    with agreed(comm, "offsets"):
        own = index(count)
        if own < 0:
            raise ValueError(f"count is {count}; it must not be negative")
    end: int = comm.scan(own)  # Python's integers: they do not overflow
    return end - own, comm.bcast(end, comm.size - 1)


@collective
def compact(x: Any, mask: Any, *, comm: Comm | None = None) -> tuple[Any, int]:
    """Keep the elements of ``x`` where ``mask`` is True, in order, each on its rank; collective.

    Parameters
    ----------
    x
        This rank's shard [n, ...] of any type; shards are joined along axis 0.
    mask
        Bool [n], in the memory of the same device: True where an element, or row, is kept.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.

    Returns
    -------
    kept
        A new array [kept, ...], of the array library and on the device of ``x``.
    start
        The number of elements that earlier ranks keep: the global index of the first kept element.

    Raises
    ------
    TypeError, ValueError, MemoryError
        On every rank; the message names the ranks at fault.

    Examples
    --------
    >>> import distscan, numpy
    >>> x = numpy.array([3, -1, 4])
    >>> distscan.compact(x, x > 0)
    (array([3, 4]), 0)
    """
    comm = communicators.communicator(comm)
    with agreed(comm, "compact") as same:
        array, keep = arrays.as_native(x), arrays.as_native(mask)
        if arrays.gpu(array) != arrays.gpu(keep):
            where = arrays.device(array), arrays.device(keep)
            raise TypeError(f"x is in the memory of {where[0]}, mask of {where[1]}")
        if keep.dtype != np.bool_:
            raise TypeError(f"mask is {keep.dtype}, not bool")
        if array.ndim == 0 or keep.shape != array.shape[:1]:
            raise ValueError(f"mask has shape {keep.shape}, x {array.shape}: [n] and [n, ...]")
        same["the dtype of x"], same["the shape beyond axis 0"] = array.dtype, array.shape[1:]
        convert = arrays.converter(x)
        with arrays.on_device(array):
            kept = array[keep]
            result = kept if convert is None else convert(kept)
    return result, offsets(len(kept), comm=comm)[0]


@collective
@np.errstate(all="ignore")
def partition(weights: Any, parts: int, *, comm: Comm | None = None) -> NDArray[np.int64]:
    """Cut a weighted sequence into contiguous parts of nearly the same weight; collective.

    Parameters
    ----------
    weights
        This rank's shard [n] of the weights: bool, integers or floats, finite, not negative.
    parts
        How many parts; the same on every rank.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.

    Returns
    -------
    array, shape (parts + 1,)
        The cuts, the same on every rank, in host memory. Part k is the elements ``cuts[k]`` to
        ``cuts[k + 1]`` of the global sequence. The total weight is divided into ``parts`` equal
        shares; an element belongs to part k if the middle of its weight lies in the k-th share. If
        all weights are 0, all elements have the same weight.

    Raises
    ------
    TypeError, ValueError, MemoryError
        On every rank; the message names the ranks at fault.

    Examples
    --------
    >>> import distscan
    >>> distscan.partition([1, 1, 1, 1, 4, 4], 3)
    array([0, 4, 5, 6])
    """
    comm = communicators.communicator(comm)
    with agreed(comm, "partition") as same:
        same["parts"] = parts = index(parts)
        if parts < 1:
            raise ValueError(f"parts is {parts}; it must be at least 1")
        own = arrays.as_native(weights)
        if own.ndim != 1:
            raise ValueError(f"weights has shape {own.shape}; one weight per element is needed")
        if not dtypes.is_number(own.dtype) or own.dtype.kind == "c":
            raise TypeError(f"weights is {own.dtype}; it must be bool, integers or floats")
        with arrays.on_device(own):
            if not bool(((own >= 0) & (own < np.inf)).all()):
                raise ValueError("a weight is negative, infinite or NaN")
    ends = scan(own, dtype=np.float64, comm=comm)
    with agreed(comm), arrays.on_device(own):
        middles = ends - own.astype(np.float64) / 2
        end = float(ends[-1]) if own.size else 0.0
    total = max(comm.allgather(end))
    with agreed(comm), arrays.on_device(own):
        if not np.isfinite(total):
            raise ValueError("the weights' sum is not finite")
        xp = arrays.namespace(own)
        before = xp.searchsorted(middles, xp.asarray(np.arange(1, parts) * (total / parts)))
        counts = [*before.tolist(), own.size]  # this rank's elements before each cut
    cuts: NDArray[np.int64] = np.array([0, *comm.allreduce(np.array(counts, np.int64))])
    if total == 0:
        n = int(cuts[-1])
        cuts[:-1] = [bounds(n, parts, part)[0] for part in range(parts)]
    return cuts


def segment_flags(row_offsets: Any) -> Any:
    """Flag the first element of each row of a CSR matrix, as ``segments=`` takes it; local.

    Parameters
    ----------
    row_offsets
        This rank's rows: integers [rows + 1] that do not decrease. Row i holds the elements
        ``row_offsets[i]`` to ``row_offsets[i + 1]``, and may be empty. SciPy calls this array
        ``indptr``. It may begin above 0, as a slice of a larger matrix's offsets does: only the
        differences count. A NumPy array, a CuPy array, any array that supports DLPack, or a
        sequence.

    Returns
    -------
    array, bool, shape (row_offsets[-1] - row_offsets[0],)
        True where an element is the first of its row; of the array library and on the device of
        ``row_offsets``. The first flag is always True. If the shard's first element continues a row
        of the previous rank, set this flag to False.

    Raises
    ------
    TypeError, ValueError
        On this rank alone: nothing is exchanged.

    Examples
    --------
    Sums along the rows of a matrix whose second row is empty:

    >>> import distscan
    >>> flags = distscan.segment_flags([0, 2, 2, 4])
    >>> flags
    array([ True, False,  True, False])
    >>> distscan.scan([1.0, 2.0, 3.0, 4.0], segments=flags)
    array([1., 3., 3., 7.])
    """
    offsets = arrays.as_native(row_offsets)
    if offsets.ndim != 1 or offsets.size == 0:
        raise ValueError(f"row_offsets has shape {offsets.shape}; [rows + 1] is needed")
    if offsets.dtype.kind not in "iu":
        raise TypeError(f"row_offsets is {offsets.dtype}, not of integers")
    convert = arrays.converter(row_offsets)
    with arrays.on_device(offsets):
        low, high = offsets[[0, -1]].tolist()
        if low < 0:
            raise ValueError(f"row_offsets begins with {low}; it must not be negative")
        if bool((offsets[1:] < offsets[:-1]).any()):
            raise ValueError("row_offsets decreases")
        flags = arrays.namespace(offsets).zeros(high - low, np.bool_)
        first = offsets[:-1][offsets[1:] > offsets[:-1]]  # the first elements of rows not empty
        flags[(first - first.dtype.type(low)).astype(np.int64)] = True
        return flags if convert is None else convert(flags)
