"""The arguments of ``fsum``, checked: types, ``initial``, ``window``, strategy; local."""

from operator import index
from typing import Any, NamedTuple, get_args

import numpy as np

from .build import Strategy
from .core import dtypes
from .core.fixed import Window


class Options(NamedTuple):
    """How elements are scanned."""

    axis: int | None
    exclusive: bool
    reverse: bool
    initial: int | float | complex | None
    segmented: bool
    strategy: Strategy
    threads: int | None


def result_type(x: np.dtype[Any], out: np.dtype[Any] | None, dtype: Any) -> np.dtype[Any]:
    """Return the type to which sums are rounded: of ``out``, or ``dtype``, or of ``x``."""
    asked = None if dtype is None else dtypes.parse(dtype)
    if not (x.kind in "biu" or _is_float(x)):
        raise TypeError(f"x is {x}; fsum adds integers, and floats of up to 64 bits a part")
    for name, kind in (("dtype", asked), ("out", out)):
        if kind is not None and not _is_float(kind):
            raise TypeError(f"{name} is {kind}; fsum rounds to floats of up to 64 bits a part")
    found = out or asked or (x if _is_float(x) else np.dtype(np.float64))
    if x.kind == "c" and found.kind != "c":
        raise TypeError(f"x is {x}, and the result {found}: the imaginary parts would be lost")
    return found.newbyteorder("=")


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is a float of up to 64 bits, or complex of two such."""
    if not dtypes.is_number(dtype):
        return False
    most = {"f": 8, "c": 16, "V": 2}  # V: bfloat16
    return dtype.itemsize <= most.get(dtype.kind, 0)


def number_of(initial: Any, result: np.dtype[Any]) -> int | float | complex:
    """Return ``initial`` as a number of Python, which has its exact value."""
    value = np.asarray(initial)
    if value.ndim > 0:
        raise ValueError(f"initial must be one value, not an array of shape {value.shape}")
    number = float(value) if dtypes.is_bfloat16(value.dtype) else value.item()
    kinds = (int, float, complex) if result.kind == "c" else (int, float)
    if not isinstance(number, kinds):
        raise TypeError(f"initial is {value.dtype}; the result is {result}")
    return int(number) if isinstance(number, bool) else number


_MOST = 1 << 14  # bits: far more than float64 has


def limits_of(window: Any) -> tuple[int, int]:
    """Check ``window=(low, high)``."""
    try:
        low, high = map(index, window)
    except TypeError as error:
        raise TypeError(f"window is two integers (low, high), not {window!r}") from error
    if not -_MOST <= low < high <= _MOST:
        raise ValueError(f"window is {(low, high)}; low must be below high, both within {_MOST}")
    return low, high


def check_window(name: str, own: Window, limits: tuple[int, int], *, finite: bool) -> None:
    """Raise ValueError if numbers are outside of the window that the caller has named."""
    low, high = limits
    if not finite:
        raise ValueError(f"{name} is not finite everywhere, and window={limits}")
    if not own.is_empty and (own.low < low or own.high > high):
        raise ValueError(
            f"{name} needs window={(own.low, own.high)}, beyond window={limits}: numbers must be "
            f"multiples of 2^{low} and below 2^{high}"
        )


def check_strategy(strategy: str, ranks: int) -> None:
    """Check that a strategy adds integers before it rounds them."""
    if strategy not in get_args(Strategy):
        known = ", ".join(get_args(Strategy))
        raise ValueError(f"unknown strategy {strategy!r}; choose from {known}")
    if strategy == "scan-add":
        raise ValueError("strategy 'scan-add' adds to rounded results; fsum takes 'reduce-scan'")
    if strategy == "single-pass" and ranks > 1:
        raise ValueError(
            f"strategy 'single-pass' is for one rank, not {ranks}; several use 'reduce-scan'"
        )
