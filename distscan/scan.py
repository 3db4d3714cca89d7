"""The scan of data spread over ranks: the whole algorithm on one screen."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

from numpy.typing import DTypeLike

from . import kept, untyped
from .build import CompiledScan, Op, Strategy, initial_bytes, make
from .core import arrays, dtypes, layout, operators
from .core.arrays import Pair
from .core.operators import Operator
from .mpi import communicators
from .mpi.agree import Agreement, Terms, agreed
from .mpi.communicators import Comm
from .mpi.signals import collective


@collective
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
        differ in length and may be empty; an empty list is float64, as in NumPy. Bool, integer,
        float and complex types, and bfloat16 of ``ml_dtypes``.
    op
        "sum", "prod", "max", "min", "logaddexp", "bitwise_and", "bitwise_or", "bitwise_xor",
        "logical_and", "logical_or" or "logical_xor"; the NumPy ufunc or the MPI op of that
        meaning; on CPUs any other NumPy ufunc that combines two operands and is associative, such
        as ``numpy.gcd``; or an ``Operator``.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.
    axis
        None scans the flattened global array; 0 scans along the axis that is spread over the ranks,
        and any other one inside each shard, without an exchange.
    exclusive
        Whether each result leaves out its own element: it begins with ``initial``, or with the
        operator's identity.
    initial
        One value that comes before the first element. It is converted to the type that accumulates
        on CPUs, and must be the same on every rank.
    reverse
        Whether to scan from the last element to the first.
    dtype
        The type that accumulates and results; None chooses as the ufunc's ``accumulate`` does.
        float16 and bfloat16 accumulate in float32, and on CPUs sums of float32 in float64; each
        result is rounded once.
    out
        Where the result goes, of the result's shape, in the memory ``x`` is in; it may be ``x``.
        Without ``dtype``, the types of ``x`` and ``out`` choose together what accumulates, as in
        the ufunc's ``accumulate``; each result is then converted to the type of ``out``.
        After an exception its elements are undefined.
    segments
        Where independent scans begin, of the length of the flattened ``x`` and in the memory it is
        in; None is one scan. A bool array flags the first element of each segment; any other holds
        keys, and a segment begins where neighbours differ, on two ranks too. ``initial`` comes
        before each segment; in reverse, segments hold the same elements. The operator may be called
        with elements of two segments, whose combination is dropped: what overflows a float in one
        segment, or is NaN, changes no other.
    strategy
        "scan-add": scan, exchange, add. "reduce-scan": reduce, exchange, seeded scan, which moves
        a quarter less memory. "single-pass": one scan, for one rank. "auto" takes the last for
        one rank, else "reduce-scan" on GPUs, for segments and for what accumulates in another type
        than the result's, where "scan-add" needs a buffer as large as the shard; and "scan-add" on
        CPUs. Axes that need no exchange are always "single-pass".

    Returns
    -------
    array, shape (x.size,), or x.shape if an axis is given
        This rank's part of the global scan, of the kind and on the device of ``x``; ``out`` itself
        if given. CUDA work is ordered on the current stream.

    Raises
    ------
    TypeError, ValueError, OverflowError, NotImplementedError, MemoryError, KernelError
        On every rank alike, however few of them are at fault; the message names those ranks.

    Notes
    -----
    ``x`` is read, and ``out`` written, where they are

    - if they are contiguous;
    - along an axis that needs no exchange, if their axes lie in memory in one and the same order,
      such as Fortran's; a new result then lies as ``x`` does, as NumPy's;
    - on CPUs, if they are sliced, mirrored, broadcast or transposed, but 1-D, or 2-D with an axis;
      or can be seen so that one axis is in front of that which is scanned, and one behind it.

    Any other layout is copied, whole: ``x`` once before the scan, ``out`` once behind it. On GPUs
    those are slices, steps, mirrored and broadcast arrays, and transposed ones along axis 0 and
    flattened.

    Ranks on CPUs and ranks on GPUs may scan together, but for sums of float32 along axis 0 of N-d
    arrays, whose rows of totals are of two types.

    Floats are grouped otherwise than in a loop, always in the same way: they round otherwise, and
    where a part alone leaves the range of the type, what comes behind it is infinite or NaN.
    Overflow and other floating-point faults are silent on CPUs and GPUs, whatever ``np.errstate``
    says.

    The plans of the last 16 kinds of call are kept, but of those that hold more than 16 MiB beside
    their arrays one at most: a repeated call compiles and allocates nothing but its result.

    The step is Blelloch's reduce, exclusive scan of totals, seeded scan (1990), applied once
    more above the GPU: over ranks.

    Examples
    --------
    On two ranks that hold [1, 2, 3] and [4, 5]:

    >>> import distscan
    >>> distscan.scan([1, 2, 3])  # the other rank gets array([10, 15])
    array([1, 3, 6])
    """
    comm = communicators.communicator(comm)
    with Agreement(comm) as arguments:
        array = arrays.as_native(x)
        marks = None if segments is None else _segments(segments, array)
        target = None if out is None else checked_out(out, array)
        operator, axis = operators.resolve(communicators.op_name(op)), layout.axis_number(axis)
        dtype = None if dtype is None else dtypes.parse(dtype)
        written = None if target is None else target.dtype
        options = {
            "exclusive": bool(exclusive),
            "initial": initial_bytes(initial, operator, array.dtype, dtype, written),
            "reverse": bool(reverse),
            "dtype": dtype,
            "strategy": strategy,
            "ranks": comm.size,
        }
        given = (x, array), (out, target), (segments, marks)
        device = arrays.on_device(array)
        with device:
            decided, put_back = kept.take(
                (*arrays.place(array), operator, axis, *options.values(), *map(arrays.kind, given)),
                lambda: _decide(given, operator, axis, **options),
            )
            plan, order = decided.plan, decided.order
            if order is not None:
                array, target = layout.turned(array, order), layout.turned(target, order)
            shard, view = arrays.view(array, plan.seen), arrays.view(target, plan.seen)
            result = plan.local.empty() if view is None else view
            copied = view is None and target is not None
            if shard is None:
                shard = array.reshape(plan.seen)  # copied only if its layout has no such view
                copied = True
            if arrays.overlap(shard, result):
                shard, copied = shard.copy(), True
            if marks is not None and arrays.overlap(marks, result):
                marks, copied = marks.copy(), True
            if copied:
                plan.local.refuse_capture("x, out or segments must be copied")
        arguments.same, arguments.some = decided.terms, plan.some
    with device:
        run(comm, plan, shard, result, arguments, marks=marks)
        put_back()
        if view is None and target is not None:
            target[...] = result.reshape(plan.shape)
        if decided.foreign:
            # The conversion of a new result makes the stream of x's library wait, too.
            arrays.release(*(given[2:] if target is None else given))
        if target is not None:
            return out
        result = result if result.shape == plan.shape else result.reshape(plan.shape)
        return decided.convert(result if order is None else layout.restored(result, order))


