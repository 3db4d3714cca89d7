"""Exact sums as operators over digits: floats of any window, and what is not finite.

The running value is a structure of int64, its rows: the digits of a sum (see ``window.py``), and
counts of what digits do not say (see ``special.py``). All of them are integers, which add exactly
in any order.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.operators import TypedOperator
from .special import codes_of, counts, store_special
from .window import Window, magnitudes

COUNTS = 4  # what is counted: see ``special.counts``
_EMPTY = Window(0, 0, 0)


@dataclass(frozen=True, eq=False)
class DigitSum(TypedOperator):
    """The sum of floats, each an integer of several digits.

    Arrays are NumPy's or CuPy's: ``xp`` is their module. Rows are int64 [parts * rows, ...]: of
    each part its digits, then its counts.

    Attributes
    ----------
    window
        The window of all elements, which says what the digits are.
    parts
        2 for complex numbers, whose parts are added each for itself; else 1.
    """

    window: Window = _EMPTY
    parts: int = 1

    @property
    def rows(self) -> int:
        """The integers of a part: its digits, and its counts."""
        return self.window.digits + COUNTS

    def split(self, xp: Any, x: Any) -> Any:
        """Return the rows of elements.

        >>> digit_sum(Window(-1, 9, 100)).split(np, np.array([2.5, -0.0, np.inf])).tolist()
        [[5, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]]
        """
        found = xp.empty((self.parts, self.rows, *x.shape), np.int64)
        for part, rows in zip(self._parts_of(xp, x), found, strict=True):
            rows[: self.window.digits] = self.window.split(xp, magnitudes(xp, part))
            rows[self.window.digits :] = counts(xp, part)
        return found.reshape(-1, *x.shape)

    def _parts_of(self, xp: Any, x: Any) -> tuple[Any, ...]:
        """Return the real and the imaginary parts of elements; for one part, ``x`` itself."""
        if self.parts == 1:
            return (x,)
        return (x.real, x.imag) if x.dtype.kind == "c" else (x, xp.zeros(x.shape, np.int64))

    def store(self, xp: Any, sums: Any, out: Any) -> None:
        """Store rows of sums as floats, rounded once; ``sums`` are overwritten."""
        sums = sums.reshape(self.parts, self.rows, *out.shape)
        dtype = np.dtype(f"f{out.dtype.itemsize // 2}") if self.parts == 2 else out.dtype
        targets = (out.real, out.imag) if self.parts == 2 else (out,)
        for part, rows in zip(targets, sums, strict=True):
            found = self.window.rounded(xp, rows[: self.window.digits], dtype)
            store_special(codes_of(xp, rows[self.window.digits :]), found)
            part[...] = found

    def encode(self, number: int | float | complex) -> tuple[int, ...]:
        """Return one number of Python, of the window, as ``initial`` of a scan."""
        found = list[int]()
        for part in (number.real, number.imag)[: self.parts]:
            is_float = isinstance(part, float)  # an integer may be larger than NumPy's are
            counted = counts(np, np.array([part]))[:, 0].tolist() if is_float else [0, 0, 1, 1]
            finite = part if not is_float or np.isfinite(part) else 0
            found += [*self.window.split_one(finite), *counted]
        return tuple(found)

    def decode(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return running values as floats of a type, rounded once."""
        out = np.empty(values.shape, dtype)
        self.store(np, rows_of(values).T.copy(), out.reshape(-1))
        return out


@lru_cache(maxsize=64)  # always the same operator, so that cached plans are found
def digit_sum(window: Window, parts: int = 1) -> DigitSum:
    """Return the operator for numbers of a window."""
    rows = parts * (window.digits + COUNTS)
    acc = np.dtype([(f"row{i}", np.int64) for i in range(rows)])
    given: Any = {"acc": acc, "window": window, "parts": parts}
    return DigitSum("fsum", add, None, _zero, commutative=True, **given)


def rows_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """View running values [n] as integers [n, rows]; they may be copied."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(np.int64).reshape(flat.size, -1)


def add(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of running values."""
    return (rows_of(a) + rows_of(b)).view(b.dtype).reshape(b.shape)


def _zero(dtype: np.dtype[Any]) -> Any:
    return np.zeros((), dtype)[()]
