"""Offsets of the elements of ranks, and head flags of CSR rows."""

from typing import Any

import numpy as np

from ..core import arrays
from ..core.scalars import integer
from ..mpi.agree import Agreement, collective
from ..mpi.communicators import Comm


@collective
def offsets(call: Agreement, count: int, *, comm: Comm | None = None) -> tuple[int, int]:
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
    count = integer(count, "count", least=0)
    call.contribution = count if count < _LARGE else -1
    call.settle()
    counts, rank = call.contributions(), call.comm.rank
    if min(counts) < 0:
        counts = call.comm.allgather(count)
    start = sum(counts[:rank])  # Python's integers: they do not overflow
    return start, start + sum(counts[rank:])


_LARGE = 1 << 63  # larger counts do not fit in the vote


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
    offsets = arrays.as_native(row_offsets, "row_offsets")
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
