"""Plan: a scan that is decided, allocated and compiled once, and run many times."""

import math
from functools import partial
from typing import Any

from numpy.typing import DTypeLike

from . import binding, plan_exact
from .build import BlockScan, Op, make
from .core import arrays, dtypes, operators
from .core.extents import Extents, axis_number, shape_of
from .core.steps import Strategy
from .mpi.agree import Agreement, Terms, Votes, collective, collective_method
from .mpi.communicators import Comm, communicator, op_name
from .mpi.signals import uninterruptible
from .plan_calls import Calls
from .plan_check import Expected, segments_type
from .plan_exact import WindowCalls
from .plan_lock import PlanLock


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
    op, axis, exclusive, initial, reverse, strategy, threads
        As in ``scan``.
    out_dtype
        The type that accumulates, and the type of the result; None chooses as ``numpy.cumsum``
        does.
    backend
        "cpu" is for NumPy arrays. "cuda" is for CuPy arrays on the GPU that is current when the
        plan is made. "auto" is "cuda" if every rank has CuPy and a GPU.
    block_scan
        How a GPU's thread blocks scan: "auto" is the fastest. The scans of the literature are there
        to compare: "kogge-stone", "brent-kung", "blelloch", "coarsened".
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
    comm, shape, out_shape, size, op, types, strategy, backend
        The plan's decisions. ``types`` has the dtypes ``x``, ``acc`` (of the running value) and
        ``out``. ``strategy`` and ``backend`` are never "auto".

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
    from several threads run one after the other. A CUDA graph may capture calls on one rank with
    strategy "single-pass"; the memory that the graph uses is kept until the process ends.

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
        strategy: Strategy = "auto",
        block_scan: BlockScan = "auto",
        backend: binding.Name = "auto",
        agree: bool = False,
        threads: int | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        self.comm = communicator(comm)
        self.backend = binding.choose(call, backend, "Plan")
        self.shape, kind = shape_of(shape), dtypes.parse(dtype)
        flags, extents = segments_type(segments), Extents.of(self.shape, axis_number(axis))
        gpu = arrays.current_gpu() if self.backend == "cuda" else None
        if gpu is not None and kind.names:
            raise TypeError("CuPy has no structured arrays; for NumPy's pass backend='cpu'")
        options: Any = {
            "exclusive": bool(exclusive),
            "initial": initial,
            "reverse": bool(reverse),
            "dtype": None if out_dtype is None else dtypes.parse(out_dtype),
            "strategy": strategy,
            "threads": threads,
        }
        fixed: Any = {"segments": flags, "block_scan": block_scan, "ranks": self.comm.size}
        made: Any = partial(make, extents, kind, gpu, **fixed)
        exact = plan_exact.asked(op, kind, options, window, self.comm.size)
        if exact is None:
            self._scan = made(operators.resolve(op_name(op)), **options)
        else:
            self._scan = exact.make(made, options)
        # "auto" may differ: a rank without compiled kernels chooses otherwise.
        plans: Any = {"the function": "Plan", "the strategy": strategy, "agree": bool(agree)}
        plans["window"] = None if exact is None else exact.sums.limits
        call.same = Terms({**self._scan.terms, **plans})
        call.has_elements = self._scan.has_elements
        self.out_shape, self.size = self._scan.form.extents.result_shape, math.prod(self.shape)
        array, self._device = arrays.on_gpu(gpu)
        expected = Expected(self._scan, self.shape, self.size, array, gpu, flags)
        self._lock = PlanLock()
        self._votes = Votes.of(self.comm)
        self._started: Any = None  # what start() has returned, for wait()
        told: Any = {"number": call.number, "agree": bool(agree)}
        call.settle()
        told["has_elements"] = call.has_elements
        self._calls: Calls | WindowCalls
        if exact is None:
            self._calls = Calls(self._scan, self.comm, expected.check, **told)
        else:
            self._scan, self._calls = exact.calls(self.comm, made, options, expected, **told)
        self.op, self.types, self.strategy = self._scan.op, self._scan.types, self._scan.strategy

    @uninterruptible
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
        with self._lock, self._votes, self._device():
            self._check_not_started("its next use")
            return self._calls.run(x, out, segments)

    @uninterruptible
    def start(self, x: Any, out: Any = None, segments: Any = None) -> None:
        """Find the total of ``x`` and begin the exchange; collective, but waits for no other rank.

        Of rows of several megabytes it begins with the first pieces, and ``wait`` does the rest.

        Parameters are those of a call. Do not touch the arrays before ``wait``. Faults of the
        arrays are raised by ``wait``. Every rank must use ``start``: MPI would not match it with
        another rank's call of the plan.
        """
        with self._lock, self._votes, self._device():
            self._check_not_started("the next start()")
            self._started = self._calls.start(x, out, segments)

    @uninterruptible
    def wait(self) -> Any:
        """Wait for the exchange that ``start`` began, scan, and return ``out``; collective."""
        with self._lock, self._votes, self._device():
            if self._started is None:
                raise RuntimeError("this plan was not started: start() comes before wait()")
            started, self._started = self._started, None
            return self._calls.wait(started)

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

    def _check_not_started(self, what: str) -> None:
        if self._started is not None:
            raise RuntimeError(f"this plan was started: wait() comes before {what}")


@collective
def _close(call: Agreement, plan: Plan, *, comm: Comm) -> None:
    """Free the memory of a plan; collective."""
    call.same = Terms({"the function": "Plan.close"})
    with plan._lock:
        plan._check_not_started("close()")
        call.begin()
        plan._lock.closed = True
        plan._calls.close(call)
