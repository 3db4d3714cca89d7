"""Bounds on the rounding errors of a correct scan of floats, for every order of association.

Each class bounds one kind of operator. Its state after each element is [fields, columns]; the
states of many elements are [fields, n, columns]. ``u`` is the unit roundoff. The bounds are those
of Higham, Accuracy and Stability of Numerical Algorithms, 2002.

If a part of the elements so far could have left the type's range, the later results depend on the
order of association. The bound is infinite from there on.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_FAR = 1e5  # stands for log(infinity), and -_FAR for log(0): larger than all finite logarithms


class Exact:
    """Operators that do not round."""

    def start(self, columns: int) -> Array:
        """Return the state before the first element."""
        return np.zeros((0, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the states after each element of ``x`` [n, columns]; ``values`` is its scan."""
        return np.zeros((0, *values.shape))

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the state after the elements of both states."""
        return earlier

    def bound(self, states: Array, values: Array) -> Array:
        """Return the largest error of a correct scan, of the shape of ``values``."""
        return np.zeros(values.shape)


class Sums:
    """Sums: the roundings of the longest chain, times u, times the sum of magnitudes (4.2)."""

    def __init__(self, factor: float, limit: float) -> None:
        self.factor, self.limit = factor, limit

    def start(self, columns: int) -> Array:
        """Return the state before the first element: sums of magnitudes, 0."""
        return np.zeros((1, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the sums of magnitudes up to each of the elements ``x`` [n, columns]."""
        size = np.add.accumulate(finite_size(x), axis=0, dtype=np.float64)
        return np.asarray(state[0] + size)[None]

    def join(self, earlier: Array, later: Array) -> Array:
        """Add the sums of two states."""
        return np.asarray(earlier + later)

    def bound(self, states: Array, values: Array) -> Array:
        """Return the largest error of a correct scan; infinity if a sum exceeds the limit."""
        return np.where(states[0] <= self.limit, self.factor * states[0], np.inf)


class Logs(Sums):
    """logaddexp: the error depends on the largest magnitude, plus 1 for the logarithm itself."""

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the largest magnitudes up to each of the elements ``x`` [n, columns]."""
        size = 1 + np.maximum(finite_size(x), finite_size(values)).astype(np.float64)
        return np.asarray(np.maximum(np.maximum.accumulate(size, axis=0), state[0]))[None]

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the larger magnitudes of two states."""
        return np.maximum(earlier, later)


class Products:
    """Products: the error of k factors is k u / (1 - k u) of the result (3.1), plus underflow.

    A factor that underflows has an error below the smallest subnormal (2.2), times all factors
    before it and after it. The logarithm of the running product is a walk:

    - its highest point bounds the product of the factors before;
    - its rise from its lowest point bounds the product of the factors after;
    - its greatest rise and fall tell whether any part can have left the range, above or below.
    """

    def __init__(self, u: float, real: "np.finfo[Any]") -> None:
        self.u, self.subnormal = u, real.smallest_subnormal
        self.real = np.result_type(real.dtype, np.float64)  # holds every factor
        # A product of complex numbers is a sum of products; each of them may overflow.
        self.high = float(np.log(real.max / 4))
        self.deep = float(np.log(real.eps) - np.log(real.tiny))

    def start(self, columns: int) -> Array:
        """Return the state before the first element: a walk that stands at 0."""
        return np.zeros((7, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the states of the walk after each element of ``x`` [n, columns]."""
        count, position, low, high, rise, fall, zero = state
        logs = np.log(np.abs(x).astype(self.real)).astype(np.float64)
        walk = np.add.accumulate(np.nan_to_num(logs, nan=_FAR, posinf=_FAR, neginf=-_FAR), axis=0)
        lows = np.minimum(np.minimum.accumulate(walk, axis=0), low)
        highs = np.maximum(np.maximum.accumulate(walk, axis=0), high)
        return np.stack(
            [
                np.broadcast_to(count + np.arange(1.0, len(x) + 1)[:, None], walk.shape),
                position + walk,
                lows - walk,  # the lowest and the highest point so far, relative to this point
                highs - walk,
                np.maximum(np.maximum.accumulate(walk - lows, axis=0), rise),
                np.maximum(np.maximum.accumulate(highs - walk, axis=0), fall),
                np.logical_or.accumulate(x == 0, axis=0) | (zero > 0),
            ]
        )

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the state after two walks; the later one starts where the earlier one ends."""
        count, position, low, high, rise, fall, zero = earlier
        _, walk, lows, highs, rises, falls, _ = later
        return np.stack(
            [
                count + later[0],
                position + walk,
                np.minimum(lows, low - walk),
                np.maximum(highs, high - walk),
                np.maximum(np.maximum(rise, rises), highs + walk - low),
                np.maximum(np.maximum(fall, falls), high - lows - walk),
                np.maximum(zero, later[6]),
            ]
        )

    def bound(self, states: Array, values: Array) -> Array:
        """Return the largest error of a correct scan; infinity if a part may overflow."""
        count, position, low, high, rise, fall, zero = states
        ku = count * self.u
        bound = np.where(ku < 1, ku / (1 - ku) * np.abs(values), np.inf)
        underflows = fall > self.deep
        if underflows.any():
            others = np.exp((position + high - low).astype(bound.dtype))
            bound += np.where(underflows, count * self.subnormal * others, 0)
        # After a factor 0, all products are 0.
        return np.where(rise > self.high, np.inf, np.where(zero > 0, 0, bound))


def finite_size(x: Array) -> Array:
    """Return the magnitudes of the finite elements, and 0 for all others."""
    return np.abs(np.where(np.isfinite(x), x, 0))
