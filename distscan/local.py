"""One rank's part of a scan, decided once: types, strategy, workspaces, kernels."""

import functools
import math
import threading
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from .agree import Terms
from .backends import cpu
from .backends.policy import TextbookPolicy
from .dtypes import Types
from .exchange import Exscan
from .operators import Operator

Strategy = Literal["auto", "scan-add", "reduce-scan", "single-pass", "fused"]
BlockScan = Literal["auto", "kogge-stone", "brent-kung", "blelloch", "coarsened"]
Op = str | np.ufunc | Operator


class Local(Protocol):
    """What a backend does with one shard; ``backends/cpu.py`` says how each call behaves."""

    def empty(self) -> Any: ...
    def total(self, x: Any, out: Any) -> NDArray[Any] | None: ...
    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None) -> None: ...


@dataclass(frozen=True)
class LocalPlan:
    """One rank's part of a scan, ready to run on arrays of one length, type and device."""

    op: Operator
    types: Types
    strategy: str
    local: Local
    exscan: Exscan
    terms: Terms  # on which the ranks must agree before they exchange totals

    @property
    def has_buffer(self) -> bool:
        """Whether it holds a buffer as large as the shard."""
        return self.strategy == "scan-add" and self.types.acc != self.types.out


def make(
    shape: tuple[int, ...],
    x: np.dtype[Any],
    gpu: int | None,
    op: Operator,
    *,
    dtype: np.dtype[Any] | None = None,
    out: np.dtype[Any] | None = None,
    strategy: Strategy = "auto",
    block_scan: BlockScan = "auto",
    ranks: int,
) -> LocalPlan:
    """Decide everything about scanning a shard of type ``x``; local, no exchange.

    ``gpu`` is the number of the current GPU, None for the CPU; ``dtype`` and ``out`` are as in
    ``dtypes.resolve``. Raises TypeError and ValueError for what cannot be scanned, MemoryError
    where the workspace does not fit.
    """
    if strategy not in get_args(Strategy):
        raise ValueError(
            f"unknown strategy {strategy!r}; choose from {', '.join(get_args(Strategy))}"
        )
    if strategy == "fused":
        raise NotImplementedError(f"strategy {strategy!r} is not implemented yet")
    if strategy == "single-pass" and ranks > 1:
        raise ValueError(
            f"strategy 'single-pass' is for one rank, not {ranks}; several use 'reduce-scan'"
        )
    if strategy == "auto" and ranks == 1:
        strategy = "single-pass"
    elif strategy == "auto":
        # On the CPU both take as long, and one association of floats has no seams between ranks.
        strategy = "scan-add" if gpu is None else "reduce-scan"
    textbook = _textbook(block_scan, gpu)
    types = dtypes.resolve(op, x, dtype, out)
    backend: Any = cpu
    if gpu is not None:
        from .backends import cuda as backend  # noqa: PLC0415 - a CPU job need not have CuPy
    terms = Terms(
        {
            "op": op.name,
            "the operator's MPI form": types.acc.kind in op.mpi_kinds and op.mpi,
            "the dtype of x": types.x,
            "the accumulating dtype": types.acc,
            "the dtype of the result": types.out,
            "the shape beyond axis 0": shape[1:],
        }
    )
    if strategy == "scan-add":
        steps = backend.ScanAdd
    else:
        steps = backend.SinglePass if strategy == "single-pass" else backend.ReduceScan
    n = math.prod(shape)
    local = steps(op, types, n) if textbook is None else steps(op, types, n, textbook=textbook)
    return LocalPlan(op, types, strategy, local, Exscan(op, types.acc), terms)


def _textbook(block_scan: BlockScan, gpu: int | None) -> TextbookPolicy | None:
    """Which textbook kernel scans; None for the fastest that there is."""
    if block_scan not in get_args(BlockScan):
        raise ValueError(
            f"unknown block_scan {block_scan!r}; choose from {', '.join(get_args(BlockScan))}"
        )
    if block_scan == "auto":
        return None
    if gpu is None:
        raise ValueError(f"block_scan={block_scan!r}: block scans are a GPU's")
    return TextbookPolicy(block_scan.title().replace("-", ""))


def cached(stream: int, *given: Any, **options: Any) -> LocalPlan:
    """Return what ``make`` made of these arguments when they were last given.

    The 16 last used are kept, one at most with a buffer as large as its shard. Workspaces are
    shared neither between CUDA streams nor threads.
    """
    return _cached(threading.get_ident(), stream, *given, **options)


@functools.lru_cache(maxsize=16)
def _cached(thread: int, stream: int, *given: Any, **options: Any) -> LocalPlan:
    made = make(*given, **options)
    if made.has_buffer:
        _cached.cache_clear()
    return made


# ---- checks of arguments -------------------------------------------------------------------


def check_forms(*, exclusive: bool, initial: Any, reverse: bool, segments: Any) -> None:
    """Refuse by name the forms of a scan that are not there yet."""
    forms = {
        "exclusive": exclusive,
        "initial": initial is not None,
        "reverse": reverse,
        "segments": segments is not None,
    }
    for name, wanted in forms.items():
        if wanted:
            raise NotImplementedError(f"{name}= is not implemented yet")


def check_axis(axis: int | None, ndim: int) -> None:
    """Refuse an axis that an ``ndim``-d array does not have, or that cannot be scanned yet."""
    if axis is None:
        return
    ndim = max(ndim, 1)  # a scalar is an array of one element, as in numpy.cumsum
    if not -ndim <= index(axis) < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    if ndim > 1:
        raise NotImplementedError(f"axis={axis} of a {ndim}-d array is not implemented yet")
