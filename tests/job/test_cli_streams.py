"""Files in chunks of few elements: every operator, type and form, at every edge of a chunk."""

import itertools

import numpy as np
import pytest

from support.streams import CODES, FORMS, RANKS, Streams, drawn, some


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


@pytest.mark.parametrize(("op", "form"), some((op, form) for op in CODES for form in FORMS))
def test_operators(op, form, streams, rng):
    """Each form of each operator, in a type, a memory and a way that are drawn."""
    streams.choose()
    along(streams, op, CODES[op][rng.integers(len(CODES[op]))], form, 2)


@pytest.mark.parametrize(
    ("op", "code"), some((op, code) for op, codes in CODES.items() for code in codes)
)
def test_types(op, code, streams, rng):
    streams.choose()
    along(streams, op, code, FORMS[rng.integers(len(FORMS))], 1)


@pytest.mark.parametrize("strategy", ["auto", "reduce-scan", "scan-add"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("way", ["streaming", "resident"])
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


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize(("code", "given"), [("i8", "f8"), ("f8", "f4"), ("i2", "i2"), ("?", "u1")])
def test_types_of_the_result(op, code, given, streams, rng):
    """By ``--dtype``: as wide as the input's, or not, and in place only if they are equal."""
    for way in ("streaming", "resident"):
        streams.choose(way)
        for n in rng.integers(1, 500, 2):
            x = rng.integers(0, 9, n).astype(code)
            streams.save("x.npy", x)
            options = ["--op", op, "--dtype", given, *streams.options, "--check", "--force"]
            status, _, err = streams.run("x.npy", "--quiet", *options)
            assert status == 0, err
            want = np.add if op == "sum" else np.maximum
            y = np.load(streams.folder / "x.scan.npy")
            assert y.dtype == given
            np.testing.assert_array_equal(y, want.accumulate(x, dtype=given))
