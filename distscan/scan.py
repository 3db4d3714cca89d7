"""The scan of data spread over ranks: the whole algorithm on one screen."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from numpy.typing import DTypeLike

from . import arrays, dtypes, exchange, operators
from .agree import Agreement
from .exchange import Comm
from .local import LocalPlan, Op, Strategy, cached, check_axis, check_forms


def scan(
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
) -> Any:
    """Scan the global array that the ranks' shards form; collective over ``comm``.

    Parameters
    ----------
    x
        This rank's shard: a NumPy array, a CuPy array, anything that speaks DLPack, or a
        sequence. The global array is the shards joined along axis 0, in rank order. Shards may
        differ in length and may be empty. Bool, integer, float and complex types, and bfloat16 of
        ``ml_dtypes``.
    op
        "sum", "prod", "max", "min", "logaddexp", "bitwise_and", "bitwise_or", "bitwise_xor",
        "logical_and", "logical_or" or "logical_xor"; the NumPy ufunc or the MPI op of that
        meaning; or an ``Operator``.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.
    axis
        None scans the flattened global array; 0 the only axis of 1-D shards.
    dtype
        The type that accumulates and results; None chooses as the ufunc's ``accumulate`` does.
    out
        Where the result goes, of the result's shape, in the memory ``x`` is in; it may be ``x``.
        After an exception its elements are undefined.
    strategy
        "scan-add": scan, exchange, add. "reduce-scan": reduce, exchange, seeded scan, which moves
        a quarter less memory. "single-pass": one scan, for one rank. "auto" takes the last for
        one rank, else "reduce-scan" on GPUs and "scan-add" on CPUs.
    exclusive, initial, reverse, segments
        Not implemented yet.

    Returns
    -------
    array, shape (x.size,)
        This rank's part of the global inclusive scan, of the kind and on the device of ``x``;
        ``out`` itself if given. CUDA work is ordered on the current stream.

    Raises
    ------
    TypeError, ValueError, NotImplementedError, MemoryError
        On every rank alike, however few of them are at fault; the message names those ranks.

    Example
    -------
    On two ranks that hold [1, 2, 3] and [4, 5]:

    >>> import distscan
    >>> distscan.scan([1, 2, 3])  # the other rank gets array([10, 15])
    array([1, 3, 6])

    The plans of the last 16 kinds of call are kept: a repeated call compiles and allocates nothing
    but its result.

    The step is Blelloch's reduce, exclusive scan of totals, seeded scan (1990), applied once
    more above the GPU: over ranks.
    """
    comm = exchange.communicator(comm)
    with Agreement(comm) as arguments:
        array = arrays.borrow(x)
        check_axis(axis, array.ndim)
        check_forms(exclusive=exclusive, initial=initial, reverse=reverse, segments=segments)
        target = None if out is None else _target(out, array)
        convert = arrays.like(x if out is None else out)
        with arrays.on_device(array):
            shard = array if array.ndim == 1 else array.reshape(-1)  # a view where possible
            if target is not None and arrays.overlap(shard, target):
                shard = shard.copy()
            plan = cached(
                arrays.stream(array),
                array.shape,
                array.dtype,
                arrays.gpu(array),
                operators.resolve(exchange.op_name(op)),
                dtype=None if dtype is None else dtypes.parse(dtype),
                out=None if target is None else target.dtype,
                strategy=strategy,
                ranks=comm.size,
            )
            result = target if arrays.is_plain(target) else plan.local.empty()
        arguments.same = plan.terms
    with arrays.on_device(shard):
        run(comm, plan, shard, result, arguments.settle)
        if target is None:
            return convert(result)
        if result is not target:
            target[...] = result
        convert(target)  # another library's stream now waits for ours
    return out


def run(
    comm: Comm, plan: LocalPlan, x: Any, out: Any, before_exchange: Callable[[], None]
) -> dict[str, float]:
    """Scan ``x`` [n] into ``out`` [n] by ``plan``; return the seconds of steps 1 and 2.

    ``before_exchange`` is called on every rank behind step 1; it raises on all of them or on none.
    """
    begin = perf_counter()
    fault: BaseException | None = None
    try:
        total = plan.local.total(x, out)  # 1. each rank finds the total of its shard
    except BaseException as error:  # the other ranks count on this one's part in the exchange
        total, fault = None, error
    before_exchange()
    reduced = perf_counter()
    with Agreement(comm) as work:
        offset = plan.exscan(comm, total)  # 2. what comes before it
        exchanged = perf_counter()
        if fault is not None:
            raise fault
        plan.local.seed(x, out, offset)  # 3. and seeds its shard with that
    work.settle()
    return {"total": reduced - begin, "exscan": exchanged - reduced}


def _target(out: Any, x: Any) -> Any:
    """Check ``out`` and return the NumPy or CuPy array over it."""
    if not hasattr(out, "__dlpack__"):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    target = arrays.borrow(out)
    if arrays.gpu(target) != arrays.gpu(x):
        raise TypeError(
            f"out is in the memory of {arrays.device(target)}, x of {arrays.device(x)}; "
            "both must be in one"
        )
    if target.shape != (x.size,):
        raise ValueError(f"out has shape {target.shape}; the result has {(x.size,)}")
    if not arrays.is_cuda(target) and not target.flags.writeable:
        raise ValueError("out is read-only")
    return target
