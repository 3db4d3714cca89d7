"""Exact sums as operators over integers. Additions of integers are exact in any order.

``FixedSum`` adds floats of a narrow window, which are integers of one or two words. It runs in the
kernels of all other operators: elements become integers as they are read, and sums are rounded as
they are stored.

``DigitSum`` adds floats of any window, and infinities and NaN. Its running value is a structure of
int64, or rows of them: the digits of a sum (see ``window.py``), and counts of infinities, NaN and
-0.0 (see ``special.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import arrays
from ..core.operators import Operator, TypedOperator
from ..core.steps import Pending
from .special import codes_of, counts, store_special
from .window import Window, magnitudes, to_units

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
        A function of an array that raises ValueError if an element is outside of ``limits``. Steps
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
        units = to_units(number, self.lowest)
        return units if self.acc == ONE_WORD else (units & (1 << 64) - 1, units >> 64)

    def decode(self, value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a running value, 0-d, as a float of a type, rounded once.

        >>> fixed_sum(-1, ONE_WORD).decode(np.array(-5), np.dtype("f4"))
        array(-2.5, dtype=float32)
        """
        one = self.acc == ONE_WORD
        units = value.item() if one else value["high"].item() * 2**64 + value["low"].item()
        window = Window(self.lowest, self.lowest + 8 * self.acc.itemsize, 1)
        digits = np.array(window.split_one(units * Fraction(2) ** self.lowest), np.int64)
        return np.array(window.round(np, digits[:, None], dtype)[0])


def narrowest_accumulator(
    window: tuple[int, int, int],
    x: np.dtype[Any],
    out: np.dtype[Any],
    check: Check | None = None,
) -> FixedSum | None:
    """Return the operator for a window (low, high, most).

    The operator adds up to ``most`` elements of type ``x``, multiples of 2^low that are below
    2^high, to results of type ``out``. None if two words do not hold the sums. For ``check`` see
    ``FixedSum``.

    >>> floats = np.dtype("f4"), np.dtype("f4")
    >>> narrowest_accumulator((-20, 4, 1000), *floats).cuda_type
    'Fixed<1>'
    >>> narrowest_accumulator((-30, 25, 1000), *floats).cuda_type
    'Fixed<2, 1>'
    >>> narrowest_accumulator((-149, 128, 1), *floats) is None
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


@lru_cache(maxsize=64)  # the cache of plans compares operators by identity
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
    """Return the operator without its check, for elements that another kernel checks."""
    return op.unchecked if isinstance(op, FixedSum) else op


def _zero(dtype: np.dtype[Any]) -> Any:
    return np.zeros((), dtype)[()]


def _add(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of integers of two words.

    >>> one, most = (np.array([value], TWO_WORDS) for value in ((1, 0), (2**64 - 1, 0)))
    >>> _add(one, most)
    array([(0, 1)], dtype=[('low', '<u8'), ('high', '<i8')])
    """
    sums = np.empty(b.shape, TWO_WORDS)
    sums["low"] = a["low"] + b["low"]
    sums["high"] = a["high"] + b["high"] + (sums["low"] < a["low"])
    return sums


# ---- the check of elements against the caller's window -------------------------------------------


