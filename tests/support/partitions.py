"""What partition returns, by its definition."""

import numpy as np


def exact_cuts(weights, parts):
    """The cuts of integers, by a plain loop over the elements."""
    weights = [int(weight) for weight in weights]
    if not any(weights):
        weights = [1] * len(weights)
    n, total, before, cuts = len(weights), sum(weights), 0, [0]
    for i, weight in enumerate(weights):
        # Element i is the first whose middle is not below the target.
        while len(cuts) < parts and (2 * before + weight) * parts >= 2 * len(cuts) * total:
            cuts.append(i)
        before += weight
    return cuts + [n] * (parts + 1 - len(cuts))


def check_rounded(weights, cuts):
    """Check the cuts of floats: an element is on the right side, but for the roundings of sums."""
    weights = np.asarray(weights).astype(np.longdouble)
    n, parts, ends = weights.size, len(cuts) - 1, np.cumsum(weights)
    middles = ends - weights / 2
    off = ends[-1] * (n + 10) / 2**52
    assert (cuts[0], cuts[-1]) == (0, n)
    assert np.all(np.diff(cuts) >= 0)
    for k, cut in enumerate(cuts[1:-1], 1):
        target = ends[-1] * k / parts
        assert cut == 0 or middles[cut - 1] < target + off
        assert cut == n or middles[cut] >= target - off
