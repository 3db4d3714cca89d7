"""What ``scan`` decides once for all calls with arguments of one kind."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np

from . import untyped
from .build import CompiledScan, Op, Strategy, make
from .core import arrays, operators
from .core.extents import Extents, memory_order
from .mpi.agree import Terms

# The functions that views and results go through are C functions where arrays are contiguous.
_FLAT = methodcaller("reshape", -1)
Through = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Decided:
    """How all calls with arguments of one kind are scanned."""

    compiled: CompiledScan
    view: Through | None  # x as the steps read it, or None; without it, x as it is
    view_out: Through | None  # out as the steps write it, or None; without it, out as it is
    restored: Through | None  # a result in its shape; without it, the result as it is
    convert: Through | None  # a result into the kind of array that x is
    foreign: bool  # whether an array on a GPU is of another library than CuPy
    terms: Terms  # on which the ranks must agree

    @cached_property
    def nbytes(self) -> int:
        """How much memory is kept between calls, behind the first."""
        return self.compiled.nbytes


def decide(
    given: tuple[Any, Any, Any],
    native: list[Any],
    gpu: int | None,
    op: Op,
    initial: Any,
    *,
    axis: int | None,
    exclusive: bool,
    reverse: bool,
    dtype: np.dtype[Any] | None,
    strategy: Strategy,
    ranks: int,
) -> Decided:
    """Check the arguments of ``scan`` and decide how to scan; local.

    ``given`` are x, out and segments, and ``native`` the NumPy or CuPy arrays over them; the others
    are those of ``scan``. Raises TypeError, ValueError and OverflowError for what cannot be
    scanned.
    """
    (x, out, segments), (array, target, flags) = given, native
    if out is not None:
        check_out(out, target, array)
    if flags is not None:
        _check_place("segments", flags, array)
        if flags.shape not in (array.shape, (array.size,)):
            raise ValueError(f"segments has shape {flags.shape}; x has {array.shape}")
    order = None if flags is not None else memory_order(array, target, axis)
    extents = Extents.of(array.shape, axis, order)
    compiled = make(
        extents,
        array.dtype,
        gpu,
        operators.resolve(op),
        exclusive=exclusive,
        initial=initial,
        reverse=reverse,
        segments=None if flags is None else flags.dtype,
        dtype=dtype,
        out=None if target is None else target.dtype,
        strategy=strategy,
        ranks=ranks,
    )
    shape = extents.result_shape
    if target is not None and target.shape != shape:
        raise ValueError(f"out has shape {target.shape}; the result has {shape}")
    return Decided(
        compiled,
        _view(array, extents),
        None if target is None else _view(target, extents),
        extents.restored if extents.order is not None else _shaped(shape),
        arrays.converter(x if out is None else out),
        any(map(arrays.is_foreign, zip(given, native, strict=True))),
        untyped.terms(compiled.terms, x, segments),
    )


def _view(array: Any, extents: Extents) -> Through | None:
    """Return what views arrays of this kind as the steps take them; None: they are taken so."""
    if not array.flags.c_contiguous or extents.order is not None:
        return extents.view
    return None if array.ndim == 1 else _FLAT


def _shaped(shape: tuple[int, ...]) -> Through | None:
    """Return what views flat results in ``shape``."""
    return None if len(shape) == 1 else methodcaller("reshape", shape)


def check_out(out: Any, target: Any, x: Any) -> None:
    """Check ``out``, and the NumPy or CuPy array over it, as where the scan of ``x`` is written."""
    if not hasattr(out, "__dlpack__"):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    _check_place("out", target, x)
    arrays.check_writable(out, target)


def _check_place(name: str, array: Any, x: Any) -> None:
    """Check that an array is in the memory that ``x`` is in."""
    if arrays.gpu(array) != arrays.gpu(x):
        raise TypeError(
            f"{name} is in the memory of {arrays.device(array)}, x of {arrays.device(x)}; "
            "both must be in one"
        )
