"""Plan: a scan that is decided, allocated and compiled once, and run many times."""

import functools
import math
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import binding
from .core import arrays, display, dtypes
from .core.form import Extents, shape_of
from .core.signatures import Array
from .core.steps import PlanStrategy
from .engine.plan_calls import Calls, ExactPlan, Expected, WindowCalls
from .engine.shard_scan import GPU_STRATEGIES, ShardScan, make
from .mpi.agree import Agreement, Terms, Votes, collective, collective_method
from .mpi.communicators import Comm, communicator
from .mpi.signals import uninterruptible
from .mpi.torch_group import TorchComm
from .options import Op, RunOptions, ScanOptions

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
        An mpi4py intracommunicator, or a process group of ``torch.distributed``, where calls
        ``agree``. None is ``MPI.COMM_WORLD``, or the default group: see ``scan``.
    shape
        The length or the shape of this rank's shard. Shards may differ in length and may be empty.
    dtype
        The type of the shard.
    op, axis, exclusive, initial, reverse, threads
        As in ``scan``.
    strategy
        As in ``scan``; or "fused" or "nccl", for ranks with a GPU of their own and some elements.
        The GPUs exchange totals themselves, and the host waits for nothing: with "fused", on one
        node, in each other's memory; with "nccl", by NCCL. Both take neither exact sums nor
        ``agree``, nor rows of totals above 64 KiB, nor flags of segments in a reverse scan. "auto"
        is "fused", too, where it works; then the host waits for the hosts of earlier ranks. See
        Notes.
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
    "single-pass", "fused" or "nccl"; the memory that the graph uses is kept until the process ends.

    With ``strategy="fused"``, and in graphs, a GPU waits inside a kernel for the totals of earlier
    ranks: at most ``DISTSCAN_WAIT`` seconds, by default 60. If a total is missing, because its rank
    came too late or its call was refused, the results of this rank are NaN, or 0 of integers. The
    call, a later one, ``check`` or ``close`` raises ``RankError``. Ranks before that one have right
    results. The kernel takes the whole GPU while it waits. So call such plans on one stream, beside
    no other kernels that wait for other GPUs, such as NCCL's on another stream. "auto" has kernels
    without this condition. "nccl" waits without a limit.

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
        # Notices are messages of MPI.
        agree = agree or (isinstance(self.comm, TorchComm) and strategy not in GPU_STRATEGIES)
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

        # "auto" may differ: a rank without compiled kernels chooses otherwise.
        plans: Any = {"the function": "Plan", "the strategy": strategy, "agree": bool(agree)}
        peers = None
        if gpu is not None and call.several:
            call.same = Terms(plans)
            call.settle()
            if strategy in {"auto", *GPU_STRATEGIES} and not agree:
                from .engine.peers import prove  # noqa: PLC0415 - it needs CuPy

                some = extents.size > 0
                peers = prove(self.comm, strategy, some=some, reverse=options.reverse)
            call.begin()

        def make_scan(options: ScanOptions) -> ShardScan:
            return make(extents, kind, gpu, options, run_options, ranks=self.comm.size, peers=peers)

        exact = None
        if options.op == "fsum":
            exact = ExactPlan.of(kind, options, run_options, self.comm.size)
        self._scan = make_scan(options if exact is None else exact.options(0))
        call.same = Terms({**self._scan.terms, **plans, "window": options.window})
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
        if self._scan.strategy in GPU_STRATEGIES:
            from .engine.peers import connect  # noqa: PLC0415 - it needs CuPy

            connect(self._scan, self.comm)
        self._calls: Calls | WindowCalls
        if exact is None:
            self._calls = Calls(self._scan, self.comm, expected, **told)
        else:
            self._scan, self._calls = exact.calls(self.comm, make_scan, expected, **told)
        self.op, self.types = self._scan.op, self._scan.types
        self.strategy, self.reason = self._scan.strategy, self._scan.reason

    @overload
    def __call__(
        self, /, x: NDArray[Any], out: Any = None, segments: Any = None
    ) -> NDArray[Any]: ...
    @overload
    def __call__(self, /, x: Array, out: Any = None, segments: Any = None) -> Array: ...
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

    def _repr_html_(self) -> str:
        """Return the plan's decisions as a table, for notebooks; local."""
        return display.table(
            "distscan.Plan",
            [
                ("op", self.op.name),
                (
                    "shard",
                    f"{self.types.x}{list(self.shape)}, rank {self.comm.rank} of {self.comm.size}",
                ),
                (
                    "result",
                    f"{self.types.out}{list(self.out_shape)}, accumulated in {self.types.acc}",
                ),
                ("backend", self.backend),
                ("strategy", f"{self.strategy}: {self.reason}"),
            ],
        )

    @exclusive
    def _free(self, call: Agreement) -> None:
        self._check_not_started("close()")
        call.begin()
        self._lock.closed = True
        with arrays.context(self._gpu):
            self._calls.close(call)

    def _check_not_started(self, what: str) -> None:
        if self._started is not None:
            raise RuntimeError(f"this plan was started: wait() comes before {what}")


@collective
def _close(call: Agreement, plan: Plan, *, comm: Comm) -> None:
    """Free the memory of a plan; collective."""
    call.same = Terms({"the function": "Plan.close"})
    plan._free(call)


def segments_type(segments: DTypeLike | bool | None) -> np.dtype[Any] | None:
    """Return the type of the flags or keys that each call passes; None if it passes none."""
    if segments is None or segments is False:
        return None
    return np.dtype(np.bool_) if segments is True else dtypes.parse(segments)
