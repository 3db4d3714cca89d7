"""Structures with arrays and structures in their fields."""

import numpy as np

import distscan

# Matrices, whose product does not commute; and how many there are, in a structure of its own.
MATRIX = np.dtype([("m", "i8", (2, 2)), ("of", [("count", "u4"), ("sizes", "i2", 3)])])


def product(a, b):
    made = np.empty_like(b)
    made["m"] = a["m"] @ b["m"]
    made["of"]["count"] = a["of"]["count"] + b["of"]["count"]
    made["of"]["sizes"] = a["of"]["sizes"] + b["of"]["sizes"]
    return made


PRODUCT = distscan.Operator("product", product, identity=([[1, 0], [0, 1]], (0, (0, 0, 0))))


def matrices(rng, n):
    x = np.empty(n, MATRIX)
    x["m"] = rng.integers(-3, 4, (n, 2, 2))
    x["of"]["count"], x["of"]["sizes"] = 1, rng.integers(0, 9, (n, 3))
    return x


def multiplied(x, *, first=None, exclusive=False):
    """The scan as its definition reads; the matrices wrap around."""
    running = [*([] if first is None else [np.array(first, MATRIX)[()]]), *x]
    for i in range(1, len(running)):
        running[i] = product(*np.array(running[i - 1 : i + 1], MATRIX)[:, None])[0]
    if first is not None:
        running = running[:-1] if exclusive else running[1:]
    return np.array(running, MATRIX)


def test_structures_with_arrays_and_structures_inside(strategy, cut, rng):
    for n in (0, 1, 20, 1003):
        x = matrices(rng, n)
        y = distscan.scan(x[cut(n)], PRODUCT, strategy=strategy)
        assert y.dtype == MATRIX
        np.testing.assert_array_equal(y, multiplied(x)[cut(n)])
    x, mine = matrices(rng, 100), cut(100)
    first = ([[2, 1], [1, 1]], (7, (1, 2, 3)))
    for initial in (None, first):
        y = distscan.scan(x[mine], PRODUCT, exclusive=True, initial=initial, strategy=strategy)
        want = multiplied(x, first=initial or PRODUCT.identity(MATRIX), exclusive=True)
        np.testing.assert_array_equal(y, want[mine])
    y = distscan.scan(x.astype(MATRIX.newbyteorder())[mine], PRODUCT, strategy=strategy)
    np.testing.assert_array_equal(y, multiplied(x)[mine])


def test_structures_inside_in_segments_rows_and_plans(cut, rng):
    x, heads = matrices(rng, 300), rng.random(300) < 0.05
    mine = cut(300)
    want = [multiplied(run) for run in np.split(x, np.flatnonzero(heads))]
    y = distscan.scan(x[mine], PRODUCT, segments=heads[mine])
    np.testing.assert_array_equal(y, np.concatenate(want)[mine])
    plan = distscan.Plan(None, y.shape, MATRIX, PRODUCT, backend="cpu")
    np.testing.assert_array_equal(plan(x[mine]), multiplied(x)[mine])
    table, mine = x.reshape(100, 3), cut(100)
    want = np.stack([multiplied(column) for column in table.T], axis=1)
    np.testing.assert_array_equal(distscan.scan(table[mine], PRODUCT, axis=0), want[mine])
