"""The scan of data spread over ranks. ``Call`` and ``run`` are the algorithm, on one screen.

call.begin(x, out)     1. each rank finds the total of its shard
call.exchange()        2. MPI_Exscan: each rank gets its offset, the total of all earlier ranks
call.finish()          3. each rank scans its shard, seeded with its offset
"""

import pickle  # nosec B403 # it writes only
import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from . import plan_cache
from .build import CompiledScan, Op
from .core import arrays, dtypes, operators
from .core.form import axis_number
from .core.operators import Operator
from .core.steps import Pending, Strategy
from .cpu.threads import checked
from .decide import Decided, decide
from .fsum.request import is_fsum
from .fsum_scan import scan_exactly
from .mpi.agree import Agreement, body, collective
from .mpi.communicators import Comm, op_name
from .tuples import scan_tuple

_ANYWHERE = nullcontext()  # for host arrays: no GPU need be current
_NUMBERS = {type(None), bool, int, float, complex}


class Call:
    """One call in flight on one rank, from its first step to its last.

    A step keeps its fault, and ``finish`` raises it. Until then the rank takes part in the
    exchange, because the other ranks wait for it.
    """

    def __init__(self, scan: CompiledScan, comm: Comm) -> None:
        self.scan, self._comm = scan, comm
        self._pending: Pending | None = None
        self._offset: Any = scan.form.first
        self._started = False
        self.fault: BaseException | None = None

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = True) -> None:
        """Begin to find the total of ``x``; with ``overlap``, the other steps follow at once."""
        try:
            self._pending = self.scan.steps.begin(x, out, segments, overlap=overlap)
        except BaseException as fault:
            self.fault = fault

    def start(self) -> None:
        """Begin the exchange, without waiting for other ranks."""
        self.scan.exscan.start(self._comm, self._pending)
        self._started = True

    def exchange(self) -> None:
        """Exchange the totals: find this rank's offset, the total of all earlier ranks."""
        exscan, comm = self.scan.exscan, self._comm
        try:
            self._offset = exscan.wait(comm) if self._started else exscan(comm, self._pending)
        except BaseException as fault:
            self.fault = self.fault or fault

    def finish(self) -> None:
        """Scan the shard, seeded with the offset; raise the fault of an earlier step."""
        if self.fault is not None:
            raise self.fault
        self.scan.steps.finish(self._pending, self._offset)


