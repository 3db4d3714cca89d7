"""Floating-point numbers as integers of several digits, and sums of these, rounded once.

A number is a multiple of 2^low, and below 2^high in magnitude: that is its window. In this window
it is an integer. The integer is cut into digits of ``width`` bits, the lowest first, each with the
number's sign. Digits of the same place are added as integers of 64 bits, which is exact, and in any
order. So a sum is [digits] of int64. ``Window.rounded`` resolves the carries between the digits,
and rounds to the nearest float, ties to even.

Fixed point is the "long accumulator" of Kulisch and Snyder (2011). To keep digits narrower than
words, so that carries wait, is the "carry-save" form, as in Neal's superaccumulators (2015).

Arrays are NumPy's or CuPy's: ``xp`` is their module.
"""

from fractions import Fraction
from struct import pack, unpack
from typing import Any, NamedTuple

import numpy as np

from ..core.dtypes import is_bfloat16

_ROOM = 62  # bits of a sum of digits: two less than of a word, for the sign and for carries


class Magnitudes(NamedTuple):
    """Numbers as (-1)^negative * whole * 2^exponent. What is not finite is 0 here."""

    whole: Any  # uint64
    exponent: Any  # int64
    negative: Any  # bool


def magnitudes(xp: Any, x: Any) -> Magnitudes:
    """Take numbers apart: floats of up to 64 bits, bfloat16, integers and bool.

    >>> whole, exponent, negative = magnitudes(np, np.array([-0.75]))
    >>> int(whole[0]) * 2.0 ** int(exponent[0]), bool(negative[0])
    (0.75, True)
    """
    if x.dtype.kind in "biu":
        negative = x < 0
        whole = x.astype(np.int64).view(np.uint64) if x.dtype.kind == "i" else x.astype(np.uint64)
        whole = xp.where(negative, ~whole + np.uint64(1), whole)
        return Magnitudes(whole, xp.zeros(x.shape, np.int64), negative)
    (precision, lowest), bits = format_of(x.dtype), bits_of(xp, x)
    size = 8 * x.dtype.itemsize
    fraction, ones = (1 << precision - 1) - 1, (1 << size - precision) - 1
    biased = (bits >> np.uint64(precision - 1) & np.uint64(ones)).astype(np.int64)
    whole = bits & np.uint64(fraction)
    whole = xp.where(biased > 0, whole | np.uint64(fraction + 1), whole)
    whole = xp.where(biased == ones, np.uint64(0), whole)
    return Magnitudes(whole, xp.maximum(biased, 1) + (lowest - 1), bits >> np.uint64(size - 1) != 0)


# Of a type: the bits of a significand, and the exponent of the lowest bit of all.
_FORMATS = {"float16": (11, -24), "float32": (24, -149), "float64": (53, -1074)}
_BFLOAT16 = (8, -133)


def format_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the bits of a type's significand, and the exponent of its lowest bit of all."""
    return _BFLOAT16 if is_bfloat16(dtype) else _FORMATS[dtype.name]


def bits_of(xp: Any, x: Any) -> Any:
    """Return the bits of floats as uint64. Floats would lose what is subnormal on GPUs."""
    native = xp.ascontiguousarray(x.astype(x.dtype.newbyteorder("="), copy=False))
    return native.view(f"u{x.dtype.itemsize}").astype(np.uint64)


def _bit_length(xp: Any, whole: Any) -> Any:
    """Return the number of bits of uint64 numbers; 0 of 0."""
    upper = whole >> np.uint64(32)
    some = upper > 0
    half = xp.where(some, upper, whole & np.uint64(0xFFFFFFFF))
    return xp.frexp(half.astype(np.float64))[1].astype(np.int64) + 32 * some


