"""``--segments``: flags and keys of every type, whose heads lie at edges of chunks and of ranks."""

import itertools

import numpy as np
import pytest

from distscan.core.form import bounds
from support import keys, reference
from support.maps import COMPOSE, maps
from support.streams import FORMS, RANKS, Streams, some
from support.together import left

pytestmark = pytest.mark.timeout(60)
OP = "support.maps:COMPOSE"  # it does not commute
TEXT = ["U3", ">U2", "S2"]
OTHERS = ["g", "F", ">c16", ">i4", ">f8", "M8[s]", ">M8[D]", "m8[ns]"]
KINDS = ["flags", *keys.TYPES, *OTHERS, *TEXT]
WAYS = {
    "1K": ["--memory", "1K"],
    "threads": ["--memory", "3000", "--threads", "3"],
    "few": ["--memory", "50", "--threads", "1"],
    "resident": None,
}


@pytest.fixture
def streams(run, save, folder, rng, monkeypatch):
    return Streams(run, save, folder, rng, monkeypatch)


def choose(streams, way):
    if way == "resident":
        streams.choose(way, strategy="reduce-scan")
    else:
        streams.options = ["--backend", "cpu", *WAYS[way]]


def marks_at(rng, heads, kind):
    """Flags, or keys that change, where heads are."""
    if kind == "flags":
        return heads
    if np.dtype(kind).kind in "US":
        return np.array(["", "a", "b", "ab"])[np.cumsum(heads) % 4].astype(kind)
    return keys.keys_at(rng, heads, kind)


def given(form, rng):
    """The form, with a map for ``--initial``."""
    return [f"--initial={maps(rng, 1)[0]}" if "=" in option else option for option in form]


@pytest.mark.parametrize("kind", some(KINDS))
def test_types(kind, streams, rng):
    """Keys that come again, zeros of both signs, NaN, NaT, empty text; other byte orders."""
    way = [*WAYS][rng.integers(len(WAYS))]
    choose(streams, way)
    n = int(rng.integers(100, 400))
    form = given(FORMS[rng.integers(len(FORMS))], rng)
    for density in (0.02, 0.4):
        marks = marks_at(rng, rng.random(n) < density, kind)
        streams.scan(maps(rng, n), OP, form, marks=marks)
    if way == "resident" and RANKS > 1:
        assert streams.found[-1].resident


def edges(n, chunk, reverse):
    """The first elements of chunks and of shards, in the order of the scan."""
    found = set()
    for rank in range(RANKS):
        low, high = bounds(n, RANKS, rank)
        starts = range(low, high, chunk)
        # In reverse, a chunk begins with its last element.
        found |= {min(i + chunk, high) - 1 for i in starts} if reverse else set(starts)
    return np.array(sorted(found))


@pytest.mark.parametrize(("form", "way"), some(itertools.product(FORMS, ["1K", "few", "resident"])))
def test_heads_at_edges(way, form, streams, rng):
    """At each edge, one before and one behind; at all of them, at one, and everywhere else."""
    choose(streams, way)
    kind = ["flags", "i1", "f8", "S2"][rng.integers(4)]
    form = given(form, rng)
    streams.scan(maps(rng, 9), OP, form, marks=np.zeros(9, bool))
    chunk = min(streams.chunk, 9 if way == "few" else 50)
    n = RANKS * int(rng.integers(2, 4)) * chunk + int(rng.integers(0, 3))
    at = edges(n, min(streams.chunk, n), "--reverse" in form)
    for offset in (-1, 0, 1):
        heads = np.zeros(n, bool)
        heads[np.clip((at if rng.integers(2) else rng.choice(at)) + offset, 0, n - 1)] = True
        streams.scan(maps(rng, n), OP, form, marks=marks_at(rng, heads, kind))
    heads = np.ones(n, bool)
    heads[at] = False
    streams.scan(maps(rng, n), OP, form, marks=marks_at(rng, heads, kind))


@pytest.mark.parametrize("kind", some(["flags", "i4", "U3"]))
@pytest.mark.parametrize("n", sorted({0, 1, 2, RANKS - 1, RANKS, RANKS + 1}))
def test_few_elements(n, kind, streams, rng):
    """Some ranks have none."""
    choose(streams, [*WAYS][rng.integers(len(WAYS))])
    marks = marks_at(rng, rng.random(n) < 0.5, kind)
    streams.scan(maps(rng, n), OP, given(FORMS[rng.integers(len(FORMS))], rng), marks=marks)


