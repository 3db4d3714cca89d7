"""Positions in data spread over ranks: offsets of elements, heads of rows, cuts of equal weight."""

import math
import struct
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import binding
from ..core import arrays, dtypes
from ..core.scalars import integer
from ..core.signatures import like_x
from ..cpu.reductions import TILE, TileTotals
from ..engine import cache
from ..mpi.agree import Agreement, Terms, collective
from ..mpi.communicators import Comm

# ---- offsets of elements, heads of rows ------------------------------------------------------


@collective
def offsets(call: Agreement, count: int, *, comm: Comm | None = None) -> tuple[int, int]:
    """Return where this rank's ``count`` elements begin among all ranks' elements; collective.

    Parameters
    ----------
    count
        How many elements this rank has: an integer of any size, not negative.
    comm
        An mpi4py intracommunicator, or a process group of ``torch.distributed``. None is
        ``MPI.COMM_WORLD``; where torchrun has started the ranks, it is the default group.

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
    count = integer(count, "count", least=0)
    call.contribution = count if count < _LARGE else -1
    call.settle()
    counts, rank = call.contributions(), call.comm.rank
    if min(counts) < 0:
        counts = call.comm.allgather(count)
    start = sum(counts[:rank])  # Python's integers: they do not overflow
    return start, start + sum(counts[rank:])


_LARGE = 1 << 63  # larger counts do not fit in the vote


@like_x
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
    starts = arrays.as_native(row_offsets, "row_offsets")
    if starts.ndim != 1 or starts.size == 0:
        raise ValueError(f"row_offsets has shape {starts.shape}; [rows + 1] is needed")
    if starts.dtype.kind not in "iu":
        raise TypeError(f"row_offsets is {starts.dtype}, not of integers")
    convert = arrays.converter(row_offsets)
    with arrays.on_device(starts):
        low, high = starts[[0, -1]].tolist()
        if low < 0:
            raise ValueError(f"row_offsets begins with {low}; it must not be negative")
        if bool((starts[1:] < starts[:-1]).any()):
            raise ValueError("row_offsets decreases")
        flags = arrays.namespace(starts).zeros(high - low, np.bool_)
        first = starts[:-1][starts[1:] > starts[:-1]]  # the first elements of rows not empty
        flags[(first - first.dtype.type(low)).astype(np.int64)] = True
        return flags if convert is None else convert(flags)


# ---- cuts of equal weight --------------------------------------------------------------------


@collective
@np.errstate(all="ignore")
def partition(
    call: Agreement, weights: Any, parts: int, *, comm: Comm | None = None
) -> NDArray[np.int64]:
    """Cut a weighted sequence into contiguous parts of nearly the same weight; collective.

    Parameters
    ----------
    weights
        This rank's shard [n] of the weights: bool, integers or floats, finite, not negative.
    parts
        How many parts; the same on every rank.
    comm
        An mpi4py intracommunicator, or a process group of ``torch.distributed``. None is
        ``MPI.COMM_WORLD``; where torchrun has started the ranks, it is the default group.

    Returns
    -------
    array, shape (parts + 1,)
        The cuts, the same on every rank, in host memory. Part k is the elements ``cuts[k]`` to
        ``cuts[k + 1]`` of the global sequence. The total weight is divided into ``parts`` equal
        shares; an element belongs to part k if the middle of its weight lies in the k-th share. If
        all weights are 0, the cuts are those of weights that are all 1.

    Raises
    ------
    TypeError, ValueError, MemoryError
        On every rank; the message names the ranks at fault.

    Notes
    -----
    The weights are read once, and no scan of them is stored. Each rank sums its weights tile by
    tile, and the ranks exchange their totals. Then only the tiles in which cuts fall are scanned.

    All sums are float64. The cuts are exact if the weights are integers, and ``2 * parts`` times
    their sum is below 2^53. Else the middles are rounded: a middle is the sum of the weights of
    earlier ranks, of earlier tiles, of earlier elements of its tile, and half of its own weight. So
    the roundings depend on the shards, and on the device, since tiles on GPUs have other lengths.

    Examples
    --------
    >>> import distscan
    >>> distscan.partition([1, 1, 1, 1, 4, 4], 3)
    array([0, 4, 5, 6])
    """
    call.same = Terms({"the function": "partition"})
    call.same["parts"] = parts = integer(parts, "parts", least=1)
    shard = arrays.as_native(weights, "weights")
    if shard.ndim != 1:
        raise ValueError(f"weights has shape {shard.shape}; one weight per element is needed")
    if not dtypes.is_number(shard.dtype) or shard.dtype.kind == "c":
        raise TypeError(f"weights is {shard.dtype}; it must be bool, integers or floats")
    alone = call.comm.size == 1
    with arrays.on_device(shard):
        sum_tiles = _tile_summer(shard, equal_cuts=parts - 1 if alone else 0)
        tiles = _sum_weights(shard, sum_tiles)
    call.contribution = _BITS.unpack(_FLOAT.pack(tiles.total))[0]
    call.settle()
    totals = [_FLOAT.unpack(_BITS.pack(bits))[0] for bits in call.contributions()]
    if sum(totals) < _SMALL:
        call.begin()
        with arrays.on_device(shard):
            tiles = sum_tiles(_enlarge(shard, sum(totals)))
        call.settle()
        totals = call.comm.allgather(tiles.total)
    call.begin()
    with arrays.on_device(shard):
        local = _local_cuts(tiles, shard.size, parts, call.comm.rank, [*accumulate(totals)])
        if arrays.is_cuda(shard):
            cache.release(_key(shard), tiles.buffers, None)
        cuts = local if alone else np.empty_like(local)
    call.settle()
    if not alone:
        call.comm.Allreduce(local, cuts)
    # By roundings, two cuts in neighbouring tiles may be in the wrong order.
    np.maximum.accumulate(cuts, out=cuts)
    return cuts


# Totals travel with the vote, as integers of the same bits. Totals are not negative, nor are these.
_FLOAT, _BITS = struct.Struct("d"), struct.Struct("q")

# Of a smaller sum, halves of weights and shares of the sum may be subnormal, and lose bits.
_SMALL = 2.0**-900


def _enlarge(weights: Any, total: float) -> Any:
    """Return weights of the same cuts whose sum over all ranks, ``total``, is not small.

    They are multiplied by a power of 2, which is exact. If all are 0, they become 1.
    """
    if total == 0:
        return arrays.namespace(weights).ones(weights.shape, bool)
    return abs(weights) / _SMALL  # a weight may be -0.0


def _tile_summer(weights: Any, equal_cuts: int) -> Callable[[Any], Any]:
    """Return the function that makes ``TileTotals`` of weights, of such a type, size and device."""
    if not arrays.is_cuda(weights):
        return partial(TileTotals, most=binding.threads(None) if weights.size > TILE else 1)
    from ..cuda import reductions  # noqa: PLC0415 - only arrays on a GPU need it

    buffers, _ = cache.acquire(_key(weights))
    buffers = buffers or reductions.Buffers()
    return partial(reductions.TileTotals, buffers=buffers, equal_cuts=equal_cuts)


def _sum_weights(weights: Any, sum_tiles: Callable[[Any], Any]) -> Any:
    """Return the ``TileTotals`` of this rank's weights; raise ValueError for wrong weights."""
    tiles = sum_tiles(weights)
    if not math.isfinite(tiles.total):
        if not bool(((weights >= 0) & (weights < np.inf)).all()):
            raise ValueError("a weight is negative, infinite or NaN")
        tiles = sum_tiles(abs(weights))  # a weight may be -0.0
    return tiles


def _key(weights: Any) -> tuple[Any, ...]:
    """Return the key of the buffers in the cache, for weights in the memory of a GPU."""
    gpu, _, stream = arrays.where(weights)
    return "partition", gpu, stream


def _local_cuts(tiles: Any, n: int, parts: int, rank: int, ends: list[float]) -> NDArray[np.int64]:
    """Return how many of this rank's ``n`` elements are before each cut, the first and last too.

    ``ends`` are the sums of the weights to the end of each rank.
    """
    if not math.isfinite(ends[-1]):
        raise ValueError("the weights' sum is not finite")
    # The sum is scaled by a power of 2, which is exact, so that no product is out of range.
    fraction, exponent = math.frexp(ends[-1])
    targets = np.ldexp(np.arange(1, parts) * fraction / parts, exponent)
    # A cut is on the first rank whose weights end at the target or after it.
    low, high = np.searchsorted(np.searchsorted(ends, targets), [rank, rank + 1])
    cuts = np.zeros(parts + 1, np.int64)
    cuts[1 + low : 1 + high] = tiles.cuts(targets[low:high] - (ends[rank - 1] if rank else 0.0))
    cuts[1 + high :] = n
    return cuts
