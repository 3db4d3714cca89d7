"""The scan of data spread over ranks: the whole algorithm on one screen.

call.begin(x, out)     1. each rank finds the total of its shard
call.exchange()        2. MPI_Exscan: what comes before it
call.finish()          3. each rank scans its shard behind that
"""

import pickle
import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from . import kept
from .build import CompiledScan, Op, Strategy
from .core import arrays, dtypes, operators
from .core.extents import axis_number
from .core.operators import Operator
from .core.steps import Pending
from .decide import Decided, decide
from .mpi.agree import Agreement, agreed, collective
from .mpi.communicators import Comm, op_name

_ANYWHERE = nullcontext()  # the host needs no GPU to be current


class Call:
    """One call in flight on one rank, from its first step to its last.

    A fault of one step is kept until ``finish`` raises it: the other ranks count on this one's part
    in the exchange.
    """

    def __init__(self, scan: CompiledScan, comm: Comm) -> None:
        self.scan, self._comm = scan, comm
        self._pending: Pending | None = None
        self._offset: Any = scan.form.first
        self._started = False
        self.fault: BaseException | None = None

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = True) -> None:
        """Begin to find the total of ``x``; with ``overlap`` the next steps follow at once."""
        try:
            self._pending = self.scan.steps.begin(x, out, segments, overlap=overlap)
        except BaseException as fault:
            self.fault = fault

    def start(self) -> None:
        """Begin the exchange, and wait for no other rank."""
        self.scan.exscan.start(self._comm, self._pending)
        self._started = True

    def exchange(self) -> None:
        """Find what comes before the shard, by the totals of all earlier ranks."""
        exscan, comm = self.scan.exscan, self._comm
        try:
            self._offset = exscan.wait(comm) if self._started else exscan(comm, self._pending)
        except BaseException as fault:
            self.fault = self.fault or fault

    def finish(self) -> None:
        """Scan the shard behind that, or raise what went wrong."""
        if self.fault is not None:
            raise self.fault
        self.scan.steps.finish(self._pending, self._offset)


def run(call: Call, arguments: Agreement) -> None:
    """End a call that has begun, on every rank or on none; collective.

    ``arguments`` are what ranks agree on meanwhile: until then no rank has seen anything of the
    others'. That takes no time: a GPU may be still finding its total.
    """
    settle(call, arguments)
    with Agreement(arguments.comm) as work:
        if arguments.some and call.scan.across:
            call.exchange()
        call.finish()
    work.settle()