@pytest.mark.parametrize("kind", ["flags", ">i4", "U3"])
@pytest.mark.parametrize("fortran", [False, True], ids=["C", "F"])
def test_several_axes(fortran, kind, streams, rng):
    """The input is flattened, as are flags or keys, each in its own order of memory."""
    choose(streams, "1K")
    shape = tuple(int(length) for length in rng.integers(2, 9, 3))
    x = maps(rng, int(np.prod(shape))).reshape(shape)
    marks = marks_at(rng, rng.random(x.size) < 0.2, kind)
    for laid in (marks, marks.reshape(shape), np.asfortranarray(marks.reshape(shape))):
        streams.scan(np.asfortranarray(x) if fortran else x, OP, FORMS[2], marks=laid)


@pytest.mark.parametrize("kind", ["flags", "u1", "S2"])
def test_parts(kind, run, save, folder, rng):
    """One FILE for all parts; a segment goes on from part to part."""
    parts = [maps(rng, int(n)) for n in [*rng.integers(1, 60, 3), 0, 40]]
    names = [f"p{i}.npy" for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        save(name, part)
    x = np.concatenate(parts)
    marks = marks_at(rng, rng.random(x.size) < 0.05, kind)
    save("marks.npy", marks)
    for form in ([], ["--reverse", "--exclusive"]):
        options = ["--op", OP, "--memory", "1K", "--backend", "cpu", *form, "--force", "--quiet"]
        status, _, err = run(*names, "-o", "y.npy", "--segments", "marks.npy", *options)
        assert status == 0, err
        want = reference.scan(
            COMPOSE.numpy, x, exclusive="--exclusive" in form, reverse="--reverse" in form,
            identity=COMPOSE.identity(x.dtype), heads=reference.heads_of(marks),
        )  # fmt: skip
        np.testing.assert_array_equal(np.load(folder / "y.npy"), want)


REFUSED = {
    "too few": (np.arange(4), [], "marks.npy has shape (4,); x.npy has (5, 2)"),
    "too many": (np.arange(11), [], "marks.npy has shape (11,); x.npy has (5, 2)"),
    "none": (np.zeros(0, bool), [], "marks.npy has shape (0,); x.npy has (5, 2)"),
    "other shape": (np.arange(10).reshape(2, 5), [], "marks.npy has shape (2, 5); x.npy has"),
    "axis 0": (np.arange(10), ["--axis=0"], "segments= goes with axis=None, not axis=0"),
    "axis 1": (np.arange(10), ["--axis=1"], "segments= goes with axis=None, not axis=1"),
    "each": (np.arange(10), ["--each"], "are for one array, --each for several"),
    "check": (np.arange(10), ["--check"], "--check has no reference for --segments"),
    "scan-add": (np.arange(10), ["--strategy=scan-add"], "does not take segments="),
    "objects": (np.array([{}] * 10, object), [], "marks.npy holds pickled Python objects"),
    "structures": (np.zeros(10, "i4,i4"), [], "marks.npy holds [('f0', '<i4')"),
    "missing": (None, [], "cannot read marks.npy: No such file"),
}


@pytest.mark.parametrize("case", some(REFUSED))
def test_refused(case, run, save, comm, folder, rng):
    marks, options, message = REFUSED[case]
    save("x.npy", rng.integers(0, 9, (5, 2)))
    if marks is not None:
        save("marks.npy", marks)
    before = left(comm, folder)
    status, out, err = run("x.npy", "--segments", "marks.npy", "--quiet", *options)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert left(comm, folder) == before


def test_segments_that_change(run, save, comm, folder, rng, monkeypatch):
    """Flags or keys are the same for the whole job, as its input is."""
    from distscan.job.formats import files

    save("x.npy", rng.integers(0, 9, 300))
    save("marks.npy", np.arange(300) // 7)
    reader, turns = files._reader, []

    def changing(file, stream):
        fill = reader(file, stream)

        def filled(elements, low):
            turns.append(None)
            if len(turns) == 3 and comm.rank == 0:
                (folder / "marks.npy").touch()
            fill(elements, low)

        return filled

    monkeypatch.setattr(files, "_reader", changing)
    options = ["--segments", "marks.npy", "--memory", "100", "--threads", "1", "--quiet"]
    options += ["--backend", "cpu"]
    status, out, err = run("x.npy", *options)
    assert (status, out) == (2, "")
    assert "marks.npy was changed while it was read" in err
    assert left(comm, folder) == ["marks.npy", "x.npy"]
