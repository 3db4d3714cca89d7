"""Files of several axes in chunks of few elements: rows, columns, and rows longer than a chunk."""

import itertools

import numpy as np
import pytest

from support.data import OPS
from support.streams import CODES, FORMS, RANKS, Streams, drawn, some

AXES = [None, 0, 1, 2]


@pytest.fixture
def streams(run, save, folder, rng, monkeypatch):
    return Streams(run, save, folder, rng, monkeypatch)


def array(rng, shape, op, code, fortran):
    x = drawn(rng, op, code, int(np.prod(shape))).reshape(shape)
    if op == "prod" and x.dtype.kind == "f":  # doubling and halving in turns along every axis
        turns = np.indices(shape).sum(axis=0) % 2
        x = np.copysign(np.where(turns, 0.5, 2), x).astype(code)
    return np.asfortranarray(x) if fortran else x


def check(streams, shape, axis, fortran, op=None, form=None):
    rng = streams.rng
    op = op or [*CODES][rng.integers(len(CODES))]
    code = CODES[op][rng.integers(len(CODES[op]))]
    form = FORMS[rng.integers(len(FORMS))] if form is None else form
    streams.choose()
    x = array(rng, shape, op, code, fortran)
    y = streams.scan(x, op, form, axis)
    if axis is not None and x.ndim > 1 and x.size > 1:
        assert y.flags.f_contiguous or not x.flags.f_contiguous


@pytest.mark.parametrize(
    ("form", "axis", "fortran"), some(itertools.product(FORMS, AXES, [False, True]))
)
def test_forms(form, axis, fortran, streams, rng):
    """Any shape and operator; none of the axes, or some, or all are longer than a chunk."""
    shape = rng.permutation([int(rng.integers(1, high)) for high in (4, 9, 40)]).tolist()
    check(streams, shape, axis, fortran, form=form)


@pytest.mark.parametrize(
    ("long", "axis", "fortran"), some(itertools.product(range(3), AXES, [False, True]))
)
def test_rows_and_columns_longer_than_a_chunk(long, axis, fortran, streams, rng):
    """One long axis; fewer rows than ranks, or none for some of them."""
    shape = rng.integers(1, 5, 3).tolist()
    shape[long] = int(rng.integers(100, 250))
    check(streams, shape, axis, fortran, op=[*OPS][rng.integers(4)])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("way", ["streaming", "resident"])
def test_widths_at_the_edges_of_a_chunk(way, threads, axis, streams, rng):
    """As many columns as a chunk has elements, one fewer, one more, and twice as many."""
    streams.choose(way, threads, most=1000)
    streams.scan(array(rng, (5, 7), "sum", "i4", False), "sum", FORMS[0], axis)
    chunk = min(streams.chunk, 100)
    for width in (chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1):
        shape = (int(rng.integers(1, 2 * RANKS + 2)), max(width, 1))
        form = FORMS[rng.integers(len(FORMS))]
        streams.scan(array(rng, shape, "sum", "i4", bool(rng.integers(2))), "sum", form, axis)


@pytest.mark.parametrize("rows", ["fewer", "as many", "more"])
def test_rows_and_ranks(rows, streams, rng):
    """Along an inner axis, ranks without rows have no chunks, and wait for nobody."""
    number = {"fewer": max(RANKS - 1, 1), "as many": RANKS, "more": RANKS + 1}[rows]
    for axis, inner in itertools.product((1, 2), (1, 60)):
        check(streams, (number, 5, inner), axis, False, op="sum")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0, 3, 2), (3, 0, 2), (3, 2, 0), (0,) * 3])
def test_few_elements(shape, streams):
    for axis in AXES[: len(shape) + 1]:
        check(streams, shape, axis, False, op="sum")


@pytest.mark.parametrize("turn", range(20))
def test_any_shape(turn, streams, rng):
    shape = [
        int(2 ** rng.uniform(0, 9 / ndim)) for ndim in [rng.integers(1, 5)] for _ in range(ndim)
    ]
    axis = [None, *range(-len(shape), len(shape))][rng.integers(2 * len(shape) + 1)]
    check(streams, shape, axis, bool(rng.integers(2)))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("code", "fF")
def test_rounded_sums(code, axis, streams, rng):
    """``--check`` allows the roundings of a scan that goes from chunk to chunk."""
    x = rng.normal(size=(60, 40))
    streams.save("x.npy", (x * (1 + 1j) if code == "F" else x).astype(code))
    for way in ("streaming", "resident"):
        streams.choose(way)
        along = [] if axis is None else ["--axis", str(axis)]
        status, _, err = streams.run(
            "x.npy", *along, *streams.options, "--check", "--quiet", "--force"
        )
        assert status == 0, err
        y, acc = np.load(streams.folder / "x.scan.npy"), {"f": "d", "F": "D"}[code]
        x = np.load(streams.folder / "x.npy")
        np.testing.assert_allclose(y, np.cumsum(x, axis, dtype=acc), rtol=1e-4, atol=1e-3)
