"""Exact sums as operators over digits: floats of any window, and what is not finite.

The running value is a structure of int64, its rows: the digits of a sum (see ``fixed.py``), and
counts of what digits do not say (see ``special.py``). All of them are integers, which add exactly
in any order. ``digits.py`` makes rows from elements, and results from rows.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .operators import TypedOperator

COUNTS = 4  # what is counted: see ``special.counts``


@dataclass(frozen=True, eq=False)
class DigitSum(TypedOperator):
    """The sum of floats, each an integer of several digits.

    Attributes
    ----------
    window
        The ``fixed.Window`` of all elements, which says what the digits are.
    parts
        2 for complex numbers, whose parts are added each for itself; else 1.
    """

    window: Any = None
    parts: int = 1

    @property
    def rows(self) -> int:
        """The integers of a part: its digits, and its counts."""
        return int(self.window.digits) + COUNTS


@lru_cache(maxsize=64)  # always the same operator, so that cached plans are found
def digit_sum(window: Any, parts: int = 1) -> DigitSum:
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
