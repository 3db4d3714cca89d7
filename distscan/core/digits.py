"""From elements to the rows of a ``DigitSum``, and from rows to results; NumPy's and CuPy's arrays.

Rows are int64 [parts * rows, ...]: of each part its digits, then its counts.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .digit_sum import DigitSum, rows_of
from .fixed import Window, magnitudes
from .fixed_sum import ONE_WORD, FixedSum
from .special import codes_of, counts, store_special


def split(op: DigitSum, xp: Any, x: Any) -> Any:
    """Return the rows of elements.

    >>> from .digit_sum import digit_sum
    >>> from .fixed import Window
    >>> split(digit_sum(Window(-1, 9, 100)), np, np.array([2.5, -0.0, np.inf])).tolist()
    [[5, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]]
    """
    found = xp.empty((op.parts, op.rows, *x.shape), np.int64)
    for part, rows in zip(_parts(op, xp, x), found, strict=True):
        rows[: op.window.digits] = op.window.split(xp, magnitudes(xp, part))
        rows[op.window.digits :] = counts(xp, part)
    return found.reshape(-1, *x.shape)


def encode(op: DigitSum, number: int | float | complex) -> tuple[int, ...]:
    """Return one number of Python, of the window, as ``initial`` of a scan."""
    found = list[int]()
    for part in (number.real, number.imag)[: op.parts]:
        is_float = isinstance(part, float)  # an integer may be larger than NumPy's are
        counted = counts(np, np.array([part]))[:, 0].tolist() if is_float else [0, 0, 1, 1]
        finite = part if not is_float or np.isfinite(part) else 0
        found += [*op.window.split_one(finite), *counted]
    return tuple(found)


def store(op: DigitSum, xp: Any, sums: Any, out: Any) -> None:
    """Store rows of sums as floats, rounded once; ``sums`` are overwritten."""
    sums = sums.reshape(op.parts, op.rows, *out.shape)
    dtype = np.dtype(f"f{out.dtype.itemsize // 2}") if op.parts == 2 else out.dtype
    for part, rows in zip((out.real, out.imag) if op.parts == 2 else (out,), sums, strict=True):
        found = op.window.rounded(xp, rows[: op.window.digits], dtype)
        store_special(codes_of(xp, rows[op.window.digits :]), found)
        part[...] = found


def decode(op: DigitSum, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return running values as floats of a type, rounded once."""
    out = np.empty(values.shape, dtype)
    store(op, np, rows_of(values).T.copy(), out.reshape(-1))
    return out


def decode_words(op: FixedSum, value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a running value of words, 0-d, as a float of a type, rounded once.

    >>> from .fixed_sum import ONE_WORD, fixed_sum
    >>> decode_words(fixed_sum(-1, ONE_WORD), np.array(-5), np.dtype("f4"))
    array(-2.5, dtype=float32)
    """
    whole = (
        value.item() if op.acc == ONE_WORD else value["high"].item() * 2**64 + value["low"].item()
    )
    window = Window(op.lowest, op.lowest + 8 * op.acc.itemsize, 1)
    digits = np.array(window.split_one(whole * Fraction(2) ** op.lowest), np.int64)
    return np.array(window.rounded(np, digits[:, None], dtype)[0])


def _parts(op: DigitSum, xp: Any, x: Any) -> tuple[Any, ...]:
    """Return the real and the imaginary parts of elements; of a ``DigitSum`` of one part, ``x``."""
    if op.parts == 1:
        return (x,)
    return (x.real, x.imag) if x.dtype.kind == "c" else (x, xp.zeros(x.shape, np.int64))
