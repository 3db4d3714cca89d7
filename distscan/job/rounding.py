"""How far a correct scan of floats may be from the exact one, whatever the order of association.

Each class bounds one kind of operator. It follows a scan in states [fields, columns]; those of
many elements are [fields, n, columns]. ``u`` is the unit roundoff. Higham, Accuracy and Stability
of Numerical Algorithms, 2002, is where the bounds come from.

Where any part of what has been combined could have left the type's range, the order decides what
comes behind it: the bound is infinite from there on.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_FAR = 1e5  # stands for the logarithm of infinity, and less it for that of 0: beyond all ranges


class Exact:
    """What does not round."""

    def start(self, columns: int) -> Array:
        """Return the state before the first element."""
        return np.zeros((0, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the states behind each of the elements ``x`` [n, columns] and their scan."""
        return np.zeros((0, *values.shape))

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the state behind the elements of two states."""
        return earlier

    def bound(self, states: Array, values: Array) -> Array:
        """Return how far from ``values`` a correct scan may be."""
        return np.zeros(values.shape)


class Sums:
    """Sums: the roundings of the longest chain, times u, times the sum of magnitudes (4.2)."""

    def __init__(self, factor: float, limit: float) -> None:
        self.factor, self.limit = factor, limit

    def start(self, columns: int) -> Array:
        """Return sums of magnitudes, of no element yet."""
        return np.zeros((1, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the sums of magnitudes up to each of the elements ``x`` [n, columns]."""
        size = np.add.accumulate(finite_size(x), axis=0, dtype=np.float64)
        return np.asarray(state[0] + size)[None]

    def join(self, earlier: Array, later: Array) -> Array:
        """Add the sums of two states."""
        return np.asarray(earlier + later)

    def bound(self, states: Array, values: Array) -> Array:
        """Return how far from ``values`` a correct scan may be; infinity beyond the limit."""
        return np.where(states[0] <= self.limit, self.factor * states[0], np.inf)


class Logs(Sums):
    """logaddexp: errors do not add up beyond the largest; 1 stands for the logarithm itself."""

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the largest magnitudes up to each of the elements ``x`` [n, columns]."""
        size = 1 + np.maximum(finite_size(x), finite_size(values)).astype(np.float64)
        return np.asarray(np.maximum(np.maximum.accumulate(size, axis=0), state[0]))[None]

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the larger magnitudes of two states."""
        return np.maximum(earlier, later)


class Products:
    """Products: each of k factors rounds, k u / (1 - k u) of the result (3.1); and underflows.

    What underflows is off by less than the smallest subnormal (2.2), times all other factors: those
    before it, and those behind it. The logarithm of the running product is a walk. How high it has
    been bounds the factors before; its rise from its lowest point, those behind; its greatest rise
    and fall say whether any part can have left the range, above or below.
    """

    def __init__(self, u: float, real: "np.finfo[Any]") -> None:
        self.u, self.subnormal = u, real.smallest_subnormal
        self.real = np.result_type(real.dtype, np.float64)  # holds every factor
        # A product of complex numbers is made of sums of products, each of which may overflow.
        self.high = float(np.log(real.max / 4))
        self.deep = float(np.log(real.eps) - np.log(real.tiny))

    def start(self, columns: int) -> Array:
        """Return the state before the first element: a walk that stands at 0."""
        return np.zeros((7, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the states of the walk behind each of the elements ``x`` [n, columns]."""
        count, place, low, high, rise, fall, zero = state
        logs = np.log(np.abs(x).astype(self.real)).astype(np.float64)
        walk = np.add.accumulate(np.nan_to_num(logs, nan=_FAR, posinf=_FAR, neginf=-_FAR), axis=0)
        lows = np.minimum(np.minimum.accumulate(walk, axis=0), low)
        highs = np.maximum(np.maximum.accumulate(walk, axis=0), high)
        return np.stack(
            [
                np.broadcast_to(count + np.arange(1.0, len(x) + 1)[:, None], walk.shape),
                place + walk,
                lows - walk,  # the lowest and the highest place so far, seen from here
                highs - walk,
                np.maximum(np.maximum.accumulate(walk - lows, axis=0), rise),
                np.maximum(np.maximum.accumulate(highs - walk, axis=0), fall),
                np.logical_or.accumulate(x == 0, axis=0) | (zero > 0),
            ]
        )

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the state behind two walks, the later one from where the earlier one ends."""
        count, place, low, high, rise, fall, zero = earlier
        _, walk, lows, highs, rises, falls, _ = later
        return np.stack(
            [
                count + later[0],
                place + walk,
                np.minimum(lows, low - walk),
                np.maximum(highs, high - walk),
                np.maximum(np.maximum(rise, rises), highs + walk - low),
                np.maximum(np.maximum(fall, falls), high - lows - walk),
                np.maximum(zero, later[6]),
            ]
        )

    def bound(self, states: Array, values: Array) -> Array:
        """Return how far from ``values`` a correct scan may be; infinity if a part may overflow."""
        count, place, low, high, rise, fall, zero = states
        ku = count * self.u
        bound = np.where(ku < 1, ku / (1 - ku) * np.abs(values), np.inf)
        underflows = fall > self.deep
        if underflows.any():
            others = np.exp((place + high - low).astype(bound.dtype))
            bound += np.where(underflows, count * self.subnormal * others, 0)
        # Behind a factor 0 all is 0.
        return np.where(rise > self.high, np.inf, np.where(zero > 0, 0, bound))


def finite_size(x: Array) -> Array:
    """Return the magnitudes of finite elements, 0 for others."""
    return np.abs(np.where(np.isfinite(x), x, 0))
