"""The oracle of exact sums, in Python's integers; arrays of floats to add exactly."""

import math

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# The bits of a significand, the exponent of the lowest bit of all, and the first power of 2 that is
# too large.
FORMATS = {
    "float16": (11, -24, 16),
    "bfloat16": (8, -133, 128),
    "float32": (24, -149, 128),
    "float64": (53, -1074, 1024),
}


def dtype_of(name):
    """The type of a name."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


#: Every float is a multiple of 1 / UNIT.
UNIT = 1 << 1074


def rounded(value, name):
    """The float of a type that is nearest to a fraction, ties to even, as a float of Python."""
    return rounded_ratio(value.numerator, value.denominator, name)


def rounded_ratio(numerator, denominator, name):
    """The same of a fraction in two integers, which need not be in lowest terms."""
    precision, lowest, end = FORMATS[name]
    size = abs(numerator)
    if size == 0:
        return 0.0
    top = size.bit_length() - denominator.bit_length() + 1  # size / denominator < 2^top
    below = size < denominator << (top - 1) if top > 0 else size << (1 - top) < denominator
    ulp = max(top - below - precision, lowest)
    units, divisor = size << max(-ulp, 0), denominator << max(ulp, 0)
    whole, rest = divmod(units, divisor)
    whole += 2 * rest > divisor or (2 * rest == divisor and whole % 2)
    is_infinite = whole << max(ulp, 0) >= 1 << end + max(-ulp, 0)
    result = math.inf if is_infinite else math.ldexp(whole, ulp)
    return -result if numerator < 0 else result


def prefixes(x, name, *, initial=None, exclusive=False, heads=None):
    """The exact sums of all elements up to each, rounded once; a plain loop over floats."""
    sums = []

    def begin():
        state = {"sum": 0, "special": 0.0, "zeros": True, "some": False}  # the sum, times UNIT
        if initial is not None:
            add(state, initial)
        return state

    def add(state, number):
        number = float(number) if not isinstance(number, int) else number
        state["some"] = True
        if isinstance(number, int) or math.isfinite(number):
            numerator, denominator = number.as_integer_ratio()
            state["sum"] += numerator * (UNIT // denominator)
            state["zeros"] &= number == 0 and math.copysign(1, number) < 0
        else:
            state["special"] += number
            state["zeros"] = False

    def value(state):
        if state["special"] != 0:  # also NaN
            return state["special"]
        if state["some"] and state["zeros"]:
            return -0.0
        return rounded_ratio(state["sum"], UNIT, name)

    state = begin()
    for i, number in enumerate(x):
        if heads is not None and heads[i]:
            state = begin()
        before = value(state) if exclusive else None
        add(state, number)
        sums.append(before if exclusive else value(state))
    return np.array(sums, np.float64).astype(dtype_of(name))


def scanned(x, name, *, axis=None, reverse=False, heads=None, **form):
    """The same of an array, complex or not, along an axis and in the order of a scan."""
    if x.dtype.kind == "c":
        sums = np.empty(x.size if axis is None else x.shape, f"c{2 * np.dtype(name).itemsize}")
        first = form.pop("initial", None)
        for of in ("real", "imag"):
            initial = None if first is None else getattr(first, of)
            given = {"axis": axis, "reverse": reverse, "heads": heads, "initial": initial}
            setattr(sums, of, scanned(getattr(x, of), name, **given, **form))
        return sums
    if axis is None:
        x, axis = x.reshape(-1), 0
    lines = np.moveaxis(x, axis, -1)
    sums = np.empty(lines.shape, dtype_of(name))
    if heads is not None and reverse:
        heads = np.append(heads[1:], True)[: len(heads)][::-1]
    for place in np.ndindex(lines.shape[:-1]):
        line = lines[place]
        numbers = line.tolist() if x.dtype.kind in "biu" else line.astype(np.float64).tolist()
        line_sums = prefixes(numbers[::-1] if reverse else numbers, name, heads=heads, **form)
        sums[place] = line_sums[::-1] if reverse else line_sums
    return np.moveaxis(sums, -1, axis)


def same(x, y):
    """Whether arrays of floats are equal, NaN equal to NaN, and zeros of the same sign."""
    x, y = np.asarray(x), np.asarray(y)
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    if x.dtype.kind == "c":
        return same(x.real, y.real) and same(x.imag, y.imag)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    nan = np.isnan(wide) & np.isnan(other)
    alike = (wide == other) & (np.signbit(wide) == np.signbit(other))
    return bool((nan | alike).all())


# ---- floats to add, by their sums: of one word, of two words, or of more -------------------------


def finite_bits(rng, name, n):
    """Numbers of all finite bit patterns."""
    dtype = dtype_of(name)
    x = rng.integers(0, 256, (n, dtype.itemsize), np.uint8).view(dtype).reshape(n)
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = x.astype(np.float64)
    return np.where(np.isfinite(wide), wide, 1.0).astype(dtype)


def grid(rng, name, n):
    """Multiples of 2^-10 below 2^11, and -0.0 at the ends: sums of one word."""
    x = rng.integers(-(2**20), 2**20, n) / 2.0**10
    x[: n // 4] = x[n - n // 4 :] = -0.0
    return x.astype(dtype_of(name))


def normal(rng, name, n):
    """Numbers of similar size, and of all bits of their type: sums of two words."""
    return rng.standard_normal(n).astype(dtype_of(name))


def special(rng, name, n, of=finite_bits):
    """Infinities, NaN and zeros of both signs among others; -0.0 at the ends."""
    x = of(rng, name, n)
    x[: n // 4] = x[n - n // 4 :] = -0.0
    for value in (np.inf, -np.inf, np.nan, -0.0, 0.0):
        x[rng.integers(n // 3, 2 * n // 3, 2)] = value
    return x


def mixed(rng, name, n):
    """The same among numbers of similar size, which kernels add."""
    return special(rng, name, n, normal)
