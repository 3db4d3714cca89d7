"""Exact sums as operators: floats of a narrow window are integers of one or two words.

Integers add exactly in any order. So these operators run in the kernels of every other operator:
only what is read becomes an integer, and what is stored is rounded. Wider windows take several
digits: see ``digit_sum.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .operators import Operator, TypedOperator
from .whole import whole_of

#: Raises ValueError if an element of an array is outside of a window.
Check = Callable[[Any], None]

ONE_WORD = np.dtype(np.int64)
#: An integer of two words, in the two's complement.
TWO_WORDS = np.dtype([("low", np.uint64), ("high", np.int64)])

# The most bits of a sum without its sign, and those of an element of one word or of two: see
# kernels/base/fixed.cuh.
_ROOM = {ONE_WORD: 63, TWO_WORDS: 124}
_WIDEST = {(ONE_WORD, 1): 63, (TWO_WORDS, 1): 59, (TWO_WORDS, 2): 100}
_STEPS = (32, 8, 1)  # exponents are multiples of these: so similar data share cached plans


@dataclass(frozen=True, eq=False)
class FixedSum(TypedOperator):
    """The sum of floats, each an integer times 2^lowest.

    Attributes
    ----------
    lowest
        The exponent: the running value k stands for k * 2^lowest. Its type is ``ONE_WORD`` or
        ``TWO_WORDS``, and holds every sum.
    limits
        The window that the caller has named, (low, high).
    check
        A function that raises ValueError if an element of an array is outside of ``limits``. Steps
        call it if a kernel has seen such an element. None: elements need no check.
    """

    lowest: int = 0
    limits: tuple[int, int] = (0, 0)
    check: Check | None = None

    @cached_property
    def unchecked(self) -> "FixedSum":
        """The operator without a check, for elements that another kernel checks."""
        return replace(self, check=None)

    def encode(self, number: int | float) -> Any:
        """Return a finite number of the window as ``initial`` of the scan.

        >>> fixed_sum(-1, TWO_WORDS).encode(-2.5)
        (18446744073709551611, -1)
        """
        whole = whole_of(number, self.lowest)
        return whole if self.acc == ONE_WORD else (whole & (1 << 64) - 1, whole >> 64)


def that_holds(
    window: tuple[int, int, int],
    x: np.dtype[Any],
    out: np.dtype[Any],
    check: Check | None = None,
) -> FixedSum | None:
    """Return the operator for a window (low, high, most).

    It adds ``most`` multiples of 2^low that are below 2^high, elements of type ``x``, to results of
    type ``out``. None if two words do not hold the sums. For ``check`` see ``FixedSum``.

    >>> floats = np.dtype("f4"), np.dtype("f4")
    >>> that_holds((-20, 4, 1000), *floats).cuda_type
    'Fixed<1>'
    >>> that_holds((-30, 25, 1000), *floats).cuda_type
    'Fixed<2, 1>'
    >>> that_holds((-149, 128, 1), *floats) is None
    True
    """
    low, high, most = window
    carries = max(most - 1, 1).bit_length()
    # Kernels multiply elements of one word with 2^-lowest, and results with 2^lowest.
    largest = 1023 if x.itemsize == 8 else 127
    exponents = range(-1074, 1024) if out.itemsize == 8 else range(-149, 128)
    for (acc, element), widest in _WIDEST.items():
        for step in _STEPS:
            lowest = low // step * step
            width, fits = high - lowest, element == 2 or abs(lowest) <= largest
            if fits and width <= widest and width + carries <= _ROOM[acc] and lowest in exponents:
                if check is None:
                    return fixed_sum(lowest, acc, element)
                return fixed_sum(lowest, acc, element, (low, high), check)
    return None


@lru_cache(maxsize=64)  # always the same operator, so that cached plans are found
def fixed_sum(
    lowest: int,
    acc: np.dtype[Any],
    element: int = 1,
    limits: tuple[int, int] = (0, 0),
    check: Check | None = None,
) -> FixedSum:
    """Return the operator for multiples of 2^lowest, each an integer of ``element`` words."""
    one = acc == ONE_WORD
    return FixedSum(
        "fsum",
        np.add if one else _add,
        "plus(a, b)",
        _zero,
        mpi="SUM",
        mpi_kinds="i" if one else "",
        commutative=True,
        acc=acc,
        cuda_type="Fixed<1>" if one else f"Fixed<2, {element}>",
        lowest=lowest,
        limits=limits,
        check=check,
    )


def checks(op: Operator) -> bool:
    """Return whether kernels of an operator check elements."""
    return isinstance(op, FixedSum) and op.check is not None


def unchecked(op: Operator) -> Operator:
    """Return the operator for elements that another kernel checks, if they are checked at all."""
    return op.unchecked if isinstance(op, FixedSum) else op


def _zero(dtype: np.dtype[Any]) -> Any:
    return np.zeros((), dtype)[()]


def _add(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of integers of two words.

    >>> one, most = (np.array([value], TWO_WORDS) for value in ((1, 0), (2**64 - 1, 0)))
    >>> _add(one, most)
    array([(0, 1)], dtype=[('low', '<u8'), ('high', '<i8')])
    """
    found = np.empty(b.shape, TWO_WORDS)
    found["low"] = a["low"] + b["low"]
    found["high"] = a["high"] + b["high"] + (found["low"] < a["low"])
    return found