class Window(NamedTuple):
    """The bits of some numbers: multiples of 2^low, below 2^high; and the most of a sum."""

    low: int
    high: int
    most: int

    @classmethod
    def of(cls, xp: Any, x: Magnitudes) -> "Window":
        """Return the smallest window of numbers; an empty one, (0, 0), if all are 0."""
        if not bool((x.whole > 0).any()):
            return cls(0, 0, x.whole.size)
        some = x.whole > 0
        lowest = _bit_length(xp, x.whole & (~x.whole + np.uint64(1))) - 1
        low = xp.where(some, x.exponent + lowest, 1 << 20).min()
        high = xp.where(some, x.exponent + _bit_length(xp, x.whole), -(1 << 20)).max()
        return cls(int(low), int(high), x.whole.size)

    @classmethod
    def of_one(cls, number: int | float) -> "Window":
        """Return the window of one number of Python; what is not finite counts as 0."""
        whole, exponent = apart(number)
        if whole == 0:
            return cls(0, 0, 1)
        low = (whole & -whole).bit_length() - 1
        return cls(low + exponent, whole.bit_length() + exponent, 1)

    def joined(self, other: "Window") -> "Window":
        """Return the window of both windows' numbers together."""
        most = self.most + other.most
        if self.is_empty or other.is_empty:
            low, high = (self if other.is_empty else other)[:2]
            return Window(low, high, most)
        return Window(min(self.low, other.low), max(self.high, other.high), most)

    @property
    def is_empty(self) -> bool:
        """Whether 0 is the only number in it."""
        return self.high <= self.low

    @property
    def width(self) -> int:
        """The bits of a digit: sums of ``most`` digits fit in a word."""
        return _ROOM - max(self.most - 1, 1).bit_length()

    @property
    def digits(self) -> int:
        """The number of digits."""
        return max(1, -(-(self.high - self.low) // self.width))

    def split(self, xp: Any, x: Magnitudes) -> Any:
        """Return the digits of numbers: int64 [digits, ...], the lowest first."""
        found = xp.empty((self.digits, *x.whole.shape), np.int64)
        mask = np.uint64((1 << self.width) - 1)
        for place, digit in enumerate(found):
            up = x.exponent - self.low - place * self.width
            left = x.whole << xp.clip(up, 0, 63).astype(np.uint64)
            right = x.whole >> xp.clip(-up, 0, 63).astype(np.uint64)
            bits = xp.where(up >= 0, xp.where(up < self.width, left, np.uint64(0)), right)
            bits = xp.where(up > -64, bits, np.uint64(0)) & mask
            digit[...] = xp.where(x.negative, -bits.view(np.int64), bits.view(np.int64))
        return found

    def split_one(self, number: int | float | Fraction) -> list[int]:
        """Return the digits of one finite number of Python.

        >>> Window(-1, 70, 4).split_one(-2.5), Window(-1, 70, 4).width
        ([-5, 0], 60)
        """
        signed = whole_of(number, self.low)
        sign, whole = -1 if signed < 0 else 1, abs(signed)
        mask, last = (1 << self.width) - 1, self.digits - 1
        found = [whole >> place * self.width & mask for place in range(last)]
        return [sign * digit for digit in [*found, whole >> last * self.width]]

    def rounded(self, xp: Any, sums: Any, dtype: np.dtype[Any]) -> Any:
        """Return sums of digits, int64 [digits, ...], as floats; the nearest, ties to even.

        ``sums`` are overwritten.
        """
        negative = _normalized(xp, sums, self.width)
        # The leading 64 bits of each sum, from its highest digit that is not 0 on: whole * 2^at.
        whole = xp.zeros(sums.shape[1:], np.uint64)
        at = xp.zeros(sums.shape[1:], np.int64)
        more = xp.zeros(sums.shape[1:], np.bool_)  # whether there are bits below them
        for place in range(len(sums) - 1, -1, -1):
            digit = sums[place].view(np.uint64)
            free = 64 - _bit_length(xp, whole)
            begins, low = free == 64, self.low + place * self.width
            taken = xp.minimum(free, self.width).astype(np.uint64)
            left = (np.int64(self.width) - taken.astype(np.int64)).astype(np.uint64)
            # A shift by 64 is undefined: no digit has so many bits, and a full ``whole`` takes 0.
            further = whole << taken | digit >> left
            more |= (digit & ((np.uint64(1) << left) - np.uint64(1))) != 0
            at = xp.where(begins, low, at - taken.astype(np.int64))
            whole = xp.where(begins, digit, further)
            more = xp.where(begins, False, more)
        return _nearest(xp, (whole, at, more), negative, dtype)


def _normalized(xp: Any, sums: Any, width: int) -> Any:
    """Resolve carries in place, so that digits are magnitudes below 2^width; return the signs.

    The highest digit may have more bits.
    """
    mask = np.int64((1 << width) - 1)
    for place in range(len(sums) - 1):
        sums[place + 1] += sums[place] >> np.int64(width)
        sums[place] &= mask
    negative = sums[-1] < 0
    borrow = xp.zeros(negative.shape, np.int64)
    for place in range(len(sums)):
        last = place == len(sums) - 1
        flipped = -sums[place] - borrow
        borrow = np.int64(0) if last else (flipped < 0).astype(np.int64)
        sums[place] = xp.where(negative, flipped if last else flipped & mask, sums[place])
    return negative


def _nearest(xp: Any, leading: tuple[Any, Any, Any], negative: Any, dtype: np.dtype[Any]) -> Any:
    """Return (-1)^negative * whole * 2^at, rounded to the nearest float of a type, ties to even.

    ``leading`` is (whole, at, more). ``more`` says that the true number is a little larger, by less
    than 2^at; then ``whole`` has 64 bits.
    """
    (whole, at, more), (precision, lowest) = leading, format_of(dtype)
    last = xp.maximum(at + _bit_length(xp, whole) - precision, lowest)  # the exponent of its ulp
    off = xp.minimum(last - at, 65)  # bits that are rounded off; below 0: bits that are added
    shift, one = xp.clip(off, 1, 63).astype(np.uint64), np.uint64(1)
    up = xp.clip(-off, 0, 63).astype(np.uint64)
    rounds = off > 0
    kept = xp.where(rounds, whole >> shift, whole << up)
    rest = whole & ((one << shift) - one)
    half = one << (shift - one)
    # Of 64 bits that are all rounded off, the highest is the half. Of 65, less than half.
    beyond = off >= 64
    kept = xp.where(beyond, np.uint64(0), kept)
    rest = xp.where(beyond, whole, rest)
    half = xp.where(beyond, np.uint64(1 << 63), half)
    above = (rest > half) | ((rest == half) & (more | (kept & one != 0)))
    kept += (above & rounds & (off < 65)).astype(np.uint64)
    # The exponent is above the significand, whose highest bit adds 1 to it, as a carry does.
    size = 8 * dtype.itemsize
    infinite = ((1 << size - precision) - 1) << precision - 1
    bits = kept + ((last - lowest).astype(np.uint64) << np.uint64(precision - 1))
    bits = xp.minimum(xp.where(whole == 0, np.uint64(0), bits), np.uint64(infinite))
    bits |= negative.astype(np.uint64) << np.uint64(size - 1)
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


# ---- numbers of Python ---------------------------------------------------------------------------


def apart(number: int | float | Fraction) -> tuple[int, int]:
    """Return (whole, exponent) of one number of Python: whole * 2^exponent.

    A denominator must be a power of 2. What is not finite is 0. Floats are read bit by bit, since
    a thread may take subnormal ones for 0.

    >>> apart(-3), apart(Fraction(3, 4)), apart(-5e-324)
    ((-3, 0), (3, -2), (-1, -1074))
    """
    if not isinstance(number, float):
        numerator, denominator = number.as_integer_ratio()
        return numerator, 1 - denominator.bit_length()
    (bits,) = unpack("<Q", pack("<d", number))
    biased, whole = bits >> 52 & 2047, bits & (1 << 52) - 1
    if biased == 2047:
        whole = 0
    elif biased > 0:
        whole |= 1 << 52
    return -whole if bits >> 63 else whole, max(biased, 1) - 1075


def whole_of(number: int | float | Fraction, lowest: int) -> int:
    """Return k of one number of Python: k * 2^lowest, a multiple of it.

    >>> whole_of(-2.5, -1), whole_of(24, 3)
    (-5, 3)
    """
    whole, exponent = apart(number)
    up = exponent - lowest
    return whole << up if up >= 0 else whole >> -up
