"""``scan``: the entry, which decides by the operator what kind of scan is made."""

from typing import Any

from numpy.typing import DTypeLike

from .core.signatures import like_x
from .core.steps import Strategy
from .engine.array_scan import scan_array
from .engine.axis_segments import scan_along_axis
from .engine.fsum_scan import scan_exactly
from .engine.tuple_scan import scan_tuple
from .mpi.agree import Agreement, collective
from .mpi.communicators import Comm
from .options import Op, ScanRequest


@like_x
@collective
def scan(
    call: Agreement,
    x: Any,
    op: Op = "sum",
    *,
    comm: Comm | None = None,
    axis: int | None = None,
    exclusive: bool = False,
    initial: Any = None,
    reverse: bool = False,
    dtype: DTypeLike | None = None,
    out: Any = None,
    segments: Any = None,
    strategy: Strategy = "auto",
    threads: int | None = None,
    window: tuple[int, int] | None = None,
) -> Any:
    """Scan the global array whose shards lie on the ranks; collective over ``comm``.

    Parameters
    ----------
    x
        This rank's shard: a NumPy array, a CuPy array, any array that supports DLPack, or a
        sequence. The global array is the shards joined along axis 0, in rank order. Shards may
        differ in length and may be empty; an empty list is float64, as in NumPy. The types are
        bool, integers, floats, complex numbers, bfloat16 of ``ml_dtypes``, and NumPy's times, whose
        NaT is as in NumPy: timedelta64 for sum, max and min, datetime64 for max and min. With an
        ``Operator`` of ``arity`` k: a tuple of k arrays of one shape; so are ``out`` and the
        result.
    op
        "sum", "prod", "max", "min", "logaddexp", "bitwise_and", "bitwise_or", "bitwise_xor",
        "logical_and", "logical_or", "logical_xor", "fsum", exact sums; the NumPy ufunc or
        the MPI op of the same meaning; an ``Operator``; or, on CPUs, any other NumPy ufunc of two
        operands that is associative, such as ``numpy.gcd``.
    comm
        An mpi4py intracommunicator, or a process group of ``torch.distributed``. None is
        ``MPI.COMM_WORLD``; where torchrun has started the ranks, it is the default group.
    axis
        None scans the flattened global array. 0 scans along the axis that is spread over the ranks.
        Any other axis is scanned inside each shard, without an exchange.
    exclusive
        Whether each result leaves out its own element. The first result is then ``initial``, or the
        operator's identity.
    initial
        One value that is combined before the first element. It must be the same on every rank. It
        is converted to the type that accumulates on CPUs.
    reverse
        Whether to scan from the last element to the first.
    dtype
        The type that accumulates, and of the result. None: as the ufunc's ``accumulate`` chooses.
        float16 and bfloat16 accumulate in float32; on CPUs, sums of float32 in float64. Each result
        is rounded once.
    out
        The array for the result, of its shape and on the device of ``x``; it may be ``x``. Without
        ``dtype``, the types of ``x`` and ``out`` together choose the type that accumulates, as in
        the ufunc's ``accumulate``; each result is then converted to the type of ``out``. After an
        exception the elements of ``out`` are undefined.
    segments
        Where independent scans begin. An array of the length of the flattened ``x``, on its device;
        with ``axis``, and a built-in operator, of the length of the axis, for all columns.
        A bool array holds head flags: True at the first element of each segment. An array of any
        other type holds keys: a segment begins where neighbours differ, also on two ranks.
        ``initial`` is combined before each segment. With ``reverse``, the segments have the same
        elements. No segment changes another.
    strategy
        "scan-add": scan, exchange, add the offset. "reduce-scan": reduce, exchange, seeded scan;
        it moves a quarter less memory. "single-pass": one scan, for one rank; axes that need no
        exchange always use it. "auto" is "single-pass" on one rank, and "reduce-scan" on several.
        It is "scan-add" on CPUs where NumPy does the work, unless there are segments or the result
        is not of the type that accumulates.
    threads
        The most threads of this rank, on CPUs. None is the number of cores that it may use for
        itself, or ``DISTSCAN_THREADS``. The number changes no bit of the result.
    window
        (low, high) of "fsum": every element is a multiple of 2^low, below 2^high in magnitude.

    Returns
    -------
    array, shape (x.size,), or x.shape if an axis is given
        This rank's part of the global scan: ``out`` if given, else a new array of the library and
        on the device of ``x``; of NumPy or CuPy, if that library has no ``from_dlpack``. CUDA work
        is ordered on the current stream.

    Raises
    ------
    TypeError, ValueError, OverflowError, NotImplementedError, MemoryError, KernelError
        On every rank, even if one rank alone is at fault. The message names the ranks at fault.

    Notes
    -----
    Contiguous arrays are read and written in place; along an axis that needs no exchange, in any
    order of axes that ``x`` and ``out`` share, which a new result has, too. On CPUs, so are arrays
    whose strides allow a view [before, axis, behind]. Other arrays are copied.

    Ranks on CPUs and on GPUs may scan together, except sums of float32 along axis 0 of N-d arrays.

    The elements are associated in another order than in a loop, always the same order, so floats
    are rounded differently. On CPUs, the order depends on the shards, the strategy and the MPI
    library, not on the CPU, threads or strides; NumPy, without compiled kernels, has another. If a
    part alone overflows, all results after it are infinite or NaN. Floating-point faults are
    silent, whatever ``np.errstate`` says.

    The algorithm is Blelloch's (1990), applied to ranks. The plans of the last 16 kinds of calls
    are cached, at most one of more than 16 MiB.

    Examples
    --------
    On two ranks that hold [1, 2, 3] and [4, 5]:

    >>> import distscan
    >>> distscan.scan([1, 2, 3])  # the other rank gets array([10, 15])
    array([1, 3, 6])
    """
    asked = {
        "op": op,
        "axis": axis,
        "exclusive": exclusive,
        "reverse": reverse,
        "dtype": dtype,
        "window": window,
        "strategy": strategy,
        "threads": threads,
    }
    request = ScanRequest.parse(x, out, segments, initial, asked)
    if request.options.op == "fsum":
        return scan_exactly(call, request)
    if request.options.op.arity > 1:
        return scan_tuple(call, request)
    if segments is not None and axis is not None:
        return scan_along_axis(call, request)
    return scan_array(call, request)