class CheckedSteps:
    """Steps that raise ValueError if an element is outside of the window.

    Some kernels look at elements while they add them. If such a kernel has seen an element outside,
    ``check`` reads the elements again, and raises the error. Elements of other kernels are checked
    before the scan. So are those of a scan in place that finds no total first, because it
    overwrites them while it looks at them.
    """

    def __init__(self, steps: Any, check: Check) -> None:
        """Wrap ``steps``, which have four attributes more than the protocol.

        ``checks_window``: whether kernels look at elements. ``window_violated``: whether a kernel
        has seen one outside. ``waits``: whether totals are long rows, which the exchange reads
        piece by piece. ``finds_totals``: whether ``begin`` finds the total. It then reads all
        elements before a result is written, because exact sums have no strategy "scan-add".
        """
        self._steps, self._check = steps, check

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return int(self._steps.nbytes)

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""
        return self._steps.empty()

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``."""
        self._steps.refuse_capture("the host waits for the check of window=")
        by_kernels = self._checks_by_kernels(x, out)
        if not by_kernels:
            self._check(x)
        call: Pending = self._steps.begin(x, out, segments, overlap=overlap)
        if not by_kernels or call.empty:
            return call
        checked = _CheckedCall(call, self._steps, lambda: self._check(x))
        if self._steps.waits:
            return checked
        checked.total()
        return call

    def finish(self, pending: Any, offset: Any) -> None:
        """Scan the shard; if there was no total, wait for the scan's own check of elements."""
        if isinstance(pending, _CheckedCall):
            if not pending.is_exchanged:
                self._check(pending.x)
            pending = pending.call
        self._steps.finish(pending, offset)
        if (
            pending.empty
            and self._steps.window_violated(pending)
            and self._checks_by_kernels(pending.x, pending.out)
        ):
            self._check(pending.x)

    def _checks_by_kernels(self, x: Any, out: Any) -> bool:
        """Return whether kernels look at the elements, and ``check`` can read them afterwards."""
        intact = self._steps.finds_totals or not arrays.overlap(x, out, in_place=False)
        return self._steps.checks_window and intact

    def move(self, x: Any, out: Any) -> bool:
        """Return False, as ``repeat``."""
        return False

    def repeat(self) -> bool:
        """Return False: each call checks its elements."""
        return False

    def check(self) -> None:
        """Wait for the work that is queued; raise the fault of a call that seemed to succeed."""
        self._steps.check()

    def call_off(self) -> None:
        """Call this rank's part off."""
        self._steps.call_off()

    def refuse_capture(self, reason: str) -> None:
        """Raise RuntimeError, with ``reason``, if the stream is captured in a CUDA graph."""
        self._steps.refuse_capture(reason)

    def close(self) -> None:
        """Free the memory."""
        self._steps.close()


class _CheckedCall:
    """A call whose totals are checked before another rank gets them."""

    def __init__(self, call: Any, steps: Any, check: Callable[[], None]) -> None:
        self.call, self.is_exchanged = call, False
        self._steps, self._check = steps, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)

    def total(self, piece: slice | None = None) -> Any:
        """Return the total, or a piece of it, as ``Pending`` does; raise ValueError."""
        self.is_exchanged = True
        total = self.call.total(piece)
        if self._steps.window_violated(self.call):
            self._check()
        return total


# ---- sums in digits: any window, any value -------------------------------------------------------


COUNTS = 4  # the number of counts: see ``special.counts``
_EMPTY = Window(0, 0, 0)


@dataclass(frozen=True, eq=False)
class DigitSum(TypedOperator):
    """The sum of floats, each an integer of several digits.

    Arrays are NumPy's or CuPy's: ``xp`` is their module. Rows are int64 [parts * rows, ...]: for
    each part, its digits, then its counts.

    Attributes
    ----------
    window
        The window of all elements, which defines the digits.
    parts
        2 for complex numbers, whose real and imaginary parts are added separately; else 1.
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
        digits = xp.empty((self.parts, self.rows, *x.shape), np.int64)
        for part, rows in zip(self._parts_of(xp, x), digits, strict=True):
            rows[: self.window.digits] = self.window.split(xp, magnitudes(xp, part))
            rows[self.window.digits :] = counts(xp, part)
        return digits.reshape(-1, *x.shape)

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
            result = self.window.round(xp, rows[: self.window.digits], dtype)
            store_special(codes_of(xp, rows[self.window.digits :]), result)
            part[...] = result

    def encode(self, number: int | float | complex) -> tuple[int, ...]:
        """Return one number of Python, of the window, as ``initial`` of a scan."""
        rows = list[int]()
        for part in (number.real, number.imag)[: self.parts]:
            is_float = isinstance(part, float)  # an integer may be larger than NumPy's are
            count = counts(np, np.array([part]))[:, 0].tolist() if is_float else [0, 0, 1, 1]
            finite = part if not is_float or np.isfinite(part) else 0
            rows += [*self.window.split_one(finite), *count]
        return tuple(rows)

    def decode(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return running values as floats of a type, rounded once."""
        out = np.empty(values.shape, dtype)
        self.store(np, rows_of(values).T.copy(), out.reshape(-1))
        return out


@lru_cache(maxsize=64)  # the cache of plans compares operators by identity
def digit_sum(window: Window, parts: int = 1) -> DigitSum:
    """Return the operator for numbers of a window."""
    rows = parts * (window.digits + COUNTS)
    acc = np.dtype([(f"row{i}", np.int64) for i in range(rows)])
    return DigitSum("fsum", add, None, _zero, commutative=True, acc=acc, window=window, parts=parts)


def rows_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """View running values [n] as integers [n, rows]; they may be copied."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(np.int64).reshape(flat.size, -1)


def add(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of running values."""
    return (rows_of(a) + rows_of(b)).view(b.dtype).reshape(b.shape)