def run(scan: CompiledScan, agreement: Agreement, x: Any, out: Any, segments: Any = None) -> None:
    """Scan ``x`` into ``out``; collective. If one rank has a fault, every rank raises it.

    The open step of the agreement has the arguments: the ranks compare them, and whether any rank
    has elements. Meanwhile a GPU finds the total. The last step stays open: so what the caller does
    with the result is agreed on, too.
    """
    call = Call(scan, agreement.comm)
    call.begin(x, out, segments)
    agreement.settle()
    if scan.exscan.long:  # buffers for the exchange of long rows
        agreement.begin()
        if agreement.has_elements:
            scan.exscan.reserve()
    agreement.begin()
    if agreement.has_elements and scan.across:
        call.exchange()
    call.finish()


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
        bool, integers, floats, complex numbers, and bfloat16 of ``ml_dtypes``. With an ``Operator``
        of ``arity`` k: a tuple of k arrays of one shape; so are ``out`` and the result.
    op
        "sum", "prod", "max", "min", "logaddexp", "bitwise_and", "bitwise_or", "bitwise_xor",
        "logical_and", "logical_or", "logical_xor", "fsum" (``docs/fsum.rst``); the NumPy ufunc or
        the MPI op of the same meaning; an ``Operator``; or, on CPUs, any other NumPy ufunc of two
        operands that is associative, such as ``numpy.gcd``.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.
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
        Where independent scans begin. An array of the length of the flattened ``x``, on its device.
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
    if isinstance(op, str | np.ufunc):
        op = operators.NAMED.get(op, op)
    elif not isinstance(op, Operator):
        op = operators.resolve(op_name(op))
    if window is not None or op == "fsum" or (isinstance(op, Operator) and op.arity > 1):
        passed: Any = {"axis": axis, "exclusive": exclusive, "initial": initial, "reverse": reverse}
        passed |= {"dtype": dtype, "out": out, "segments": segments, "strategy": strategy}
        passed["threads"] = threads
        if is_fsum(op, window):
            return scan_exactly(body(scan), call, x, window=window, **passed)
        assert isinstance(op, Operator)
        return scan_tuple(run, call, x, op, **passed)
    if x is None:
        raise TypeError("x is None; a scan takes an array or a sequence")
    array = arrays.as_native(x)
    target: Any = None if out is None else arrays.as_target(out)
    flags = None if segments is None else arrays.as_native(segments, "segments")
    given, native = (x, out, segments), [array, target, flags]
    axis = axis if axis is None or type(axis) is int else axis_number(axis)
    dtype = dtype if dtype is None or isinstance(dtype, np.dtype) else dtypes.parse(dtype)
    threads = None if threads is None else checked(threads)
    form: Any = {"axis": axis, "exclusive": bool(exclusive), "reverse": bool(reverse)}
    options = form | {"dtype": dtype, "strategy": strategy, "threads": threads}
    options["ranks"] = call.comm.size
    bits = (pickle.dumps if type(initial) in _NUMBERS else plan_cache.bits_of)(initial)
    gpu, device, stream = where(array)
    with device:
        key = (gpu, stream(), op, *options.values(), bits, *map(_kind, given, native))
        known, kind = plan_cache.taken(key)
        decided = known or decide(given, native, gpu, op, initial, **options)
        shard, result, flags, copy_back = _as_scanned(decided, *native)
        call.same, call.has_elements = decided.terms, decided.compiled.has_elements
        run(decided.compiled, call, shard, result, flags)
        plan_cache.put_back(key, decided, kind)
        if decided.restored is not None:
            result = decided.restored(result)
        if copy_back:
            target[...] = result
        if decided.foreign:
            # The conversion of a new result makes the stream of x's library wait, too.
            used = list(zip(given, native, strict=True))
            arrays.release(*(used[2:] if target is None else used))
        if target is not None:
            return out
        return result if decided.convert is None else decided.convert(result)


def _as_scanned(decided: Decided, array: Any, target: Any, flags: Any) -> tuple[Any, ...]:
    """Return x, out and segments as the steps take them, and whether out is an array copy_back.

    The steps write to an array copy_back, and the caller copies that to ``out``.
    """
    steps, keys = decided.compiled.steps, decided.compiled.form.keys
    shard = array if decided.view is None else decided.view(array)
    result = target if decided.view_out is None else decided.view_out(target)
    copy_back = target is not None and result is None
    copied = shard is None or copy_back
    shard = array.reshape(-1) if shard is None else shard
    result = steps.empty() if result is None else result
    flags = None if flags is None else flags.reshape(-1)
    if target is not None:
        if arrays.overlap(shard, result):
            shard, copied = shard.copy(), True
        if flags is not None and arrays.overlap(flags, result, in_place=keys is None):
            flags, copied = flags.copy(), True
    if copied:
        steps.refuse_capture("x, out or segments must be copied")
    return shard, result, flags, copy_back


def where(array: Any) -> tuple[int | None, AbstractContextManager[Any], Callable[[], Any]]:
    """Return an array's GPU or None, a context that makes it current, a function for its stream."""
    if isinstance(array, np.ndarray):
        return None, _ANYWHERE, lambda: None
    gpu, cuda = int(array.data.device_id), sys.modules["cupy"].cuda
    # The GPU is usually current. A check takes a fifth of the time that ``cuda.Device`` takes.
    device = _ANYWHERE if cuda.runtime.getDevice() == gpu else cuda.Device(gpu)
    return gpu, device, lambda: cuda.get_current_stream().ptr


def _kind(given: Any, array: Any) -> Hashable:
    """Return all properties of an array that the checks and the decisions depend on."""
    if array is None:
        return None
    host = isinstance(array, np.ndarray)
    memory = array.flags.writeable if host else array.data.device_id
    return type(given), array.dtype, array.shape, array.strides, host, memory
