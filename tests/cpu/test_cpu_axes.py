"""Scans on CPUs along an axis: rows, and columns of every width, against NumPy's accumulate."""

import itertools

import numpy as np
import pytest

import distscan
from support import forms
from support.cpu_data import CASES, dtype_of, exact, initial, some
from support.cpu_scans import anew, assert_same, expected, scanned

pytestmark = pytest.mark.one_rank

WIDTHS = (*range(1, 71), 127, 128, 129, 255, 256, 257, 500, 511, 513, 1024, 2049, 4099)
IN_MEMORY = [(op, name) for op, name in CASES if op in ("sum", "max") and name in (
    "bool", "int8", "int16", "float16", "float32", "float64", "complex64")]  # fmt: skip
cases = pytest.mark.parametrize(("op", "name"), CASES)


def table(rng, op, name, shape, axis, *, reverse):
    """Draw an array whose lines along an axis are exact data, each its own."""
    n = shape[axis]
    lines = [exact(rng, op, name, n, reverse=reverse) for _ in range(min(7, np.prod(shape) // n))]
    others = [extent for i, extent in enumerate(shape) if i != axis % len(shape)]
    chosen = np.array(lines)[rng.integers(0, len(lines), others)]
    return np.ascontiguousarray(np.moveaxis(chosen, -1, axis))


def check(rng, op, name, shape, axis, form, **options):
    given = form if form["initial"] is None else form | {"initial": initial(rng, op, name)}
    x = table(rng, op, name, shape, axis, reverse=form["reverse"])
    want = expected(op, x, axis=axis, **given)
    got = scanned(x, op, dtype=want.dtype, axis=axis, **given, **options)
    assert_same(got, want, (shape, axis, given))
    return x, want, given


@cases
def test_columns(op, name, rng, strategy):
    """Of one block and of several; strips of columns, too."""
    several = 1, 2, 63, 64, 65, 200, 1000
    wide = [(n, inner) for n, inner in itertools.product(several, WIDTHS) if n * inner < 300_000]
    for (n, inner), form in itertools.product(
        rng.permutation(wide)[:12], rng.permutation(forms.FORMS)[:2]
    ):
        shift = int(rng.integers(64)) // 16 * 16
        check(rng, op, name, (n, inner), 0, form, strategy=strategy, shift=shift)


@cases
def test_middle_axes(op, name, rng):
    shapes = (3, 40, 2), (2, 300, 65), (5, 7, 11), (2, 3, 2049), (1, 70, 500), (4, 1, 33)
    for shape, form in some(rng, itertools.product(shapes, forms.FORMS)):
        x, want, given = check(rng, op, name, shape, 1, form)
        result = distscan.scan(x[:, None], op, axis=-2, **given)  # its shape has one more axis
        assert_same(result[:, 0], want, (shape, given))


@cases
def test_rows(op, name, rng):
    """Short rows, several to a block, and rows of several blocks."""
    size = expected(op, np.zeros(0, dtype_of(name))).dtype.itemsize
    block = 2**17 // size
    lengths = *range(1, 20), 63, 64, 65, 127, 128, 129, 1000, 2049
    shapes = [(300 if n < 200 else 9, n) for n in lengths]
    shapes += [(3, block - 1), (2, block), (2, block + 1), (3, 2 * block + 77), (5, block // 2)]
    chosen = some(rng, itertools.product(shapes, forms.FORMS))
    for shape, form in chosen[: len(chosen) // 2]:
        check(rng, op, name, shape, -1, form, shift=int(rng.integers(64)) // 16 * 16)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("op", "name"), IN_MEMORY)
def test_memory(op, name, axis, rng, monkeypatch):
    """Past the caches, from strided views, in place."""
    for shape, form in some(
        rng, itertools.product([(70, 33, 65), (3, 500, 7), (9, 2, 1031)], forms.FORMS)
    ):
        with anew(monkeypatch, streamed=True):
            x, want, given = check(rng, op, name, shape, axis, form, shift=16)
        for view in (np.repeat(x, 2, -1)[..., ::2], np.asfortranarray(x), x[::-1].copy()[::-1]):
            got = distscan.scan(view, op, axis=axis, **given)
            assert_same(np.ascontiguousarray(got), want, (shape, given))
        if want.dtype == x.dtype:
            assert distscan.scan(x, op, axis=axis, out=x, **given) is x
            assert_same(x, want, (shape, given))
