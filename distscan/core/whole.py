"""Numbers of Python as whole numbers times powers of two; nothing is lost."""

from fractions import Fraction
from struct import pack, unpack


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
