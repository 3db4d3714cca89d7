"""The kernels that scan down columns, run on a CPU: every way to fetch a tile, every form."""

import itertools

import numpy as np
import pytest

from distscan.bench.uses import MATRICES
from distscan.core import operators
from distscan.core.dtypes import Types, fields
from distscan.core.form import Extents, Form
from distscan.core.operators import GRADIENT_MAPS, MAPS, matrix_maps

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda.columns import ThreadPolicy
from support.emulation import reduce_columns, scan_columns

pytestmark = [pytest.mark.compile, pytest.mark.one_rank, pytest.mark.timeout(240)]

PAIR = fields("ff")
SUMS, BYTES = Types(*[np.dtype("f")] * 3), Types(*[np.dtype("b")] * 3)
RECURRENCE = Types(PAIR, PAIR, np.dtype([("x1", "f")]))
# Shape, bytes after an aligned address, and whether the engine fetches boxes.
WAYS = {
    "boxes": ((1, 1100, 256), 0, True),
    "boxes, the last strip is narrower": ((3, 400, 80), 0, True),
    "boxes, many scans": ((90, 7, 96), 0, True),
    "elements": ((2, 250, 128), 4, False),
    "vectors": ((2, 1500, 63), 0, False),
    "a piece": ((2, 3000, 4), 0, False),
}


def drawn(rng, shape, dtype="f"):
    return rng.integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize(("shape", "shift", "boxes"), WAYS.values(), ids=WAYS)
def test_sums(shape, shift, boxes, rng, tmp_path):
    """In reverse, exclusive, from a value."""
    x = drawn(rng, shape)
    form = Form(Extents(*shape), exclusive=True, reverse=True, seed=np.float32(2))
    (y,), kernel = scan_columns(operators.resolve("sum"), SUMS, [x], form, tmp_path, shift)
    after = np.cumsum(x[:, ::-1], 1)[:, :-1]
    want = np.concatenate([np.zeros_like(x[:, :1]), after], 1)[:, ::-1] + 2
    np.testing.assert_array_equal(y, want)
    assert (kernel.arguments.box_rows > 0) == boxes


@pytest.mark.parametrize(("reverse", "shift"), [(True, 0), (False, 4)])
def test_recurrences(reverse, shift, rng, tmp_path):
    shape = 2, 700, 64
    a, b = np.sign(drawn(rng, shape) + np.float32(0.5)), drawn(rng, shape)
    form = Form(Extents(*shape), reverse=reverse)
    (h,), _ = scan_columns(MAPS, RECURRENCE, [a, b], form, tmp_path, shift)
    state = np.zeros_like(b[:, 0])
    for t in range(shape[1])[:: -1 if reverse else 1]:
        state = a[:, t] * state + b[:, t]
        np.testing.assert_array_equal(h[:, t], state)


THREADS = ThreadPolicy(128, 8, 4, 1)  # a thread for each vector of columns


@pytest.mark.parametrize(("way", "reverse", "policy"), [
    ("boxes, many scans", True, None), ("elements", False, None), ("vectors", True, None),
    ("boxes, the last strip is narrower", True, THREADS), ("boxes, many scans", False, THREADS),
])  # fmt: skip
def test_gradients_of_recurrences(way, reverse, policy, rng, tmp_path):
    """The scan is the other way round; before the first state there is 0."""
    shape, shift, _ = WAYS[way]
    a, h, dh = np.sign(drawn(rng, shape) + np.float32(0.5)), drawn(rng, shape), drawn(rng, shape)
    form = Form(Extents(*shape), exclusive=True, reverse=reverse, seed=np.zeros((), PAIR))
    types = Types(PAIR, PAIR, fields("fff"))
    (da, db, _), _ = scan_columns(
        GRADIENT_MAPS, types, [a, dh], form, tmp_path, shift, beside=[h], policy=policy
    )
    g = np.zeros_like(dh[:, 0])
    rows = range(shape[1])[:: -1 if reverse else 1]
    for t, earlier in itertools.zip_longest(rows, rows[1:]):
        np.testing.assert_array_equal(db[:, t], dh[:, t] + g)
        before = 0 if earlier is None else h[:, earlier]
        np.testing.assert_array_equal(da[:, t], db[:, t] * before)
        g = a[:, t] * db[:, t]


def test_products_of_matrices(rng, tmp_path):
    """Large tuples: 4 x 4 numbers of float32, in strips of few columns."""
    shape = 9, 12, 20
    x, types = drawn(rng, (16, *shape)).clip(-1, 1), fields("f" * 16)
    y, _ = scan_columns(MATRICES, Types(types, types, types), [*x], Form(Extents(*shape)), tmp_path)
    want = np.moveaxis(x.reshape(4, 4, *shape), (0, 1), (-2, -1)).copy()
    for t in range(1, shape[1]):
        want[:, t] = want[:, t - 1] @ want[:, t]
    got = np.moveaxis(np.reshape(y, (4, 4, *shape)), (0, 1), (-2, -1))
    np.testing.assert_array_equal(got, want)


def test_recurrences_of_matrices(rng, tmp_path):
    """The largest: 4 numbers of float64 and their factors, 160 bytes."""
    shape, op = (7, 9, 20), matrix_maps(4)
    x = drawn(rng, (20, *shape), "d").clip(-1, 1)
    types, out = fields("d" * 20), np.dtype([(f"x{i}", "d") for i in range(16, 20)])
    h, _ = scan_columns(op, Types(types, types, out), [*x], Form(Extents(*shape)), tmp_path)
    a = np.moveaxis(x[:16].reshape(4, 4, *shape), (0, 1), (-2, -1))
    state = np.zeros((7, 20, 4, 1))
    for t in range(shape[1]):
        state = a[:, t] @ state + np.moveaxis(x[16:, :, t], 0, -1)[..., None]
        np.testing.assert_array_equal(np.moveaxis(h, 0, -1)[:, t], state[..., 0])


def test_maxima_of_bytes(rng, tmp_path):
    x = rng.integers(-128, 128, (1, 3000, 512)).astype(np.int8)
    form = Form(Extents(*x.shape))
    (y,), _ = scan_columns(operators.resolve("max"), BYTES, [x], form, tmp_path)
    np.testing.assert_array_equal(y, np.maximum.accumulate(x, 1))


def test_totals_of_gradients(rng, tmp_path):
    """Elements are read as maps."""
    a, dh = np.sign(drawn(rng, (1, 900, 64)) + np.float32(0.5)), drawn(rng, (1, 900, 64))
    form, types = Form(Extents(*a.shape), reverse=True), Types(PAIR, PAIR, PAIR)
    total, _ = reduce_columns(GRADIENT_MAPS, types, [a, dh], form, tmp_path)
    g = np.zeros_like(dh[0, 0])
    for factor, gradient in zip(a[0, ::-1], dh[0, ::-1], strict=True):
        g = factor * (gradient + g)
    np.testing.assert_array_equal(total["x1"], g)
    np.testing.assert_array_equal(total["x0"], a[0].prod(0))


def test_totals(rng, tmp_path):
    x = drawn(rng, (1, 1300, 256))
    form = Form(Extents(*x.shape))
    total, _ = reduce_columns(operators.resolve("sum"), SUMS, [x], form, tmp_path)
    np.testing.assert_array_equal(total, x.sum(1)[0])
