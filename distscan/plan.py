"""Plan: a scan that is decided, allocated and compiled once, and run many times."""

import functools
import math
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from . import binding
from .core import arrays, dtypes
from .core.errors import RankError
from .core.form import Extents, shape_of
from .core.steps import PlanStrategy
from .engine.array_scan import CollectiveCall, locator
from .engine.fsum_scan import check_of, scan_exactly
from .engine.shard_scan import ShardScan, adds_exactly, make
from .fsum.request import FsumRequest, part_of
from .fsum.window import Window
from .mpi.agree import Agreement, Terms, Votes, agreed, collective, collective_method
from .mpi.communicators import Comm, communicator
from .mpi.notices import Notices
from .mpi.signals import uninterruptible
from .options import Op, RunOptions, ScanOptions, ScanRequest

P = ParamSpec("P")
R = TypeVar("R")


# ---- one use at a time ---------------------------------------------------------------------------


class PlanLock:
    """The lock of a plan, which ``exclusive`` takes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: The thread that uses the plan; None if there is none.
        self.user: int | None = None
        self.closed, self.lost = False, False
        _every.add(self)

    def fault(self) -> str:
        """Return why this thread, which has the lock, cannot use the plan."""
        if self.closed:
            return "this plan is closed"
        if self.lost:
            return "another thread was using this plan when the process was forked: make a new one"
        return (
            "this plan is in use by this thread: neither a signal's handler nor an operator's "
            "function can use it"
        )

    def begin_in_child(self) -> None:
        """Let go of a lock that another thread held: it is not there after a fork."""
        if self.user != threading.get_ident():
            self.lost, self.user = self.lost or self.user is not None, None
            self.lock = threading.RLock()


def exclusive(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Let threads take turns in such methods of a plan.

    A method raises RuntimeError if the plan is closed, and if the thread itself is already using
    the plan: in a signal's handler, or in a function that the plan calls, such as an operator's. So
    it is in a forked process, if another thread was using the plan: its memory is in an unknown
    state.
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        lock: PlanLock = self._lock
        with lock.lock:
            if lock.user is not None or lock.closed or lock.lost:
                raise RuntimeError(lock.fault())
            lock.user = threading.get_ident()
            try:
                return method(self, *args, **options)
            finally:
                lock.user = None

    return call


_every = weakref.WeakSet[PlanLock]()


def _in_child() -> None:
    for lock in list(_every):
        lock.begin_in_child()


os.register_at_fork(after_in_child=_in_child)


# ---- the plan ------------------------------------------------------------------------------------


class Plan:
    """A scan that is decided, allocated and compiled once, and run many times.

    The constructor is collective over ``comm``, and so is each call. ``plan(x, out)`` scans: it
    allocates nothing, compiles nothing and agrees on nothing. ``plan.start(x, out)`` and
    ``plan.wait()`` are the two halves of a call. Between them the ranks exchange totals, and the
    caller may compute and communicate.

    Parameters
    ----------
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.
    shape
        The length or the shape of this rank's shard. Shards may differ in length and may be empty.
    dtype
        The type of the shard.
    op, axis, exclusive, initial, reverse, threads
        As in ``scan``.
    strategy
        As in ``scan``; or "fused", for ranks of one node, each with a GPU of its own and some
        elements. The GPUs exchange totals themselves, in each other's memory, and the host waits
        for nothing. It takes 1-D scans without segments, tuples or exact sums. See Notes.
    out_dtype
        The type that accumulates, and the type of the result; None chooses as ``numpy.cumsum``
        does.
    backend
        "cpu" is for NumPy arrays. "cuda" is for CuPy arrays on the GPU that is current when the
        plan is made. "auto" is "cuda" if every rank has CuPy and a GPU.
    segments
        The type of the ``segments`` that each call passes: bool (or True) for head flags, any other
        type for keys. None (or False): calls pass none. ``out`` must not share memory with keys.
    agree
        Whether the ranks agree on faults in each call. Then every rank raises, or none does. It
        costs one ``MPI_Allreduce``.
    window
        (low, high) of "fsum": every element is a multiple of 2^low, below 2^high in magnitude; else
        a call raises ValueError. Give ``initial``, too, such as 0.0. Without both, each call looks
        at its elements first, and is collective; faults are agreed on; ``start`` keeps the arrays,
        and ``wait`` does the work. float16 and integers need no window.

    Attributes
    ----------
    comm, shape, out_shape, size, op, types, strategy, reason, backend
        The plan's decisions. ``types`` has the dtypes ``x``, ``acc`` (of the running value) and
        ``out``. ``strategy`` and ``backend`` are never "auto". ``reason`` says in words why it is
        this strategy.

    Raises
    ------
    TypeError, ValueError, OverflowError, NotImplementedError, MemoryError
        On every rank, even if one rank alone is at fault. The message names the ranks at fault.
    BackendError, KernelError
        On every rank, if the backend cannot run, or the operator's C++ does not compile.

    Notes
    -----
    Without ``agree``, the faults of a call are local: an array of another shape or type, or too
    little memory. The rank at fault takes part in the exchange, then raises. The ranks after it in
    scan order have results that lack its shard: they raise ``RankError`` in the same call. The
    ranks before it have right results. They get a notice, and raise ``RankError`` at the end of the
    first call after its arrival, which is usually the next call. ``close`` raises on ranks that
    have had no notice yet.

    CUDA work is ordered on the current stream, after the plan's earlier calls on any stream. Calls
    from several threads run one after the other. A CUDA graph may capture calls with strategy
    "single-pass" or "fused"; the memory that the graph uses is kept until the process ends.

    With "fused", a GPU waits inside a kernel for the totals of earlier ranks: at most
    ``DISTSCAN_WAIT`` seconds, by default 60. If a total is missing, because its rank came too late
    or its call was refused, the call stores nothing on this rank. A later call, ``check`` or
    ``close`` raises ``RankError``. Ranks before that one have right results.

    Examples
    --------
    On two ranks that hold [1, 2, 3] and [4, 5]:

    >>> import distscan, numpy
    >>> x = numpy.array([1, 2, 3])  # the other rank's plan is for shape 2
    >>> plan = distscan.Plan(None, x.shape, x.dtype, backend="cpu")
    >>> plan(x)  # the other rank gets array([10, 15])
    array([1, 3, 6])
    >>> plan(x, out=x) is x  # in place
    True
    """

    @collective_method
    def __init__(
        self,
        call: Agreement,
        comm: Comm | None,
        shape: int | tuple[int, ...],
        dtype: DTypeLike,
        op: Op = "sum",
        *,
        axis: int | None = None,
        exclusive: bool = False,
        initial: Any = None,
        reverse: bool = False,
        out_dtype: DTypeLike | None = None,
        segments: DTypeLike | bool | None = None,
        strategy: PlanStrategy = "auto",
        backend: binding.Name = "auto",
        agree: bool = False,
        threads: int | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        self.comm = communicator(comm)
        self.backend = binding.choose(call, backend, "Plan")
        self.shape, kind = shape_of(shape), dtypes.parse(dtype)
        options = ScanOptions.parse(
            op=op,
            axis=axis,
            exclusive=exclusive,
            initial=initial,
            reverse=reverse,
            dtype=out_dtype,
            window=window,
        )._replace(segments=segments_type(segments))
        run_options = RunOptions.parse(strategy=strategy, threads=threads, strategies=PlanStrategy)
        extents = Extents.of(self.shape, options.axis)
        gpu = arrays.current_gpu() if self.backend == "cuda" else None
        if gpu is not None and kind.names:
            raise TypeError("CuPy has no structured arrays; for NumPy's pass backend='cpu'")

        def make_scan(options: ScanOptions) -> ShardScan:
            return make(extents, kind, gpu, options, run_options, ranks=self.comm.size)

        exact = None
        if options.op == "fsum":
            exact = ExactPlan.of(kind, options, run_options, self.comm.size)
        self._scan = make_scan(options if exact is None else exact.options(0))
        # "auto" may differ: a rank without compiled kernels chooses otherwise.
        plans: Any = {"the function": "Plan", "the strategy": strategy, "agree": bool(agree)}
        plans["window"] = options.window
        if self._scan.strategy == "fused" and agree:
            raise ValueError(
                "strategy 'fused' does not wait for other ranks' hosts, so its calls cannot agree "
                "on faults; with agree=True use 'reduce-scan'"
            )
        call.same = Terms({**self._scan.terms, **plans})
        call.has_elements = self._scan.has_elements
        self.out_shape, self.size = self._scan.form.extents.result_shape, math.prod(self.shape)
        self._gpu, self._current_gpu = gpu, None if gpu is None else arrays.gpu_getter()
        shapes = self.shape, self.out_shape, self.size
        expected = Expected(self._scan, *shapes, arrays.type_on(gpu), gpu, options.segments)
        self._lock = PlanLock()
        self._votes = Votes.of(self.comm)
        self._is_alone = not self._votes.several  # no other rank, so no votes
        self._started: Any = None  # what start() has returned, for wait()
        told: Any = {"number": call.number, "agree": bool(agree)}
        call.settle()
        told["has_elements"] = call.has_elements
        if self._scan.strategy == "fused":
            from .engine import peers  # noqa: PLC0415 - it needs CuPy

            peers.connect(self._scan, self.comm)
        self._calls: Calls | WindowCalls
        if exact is None:
            self._calls = Calls(self._scan, self.comm, expected, **told)
        else:
            self._scan, self._calls = exact.calls(self.comm, make_scan, expected, **told)
        self.op, self.types = self._scan.op, self._scan.types
        self.strategy, self.reason = self._scan.strategy, self._scan.reason

    @uninterruptible
    @exclusive
    def __call__(self, x: Any, out: Any = None, segments: Any = None) -> Any:
        """Scan ``x`` into ``out``; collective.

        Parameters
        ----------
        x
            This rank's shard: a C-contiguous array of the plan's shape, type, and device.
        out
            A C-contiguous array of the plan's ``out_shape`` and ``types.out``, or None for a new
            one. It may be ``x``.
        segments
            A C-contiguous array [x.size] of flags or keys, of the type in ``Plan(segments=...)``.

        Returns
        -------
        array, shape ``out_shape``
            This rank's part of the global scan: ``out``, if given.

        Raises
        ------
        TypeError, ValueError, MemoryError
            On this rank alone; with ``agree``, on every rank.
        RankError
            If another rank has failed, in this call or in an earlier one.
        RuntimeError
            Between ``start`` and ``wait``, and after ``close``.
        """
        if self._started is not None:
            self._check_not_started("its next use")
        if self._current_gpu is not None and self._current_gpu() != self._gpu:
            with self._votes, arrays.context(self._gpu):
                return self._calls.run(x, out, segments)
        if self._is_alone:
            return self._calls.run(x, out, segments)
        with self._votes:
            return self._calls.run(x, out, segments)

    @uninterruptible
    @exclusive
    def start(self, x: Any, out: Any = None, segments: Any = None) -> None:
        """Find the total of ``x`` and begin the exchange; collective, but waits for no other rank.

        Of rows of several megabytes it begins with the first pieces, and ``wait`` does the rest.

        Parameters are those of a call. Do not touch the arrays before ``wait``. Faults of the
        arrays are raised by ``wait``. Every rank must use ``start``: MPI would not match it with
        another rank's call of the plan.
        """
        with self._votes, arrays.context(self._gpu):
            self._check_not_started("the next start()")
            self._started = self._calls.start(x, out, segments)

    @uninterruptible
    @exclusive
    def wait(self) -> Any:
        """Wait for the exchange that ``start`` began, scan, and return ``out``; collective."""
        with self._votes, arrays.context(self._gpu):
            if self._started is None:
                raise RuntimeError("this plan was not started: start() comes before wait()")
            started, self._started = self._started, None
            return self._calls.wait(started)

    @exclusive
    def check(self) -> None:
        """Wait until this rank's GPU has done its calls; raise what is wrong with one; local.

        Results on GPUs are ready in stream order, and a fault may show later than its call: see
        Notes. After the replay of a CUDA graph, this is how to see it. On CPUs, it does nothing but
        receive the notices of other ranks.

        Raises
        ------
        RankError, KernelError
            If results of an earlier call lack another rank's shard, or were not stored.
        """
        with arrays.context(self._gpu):
            self._check_not_started("check()")
            self._calls.check()

    def __enter__(self) -> "Plan":
        """Begin a block that ends with ``close``, if no exception leaves it."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # After an exception, other ranks may be elsewhere: no collective call would end.
        if kind is None:
            self.close()

    def close(self) -> None:
        """Free the plan's memory, after all queued work; collective. The plan cannot be used again.

        Raises
        ------
        RankError
            On every rank, if one rank has failed alone in a call, and another has no notice of it.
        RuntimeError
            On every rank, if one rank has called ``start`` and not ``wait``.
        """
        if not self._lock.closed:
            _close(self, comm=self.comm)

    def __repr__(self) -> str:
        return (
            f"<distscan.Plan: {self.op.name} of {self.types.x}{list(self.shape)} "
            f"to {self.types.out}, rank {self.comm.rank} of {self.comm.size}, "
            f"{self.strategy} on {self.backend}>"
        )

    @exclusive
    def _free(self, call: Agreement) -> None:
        self._check_not_started("close()")
        call.begin()
        self._lock.closed = True
        self._calls.close(call)

    def _check_not_started(self, what: str) -> None:
        if self._started is not None:
            raise RuntimeError(f"this plan was started: wait() comes before {what}")


