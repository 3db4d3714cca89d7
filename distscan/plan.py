"""Plan: a scan that is decided, allocated and compiled once, and run many times."""

import math
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from . import arrays, binding, dtypes, exchange, operators
from .agree import agreed
from .exchange import Comm
from .forms import Edges
from .local import BlockScan, Op, Strategy, initial_bytes, make
from .segments import find


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

    Attributes
    ----------
    comm, shape, out_shape, size, op, types, strategy, backend
        What was decided: ``types`` has the dtypes ``x``, ``acc`` (of the running value) and
        ``out``; ``strategy`` and ``backend`` are those picked.

    Raises
    ------
    TypeError, ValueError, OverflowError, NotImplementedError, MemoryError, BackendError,
    KernelError
        On every rank alike, however few of them are at fault; the message names those ranks.

    Notes
    -----
    A call's own faults are local: an array of another shape or type, no memory. The rank at fault
    takes part in the exchange as if its shard were empty, then raises, alone; the other ranks'
    results are those of the scan without its shard. CUDA work is ordered on the current stream;
    calls of one plan share its workspace, so they belong on one stream, and to one thread.

    Example
    -------
    On two ranks that hold [1, 2, 3] and [4, 5]:

    >>> import distscan, numpy
    >>> x = numpy.array([1, 2, 3])  # the other rank's plan is for shape 2
    >>> plan = distscan.Plan(None, x.shape, x.dtype, backend="cpu")
    >>> plan(x)  # the other rank gets array([10, 15])
    array([1, 3, 6])
    >>> plan(x, out=x) is x  # in place
    True
    """

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
    ) -> None:
        self.comm = exchange.communicator(comm)
        self.backend = binding.choose(self.comm, backend)
        with agreed(self.comm) as same:
            self.shape = _shape(shape)
            operator = operators.resolve(exchange.op_name(op))
            marks = _type_of(segments)
            result = None if out_dtype is None else dtypes.parse(out_dtype)
            self._gpu = arrays.current_gpu() if self.backend == "cuda" else None
            if self._gpu is not None and dtypes.parse(dtype).names:
                raise TypeError("CuPy has no structured arrays; for NumPy's pass backend='cpu'")
            made = make(
                self.shape,
                dtypes.parse(dtype),
                self._gpu,
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
            same.update(made.terms)
            same["the strategy"] = made.strategy
            self.size = math.prod(self.shape)
            self._array, self._device = arrays.on_gpu(self._gpu)
            self._marks = marks
            self._heads = None if marks is None else self._array((self.size,), np.bool_)
        self.op, self.types, self.strategy = made.op, made.types, made.strategy
        self._local, self._exscan = made.local, made.exscan
        self.out_shape, self._reverse = made.shape, made.form.reverse
        self._exscan.prepare(self.comm)
        self._begun: _Begun | None = None

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
            On this rank alone.
        RuntimeError
            Between ``start`` and ``wait``.
        """
        if self._begun is not None:
            raise RuntimeError("this plan was started: wait() comes before its next use")
        with self._device():
            try:
                shard, target, out = self._checked(x, out)
                heads, edges = self._segments(segments, target)
                total = self._local.total(shard, target, heads, soon=True)
            except BaseException:
                self._exscan(self.comm, None)  # the other ranks count on this one's part
                raise
            self._local.seed(shard, target, self._exscan(self.comm, total, edges), heads)
        return out

    def start(self, x: Any, out: Any = None, segments: Any = None) -> None:
        """Find the total of ``x`` and begin the exchange; collective, but waits for no other rank.

        No rank may call the plan instead: MPI would not match the two. Parameters are those of a
        call. Leave the arrays alone until ``wait``, which also raises
        what is wrong with them.
        """
        if self._begun is not None:
            raise RuntimeError("this plan was started: wait() comes before the next start()")
        begun, total, edges = _Begun(), None, None
        with self._device():
            try:
                begun.shard, begun.target, begun.out = self._checked(x, out)
                begun.heads, edges = self._segments(segments, begun.target)
                total = self._local.total(begun.shard, begun.target, begun.heads)
            except BaseException as fault:
                begun.fault = fault
            self._exscan.start(self.comm, total, edges)
        self._begun = begun

    def wait(self) -> Any:
        """End what ``start`` began: wait for the exchange, scan, return ``out``."""
        if self._begun is None:
            raise RuntimeError("this plan was not started: start() comes before wait()")
        begun, self._begun = self._begun, None
        with self._device():
            offset = self._exscan.wait(self.comm)
            if begun.fault is not None:
                raise begun.fault
            self._local.seed(begun.shard, begun.target, offset, begun.heads)
        return begun.out

    def __repr__(self) -> str:
        return (
            f"<distscan.Plan: {self.op.name} of {self.types.x}{list(self.shape)} "
            f"to {self.types.out}, rank {self.comm.rank} of {self.comm.size}, "
            f"{self.strategy} on {self.backend}>"
        )

    def _checked(self, x: Any, out: Any) -> tuple[Any, Any, Any]:
        """Return the shard, the array that is written, both flat, and what the call returns."""
        shard: Any = x if type(x) is self._array else self._plain("x", x)
        if shard.shape != self.shape:
            raise ValueError(f"x has shape {shard.shape}; the plan is for {self.shape}")
        self._check("x", shard, self.types.x)
        if shard.ndim != 1:
            shard = shard.reshape(-1)
        if out is None:
            result = self._local.empty()
            return shard, result, result.reshape(self.out_shape)
        target: Any = out if type(out) is self._array else self._plain("out", out)
        if target.shape != self.out_shape:
            raise ValueError(f"out has shape {target.shape}; the result has {self.out_shape}")
        self._check("out", target, self.types.out)
        if self._gpu is None and not target.flags.writeable:
            raise ValueError("out is read-only")
        if target.ndim != 1:
            target = target.reshape(-1)
        if arrays.overlap(shard, target):
            raise ValueError("out overlaps x; it may be x itself, or apart from it")
        return shard, target, out

    def _segments(self, segments: Any, target: Any) -> tuple[Any, Edges | None]:
        """Return the flags of the elements that begin a segment, and the shard's edges."""
        if self._marks is None:
            if segments is not None:
                raise TypeError("the plan was made without segments=")
            return None, None
        if segments is None:
            raise TypeError(f"the plan is for segments of type {self._marks}; none are given")
        marks: Any = (
            segments if type(segments) is self._array else self._plain("segments", segments)
        )
        if marks.shape != (self.size,):
            raise ValueError(f"segments has shape {marks.shape}; the plan is for {(self.size,)}")
        self._check("segments", marks, self._marks)
        if arrays.overlap(marks, target):
            raise ValueError("out overlaps segments")
        return find(marks, self._heads, reverse=self._reverse)

    def _plain(self, name: str, array: Any) -> Any:
        """Return the array that one of a derived class is."""
        if not isinstance(array, self._array):
            wanted = f"{self._array.__module__.split('.')[0]}.{self._array.__name__}"
            raise TypeError(f"{name} is a {type(array).__name__}; the plan is for a {wanted}")
        return arrays.borrow(array)

    def _check(self, name: str, array: Any, dtype: np.dtype[Any]) -> None:
        if array.dtype != dtype:
            raise TypeError(f"{name} is {array.dtype}; the plan is for {dtype}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous")
        if self._gpu is not None and array.data.device_id != self._gpu:
            raise ValueError(f"{name} is on GPU {arrays.gpu(array)}; the plan is for {self._gpu}")


class _Begun:
    """What ``start`` leaves for ``wait``."""

    shard: Any
    target: Any
    out: Any
    heads: Any
    fault: BaseException | None = None


def _type_of(segments: DTypeLike | bool | None) -> np.dtype[Any] | None:
    """Return the type of the flags or keys that each call brings; None if it brings none."""
    if segments is None or segments is False:
        return None
    return np.dtype(np.bool_) if segments is True else dtypes.parse(segments)


def _shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    lengths = shape if isinstance(shape, tuple | list) else (shape,)
    result = tuple(index(length) for length in lengths)
    if min(result, default=0) < 0:
        raise ValueError(f"shape {shape} has a negative length")
    return result
