"""Floating-point numbers as integers of several digits, and sums of these, rounded once.

A window (low, high) holds the multiples of 2^low that are below 2^high in magnitude. In units of
2^low, each of them is an integer. The integer is cut into digits of ``width`` bits, the lowest
first, each with the number's sign. Digits of the same place are added as integers of 64 bits. These
additions are exact, so their order does not matter. A sum is thus [digits] of int64.
``Window.round`` resolves the carries between the digits, and rounds to the nearest float, ties to
even.

Fixed point is the "long accumulator" of Kulisch and Snyder (2011). The digits are narrower than
words, so that carries can wait: this is the "carry-save" form, as in Neal's superaccumulators
(2015).

Arrays are NumPy's or CuPy's: ``xp`` is their module.
"""

from fractions import Fraction
from struct import pack, unpack
from typing import Any, NamedTuple

import numpy as np

from ..core.dtypes import is_bfloat16

_ROOM = 62  # bits of a sum of digits: two less than of a word, for the sign and for carries


class Magnitudes(NamedTuple):
    """Numbers as (-1)^negative * significand * 2^exponent. Infinities and NaN are 0 here."""

    significand: Any  # uint64
    exponent: Any  # int64
    negative: Any  # bool


def magnitudes(xp: Any, x: Any) -> Magnitudes:
    """Decompose numbers: floats of up to 64 bits, bfloat16, integers and bool.

    >>> significand, exponent, negative = magnitudes(np, np.array([-0.75]))
    >>> int(significand[0]) * 2.0 ** int(exponent[0]), bool(negative[0])
    (0.75, True)
    """
    if x.dtype.kind in "biu":
        negative = x < 0
        integers = x.astype(np.int64 if x.dtype.kind == "i" else np.uint64).view(np.uint64)
        significand = xp.where(negative, ~integers + np.uint64(1), integers)
        return Magnitudes(significand, xp.zeros(x.shape, np.int64), negative)
    (precision, lowest), bits = format_of(x.dtype), bits_of(xp, x)
    size = 8 * x.dtype.itemsize
    fraction, largest = (1 << precision - 1) - 1, (1 << size - precision) - 1
    biased = (bits >> np.uint64(precision - 1) & np.uint64(largest)).astype(np.int64)
    significand = bits & np.uint64(fraction)
    significand = xp.where(biased > 0, significand | np.uint64(fraction + 1), significand)
    significand = xp.where(biased == largest, np.uint64(0), significand)
    exponent = xp.maximum(biased, 1) + (lowest - 1)
    return Magnitudes(significand, exponent, bits >> np.uint64(size - 1) != 0)


# By type: the bits of a significand, and the exponent of the lowest bit of all its values.
_FORMATS = {"float16": (11, -24), "float32": (24, -149), "float64": (53, -1074)}
_BFLOAT16 = (8, -133)


def format_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the bits of a type's significand, and the exponent of the lowest bit of its values."""
    return _BFLOAT16 if is_bfloat16(dtype) else _FORMATS[dtype.name]


def bits_of(xp: Any, x: Any) -> Any:
    """Return the bits of floats as uint64. Arithmetic on GPUs would flush subnormal floats."""
    native = xp.ascontiguousarray(x.astype(x.dtype.newbyteorder("="), copy=False))
    return native.view(f"u{x.dtype.itemsize}").astype(np.uint64)


def _bit_length(xp: Any, numbers: Any) -> Any:
    """Return the number of bits of uint64 numbers; 0 has none."""
    upper = numbers >> np.uint64(32)
    is_long = upper > 0
    half = xp.where(is_long, upper, numbers & np.uint64(0xFFFFFFFF))
    return xp.frexp(half.astype(np.float64))[1].astype(np.int64) + 32 * is_long


