"""The decisions that ``scan`` makes once for all calls with arguments of the same kind.

Arguments are of the same kind if their types, shapes, strides and options are equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np

from .build import CompiledScan, Op, make
from .core import arrays, operators
from .core.form import Extents, memory_order
from .core.segments import check_shape
from .core.steps import Strategy
from .mpi.agree import Terms

# For contiguous arrays, views are made by C functions: they are faster than Python's.
_FLAT = methodcaller("reshape", -1)
Through = Callable[[Any], Any]


@dataclass(eq=False)
class Decided:
    """How all calls with arguments of the same kind are scanned.

    The functions are None where the array is used as it is. ``view`` and ``view_out`` return None
    where no view exists, so that the array must be copied.
    """

    compiled: CompiledScan
    view: Through | None  # returns x as the steps read it
    view_out: Through | None  # returns out as the steps write it
    restored: Through | None  # returns a new result in its shape
    convert: Through | None  # returns a new result as an array of the library of x
    foreign: bool  # whether an array on a GPU is of a library other than CuPy
    terms: Terms  # the ranks must agree on these

    @cached_property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls, once the first call has run."""
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
    threads: int | None,
    ranks: int,
) -> Decided:
    """Check the arguments of ``scan`` and decide how to scan; local.

    ``given`` holds x, out and segments, and ``native`` the NumPy or CuPy arrays over their memory.
    The other arguments are those of ``scan``. Raises TypeError, ValueError and OverflowError for
    arguments that cannot be scanned.
    """
    (x, out, segments), (array, target, flags) = given, native
    if out is not None:
        check_out(out, target, array)
    if flags is not None:
        check_memory("segments", flags, array)
        check_shape(flags, array)
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
        threads=threads,
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
        _terms(compiled.terms, x, segments),
    )


def _view(array: Any, extents: Extents) -> Through | None:
    """Return the function that views such arrays as the steps take them; None if none is needed."""
    if not array.flags.c_contiguous or extents.order is not None:
        return extents.view
    return None if array.ndim == 1 else _FLAT


def _shaped(shape: tuple[int, ...]) -> Through | None:
    """Return the function that views flat results in ``shape``; None if they are 1-D."""
    return None if len(shape) == 1 else methodcaller("reshape", shape)


def check_out(out: Any, target: Any, x: Any) -> None:
    """Check that the scan of ``x`` can be written to ``out``; ``target`` is the array over it."""
    if not hasattr(out, "__dlpack__"):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    check_memory("out", target, x)
    arrays.check_writable(out, target)


def check_memory(name: str, array: Any, x: Any, other: str = "x") -> None:
    """Check that an array is in the memory that ``x`` is in, whose name is ``other``."""
    if arrays.gpu(array) != arrays.gpu(x):
        raise TypeError(
            f"{name} is in the memory of {arrays.device(array)}, {other} of {arrays.device(x)}; "
            "both must be in the same memory"
        )


# ---- empty lists, whose type, float64 as in NumPy, disagrees with other ranks --------------------


def _terms(same: Terms, x: Any, segments: Any) -> Terms:
    """Return the terms of a scan, with a hint to be shown where those of an empty list disagree.

    >>> dtype = _terms(Terms({"the dtype of x": "float64"}), [], None).texts()["the dtype of x"]
    >>> dtype == "float64"
    True
    >>> print(dtype)
    float64 of an empty list (pass an empty array of the others' type and shape)
    """
    empty: list[str] = []
    if _is_empty_list(x):
        empty += "the operator's MPI form", "the dtype of x", "the shape beyond axis 0"
    if _is_empty_list(segments):
        empty.append("the dtype of segments")
    return _TermsOfEmptyLists(same, empty) if empty else same


def _is_empty_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and not value


class _TermsOfEmptyLists(Terms):
    """Terms, some of which come from an empty list."""

    def __init__(self, same: Terms, empty: list[str]) -> None:
        super().__init__(same)
        self._empty = empty

    def texts(self) -> dict[str, str]:
        return {
            name: _OfAnEmptyList(text) if name in self._empty else text
            for name, text in super().texts().items()
        }


class _OfAnEmptyList(str):
    """A text that equals an array's text, so that ranks can agree; it is printed with a hint."""

    __slots__ = ()

    def __str__(self) -> str:
        hint = "pass an empty array of the others' type and shape"
        return f"{super().__str__()} of an empty list ({hint})"
