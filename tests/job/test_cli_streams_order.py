"""Files in chunks of few elements, whose order matters, and whose scans begin anew at any place."""

import itertools

import numpy as np
import pytest

from support.maps import maps
from support.streams import CODES, FORMS, RANKS, Streams, drawn, some

COMPOSE = "support.maps:COMPOSE"
KINDS = ["flags", "i1", ">i4", "f8", "U3", "M8[s]"]


@pytest.fixture
def streams(run, save, folder, rng, monkeypatch):
    return Streams(run, save, folder, rng, monkeypatch)


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


@pytest.mark.parametrize(("form", "axis"), some(itertools.product(FORMS, [None, 0, 1])))
def test_order(axis, form, streams, rng):
    """Maps do not commute: chunks, blocks and ranks are combined in their order."""
    streams.choose()
    form, shape = seeded(form, rng), (-1,)
    streams.scan(maps(rng, 50), COMPOSE, form)
    for n in lengths(streams, rng):
        if axis is not None:
            shape = (-1, int(rng.choice([1, 2, 7, 60])))
        x = maps(rng, n if axis is None else -(-n // shape[1]) * shape[1]).reshape(shape)
        streams.scan(x, COMPOSE, form, axis)


@pytest.mark.parametrize(("form", "kind"), some(itertools.product(FORMS, KINDS)))
def test_segments(kind, form, streams, rng):
    """They begin at the edges of chunks and of shards, inside them, everywhere, and nowhere."""
    streams.choose(strategy="reduce-scan")
    form = seeded(form, rng)
    streams.scan(maps(rng, 50), COMPOSE, form, marks=marks_of(kind, rng, 50, 0.1))
    for n in lengths(streams, rng):
        marks = marks_of(kind, rng, n, rng.choice([0, 0.02, 0.2, 1]))
        streams.scan(maps(rng, n), COMPOSE, form, marks=marks)


@pytest.mark.parametrize(
    ("form", "op"), some(itertools.product(FORMS, ["sum", "max", "bitwise_xor", "logical_or"]))
)
def test_segments_of_other_types(op, form, streams, rng):
    streams.choose(strategy="auto")
    code = CODES[op][rng.integers(len(CODES[op]))]
    n = int(rng.integers(1, 500))
    marks = marks_of(KINDS[rng.integers(len(KINDS))], rng, n, rng.choice([0.02, 0.2]))
    streams.scan(drawn(rng, op, code, n), op, form, marks=marks)
