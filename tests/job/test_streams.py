"""Files in chunks of few elements: operators, types, forms, axes and segments, in every way.

Each test scans files whose ends lie near the ends of chunks and of shards, and compares them with
the definition of a scan: see ``support/streams.py``.
"""

import itertools

import numpy as np
import pytest

from distscan.core import form as extents
from support.data import OPS
from support.maps import maps
from support.pairs import pairs
from support.streams import CODES, FORMS, RANKS, Streams, drawn, some

AXES = [None, 0, 1, 2]
COMPOSE = "support.maps:COMPOSE"
KINDS = ["flags", "i1", ">i4", "f8", "U3", "M8[s]"]
WAYS = {
    "way": ["streaming", "resident"],
    "threads": [1, 3],
    "strategy": ["auto", "reduce-scan", "scan-add"],
}


@pytest.fixture
def streams(run, save, folder, rng, monkeypatch):
    return Streams(run, save, folder, rng, monkeypatch)


def edges(chunk):
    """Sizes of files: few elements, and shards that end near the end of a chunk."""
    small = {0, 1, 2, RANKS - 1, RANKS, RANKS + 1, chunk - 1, chunk, chunk + 1}
    shards = {RANKS * chunk * k + d for k in (1, 2, 3) for d in (-1, 0, 1)}
    return sorted(n for n in small | shards if n >= 0)


def along(streams, op, code, form, sizes=None):
    """Scan files of one type at ``sizes`` of the edges, or at all."""
    rng = streams.rng
    streams.scan(drawn(rng, op, code, int(rng.integers(1, 700))), op, form)
    every = edges(min(streams.chunk, 300))
    for n in every if sizes is None else rng.choice(every, sizes):
        streams.scan(drawn(rng, op, code, n), op, form)


def array(rng, shape, op, code, fortran):
    x = drawn(rng, op, code, int(np.prod(shape))).reshape(shape)
    if op == "prod" and x.dtype.kind == "f":  # doubling and halving in turns along every axis
        turns = np.indices(shape).sum(axis=0) % 2
        x = np.copysign(np.where(turns, 0.5, 2), x).astype(code)
    return np.asfortranarray(x) if fortran else x


def check(streams, shape, axis, fortran, op=None, form=None):
    """Scan an array of several axes, of a type that is drawn."""
    rng = streams.rng
    op = op or [*CODES][rng.integers(len(CODES))]
    code = CODES[op][rng.integers(len(CODES[op]))]
    form = FORMS[rng.integers(len(FORMS))] if form is None else form
    x = array(rng, shape, op, code, fortran)
    y = streams.scan(x, op, form, axis)
    if axis is not None and x.ndim > 1 and x.size > 1:
        assert y.flags.f_contiguous or not x.flags.f_contiguous


# ---- operators, types, forms -----------------------------------------------------------------


@pairs(op=[*CODES], form=FORMS, axis=AXES, fortran=[False, True], **WAYS)
def test_forms(op, form, axis, fortran, way, threads, strategy, streams, rng):
    """A line near the edges of chunks; and any shape, whose axes may be longer than a chunk."""
    streams.choose(way, threads, strategy)
    along(streams, op, CODES[op][rng.integers(len(CODES[op]))], form, 2)
    shape = rng.permutation([int(rng.integers(1, high)) for high in (4, 9, 40)]).tolist()
    check(streams, shape, axis, fortran, op, form)


@pytest.mark.parametrize(
    ("op", "code"), some((op, code) for op, codes in CODES.items() for code in codes)
)
def test_types(op, code, streams, rng):
    streams.choose()
    along(streams, op, code, FORMS[rng.integers(len(FORMS))], 1)


@pairs(**WAYS)
def test_ways(way, threads, strategy, streams, rng):
    """Every edge in every way; some of them among many ranks."""
    streams.choose(way, threads, strategy, most=1000)
    form, sizes = FORMS[rng.integers(len(FORMS))], None if RANKS < 4 else 4
    code = "bl"[rng.integers(2)]
    along(streams, "sum", code, form, sizes)
    streams.scan(drawn(rng, "sum", code, 3 * RANKS * streams.chunk), "sum", form)
    if way == "resident":
        assert any(found.resident for found in streams.found) == (RANKS > 1)
    assert any(found.readers > 0 for found in streams.found) == (threads > 1)


