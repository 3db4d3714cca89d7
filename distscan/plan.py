"""Plan: a scan that is decided, allocated and compiled once, and run many times."""

import math
from typing import Any

from numpy.typing import DTypeLike

from . import binding
from .build import BlockScan, Op, Strategy, make
from .core import arrays, dtypes, operators
from .core.errors import RankError
from .core.extents import Extents, axis_number
from .mpi.agree import Agreement, Terms, agreed, collective
from .mpi.communicators import Comm, communicator, op_name
from .mpi.notices import Notices
from .plan_check import Expected, segments_type, shape_of
from .scan import Call
from .turns import Turns


class Plan:
    """A scan that is decided, allocated and compiled once, and run many times.

    Making one is collective over ``comm``, and so is each call. ``plan(x, out)`` scans; it
    allocates, compiles and agrees on nothing. ``plan.start(x, out)`` and ``plan.wait()`` are its
    two halves: between them the totals travel, and the caller may work and communicate.

    Parameters
    ----------
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``.
    shape
        This rank's shard: its length, or its shape. Shards may differ in length and may be empty.
    dtype
        The type of the shard.
    op, axis, exclusive, initial, reverse, strategy
        As in ``scan``.
    out_dtype
        The type that accumulates and results; None chooses as ``numpy.cumsum`` does.
    backend
        "cpu" takes NumPy arrays, "cuda" CuPy arrays on the GPU that is current now. "auto" is
        "cuda" if every rank has CuPy and a GPU.
    block_scan
        How a GPU's thread blocks scan: "auto", the fastest; or one of the literature's, to compare:
        "kogge-stone", "brent-kung", "blelloch", "coarsened".
    segments
        The type of the segments that each call brings: bool (or True) for flags, any other for
        keys. None (or False): calls bring none.
    agree
        Whether each call agrees on faults, for one ``MPI_Allreduce``: then every rank raises, or
        none does.

    Attributes
    ----------
    comm, shape, out_shape, size, op, types, strategy, backend
        What was decided: ``types`` has the dtypes ``x``, ``acc`` (of the running value) and
        ``out``; ``strategy`` and ``backend`` are those picked.

    Raises
    ------
    TypeError, ValueError, OverflowError, NotImplementedError, MemoryError
        On every rank alike, however few of them are at fault; the message names those ranks.
    BackendError, KernelError
        The same, where the backend cannot run, or the operator's C++ does not compile.

    Notes
    -----
    Without ``agree`` a call's own faults are local: an array of another shape or type, no memory.
    The rank at fault takes part in the exchange, and raises. The ranks behind it in scan order,
    whose results lack its shard, raise ``RankError`` in that call. The ranks before it, whose
    results are right, do so at the end of the first call behind the notice's arrival, which is as
    a rule the next; ``close`` tells who has not heard.

    CUDA work is ordered on the current stream, and behind the plan's earlier calls on whichever
    streams. Calls from several threads take turns. A CUDA graph may capture calls on one rank with
    strategy "single-pass"; what it uses is kept until the process ends.

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

    @collective
    def __init__(
        self,
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
    ) -> None:
        self.comm = communicator(comm)
        self.backend = binding.choose(self.comm, backend, "Plan")
        with Agreement(self.comm) as arguments:
            self.shape = shape_of(shape)
            operator = operators.resolve(op_name(op))
            flags = segments_type(segments)
            gpu = arrays.current_gpu() if self.backend == "cuda" else None
            if gpu is not None and dtypes.parse(dtype).names:
                raise TypeError("CuPy has no structured arrays; for NumPy's pass backend='cpu'")
            self._scan = make(
                Extents.of(self.shape, axis_number(axis)),
                dtypes.parse(dtype),
                gpu,
                operator,
                exclusive=bool(exclusive),
                initial=initial,
                reverse=bool(reverse),
                segments=flags,
                strategy=strategy,
                block_scan=block_scan,
                dtype=None if out_dtype is None else dtypes.parse(out_dtype),
                ranks=self.comm.size,
            )
            self.op, self.types, self.strategy = operator, self._scan.types, self._scan.strategy
            self.out_shape, self.size = self._scan.extents.result_shape, math.prod(self.shape)
            self._agree = bool(agree)
            plans = {"the function": "Plan", "the strategy": self.strategy, "agree": self._agree}
            arguments.same = Terms({**self._scan.terms, **plans})
            arguments.some = self._scan.some
            array, self._device = arrays.on_gpu(gpu)
            self._expected = Expected(self._scan, self.shape, self.size, array, gpu, flags)
        arguments.settle()
        self._exchanges = self._scan.across and arguments.some
        if self._exchanges:
            with agreed(self.comm):
                self._scan.exscan.reserve()
            self._scan.exscan.prepare(self.comm)
        self._notices = None
        if self._exchanges and not self._agree:  # what is not agreed on at once is told
            reverse = self._scan.form.reverse
            self._notices = Notices(self.comm, arguments.number, reverse=reverse)
        self._calls_are_local = not self._exchanges and not (self._agree and self.comm.size > 1)
        self._turns = Turns()
        self._started: tuple[Call, Any] | None = None  # and what wait() returns

    @collective
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
            A C-contiguous array [x.size] of the flags or keys that the plan was made for.

        Returns
        -------
        array, shape ``out_shape``
            This rank's part of the global scan: ``out``, if given.

        Raises
        ------
        TypeError, ValueError, MemoryError
            On this rank alone; with ``agree``, on every rank.
        RankError
            Where another rank has failed, in this call or in an earlier one.
        RuntimeError
            Between ``start`` and ``wait``, and after ``close``.
        """
        with self._turns, self._device():
            self._check_not_started("its next use")
            if self._calls_are_local:
                shard, target, flags, out = self._expected.check(x, out, segments)
                steps = self._scan.steps
                steps.finish(steps.begin(shard, target, flags, overlap=True), self._scan.form.first)
                return out
            return self._end(*self._begin(x, out, segments, overlap=True))

    @collective
    def start(self, x: Any, out: Any = None, segments: Any = None) -> None:
        """Find the total of ``x`` and begin the exchange; collective, but waits for no other rank.

        No rank may call the plan instead: MPI would not match the two. Parameters are those of a
        call. Leave the arrays alone until ``wait``, which also raises what is wrong with them.
        """
        with self._turns, self._device():
            self._check_not_started("the next start()")
            call, out = self._begin(x, out, segments, overlap=False)
            if self._exchanges:
                call.start()
            self._started = call, out

    @collective
    def wait(self) -> Any:
        """End what ``start`` began: wait for the exchange, scan, return ``out``."""
        with self._turns, self._device():
            if self._started is None:
                raise RuntimeError("this plan was not started: start() comes before wait()")
            started, self._started = self._started, None
            return self._end(*started)

    @collective
    def close(self) -> None:
        """Give the plan's memory back, behind what is queued; collective. It cannot be used again.

        Raises
        ------
        RankError
            On every rank, if one has failed alone in a call, and another has not heard of it.
        RuntimeError
            On every rank, if one has started the plan and not waited.
        """
        if self._turns.closed:
            return
        with self._turns:
            with agreed(self.comm, "Plan.close"):
                self._check_not_started("close()")
            self._turns.closed = True
            self._scan.steps.close()
            if self._notices is not None:
                self._notices.close()

    def __repr__(self) -> str:
        return (
            f"<distscan.Plan: {self.op.name} of {self.types.x}{list(self.shape)} "
            f"to {self.types.out}, rank {self.comm.rank} of {self.comm.size}, "
            f"{self.strategy} on {self.backend}>"
        )

    # ---- the steps of a call -----------------------------------------------------------------

    def _check_not_started(self, what: str) -> None:
        if self._started is not None:
            raise RuntimeError(f"this plan was started: wait() comes before {what}")

    def _begin(self, x: Any, out: Any, segments: Any, *, overlap: bool) -> tuple[Call, Any]:
        """Check the arrays, and begin to find the total; return the call and what it results in."""
        call = Call(self._scan, self.comm)
        try:
            shard, target, flags, out = self._expected.check(x, out, segments)
        except BaseException as fault:
            call.fault = fault
        else:
            call.begin(shard, target, flags, overlap=overlap)
        return call, out

    def _end(self, call: Call, out: Any) -> Any:
        """Exchange and scan, or raise: alone, or with ``agree`` as every rank does."""
        if self._agree:
            with Agreement(self.comm) as work:
                self._exchange_and_finish(call)
            work.settle()
        elif self._notices is None:
            self._exchange_and_finish(call)
        else:
            heard = self._notices.receive()
            self._exchange_and_finish(call)
            if heard:
                self._notices.tell()
        return out

    def _exchange_and_finish(self, call: Call) -> None:
        if self._exchanges:
            call.exchange()
        fault, notices = call.fault, self._notices
        if fault is not None and notices is not None and not isinstance(fault, RankError):
            notices.send(fault)
        call.finish()
