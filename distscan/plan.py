"""Everything that is decided once for a scan: types, strategy, backend, workspaces, kernels."""

from dataclasses import dataclass
from operator import index
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import arrays, dtypes, operators
from .backends import cpu
from .dtypes import Types
from .operators import Operator

Strategy = Literal["auto", "scan-add", "reduce-scan", "single-pass", "fused"]


class Local(Protocol):
    """What a backend does with one shard; ``backends/cpu.py`` says how each call behaves."""

    def empty(self) -> Any: ...
    def total(self, x: Any, out: Any) -> NDArray[Any] | None: ...
    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None) -> None: ...


@dataclass(frozen=True)
class Plan:
    """One rank's part of a scan, ready to run on arrays of one length, type and device."""

    op: Operator
    types: Types
    strategy: str
    local: Local


def make(
    x: Any,
    op: "str | np.ufunc | Operator" = "sum",
    *,
    exclusive: bool = False,
    initial: Any = None,
    reverse: bool = False,
    dtype: DTypeLike | None = None,
    out: Any = None,
    segments: Any = None,
    strategy: Strategy = "auto",
    ranks: int,
) -> Plan:
    """Decide everything about scanning the array ``x`` [n] into ``out`` [n]; local, no exchange.

    Raises TypeError and ValueError for arguments that cannot be scanned, MemoryError where the
    workspace does not fit.
    """
    forms = {
        "exclusive": exclusive,
        "initial": initial is not None,
        "reverse": reverse,
        "segments": segments is not None,
    }
    for name, wanted in forms.items():
        if wanted:
            raise NotImplementedError(f"{name}= is not implemented yet")
    if strategy not in get_args(Strategy):
        raise ValueError(
            f"unknown strategy {strategy!r}; choose from {', '.join(get_args(Strategy))}"
        )
    if strategy in ("single-pass", "fused"):
        raise NotImplementedError(f"strategy {strategy!r} is not implemented yet")
    if strategy == "auto":
        # On the CPU both take as long, and one association of floats has no seams between ranks.
        strategy = "reduce-scan" if ranks > 1 and arrays.is_cuda(x) else "scan-add"
    operator = operators.resolve(op)
    types = dtypes.resolve(operator, x.dtype, dtype, None if out is None else out.dtype)
    backend: Any = cpu
    if arrays.is_cuda(x):
        from .backends import cuda as backend  # noqa: PLC0415 - a CPU job need not have CuPy
    steps = backend.ScanAdd if strategy == "scan-add" else backend.ReduceScan
    return Plan(operator, types, strategy, steps(operator, types, x))


def check_axis(axis: int | None, ndim: int) -> None:
    """Refuse an axis that an ``ndim``-d array does not have, or that cannot be scanned yet."""
    if axis is None:
        return
    ndim = max(ndim, 1)  # a scalar is an array of one element, as in numpy.cumsum
    if not -ndim <= index(axis) < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    if ndim > 1:
        raise NotImplementedError(f"axis={axis} of a {ndim}-d array is not implemented yet")
