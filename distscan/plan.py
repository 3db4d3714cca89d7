"""Plan: a scan that is decided, allocated and compiled once, and run many times."""

import math
from typing import Any

from numpy.typing import DTypeLike

from . import binding
from .build import BlockScan, Op, Strategy, initial_bytes, make
from .core import arrays, dtypes, operators
from .core.errors import RankError
from .core.forms import Pending
from .mpi import communicators
from .mpi.agree import Agreement, Terms, agreed
from .mpi.communicators import Comm
from .mpi.notices import Notices
from .mpi.signals import collective
from .plan_check import Expected, segments_type, shape_of
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
        self.comm = communicators.communicator(comm)
        self.backend = binding.choose(self.comm, backend, "Plan")
        with Agreement(self.comm) as arguments:
            self.shape = shape_of(shape)
            operator = operators.resolve(communicators.op_name(op))
            marks = segments_type(segments)
            result = None if out_dtype is None else dtypes.parse(out_dtype)
            gpu = arrays.current_gpu() if self.backend == "cuda" else None
            if gpu is not None and dtypes.parse(dtype).names:
                raise TypeError("CuPy has no structured arrays; for NumPy's pass backend='cpu'")
            built = make(
                self.shape,
                dtypes.parse(dtype),
                gpu,
                operator,
                axis=axis,
                exclusive=bool(exclusive),
                initial=initial_bytes(initial, operator, dtypes.parse(dtype), result),
                reverse=bool(reverse),
                segments=marks,
                strategy=strategy,
                block_scan=block_scan,
                dtype=result,
                ranks=self.comm.size,
            )
            self._agree = bool(agree)
            plans = {"the function": "Plan", "the strategy": built.strategy, "agree": self._agree}
            arguments.same = Terms({**built.terms, **plans})
            arguments.some = built.some
            self.size = math.prod(self.shape)
            array, self._device = arrays.on_gpu(gpu)
            self._expected = Expected(built, self.shape, self.size, array, gpu, marks)
        arguments.settle()
        self.op, self.types, self.strategy = built.op, built.types, built.strategy
        self.out_shape = built.shape
        self._local, self._exscan = built.local, built.exscan
        self._exchanges = built.across and arguments.some
        if self._exchanges:
            with agreed(self.comm):
                self._exscan.reserve()
            self._exscan.prepare(self.comm)
        self._notices = None
        if self._exchanges and not self._agree:  # what is not agreed on at once is told
            self._notices = Notices(self.comm, arguments.number, reverse=built.form.reverse)
        self._calls_are_local = not self._exchanges and not (self._agree and self.comm.size > 1)
        self._turns = Turns()
        self._begun: _Begun | None = None

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
            if self._begun is not None:
                raise RuntimeError("this plan was started: wait() comes before its next use")
            if self._calls_are_local:
                shard, target, marks, out = self._expected.check(x, out, segments)
                self._local.finish(self._local.begin(shard, target, marks, overlap=True), None)
                return out
            begun = _Begun()
            self._begin(begun, x, out, segments, overlap=True)
            return self._end(begun)

    @collective
    def start(self, x: Any, out: Any = None, segments: Any = None) -> None:
        """Find the total of ``x`` and begin the exchange; collective, but waits for no other rank.

        No rank may call the plan instead: MPI would not match the two. Parameters are those of a
        call. Leave the arrays alone until ``wait``, which also raises what is wrong with them.
        """
        with self._turns, self._device():
            if self._begun is not None:
                raise RuntimeError("this plan was started: wait() comes before the next start()")
            begun = _Begun()
            self._begin(begun, x, out, segments, overlap=False)
            if self._exchanges:
                self._exscan.start(self.comm, begun.call)
            self._begun, begun.started = begun, True

    @collective
    def wait(self) -> Any:
        """End what ``start`` began: wait for the exchange, scan, return ``out``."""
        with self._turns, self._device():
            if self._begun is None:
                raise RuntimeError("this plan was not started: start() comes before wait()")
            begun, self._begun = self._begun, None
            return self._end(begun)

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
                if self._begun is not None:
                    raise RuntimeError("this plan was started: wait() comes before close()")
            self._turns.closed = True
            self._local.close()
            if self._notices is not None:
                self._notices.close()

    def __repr__(self) -> str:
        return (
            f"<distscan.Plan: {self.op.name} of {self.types.x}{list(self.shape)} "
            f"to {self.types.out}, rank {self.comm.rank} of {self.comm.size}, "
            f"{self.strategy} on {self.backend}>"
        )

    # ---- the steps of a call -----------------------------------------------------------------

    def _begin(self, begun: "_Begun", x: Any, out: Any, segments: Any, *, overlap: bool) -> None:
        """Check the arrays, and begin to find the total; what goes wrong is left for ``_end``."""
        try:
            shard, target, marks, begun.out = self._expected.check(x, out, segments)
            begun.call = self._local.begin(shard, target, marks, overlap=overlap)
        except BaseException as fault:
            begun.fault = fault

    def _end(self, begun: "_Begun") -> Any:
        """Exchange and scan, or raise: alone, or with ``agree`` as every rank does."""
        if self._agree:
            with Agreement(self.comm) as work:
                self._finish(begun)
            work.settle()
        elif self._notices is None:
            self._finish(begun)
        else:
            heard = self._notices.receive()
            self._finish(begun)
            if heard:
                self._notices.tell()
        return begun.out

    def _finish(self, begun: "_Begun") -> None:
        fault, offset = begun.fault, None
        if self._exchanges:
            try:  # in any case: the other ranks count on this one's part
                offset = (
                    self._exscan.wait(self.comm)
                    if begun.started
                    else self._exscan(self.comm, begun.call)
                )
            except BaseException as error:
                fault = fault or error
        if fault is None:
            self._local.finish(begun.call, offset)
            return
        if self._notices is not None and not isinstance(fault, RankError):
            self._notices.send(fault)
        raise fault


class _Begun:
    """A call between its two halves."""

    call: Pending | None = None
    out: Any = None
    started = False  # whether the exchange was
    fault: BaseException | None = None