@pytest.mark.parametrize("code", ["i4", "f8"])
def test_a_chunk_of_one_element(code, streams, rng):
    """Where the memory is for less than one, or for few."""
    for threads, memory in itertools.product(("1", "3"), ("1", "50")):
        streams.options = ["--threads", threads, "--memory", memory, "--backend", "cpu"]
        for form in (FORMS[0], FORMS[-1]):
            streams.scan(drawn(rng, "sum", code, int(rng.integers(20, 60))), "sum", form)
            assert streams.chunk == 1 or memory == "50"


@pairs(
    op=["sum", "max"],
    types=[("i8", "f8"), ("f8", "f4"), ("i2", "i2"), ("?", "u1")],
    way=["streaming", "resident"],
)
def test_types_of_the_result(op, types, way, streams, rng):
    """By ``--dtype``: as wide as the input's, or not, and in place only if they are equal."""
    code, dtype = types
    streams.choose(way)
    for n in rng.integers(1, 500, 2):
        x = rng.integers(0, 9, n).astype(code)
        streams.save("x.npy", x)
        options = ["--op", op, "--dtype", dtype, *streams.options, "--check", "--force"]
        status, _, err = streams.run("x.npy", "--quiet", *options)
        assert status == 0, err
        want = np.add if op == "sum" else np.maximum
        y = np.load(streams.folder / "x.scan.npy")
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, want.accumulate(x, dtype=dtype))


# ---- several axes ----------------------------------------------------------------------------


@pairs(long=range(3), axis=AXES, fortran=[False, True], op=[*OPS])
def test_rows_and_columns_longer_than_a_chunk(long, axis, fortran, op, streams, rng):
    """One long axis; fewer rows than ranks, or none for some of them."""
    shape = rng.integers(1, 5, 3).tolist()
    shape[long] = int(rng.integers(100, 250))
    streams.choose()
    check(streams, shape, axis, fortran, op)


@pairs(axis=[0, 1], threads=[1, 3], way=["streaming", "resident"])
def test_widths_at_the_edges_of_a_chunk(axis, threads, way, streams, rng):
    """As many columns as a chunk has elements, one fewer, one more, and twice as many."""
    streams.choose(way, threads, most=1000)
    streams.scan(array(rng, (5, 7), "sum", "i4", False), "sum", FORMS[0], axis)
    chunk = min(streams.chunk, 100)
    for width in (chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1):
        shape = (int(rng.integers(1, 2 * RANKS + 2)), max(width, 1))
        form = FORMS[rng.integers(len(FORMS))]
        streams.scan(array(rng, shape, "sum", "i4", bool(rng.integers(2))), "sum", form, axis)


@pytest.mark.parametrize("rows", ["fewer", "as many", "more"])
def test_rows_and_ranks(rows, streams):
    """Along an inner axis, ranks without rows have no chunks, and wait for nobody."""
    number = {"fewer": max(RANKS - 1, 1), "as many": RANKS, "more": RANKS + 1}[rows]
    for axis, inner in itertools.product((1, 2), (1, 60)):
        streams.choose()
        check(streams, (number, 5, inner), axis, False, op="sum")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0, 3, 2), (3, 0, 2), (3, 2, 0), (0,) * 3])
def test_few_elements(shape, streams):
    for axis in AXES[: len(shape) + 1]:
        streams.choose()
        check(streams, shape, axis, False, op="sum")


@pytest.mark.parametrize("turn", range(20))
def test_any_shape(turn, streams, rng):
    shape = [
        int(2 ** rng.uniform(0, 9 / ndim)) for ndim in [rng.integers(1, 5)] for _ in range(ndim)
    ]
    axis = [None, *range(-len(shape), len(shape))][rng.integers(2 * len(shape) + 1)]
    streams.choose()
    check(streams, shape, axis, bool(rng.integers(2)))


