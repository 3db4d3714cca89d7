"""The checks of the arguments of ``fsum``: types, ``initial``, ``window``, strategy."""

import math
import sys
from functools import reduce
from operator import index
from typing import Any, NamedTuple

import numpy as np

from ..core import dtypes
from ..core.scalars import scalar
from .special import FINITE, code_of
from .window import Window
from .words import Check, DigitSum, FixedSum, digit_sum, narrowest_accumulator

ADDS = "strategy 'scan-add' adds to rounded results; fsum takes 'reduce-scan'"


def is_fsum(op: Any, window: Any) -> bool:
    """Return whether an operator is "fsum"; raise ValueError if another one comes with a window."""
    exact = isinstance(op, str) and op == "fsum"
    if window is not None and not exact:
        raise ValueError(f"window= goes with op='fsum', not {getattr(op, 'name', op)!r}")
    return exact


def result_type(x: np.dtype[Any], out: np.dtype[Any] | None, dtype: Any) -> np.dtype[Any]:
    """Return the type to which sums are rounded: of ``out``, or ``dtype``, or of ``x``."""
    target = None if dtype is None else dtypes.parse(dtype)
    if not (x.kind in "biu" or _is_float(x)):
        raise TypeError(f"x is {x}; fsum adds integers, and floats of up to 64 bits a part")
    for name, kind in (("dtype", target), ("out", out)):
        if kind is not None and not _is_float(kind):
            raise TypeError(f"{name} is {kind}; fsum rounds to floats of up to 64 bits a part")
    result = out or target or (x if _is_float(x) else np.dtype(np.float64))
    if x.kind == "c" and result.kind != "c":
        raise TypeError(f"x is {x}, and the result {result}: the imaginary parts would be lost")
    return result.newbyteorder("=")


def part_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the parts of complex numbers; that of real numbers as it is."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is a float of up to 64 bits, or complex of two such."""
    if not dtypes.is_number(dtype):
        return False
    most = {"f": 8, "c": 16, "V": 2}  # V: bfloat16
    return dtype.itemsize <= most.get(dtype.kind, 0)


_LARGEST = int(sys.float_info.max)


def number_of(initial: Any, result: np.dtype[Any]) -> int | float | complex:
    """Return ``initial`` as a number of Python of the same value."""
    value = scalar(initial, "initial")
    number = float(value) if dtypes.is_bfloat16(value.dtype) else value.item()
    kinds = (int, float, complex) if result.kind == "c" else (int, float)
    if not isinstance(number, kinds):
        raise TypeError(f"initial is {value.dtype}; the result is {result}")
    if isinstance(number, int) and abs(number) > _LARGEST:  # of any size in Python
        raise ValueError(
            f"initial is an integer of {number.bit_length()} bits; fsum takes integers up to the "
            "largest float64, just below 2^1024: divide initial and x by a power of 2"
        )
    return int(number) if isinstance(number, bool) else number


_MOST = 1 << 14  # bits: far more than float64 has


def limits_of(window: Any) -> tuple[int, int]:
    """Check ``window=(low, high)``."""
    try:
        low, high = (index(limit) for limit in window)
    except (TypeError, ValueError) as error:  # no integers, or not two
        raise TypeError(f"window is two integers (low, high), not {window!r}") from error
    if not -_MOST <= low < high <= _MOST:
        raise ValueError(f"window is {(low, high)}; low must be below high, both within {_MOST}")
    return low, high


def check_window(name: str, window: Window, limits: tuple[int, int], *, finite: bool) -> None:
    """Raise ValueError if numbers are outside of the window that the caller has named."""
    low, high = limits
    if not finite:
        raise ValueError(f"{name} is not finite everywhere, and window={limits}")
    if not window.is_empty and (window.low < low or window.high > high):
        raise ValueError(
            f"{name} needs window={(window.low, window.high)}, beyond window={limits}: numbers "
            f"must be multiples of 2^{low} and below 2^{high}"
        )


def check_strategy(strategy: str, ranks: int) -> None:
    """Raise ValueError for a strategy that exact sums do not have on so many ranks."""
    if strategy == "scan-add":
        raise ValueError(ADDS)
    if strategy == "single-pass" and ranks > 1:
        raise ValueError(
            f"strategy 'single-pass' is for one rank, not {ranks}; several use 'reduce-scan'"
        )


class FsumRequest(NamedTuple):
    """The arguments of ``fsum``, from which operators are made before elements are seen."""

    result: np.dtype[Any]
    initial: int | float | complex | None
    limits: tuple[int, int] | None  # ``window`` of the caller

    @classmethod
    def of(
        cls,
        x: np.dtype[Any],
        *,
        out: np.dtype[Any] | None = None,
        dtype: Any,
        initial: Any,
        window: Any,
        strategy: str,
        ranks: int,
    ) -> "FsumRequest":
        """Check the arguments; raise TypeError and ValueError."""
        check_strategy(strategy, ranks)
        result = result_type(x, out, dtype)
        first = None if initial is None else number_of(initial, result)
        request = cls(result, first, None if window is None else limits_of(window))
        if request.limits is not None:
            for part in request.parts:
                finite = math.isfinite(part)
                check_window("initial", Window.of_one(part), request.limits, finite=finite)
        return request

    def terms(self) -> dict[str, object]:
        """Return the values that must be the same on every rank, by name."""
        return {"window": self.limits}

    @property
    def is_plain(self) -> bool:
        """Whether ``initial`` is None, or finite and not -0.0."""
        return self.initial is None or all(code_of(part) == FINITE for part in self.parts)

    @property
    def parts(self) -> tuple[int | float, ...]:
        """The real and the imaginary part of ``initial``; 0 for None."""
        first = 0 if self.initial is None else self.initial
        return (first.real, first.imag)

    def narrow(
        self, window: Window, x: np.dtype[Any], check: Check | None = None
    ) -> FixedSum | None:
        """Return the operator by which kernels add the parts of elements ``x`` of a window.

        None if two words do not hold the sums.
        """
        return narrowest_accumulator(self._joined(window), part_of(x), part_of(self.result), check)

    def _joined(self, window: Window) -> Window:
        """Return the window of the elements and of ``initial``."""
        joined = reduce(Window.joined, map(Window.of_one, self.parts), window)
        return joined if self.limits is None else Window(*self.limits, joined.most)

    def operator(
        self, window: Window, x: np.dtype[Any], *, words: bool = False, check: Check | None = None
    ) -> tuple[FixedSum | DigitSum, Any]:
        """Return the operator for elements ``x`` of a window, and ``initial`` of its scan.

        ``words`` says that kernels may add words: no result is infinite, NaN or -0.0. They do so if
        words hold the sums. For ``check`` see ``FixedSum``.
        """
        narrow = self.narrow(window, x, check) if words and self.result.kind != "c" else None
        if narrow is not None:
            return narrow, None if self.initial is None else narrow.encode(self.parts[0])
        op = digit_sum(self._joined(window), 2 if self.result.kind == "c" else 1)
        return op, None if self.initial is None else op.encode(self.initial)