@dataclass(frozen=True, eq=False)
class _Decided:
    """What ``scan`` decides once for all calls with arguments of one kind."""

    plan: CompiledScan
    order: tuple[int, ...] | None  # of the axes, if they are scanned in another
    convert: Callable[[Any], Any]  # a result into the kind of array that is given
    foreign: bool  # whether an array on a GPU is of another library than CuPy
    terms: Terms

    @cached_property
    def nbytes(self) -> int:
        """How much memory is kept between calls, behind the first."""
        return self.plan.nbytes


def _decide(
    given: tuple[Pair, Pair, Pair], operator: Operator, axis: int | None, **options: Any
) -> _Decided:
    """Decide how to scan; ``given`` are x, out and segments, each with the array over it."""
    (x, array), (out, target), (segments, marks) = given
    order = None if marks is not None else layout.order(array, target, axis)
    turned = None
    if order is not None and axis is not None:  # other ranks may hold theirs in another order
        turned = array.shape, axis % array.ndim
        axis = 1 + order.index(turned[1])
        array, target = layout.turned(array, order), layout.turned(target, order)
    plan = make(
        array.shape,
        array.dtype,
        arrays.gpu(array),
        operator,
        axis=axis,
        turned=turned,
        segments=None if marks is None else marks.dtype,
        out=None if target is None else target.dtype,
        **options,
    )
    if target is not None and target.shape != plan.shape:
        raise ValueError(f"out has shape {target.shape}; the result has {plan.shape}")
    return _Decided(
        plan,
        order,
        arrays.converter(x if out is None else out),
        any(map(arrays.is_foreign, given)),
        untyped.terms(plan.terms, x, segments),
    )


def run(
    comm: Comm,
    plan: CompiledScan,
    x: Any,
    out: Any,
    arguments: Agreement,
    *,
    marks: Any = None,
    overlap: bool = True,
) -> dict[str, float]:
    """Scan ``x`` into ``out``, as ``plan`` sees them; return the seconds of steps 1 and 2.

    ``arguments`` is settled behind step 1: until then no rank has seen anything of the others'.
    With ``overlap`` that takes no time: a GPU may be still finding its total, which then counts as
    step 2, or waits already for what comes before it.
    """
    begin = perf_counter()
    pending, fault = None, None
    try:
        pending = plan.local.begin(x, out, marks, overlap=overlap)  # 1. each rank finds its total
    except BaseException as error:  # the other ranks count on this one's part in the exchange
        fault = error
    arguments.settle()
    if plan.exscan.long:
        with agreed(comm):
            if arguments.some:
                plan.exscan.reserve()
    reduced = perf_counter()
    with Agreement(comm) as work:
        offset = None
        if arguments.some:
            offset = plan.exscan(comm, pending)  # 2. what comes before it
        exchanged = perf_counter()
        if fault is not None:
            raise fault
        plan.local.finish(pending, offset)  # 3. and seeds its shard with that
    work.settle()
    return {"total": reduced - begin, "exscan": exchanged - reduced}


def checked_out(out: Any, x: Any) -> Any:
    """Check ``out`` and return the NumPy or CuPy array over it."""
    if not hasattr(out, "__dlpack__"):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    target = _beside("out", out, x)
    arrays.check_writable(out, target)
    return target


def _segments(segments: Any, x: Any) -> Any:
    """Check ``segments`` and return the NumPy or CuPy array [n] over it."""
    marks = _beside("segments", segments, x)
    if marks.shape not in (x.shape, (x.size,)):
        raise ValueError(f"segments has shape {marks.shape}; x has {x.shape}")
    return marks.reshape(-1)


def _beside(name: str, array: Any, x: Any) -> Any:
    """Return the NumPy or CuPy array over ``array``, which must be where ``x`` is."""
    array = arrays.as_native(array)
    if arrays.gpu(array) != arrays.gpu(x):
        raise TypeError(
            f"{name} is in the memory of {arrays.device(array)}, x of {arrays.device(x)}; "
            "both must be in one"
        )
    return array