class Window(NamedTuple):
    """The bits of some numbers: multiples of 2^low, below 2^high in magnitude."""

    low: int
    high: int
    most: int  # the largest number of elements in a sum

    @classmethod
    def of(cls, xp: Any, x: Magnitudes) -> "Window":
        """Return the smallest window of numbers; an empty one, (0, 0), if all are 0."""
        nonzero = x.significand > 0
        if not bool(nonzero.any()):
            return cls(0, 0, x.significand.size)
        lowest = _bit_length(xp, x.significand & (~x.significand + np.uint64(1))) - 1
        low = xp.where(nonzero, x.exponent + lowest, 1 << 20).min()
        high = xp.where(nonzero, x.exponent + _bit_length(xp, x.significand), -(1 << 20)).max()
        return cls(int(low), int(high), x.significand.size)

    @classmethod
    def of_one(cls, number: int | float) -> "Window":
        """Return the window of one number of Python; infinities and NaN count as 0."""
        significand, exponent = decompose(number)
        if significand == 0:
            return cls(0, 0, 1)
        low = (significand & -significand).bit_length() - 1
        return cls(low + exponent, significand.bit_length() + exponent, 1)

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
        digits = xp.empty((self.digits, *x.significand.shape), np.int64)
        mask = np.uint64((1 << self.width) - 1)
        for place, digit in enumerate(digits):
            up = x.exponent - self.low - place * self.width
            left = x.significand << xp.clip(up, 0, 63).astype(np.uint64)
            right = x.significand >> xp.clip(-up, 0, 63).astype(np.uint64)
            bits = xp.where(up >= 0, xp.where(up < self.width, left, np.uint64(0)), right)
            bits = xp.where(up > -64, bits, np.uint64(0)) & mask
            digit[...] = xp.where(x.negative, -bits.view(np.int64), bits.view(np.int64))
        return digits

    def split_one(self, number: int | float | Fraction) -> list[int]:
        """Return the digits of one finite number of Python.

        >>> Window(-1, 70, 4).split_one(-2.5), Window(-1, 70, 4).width
        ([-5, 0], 60)
        """
        signed = to_units(number, self.low)
        sign, magnitude = -1 if signed < 0 else 1, abs(signed)
        mask, last = (1 << self.width) - 1, self.digits - 1
        digits = [magnitude >> place * self.width & mask for place in range(last)]
        return [sign * digit for digit in [*digits, magnitude >> last * self.width]]

    def round(self, xp: Any, sums: Any, dtype: np.dtype[Any]) -> Any:
        """Return sums of digits, int64 [digits, ...], as floats; the nearest, ties to even.

        ``sums`` are overwritten.
        """
        negative = _normalize(xp, sums, self.width)
        # The leading 64 bits of each sum, from its highest digit that is not 0 on, as
        # significand * 2^exponent.
        significand = xp.zeros(sums.shape[1:], np.uint64)
        exponent = xp.zeros(sums.shape[1:], np.int64)
        sticky = xp.zeros(sums.shape[1:], np.bool_)  # whether a bit below the leading 64 is set
        for place in range(len(sums) - 1, -1, -1):
            digit = sums[place].view(np.uint64)
            free = 64 - _bit_length(xp, significand)
            is_first, low = free == 64, self.low + place * self.width
            # The upper bits of the digit, for which there is room, and its lower bits. A shift by
            # 64 is undefined: no digit has so many bits, and a full significand has room for 0.
            upper = xp.minimum(free, self.width).astype(np.uint64)
            lower = (np.int64(self.width) - upper.astype(np.int64)).astype(np.uint64)
            sticky |= (digit & ((np.uint64(1) << lower) - np.uint64(1))) != 0
            exponent = xp.where(is_first, low, exponent - upper.astype(np.int64))
            significand = xp.where(is_first, digit, significand << upper | digit >> lower)
            sticky = xp.where(is_first, False, sticky)
        return _nearest(xp, (significand, exponent, sticky), negative, dtype)


def _normalize(xp: Any, sums: Any, width: int) -> Any:
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
    """Return (-1)^negative * significand * 2^exponent as the nearest float of a type, ties to even.

    ``leading`` is (significand, exponent, sticky). ``sticky`` says that the number is larger than
    these, by less than 2^exponent; then ``significand`` has 64 bits.
    """
    (significand, exponent, sticky), (precision, lowest) = leading, format_of(dtype)
    length = _bit_length(xp, significand)
    ulp = xp.maximum(exponent + length - precision, lowest)  # the exponent of the last bit
    excess = xp.minimum(ulp - exponent, 65)  # bits to be rounded off; below 0: zeros to be added
    shift, one = xp.clip(excess, 1, 63).astype(np.uint64), np.uint64(1)
    zeros = xp.clip(-excess, 0, 63).astype(np.uint64)
    quotient = xp.where(excess > 0, significand >> shift, significand << zeros)
    remainder = significand & ((one << shift) - one)
    half = one << (shift - one)
    # If all 64 bits are rounded off, the highest is the half. If 65 are, all 64 are less than half.
    none_left = excess >= 64
    quotient = xp.where(none_left, np.uint64(0), quotient)
    remainder = xp.where(none_left, significand, remainder)
    half = xp.where(none_left, np.uint64(1 << 63), half)
    tie = (remainder == half) & (sticky | (quotient & one != 0))
    rounds_up = ((remainder > half) | tie) & (excess > 0) & (excess < 65)
    quotient += rounds_up.astype(np.uint64)
    # The exponent lies above the significand. The significand's highest bit adds 1 to it, as a
    # carry does.
    size = 8 * dtype.itemsize
    infinite = ((1 << size - precision) - 1) << precision - 1
    bits = quotient + ((ulp - lowest).astype(np.uint64) << np.uint64(precision - 1))
    bits = xp.minimum(xp.where(significand == 0, np.uint64(0), bits), np.uint64(infinite))
    bits |= negative.astype(np.uint64) << np.uint64(size - 1)
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


# ---- numbers of Python ---------------------------------------------------------------------------


def decompose(number: int | float | Fraction) -> tuple[int, int]:
    """Return (significand, exponent) of one number of Python: significand * 2^exponent.

    The denominator of a fraction must be a power of 2. Infinities and NaN become 0. The bits of
    floats are read, because arithmetic may flush subnormal floats to 0.

    >>> decompose(-3), decompose(Fraction(3, 4)), decompose(-5e-324)
    ((-3, 0), (3, -2), (-1, -1074))
    """
    if not isinstance(number, float):
        numerator, denominator = number.as_integer_ratio()
        return numerator, 1 - denominator.bit_length()
    (bits,) = unpack("<Q", pack("<d", number))
    biased, significand = bits >> 52 & 2047, bits & (1 << 52) - 1
    if biased == 2047:
        significand = 0
    elif biased > 0:
        significand |= 1 << 52
    return -significand if bits >> 63 else significand, max(biased, 1) - 1075


def to_units(number: int | float | Fraction, lowest: int) -> int:
    """Return the integer k for one number of Python, a multiple k * 2^lowest.

    >>> to_units(-2.5, -1), to_units(24, 3)
    (-5, 3)
    """
    significand, exponent = decompose(number)
    up = exponent - lowest
    return significand << up if up >= 0 else significand >> -up
