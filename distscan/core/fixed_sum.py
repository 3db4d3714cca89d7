"""Exact sums as operators: floats of a narrow window are integers of one or two words.

Integers add exactly in any order. So these operators run in the kernels of every other operator:
only what is read becomes an integer, and what is stored is rounded. Wider windows take several
digits: see ``exact_shard.py``.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .operators import Operator

ONE_WORD = np.dtype(np.int64)
#: An integer of two words, in the two's complement.
TWO_WORDS = np.dtype([("low", np.uint64), ("high", np.int64)])


@dataclass(frozen=True, eq=False)
class FixedSum(Operator):
    """The sum of floats, each an integer times 2^lowest.

    Attributes
    ----------
    lowest
        The exponent: the running value k stands for k * 2^lowest.
    acc
        The type of the running value, ``ONE_WORD`` or ``TWO_WORDS``. It holds every sum.
    """

    lowest: int = 0
    acc: np.dtype[Any] = ONE_WORD

    def encode(self, number: int | float) -> Any:
        """Return a finite number of the window as ``initial`` of the scan.

        >>> fixed_sum(-1, TWO_WORDS).encode(-2.5)
        (18446744073709551611, -1)
        """
        numerator, denominator = number.as_integer_ratio()
        up = denominator.bit_length() - 1 + self.lowest  # the denominator is a power of 2
        whole = numerator << -up if up < 0 else numerator >> up
        return whole if self.acc == ONE_WORD else (whole & (1 << 64) - 1, whole >> 64)


@lru_cache(maxsize=64)  # always the same operator, so that cached plans are found
def fixed_sum(lowest: int, acc: np.dtype[Any]) -> FixedSum:
    """Return the operator for numbers that are multiples of 2^lowest."""
    mpi = {"mpi": "SUM", "mpi_kinds": "i"} if acc == ONE_WORD else {}
    add = np.add if acc == ONE_WORD else _add
    return FixedSum(
        "fsum", add, "plus(a, b)", _zero, commutative=True, lowest=lowest, acc=acc, **mpi
    )


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
