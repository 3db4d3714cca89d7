"""One rank's part of a scan, decided once: types, strategy, workspaces, kernels."""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from .core import dtypes
from .core.dtypes import Types
from .core.forms import Form, Pending, starting_value
from .core.layout import axis_number
from .core.operators import Operator
from .core.segments import edge_dtype
from .cpu import steps as cpu
from .cuda.policy import TextbookPolicy
from .mpi.agree import Terms
from .mpi.exscan import Exscan

Strategy = Literal["auto", "scan-add", "reduce-scan", "single-pass", "fused"]
BlockScan = Literal["auto", "kogge-stone", "brent-kung", "blelloch", "coarsened"]
Op = str | np.ufunc | Operator


class Local(Protocol):
    """What a backend does with one shard; ``cpu/steps.py`` says how each call behaves."""

    @property
    def nbytes(self) -> int:
        """How much memory is kept between calls."""

    def empty(self) -> Any:
        """Allocate a result."""

    def begin(self, x: Any, out: Any, marks: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``: find the total of ``x``."""

    def finish(self, call: Any, offset: Any) -> None:
        """End what ``begin`` began, with ``offset``, the total of all that comes before."""

    def refuse_capture(self, reason: str) -> None:
        """Raise where a CUDA graph is captured, for ``reason``."""

    def close(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True, eq=False)
class CompiledScan:
    """One rank's part of a scan, ready to run on arrays of one length, type and device."""

    op: Operator
    types: Types
    strategy: str
    form: Form
    seen: tuple[int, int, int]  # the shard's [outer, n, inner]
    shape: tuple[int, ...]  # of the result
    across: bool  # whether the scan goes on from rank to rank
    local: Local
    exscan: Exscan
    terms: Terms  # on which the ranks must agree before they exchange totals

    @functools.cached_property
    def some(self) -> bool:
        """Whether the shard has elements."""
        return math.prod(self.seen) > 0

    @functools.cached_property
    def nbytes(self) -> int:
        """How much memory is kept between calls, behind the first."""
        return self.local.nbytes + self.exscan.nbytes


def make(
    shape: tuple[int, ...],
    x: np.dtype[Any],
    gpu: int | None,
    op: Operator,
    *,
    axis: int | None = None,
    turned: tuple[tuple[int, ...], int] | None = None,
    exclusive: bool = False,
    initial: bytes | None = None,
    reverse: bool = False,
    segments: np.dtype[Any] | None = None,
    dtype: np.dtype[Any] | None = None,
    out: np.dtype[Any] | None = None,
    strategy: Strategy = "auto",
    block_scan: BlockScan = "auto",
    ranks: int,
) -> CompiledScan:
    """Decide everything about scanning a shard of type ``x``; local, no exchange.

    ``turned`` is the shape and axis on which ranks agree of a shard whose axes have been turned;
    ``gpu`` is the number of the current GPU, None for the CPU; ``dtype`` and ``out`` are as in
    ``dtypes.resolve``; ``initial`` is what ``initial_bytes`` returns; ``segments`` is the type of
    the flags or keys that each call brings. Raises TypeError and ValueError for what cannot be
    scanned, MemoryError where the workspace does not fit.
    """
    narrow = dtypes.resolve(op, x, dtype, out)
    wide = dtypes.resolve(op, x, dtype, out, wide=True).acc
    types = narrow if gpu is not None else replace(narrow, acc=wide)
    first = _first(op, wide, initial, exclusive=exclusive)
    axis = _axis(axis, len(shape))
    seen = _seen(shape, axis)
    agreed_shape, agreed_axis = turned or (shape, axis)
    # Ranks on CPUs and on GPUs exchange single totals in one type. Rows are not widened, and ranks
    # whose types differ refuse to scan together.
    rows = agreed_axis == 0 and math.prod(agreed_shape[1:]) != 1
    totals = types.acc if rows else wide
    form = Form(
        exclusive=exclusive,
        reverse=reverse,
        segmented=segments is not None,
        outer=seen[0],
        inner=seen[2],
        first=None if first is None else dtypes.cast(first, types.acc),
    )
    if segments is not None:
        _check_segments(segments, axis)
    # Rows of nothing need no exchange; nor do scans that end where the shard does.
    across = axis is None or (axis == 0 and math.prod(shape[1:]) > 0)
    strategy = _strategy(
        strategy,
        ranks=ranks if across else 1,
        # On the CPU both take as long, and one association of floats has no seams between ranks.
        # What is rounded on the store would need a buffer as large as the shard.
        add=gpu is None and types.acc == types.out,
        segmented=form.segmented,
        local=not across,
    )
    textbook = _textbook(block_scan, gpu)
    backend: Any = cpu
    options: dict[str, Any] = {"form": form, "ranks": ranks}
    if gpu is not None:
        from .cuda import steps as backend  # noqa: PLC0415 - a CPU job need not have CuPy

        if strategy == "scan-add" and form.inner > 1:
            raise ValueError("strategy 'scan-add' takes no axis=0 on a GPU; use 'reduce-scan'")
        options["textbook"] = textbook
    steps = {
        "scan-add": backend.ScanAdd,
        "reduce-scan": backend.ReduceScan,
        "single-pass": backend.SinglePass,
    }[strategy]
    edges = edge_dtype(segments)
    across = across and ranks > 1
    terms = Terms(
        {
            "the function": "scan",
            "op": op.name,
            "the dtype of x": types.x,
            "the operator's MPI form": types.acc.kind in op.mpi_kinds and op.mpi,
            "the accumulating dtype": narrow.acc,
            "the dtype of totals": totals,
            "the dtype of the result": types.out,
            "the shape beyond axis 0": agreed_shape[1:],
            "axis": agreed_axis,
            "exclusive": exclusive,
            "initial": first,
            "reverse": reverse,
            "the dtype of segments": f"text, {segments.kind}"
            if segments is not None and edges != segments
            else segments,
        }
    )
    return CompiledScan(
        op,
        types,
        strategy,
        form,
        seen,
        (math.prod(shape),) if axis is None else shape,
        across,
        steps(op, types, seen[1], **options),
        Exscan(op, totals, form, edges=edges, seeds=types.acc, across=across),
        terms,
    )


# ---- what is decided -----------------------------------------------------------------------


def _axis(axis: int | None, ndim: int) -> int | None:
    """Return the axis that is scanned, counted from the front; None for all, or the only one."""
    axis = axis_number(axis)
    if axis is None:
        return None
    whole = max(ndim, 1)  # a scalar is an array of one element, as in numpy.cumsum
    if not -whole <= axis < whole:
        raise np.exceptions.AxisError(axis, whole)
    return None if whole == 1 else axis % whole


def _seen(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    """Return the [outer, n, inner] of a shard that is scanned along n."""
    if axis is None:
        return 1, math.prod(shape), 1
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    # Where there are no rows or columns there is nothing to scan, however long they were.
    return (outer, shape[axis], inner) if outer * inner > 0 else (1, 0, 1)


def initial_bytes(
    initial: Any,
    op: Operator,
    x: np.dtype[Any],
    dtype: np.dtype[Any] | None = None,
    out: np.dtype[Any] | None = None,
) -> bytes | None:
    """Return the bytes of ``initial`` in the accumulating type: of no other value the same."""
    if initial is None:
        return None
    return starting_value(initial, dtypes.resolve(op, x, dtype, out, wide=True).acc).tobytes()


def _first(
    op: Operator, acc: np.dtype[Any], initial: bytes | None, *, exclusive: bool
) -> NDArray[Any] | None:
    """Return what every scan starts behind."""
    if initial is not None:
        return np.frombuffer(initial, acc).reshape(())
    if not exclusive:
        return None
    if op.identity is None:
        raise ValueError(f"operator {op.name!r} has no identity: exclusive=True needs initial=")
    identity = np.array(op.identity(acc), acc)
    # -0.0 changes no sum, but what is seen begins with 0.0, as in NumPy.
    return np.zeros((), acc) if acc.kind in "fc" and identity == 0 else identity


def _strategy(
    strategy: Strategy, *, ranks: int, add: bool, segmented: bool, local: bool
) -> Strategy:
    """Choose how the ranks scan, or check what was chosen."""
    if strategy not in get_args(Strategy):
        raise ValueError(
            f"unknown strategy {strategy!r}; choose from {', '.join(get_args(Strategy))}"
        )
    if strategy == "fused":
        raise NotImplementedError(f"strategy {strategy!r} is not implemented yet")
    if strategy == "scan-add" and segmented:
        raise ValueError("strategy 'scan-add' does not take segments=; use 'reduce-scan'")
    if strategy == "single-pass" and ranks > 1:
        raise ValueError(
            f"strategy 'single-pass' is for one rank, not {ranks}; several use 'reduce-scan'"
        )
    if local or (strategy == "auto" and ranks == 1):
        return "single-pass"
    if strategy == "auto":
        return "scan-add" if add and not segmented else "reduce-scan"
    return strategy


def _check_segments(segments: np.dtype[Any], axis: int | None) -> None:
    if axis is not None:
        raise ValueError(f"segments= goes with axis=None, not axis={axis}")
    if segments.hasobject or segments.names is not None:
        raise TypeError(f"segments is {segments}; flags are bool, keys numbers, dates or text")


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