@pairs(code="fF", axis=[None, 0, 1], way=["streaming", "resident"])
def test_rounded_sums(code, axis, way, streams, rng):
    """``--check`` allows the roundings of a scan that goes from chunk to chunk."""
    x = rng.normal(size=(60, 40))
    x = (x * (1 + 1j) if code == "F" else x).astype(code)
    streams.save("x.npy", x)
    streams.choose(way)
    options = [] if axis is None else ["--axis", str(axis)]
    status, _, err = streams.run("x.npy", *options, *streams.options, "--check", "--quiet")
    assert status == 0, err
    y, acc = np.load(streams.folder / "x.scan.npy"), {"f": "d", "F": "D"}[code]
    np.testing.assert_allclose(y, np.cumsum(x, axis, dtype=acc), rtol=1e-4, atol=1e-3)


# ---- operators that do not commute, and segments ---------------------------------------------


def seeded(form, rng):
    """The form, with a map for ``--initial``."""
    return [f"--initial={maps(rng, 1)[0]}" if "=" in option else option for option in form]


def marks_of(kind, rng, n, density):
    """Flags or keys of the whole; keys come again and again."""
    heads = rng.random(n) < density
    return heads if kind == "flags" else ((np.cumsum(heads) * 2 + 1) % 7).astype(kind)


def lengths(streams, rng):
    """Sizes near an edge of a chunk, of a shard, and any."""
    chunk = min(streams.chunk, 200)
    edge = int(rng.choice([chunk, RANKS * chunk, 2 * RANKS * chunk])) + int(rng.integers(-1, 2))
    return [max(edge, 1), int(rng.integers(1, 500)), int(rng.integers(0, 2 * RANKS + 1))]


@pairs(form=FORMS, axis=[None, 0, 1], **WAYS)
def test_order(form, axis, way, threads, strategy, streams, rng):
    """Maps do not commute: chunks, blocks and ranks are combined in their order."""
    streams.choose(way, threads, strategy)
    form, shape = seeded(form, rng), (-1,)
    streams.scan(maps(rng, 50), COMPOSE, form)
    for n in lengths(streams, rng):
        if axis is not None:
            shape = (-1, int(rng.choice([1, 2, 7, 60])))
        x = maps(rng, n if axis is None else -(-n // shape[1]) * shape[1]).reshape(shape)
        streams.scan(x, COMPOSE, form, axis)


@pairs(form=FORMS, width=[1, 2, 7, 30, 60], way=["streaming", "resident"], threads=[1, 3])
def test_rows_that_are_exchanged_in_pieces(form, width, way, threads, streams, rng, monkeypatch):
    """Ranks exchange the totals of a long row a few columns at a time; some ranks have no rows."""
    monkeypatch.setattr(extents, "PIECE", 40)  # bytes
    streams.choose(way, threads)
    form = seeded(form, rng)
    for n in (int(rng.integers(1, 30)), int(rng.integers(0, 2 * RANKS + 1))):
        streams.scan(maps(rng, n * width).reshape(n, width), COMPOSE, form, 0)


@pairs(form=FORMS, kind=KINDS, way=["streaming", "resident"], threads=[1, 3])
def test_segments(form, kind, way, threads, streams, rng):
    """They begin at the edges of chunks and of shards, inside them, everywhere, and nowhere."""
    streams.choose(way, threads, "reduce-scan")
    form = seeded(form, rng)
    streams.scan(maps(rng, 50), COMPOSE, form, marks=marks_of(kind, rng, 50, 0.1))
    for n in lengths(streams, rng):
        marks = marks_of(kind, rng, n, rng.choice([0, 0.02, 0.2, 1]))
        streams.scan(maps(rng, n), COMPOSE, form, marks=marks)


@pairs(
    op=["sum", "prod", "max", "min", "bitwise_xor", "logical_or"],
    form=FORMS,
    kind=KINDS,
    strategy=["auto", "reduce-scan"],
)
def test_segments_of_other_types(op, form, kind, strategy, streams, rng):
    """Sums of narrow types are widened, and results are not in place."""
    streams.choose(strategy=strategy)
    code = CODES[op][rng.integers(len(CODES[op]))]
    n = int(rng.integers(1, 500))
    marks = marks_of(kind, rng, n, rng.choice([0.02, 0.2]))
    streams.scan(drawn(rng, op, code, n), op, form, marks=marks)