def settle(call: Call, arguments: Agreement) -> None:
    """Settle the arguments, and reserve what the exchange of long rows needs; collective."""
    arguments.settle()
    if call.scan.exscan.long:
        with agreed(arguments.comm):
            if arguments.some:
                call.scan.exscan.reserve()


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
        Where independent scans begin, of the length of the flattened ``x`` and in its memory. A
        bool array flags the first element of each segment; any other holds keys, and a segment
        begins where neighbours differ, on two ranks too. ``initial`` comes before each segment; in
        reverse, segments hold the same elements. The operator may be called with elements of two
        segments, whose combination is dropped: no segment changes another.
    strategy
        "scan-add": scan, exchange, add. "reduce-scan": reduce, exchange, seeded scan, which moves
        a quarter less memory. "single-pass": one scan, for one rank; axes that need no exchange
        always take it. "auto" is "single-pass" for one rank, else "scan-add" on CPUs, but
        "reduce-scan" on GPUs, for segments, and where the result is of another type than what
        accumulates.

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
    Contiguous arrays are read and written where they are. So are, along an axis that needs no
    exchange, arrays whose axes lie in memory in another order, such as Fortran's, if ``x`` and
    ``out`` have the same one; a new result then lies as ``x`` does. On CPUs so are arrays with
    strides that can be seen as [before, axis, behind]. Other arrays are copied: ``x`` once before
    the scan, ``out`` once behind it.

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
    with Agreement(comm) as arguments:
        given = x, out, segments
        native = array, target, _ = [
            each if each is None or type(each) in arrays.NATIVE else arrays.as_native(each)
            for each in given
        ]
        if axis is not None and type(axis) is not int:
            axis = axis_number(axis)
        if isinstance(op, str | np.ufunc):
            op = operators.NAMED.get(op, op)
        elif not isinstance(op, Operator):
            op = operators.resolve(op_name(op))
        if dtype is not None and not isinstance(dtype, np.dtype):
            dtype = dtypes.parse(dtype)
        form: Any = {"axis": axis, "exclusive": bool(exclusive), "reverse": bool(reverse)}
        options = form | {"dtype": dtype, "strategy": strategy, "ranks": arguments.comm.size}
        gpu, device, stream = where(array)
        with device:
            kinds = map(_kind, given, native)
            key = gpu, stream(), op, *options.values(), _exact(initial), *kinds
            kind = kept.kinds.get(key)
            try:
                decided: Decided = kind.pop()  # type: ignore[union-attr]
            except (AttributeError, IndexError):  # no such call yet, or all are in use
                decided, kind = decide(given, native, gpu, op, initial, **options), None
            shard, result, flags, apart = _as_scanned(decided, *native)
        arguments.same, arguments.some = decided.terms, decided.compiled.some
    with device:
        call = Call(decided.compiled, arguments.comm)
        call.begin(shard, result, flags)
        run(call, arguments)
        if kind is None or kind.forgotten or decided.nbytes > kept.LARGE:
            kept.keep(key, decided)
        else:
            kind.last = next(kept.turns)
            kind.append(decided)
        if decided.restored is not None:
            result = decided.restored(result)
        if apart:
            target[...] = result
        if decided.foreign:
            # The conversion of a new result makes the stream of x's library wait, too.
            used = list(zip(given, native, strict=True))
            arrays.release(*(used[2:] if target is None else used))
        if target is not None:
            return out
        return result if decided.convert is None else decided.convert(result)


def _as_scanned(
    decided: Decided, array: Any, target: Any, flags: Any
) -> tuple[Any, Any, Any, bool]:
    """Return x, out and segments as the steps take them; and whether out is written afterwards."""
    steps = decided.compiled.steps
    shard = array if decided.view is None else decided.view(array)
    result = target if decided.view_out is None else decided.view_out(target)
    apart = target is not None and result is None
    copied = shard is None or apart
    if shard is None:
        shard = array.reshape(-1)
    if result is None:
        result = steps.empty()
    if flags is not None:
        flags = flags.reshape(-1)
    if target is not None:
        if arrays.overlap(shard, result):
            shard, copied = shard.copy(), True
        if flags is not None and arrays.overlap(flags, result):
            flags, copied = flags.copy(), True
    if copied:
        steps.refuse_capture("x, out or segments must be copied")
    return shard, result, flags, apart


def where(array: Any) -> tuple[int | None, AbstractContextManager[Any], Callable[[], Any]]:
    """Return the GPU of an array, None for the host; what makes it current; its current stream."""
    if isinstance(array, np.ndarray):
        return None, _ANYWHERE, lambda: None
    gpu, cuda = int(array.data.device_id), sys.modules["cupy"].cuda
    # It is current as a rule, and to see that takes a fifth of the time.
    device = _ANYWHERE if cuda.runtime.getDevice() == gpu else cuda.Device(gpu)
    return gpu, device, lambda: cuda.get_current_stream().ptr


def _kind(given: Any, array: Any) -> Hashable:
    """Return what decides how an array is scanned, and what it is checked for."""
    if array is None:
        return None
    host = isinstance(array, np.ndarray)
    place = array.flags.writeable if host else array.data.device_id
    return type(given), array.dtype, array.shape, array.strides, host, place


def _exact(initial: Any) -> Hashable:
    """Return what tells values of ``initial`` apart, bit by bit: 0.0 is not -0.0."""
    if initial is None:
        return None
    try:
        return pickle.dumps(initial)
    except Exception:  # ``decide`` judges it
        return object()