@collective
def _close(call: Agreement, plan: Plan, *, comm: Comm) -> None:
    """Free the memory of a plan; collective."""
    call.same = Terms({"the function": "Plan.close"})
    plan._free(call)


# ---- what a plan and its calls may be passed -----------------------------------------------------


class Expected(NamedTuple):
    """The arrays that the calls of a plan expect."""

    plan: ShardScan
    shape: tuple[int, ...]  # of x
    out_shape: tuple[int, ...]
    size: int
    array: type  # numpy.ndarray or cupy.ndarray
    gpu: int | None
    flags: np.dtype[Any] | None  # the type of segments; None: calls pass none

    def check(self, x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any, Any]:
        """Return flat views of ``x``, ``out`` and ``segments``, and the array that a call returns.

        Raises TypeError and ValueError.
        """
        types = self.plan.types
        shard = self._checked("x", x, self.shape, types.x)
        if out is None:
            target = self.plan.steps.empty()
            out = target.reshape(self.out_shape)
        else:
            target = self._checked("out", out, self.out_shape, types.out)
            if self.gpu is None and not target.flags.writeable:
                raise ValueError("out is read-only")
            if arrays.overlap(shard, target):
                raise ValueError("out overlaps x; it may be x itself, or apart from it")
        return shard, target, self._segments(segments, target), out

    def _segments(self, segments: Any, target: Any) -> Any:
        if self.flags is None:
            if segments is not None:
                raise TypeError("the plan was made without segments=")
            return None
        if segments is None:
            raise TypeError(f"the plan is for segments of type {self.flags}; none are given")
        flags = self._checked("segments", segments, (self.size,), self.flags)
        if arrays.overlap(flags, target, in_place=flags.dtype == np.bool_):
            raise ValueError("out overlaps segments")
        return flags

    def _checked(self, name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return a flat view of an array; raise if its type, shape or device is not the plan's."""
        if type(array) is not self.array:
            if not isinstance(array, self.array):
                wanted = f"{self.array.__module__.split('.')[0]}.{self.array.__name__}"
                raise TypeError(f"{name} is a {type(array).__name__}; the plan is for a {wanted}")
            array = arrays.as_native(array)
        if array.shape != shape:
            whose = "the result has" if name == "out" else "the plan is for"
            raise ValueError(f"{name} has shape {array.shape}; {whose} {shape}")
        if array.dtype != dtype:
            raise TypeError(f"{name} is {array.dtype}; the plan is for {dtype}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous")
        if self.gpu is not None and array.data.device_id != self.gpu:
            raise ValueError(f"{name} is on GPU {arrays.gpu(array)}; the plan is for {self.gpu}")
        return array if array.ndim == 1 else array.reshape(-1)


def segments_type(segments: DTypeLike | bool | None) -> np.dtype[Any] | None:
    """Return the type of the flags or keys that each call passes; None if it passes none."""
    if segments is None or segments is False:
        return None
    return np.dtype(np.bool_) if segments is True else dtypes.parse(segments)


# ---- the calls, and their faults, which reach every rank, at once or later -----------------------


class Calls:
    """The calls of a plan whose scan is decided."""

    def __init__(
        self,
        scan: ShardScan,
        comm: Comm,
        expected: Expected,
        check: Callable[[Any], None] | None = None,
        *,
        has_elements: bool,
        agree: bool,
        number: int,
    ) -> None:
        """Prepare the exchange; collective. The plan has the same ``number`` on every rank.

        ``check`` raises ValueError for shards whose elements cannot be scanned.
        """
        self._scan, self._comm, self._agree = scan, comm, agree
        self._expected, self._check = expected, check
        self._type, self._describe = expected.array, arrays.describer(expected.gpu)
        self._locate = locator(expected.gpu)
        #: The properties and the addresses of the last arrays that were checked.
        self._properties: tuple[Any, ...] = ()
        self._addresses: tuple[int, ...] = ()
        #: Whether the last call has scanned these arrays, whose elements need no check.
        self._repeats = False
        self._exchanges = scan.across and has_elements
        if self._exchanges:
            with agreed(comm):
                scan.exscan.reserve()
            scan.exscan.prepare(comm)
        self._notices = None
        if self._exchanges and not agree:  # then faults are not agreed on, but sent later
            self._notices = Notices(comm, number, reverse=scan.form.reverse)
        self._are_local = not self._exchanges and not (agree and comm.size > 1)

    def run(self, x: Any, out: Any, segments: Any) -> Any:
        """Scan ``x`` into ``out``, and return the result; collective."""
        if self._are_local:
            steps = self._scan.steps
            if self._repeats and self._are_last(x, out, segments) and steps.repeat():
                return out
            shard, target, flags, out = self._arrays(x, out, segments)
            steps.finish(steps.begin(shard, target, flags, overlap=True), self._scan.form.seed)
            self._repeats = self._check is None
            return out
        return self.wait(self._begin(x, out, segments, overlap=True))

    def _arrays(self, x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any, Any]:
        """Return what ``Expected.check`` does; arrays as the last ones are not checked again."""
        self._repeats = False
        if self._are_last(x, out, segments):
            flat = x if x.ndim == 1 else x.reshape(-1)
            result = flat, out if out.ndim == 1 else out.reshape(-1), None, out
        else:
            self._properties = ()
            try:
                result = self._expected.check(x, out, segments)
            except BaseException:
                self._scan.steps.call_off()
                raise
            if type(x) is type(out) is self._type and segments is None:
                self._properties = self._describe(x), self._describe(out)
                self._addresses = self._locate(x), self._locate(out)
        if self._check is not None:
            self._check(result[0])
        return result

    def _are_last(self, x: Any, out: Any, segments: Any) -> bool:
        """Return whether arrays have the properties and addresses of the last ones."""
        describe, locate = self._describe, self._locate
        return (
            type(x) is type(out) is self._type
            and segments is None
            and self._properties == (describe(x), describe(out))
            and self._addresses == (locate(x), locate(out))
        )

    def start(self, x: Any, out: Any, segments: Any) -> tuple[CollectiveCall, Any]:
        """Begin a call, and its exchange; do not wait for other ranks."""
        call, out = self._begin(x, out, segments, overlap=False)
        if self._exchanges:
            call.start()
        return call, out

    def _begin(
        self, x: Any, out: Any, segments: Any, *, overlap: bool
    ) -> tuple[CollectiveCall, Any]:
        """Check the arrays, and begin to find the total; return the call and its result."""
        call = CollectiveCall(self._scan, self._comm)
        try:
            shard, target, flags, out = self._arrays(x, out, segments)
        except BaseException as fault:
            call.fault = fault
        else:
            call.begin(shard, target, flags, overlap=overlap)
        return call, out

    def wait(self, started: tuple[CollectiveCall, Any]) -> Any:
        """Exchange and scan; return the result. With ``agree`` every rank raises, or none does."""
        call, out = started
        if self._agree:
            with Agreement(Votes.of(self._comm)):
                self._exchange_and_finish(call)
        elif self._notices is None:
            self._exchange_and_finish(call)
        else:
            heard = self._notices.receive()
            self._exchange_and_finish(call)
            if heard:
                self._notices.raise_fault()
        return out

    def _exchange_and_finish(self, call: CollectiveCall) -> None:
        if self._exchanges:
            call.exchange()
        fault, notices = call.fault, self._notices
        if fault is not None and notices is not None and not isinstance(fault, RankError):
            notices.send(fault)
        call.finish()

    def check(self) -> None:
        """Raise the faults of earlier calls; local."""
        self._scan.steps.check()
        if self._notices is not None and self._notices.receive():
            self._notices.raise_fault()

    def close(self, call: Agreement) -> None:
        """Free the memory; collective. Raises RankError for faults that no call has raised."""
        if self._scan.strategy == "fused":
            from .engine import peers  # noqa: PLC0415 - it needs CuPy

            peers.disconnect(self._scan, call)
        self._scan.steps.close()
        call.settle()
        if self._notices is not None:
            self._notices.close()


# ---- plans of fsum: of a known window, or of the window that each call finds ---------------------

MakeScan = Callable[[ScanOptions], ShardScan]  # ``make`` for the shard of a plan


class WindowCalls:
    """The calls of a plan that first look at their elements, as ``scan``; each is collective."""

    def __init__(
        self, comm: Comm, expected: Expected, options: ScanOptions, run_options: RunOptions
    ) -> None:
        """``options`` are those of ``scan`` by fsum."""
        self._comm, self._expected = comm, expected
        self._options = options, run_options

    def run(self, x: Any, out: Any, segments: Any) -> Any:
        """Scan ``x`` into ``out``, and return the result; collective."""
        expected = self._expected
        with Agreement(Votes.of(self._comm)) as call:
            shard, target, flags, out = expected.check(x, out, segments)
            result = target.reshape(expected.out_shape)
            shard = shard.reshape(expected.shape)
            scan_exactly(call, ScanRequest(shard, result, flags, *self._options))
        return out

    def start(self, x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any]:
        """Keep the arrays for ``wait``, which does the work."""
        return x, out, segments

    def wait(self, started: tuple[Any, Any, Any]) -> Any:
        """Scan the arrays that ``start`` was given; collective."""
        return self.run(*started)

    def check(self) -> None:
        """Do nothing: each call raises its faults on every rank."""

    def close(self, call: Agreement) -> None:
        """Do nothing: no memory is kept."""


class ExactPlan(NamedTuple):
    """A plan of ``fsum``, and the window of all elements that there may be."""

    sums: FsumRequest
    x: np.dtype[Any]  # of the elements
    window: Window | None  # None: each call finds it
    asked: ScanOptions
    run_options: RunOptions

    @classmethod
    def of(
        cls, x: np.dtype[Any], asked: ScanOptions, run_options: RunOptions, ranks: int
    ) -> "ExactPlan":
        """Check what a plan asks for; raise TypeError and ValueError."""
        sums = FsumRequest.of(
            x,
            dtype=asked.dtype,
            initial=asked.initial,
            window=asked.window,
            strategy=run_options.strategy,
            ranks=ranks,
        )
        return cls(sums, x, known_window(sums, x), asked, run_options)

    def options(self, most: int, *, words: bool = False) -> ScanOptions:
        """Return the options of a scan of at most so many elements, by an operator of the window.

        For ``words`` see ``FsumRequest.operator``.
        """
        window = Window(0, 0, most) if self.window is None else self.window._replace(most=most)
        check = None if self.sums.limits is None else check_of(self.sums.limits)
        op, initial = self.sums.operator(window, self.x, check=check, words=words)
        return self.asked._replace(op=op, initial=initial, dtype=self.sums.result, window=None)

    def calls(
        self, comm: Comm, make_scan: MakeScan, expected: Expected, **told: Any
    ) -> tuple[ShardScan, Calls | WindowCalls]:
        """Return the scan and the calls of a plan; collective."""
        sums, x, limits = self.sums, self.x, self.sums.limits
        by_scan = WindowCalls(
            comm, expected, self.asked._replace(dtype=sums.result), self.run_options
        )
        if self.window is None:
            return expected.plan, by_scan
        by_kernels = adds_exactly(part_of(x), part_of(sums.result), expected.gpu)
        sizes, words = zip(*comm.allgather((expected.size, by_kernels)), strict=True)
        window = self.window._replace(most=sum(sizes))
        by_words = limits is not None and all(words) and sums.narrow(window, x) is not None
        # Without ``initial``, a sum may be -0.0. Only ``scan`` looks for such sums.
        plain = sums.initial is not None and sums.is_plain and x.kind != "c"
        if by_words and not plain:
            return expected.plan, by_scan
        with agreed(comm):
            part = make_scan(self.options(sum(sizes), words=by_words))
        check = None if limits is None or by_words else check_of(limits)
        return part, Calls(part, comm, expected._replace(plan=part), check, **told)


def known_window(sums: FsumRequest, x: np.dtype[Any]) -> Window | None:
    """Return the window of all elements that there may be, if it is named, or that of a type.

    >>> sums = FsumRequest(np.dtype("f2"), None, None)
    >>> known_window(sums, np.dtype("f2")), known_window(sums, np.dtype("f8"))
    (Window(low=-24, high=16, most=0), None)
    """
    if sums.limits is not None:
        return Window(*sums.limits, 0)
    if x.kind in "biu":
        return Window(0, 64, 0)
    return Window(-24, 16, 0) if x == np.float16 else None
