"""Files in chunks of few elements: operators, types, forms, axes and segments, in every way."""

import itertools
import os
import time
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest

from distscan.core import form as extents
from distscan.cpu import steps
from distscan.job import plan, rounds
from distscan.job.formats import files, storage
from distscan.mpi import exscan
from support.cases import pairs
from support.data import OPS
from support.jobs import CODES, FORMS, RANKS, Streams, draw_elements
from support.operators import maps
from support.processes import left

# ---- files in chunks of few elements: operators, types, forms, axes and segments, in every way ---

AXES = [None, 0, 1, 2]
COMPOSE = "support.operators:COMPOSE"
KINDS = ["flags", "i1", ">i4", "f8", "U3", "M8[s]"]
WAYS = {
    "way": ["streaming", "ample"],
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
    streams.scan(draw_elements(rng, op, code, int(rng.integers(1, 700))), op, form)
    every = edges(min(streams.chunk, 300))
    for n in every if sizes is None else rng.choice(every, sizes):
        streams.scan(draw_elements(rng, op, code, n), op, form)


def array(rng, shape, op, code, fortran):
    x = draw_elements(rng, op, code, int(np.prod(shape))).reshape(shape)
    if op == "prod" and x.dtype.kind == "f":  # doubling and halving in turns along every axis
        turns = np.indices(shape).sum(axis=0) % 2
        x = np.copysign(np.where(turns, 0.5, 2), x).astype(code)
    return np.asfortranarray(x) if fortran else x


def check(streams, shape, axis, fortran, op=None, code=None, form=None):
    """Scan an array of several axes; without an operator or a type, those are drawn."""
    rng = streams.rng
    op = op or [*CODES][rng.integers(len(CODES))]
    code = code or CODES[op][rng.integers(len(CODES[op]))]
    form = FORMS[rng.integers(len(FORMS))] if form is None else form
    x = array(rng, shape, op, code, fortran)
    y = streams.scan(x, op, form, axis)
    if axis is not None and x.ndim > 1 and x.size > 1:
        assert y.flags.f_contiguous or not x.flags.f_contiguous


# ---- operators, types, forms -----------------------------------------------------------------


@pairs(
    lambda case: case["code"] in CODES[case["op"]],
    group_by="op",
    op=[*CODES],
    code=sorted({code for codes in CODES.values() for code in codes}),
    form=FORMS,
    axis=AXES,
    fortran=[False, True],
    **WAYS,
)
def test_forms(op, code, form, axis, fortran, way, threads, strategy, streams, rng):
    """A line near the edges of chunks; and any shape, whose axes may be longer than a chunk."""
    streams.choose(way, threads, strategy)
    along(streams, op, code, form, 2 if RANKS == 1 else 1)
    shape = rng.permutation([int(rng.integers(1, high)) for high in (4, 9, 40)]).tolist()
    check(streams, shape, axis, fortran, op, code, form)


@pairs(**WAYS)
def test_ways(way, threads, strategy, streams, rng):
    """Every edge in every way; some of them among many ranks."""
    streams.choose(way, threads, strategy, most=1000)
    form, sizes = FORMS[rng.integers(len(FORMS))], None if RANKS < 4 else 4
    code = "bl"[rng.integers(2)]
    along(streams, "sum", code, form, sizes)
    streams.scan(draw_elements(rng, "sum", code, 3 * RANKS * streams.chunk), "sum", form)
    assert any(found.readers > 0 for found in streams.found) == (threads > 1)


@pytest.mark.parametrize("code", ["i4", "f8"])
def test_a_chunk_of_one_element(code, streams, rng):
    """Where the memory is for less than one, or for few."""
    for threads, memory in itertools.product(("1", "3"), ("1", "50")):
        streams.options = ["--threads", threads, "--memory", memory, "--backend", "cpu"]
        for form in (FORMS[0], FORMS[-1]):
            streams.scan(draw_elements(rng, "sum", code, int(rng.integers(20, 60))), "sum", form)
            assert streams.chunk == 1 or memory == "50"


@pairs(
    op=["sum", "max"],
    types=[("i8", "f8"), ("f8", "f4"), ("i2", "i2"), ("?", "u1")],
    way=["streaming", "ample"],
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


@pairs(long=range(3), axis=AXES, fortran=[False, True], op=[*OPS], group_by="op")
def test_rows_and_columns_longer_than_a_chunk(long, axis, fortran, op, streams, rng):
    """One long axis; fewer rows than ranks, or none for some of them."""
    shape = rng.integers(1, 5, 3).tolist()
    shape[long] = int(rng.integers(100, 250))
    streams.choose()
    check(streams, shape, axis, fortran, op)


@pairs(axis=[0, 1], threads=[1, 3], way=["streaming", "ample"])
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


def test_any_shape(streams, rng):
    for _ in range(20):
        ndim = int(rng.integers(1, 5))
        shape = [int(2 ** rng.uniform(0, 9 / ndim)) for _ in range(ndim)]
        axis = [None, *range(-ndim, ndim)][rng.integers(2 * ndim + 1)]
        streams.choose()
        check(streams, shape, axis, bool(rng.integers(2)))


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


@pairs(form=FORMS, axis=[None, 0, 1], group_by="axis", **WAYS)
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


@pairs(
    form=FORMS,
    width=[1, 2, 7, 30, 60],
    way=["streaming", "ample"],
    threads=[1, 3],
    group_by="width",
)
def test_rows_that_are_exchanged_in_pieces(form, width, way, threads, streams, rng, monkeypatch):
    """Ranks exchange the totals of a long row a few columns at a time; some ranks have no rows."""
    monkeypatch.setattr(extents, "PIECE", 40)  # bytes
    streams.choose(way, threads)
    form = seeded(form, rng)
    for n in (int(rng.integers(1, 30)), int(rng.integers(0, 2 * RANKS + 1))):
        streams.scan(maps(rng, n * width).reshape(n, width), COMPOSE, form, 0)


@pairs(
    op=[COMPOSE, "sum", "prod", "max", "min", "bitwise_xor", "logical_or"],
    form=FORMS,
    kind=KINDS,
    way=["streaming", "ample"],
    threads=[1, 3],
    strategy=["auto", "reduce-scan"],
    group_by="kind",
)
def test_segments(op, form, kind, way, threads, strategy, streams, rng):
    """They begin at the edges of chunks and of shards, inside them, everywhere, and nowhere.

    Sums of narrow types are widened, and then results are not in place.
    """
    streams.choose(way, threads, strategy)
    form = seeded(form, rng) if op == COMPOSE else form

    def scan(n, density):
        x = maps(rng, n)
        if op != COMPOSE:
            x = draw_elements(rng, op, CODES[op][rng.integers(len(CODES[op]))], n)
        streams.scan(x, op, form, marks=marks_of(kind, rng, n, density))

    scan(50, 0.1)
    for n in lengths(streams, rng):
        scan(n, rng.choice([0, 0.02, 0.2, 1]))


# ---- a job in many chunks that fails in one of them: all ranks end, soon, and nothing is left ----

STAGES = ["read", "begin", "prepare", "exchange", "finish", "write"]
CHUNKS = 30  # of each rank
OPTIONS = ["--backend", "cpu", "--force", "--quiet"]


@pytest.fixture
def job(run, save, comm, folder, rng, monkeypatch):
    """Run a job whose chunks have 10 elements, with ``threads``; return what ``run`` does."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 80)
    monkeypatch.setattr(storage, "is_mapped", lambda path: False)
    x = rng.integers(0, 99, 10 * CHUNKS * comm.size)
    save("x.npy", x)

    ample = bool(rng.integers(2))

    def job(threads):
        memory = [] if ample else ["--memory", str(80 * (threads + 2))]
        return run("x.npy", *OPTIONS, *memory, "--threads", str(threads))

    yield job
    # The ranks are together: the next job is right.
    assert job(1)[0] == 0
    np.testing.assert_array_equal(np.load(folder / "x.scan.npy"), np.cumsum(x))


def failing(function, turn, fault):
    """The function, whose call number ``turn`` fails."""
    calls = []

    def call(*args, **options):
        calls.append(None)  # threads append one at a time
        if len(calls) == turn + 1:
            raise fault
        return function(*args, **options)

    return call


def filled_by(wrap):
    """``File.reading``, with another function in place of the one that fills."""
    reading = files.File.reading

    @contextmanager
    def wrapped(self, **options):
        with reading(self, **options) as fill:
            yield wrap(fill)

    return wrapped


def break_stage(monkeypatch, stage, turn):
    fault = (OSError if stage in ("read", "write") else RuntimeError)("no more")
    if stage == "read":
        monkeypatch.setattr(os, "preadv", failing(os.preadv, turn, fault))
    elif stage == "write":
        monkeypatch.setattr(
            storage.Writer, "__call__", failing(storage.Writer.__call__, turn, fault)
        )
    elif stage in ("begin", "finish"):
        step = failing(getattr(steps.ReduceScan, stage), turn, fault)
        monkeypatch.setattr(steps.ReduceScan, stage, step)
    elif stage == "prepare":  # the memory of the exchange
        monkeypatch.setattr(exscan.Exscan, "reserve", failing(exscan.Exscan.reserve, 0, fault))
    else:
        put = failing(exscan.BuiltIn.put, turn, fault)
        monkeypatch.setattr(exscan.BuiltIn, "put", put)


@pairs(stage=STAGES, who=["first", "last", "every"], threads=[1, 3])
def test_a_stage_fails(stage, who, threads, job, comm, folder, rng, monkeypatch):
    if stage in ("prepare", "exchange") and comm.size == 1:
        pytest.skip("one rank exchanges nothing")
    turn = int(rng.integers(CHUNKS))
    guilty = {"first": [0], "last": [comm.size - 1], "every": range(comm.size)}[who]
    with monkeypatch.context() as patch:
        if comm.rank in guilty:
            break_stage(patch, stage, turn)
        status, out, err = job(threads)
    assert (status, out) == (2 if stage == "read" else 1, ""), err
    assert ("cannot read x.npy" in err) == (stage == "read")
    assert err.count("no more") == 1
    assert err.count("\n") == 1
    assert left(comm, folder) == ["x.npy"]


def before_read(turn, change):
    """A wrapper for ``filled_by``: ``change()`` runs before read number ``turn``."""

    def wrap(fill):
        turns = count()

        def changed(elements, low):
            if next(turns) == turn:
                change()
            fill(elements, low)

        return changed

    return wrap


@pytest.mark.parametrize("threads", [1, 3])
def test_an_input_that_becomes_shorter(threads, job, comm, folder, rng, monkeypatch):
    """It is an error of the input, on whichever rank finds it."""
    content = (folder / "x.npy").read_bytes()
    comm.Barrier()
    shorten = before_read(int(rng.integers(CHUNKS - 5)), lambda: os.truncate(folder / "x.npy", 500))
    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(files.File, "reading", filled_by(shorten))
        status, out, err = job(threads)
    comm.Barrier()
    if comm.rank == 0:
        (folder / "x.npy").write_bytes(content)
    assert (status, out) == (1, "") or (status, out) == (2, "")
    assert "x.npy became shorter while it was read" in err or "was changed" in err
    assert left(comm, folder) == ["x.npy"]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_input_that_is_changed(threads, job, comm, folder, rng, monkeypatch):
    """Its time of the last change tells."""
    touch = before_read(int(rng.integers(CHUNKS)), lambda: os.utime(folder / "x.npy", (1, 1)))
    with monkeypatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(files.File, "reading", filled_by(touch))
        status, out, err = job(threads)
    assert status != 0
    assert out == ""
    assert "x.npy was changed while it was read" in err
    assert left(comm, folder) == ["x.npy"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("who", ["first", "last"])
def test_others_do_not_work_on(who, threads, job, comm, folder, monkeypatch):
    """They would need seconds for their chunks."""
    guilty = 0 if who == "first" else comm.size - 1

    def slow(fill):
        def filled(elements, low):
            time.sleep(0.5)
            fill(elements, low)

        return filled

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "_WATCHED", 0)
        if comm.rank == guilty:
            break_stage(patch, "begin", 0)
        else:
            patch.setattr(files.File, "reading", filled_by(slow))
        begin = time.monotonic()
        status, _, err = job(threads)
        seconds = time.monotonic() - begin
    assert status == 1
    assert "no more" in err
    assert seconds < 0.7 * (0.5 * CHUNKS / threads)
    assert left(comm, folder) == ["x.npy"]
