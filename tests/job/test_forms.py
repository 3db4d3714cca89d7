"""Every form and axis of a scan on the command line; Fortran order; segments."""

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import distscan
from distscan.core.form import bounds
from distscan.job import check, plan
from support import data, processes, reference
from support.cases import pairs
from support.data import exact
from support.jobs import FORMS, RANKS, Streams, some, spoil
from support.operators import COMPOSE, maps
from support.processes import left

# ---- every form and axis of a scan on the command line, and what ``--check`` makes of them -------

# With little memory, ranks read their shards twice; else they keep them.
MEMORIES = [[], ["--memory=1K"]]


@pytest.fixture
def streams(run, save, folder, rng, monkeypatch):
    return Streams(run, save, folder, rng, monkeypatch)


def small_pieces(monkeypatch):
    """Read, scan, write and check files in many pieces."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 1 << 10)
    monkeypatch.setattr(plan, "GPU_CHUNK", 1 << 10)
    monkeypatch.setattr(check, "PIECE", 1 << 9)


@pairs(
    case=[("sum", "<i2"), ("max", ">f4"), ("sum", "<f2"), ("prod", "<f8"), ("sum", "<c8")],
    form=FORMS,
    memory=MEMORIES,
    group_by="case",
)
def test_forms(case, form, memory, streams, rng, monkeypatch):
    """In many pieces, of the file and of the check; on GPUs, where there are any."""
    small_pieces(monkeypatch)
    (op, code), streams.options = case, memory
    streams.scan(exact(rng, op, code, 3001).astype(code), op, form)


@pairs(
    shape=[(7, 5), (40, 3, 2), (2, 300), (1, 1), (0, 3), (3, 0)],
    code=["i4", "f4", "c16"],
    form=[[], FORMS[-1]],
    memory=MEMORIES,
    group_by="code",
)
def test_axes(shape, code, form, memory, streams, rng, monkeypatch):
    monkeypatch.setattr(check, "PIECE", 1 << 9)
    x, streams.options = exact(rng, "sum", code, int(np.prod(shape))).reshape(shape), memory
    for axis in range(-1, len(shape)):
        streams.scan(x, "sum", form, axis)


@pytest.mark.parametrize("code", ["<f4", ">i2", "|u1", "<c16"])
@pytest.mark.parametrize("shape", [None, (601,), (30, 20)])
def test_raw(shape, code, run, comm, folder, rng):
    """The type of the result is NumPy's choice, and the file has the shape that is given."""
    x = rng.integers(0, 100, shape or 601).astype(code)
    if comm.rank == 0:
        x.tofile(folder / "x.bin")
    comm.Barrier()
    options = [] if shape is None else ["--shape", ",".join(map(str, shape)), "--axis", "0"]
    status, out, err = run("x.bin", "--raw", "--dtype", code, "--check", "--json", *options)
    assert status == 0, err
    y = np.load(folder / "x.bin.scan.npy")
    want = np.cumsum(x.astype(x.dtype.newbyteorder("=")), axis=0)
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(y, want)
    assert json.loads(out)["dtype_in"] == x.dtype.newbyteorder("=").name


@pairs(
    shape=[(7, 5, 9), (1, 40, 3), (60, 1, 1)],
    axis=[None, -1, 0, 1, 2],
    form=[[], ["--reverse"], ["--exclusive", "--initial=3"]],
    memory=MEMORIES,
    group_by="axis",
)
def test_fortran_order(shape, axis, form, memory, streams, rng):
    """Along an axis, the result is in the order of the input; flattened, it is as NumPy's."""
    x, streams.options = np.asfortranarray(rng.integers(-50, 50, shape).astype("i4")), memory
    y = streams.scan(x, "sum", form, axis)
    assert axis is None or y.flags.f_contiguous


@pairs(
    form=[[], ["--exclusive", "--initial=2.5"], ["--reverse"]],
    axis=[None, 0, 1, 2],
    code="fF",
    memory=MEMORIES,
    group_by="code",
)
def test_check_allows_rounding(form, axis, code, memory, run, save, folder, rng):
    x = rng.normal(size=(50, 30, 40))
    x = (x * (1 + 1j) if code == "F" else x).astype(code)
    save("x.npy", x)
    along = [] if axis is None else ["--axis", str(axis)]
    status, _, err = run("x.npy", "--check", "--quiet", "--force", *along, *form, *memory)
    assert status == 0, err
    if not form:
        y, acc = np.load(folder / "x.scan.npy"), {"f": "d", "F": "D"}[code]
        np.testing.assert_allclose(y, np.cumsum(x, axis, dtype=acc), rtol=1e-4, atol=1e-3)


@pairs(reverse=[False, True], axis=[None, 0, 1, 2], code="lfD", memory=MEMORIES, group_by="code")
def test_check_names_the_element(memory, reverse, axis, code, run, save, rng, monkeypatch):
    """One element is spoilt between the scan and the file."""
    monkeypatch.setattr(check, "PIECE", 1 << 9)
    x = rng.integers(1, 9, (6, 5, 8)).astype(code)
    save("x.npy", x)
    spoilt = int(rng.integers(x.size))

    def wrong(elements, index):
        if index <= spoilt < index + len(elements):
            elements[spoilt - index] += 7 if code != "D" else 7j
        return elements

    options = ["--reverse"] * reverse + ([] if axis is None else ["--axis", str(axis)])
    with monkeypatch.context() as patch:
        spoil(patch, wrong)
        status, out, err = run("x.npy", "--check", "--quiet", *options, *memory)
    assert (status, out) == (1, "")
    assert f"element {spoilt} of the result is " in err


def test_no_elements(run, save):
    save("x.npy", np.zeros(0))
    for form, total in (([], 0), (["--initial", "4"], 4), (["--exclusive"], 0)):
        status, out, err = run("x.npy", "--json", "--force", "--check", *form)
        assert status == 0, err
        assert json.loads(out)["total"] == total


@pytest.mark.timeout(20)
@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("shape", [(0, 10**12), (10**12, 0), (10**9, 0, 10**9), (0,) * 3])
def test_no_elements_in_many_rows(shape, fortran, run, comm, folder):
    """What takes no memory takes no time, however long its axes are."""
    if comm.rank == 0:
        with (folder / "x.npy").open("wb") as stream:
            header = {"descr": "<f4", "fortran_order": fortran, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
    comm.Barrier()
    for axis in range(-1, len(shape)):
        for form in ([], ["--exclusive", "--reverse"]):
            arguments = ["--axis", str(axis), "--check", "--json", "--force", *form]
            status, out, err = run("x.npy", *arguments)
            assert status == 0, err
            assert json.loads(out)["elements"] == 0
            assert np.load(folder / "x.scan.npy", mmap_mode=None).shape == shape
    assert run("x.npy", "--axis", str(len(shape)), "--force")[0] == 2


@pytest.mark.parametrize(
    ("text", "code", "first"),
    [("1e3", "d", 1000), ("-inf", "d", -np.inf), ("2j", "D", 2j), ("+5", "d", 5), ("1", "?", 1)],
)
def test_numbers(text, code, first, run, save, folder):
    save("x.npy", np.zeros(3, code))
    status, _, err = run("x.npy", f"--initial={text}", "--op", "max", "--check")
    assert status == 0, err
    y = np.load(folder / "x.scan.npy")
    np.testing.assert_array_equal(y, np.maximum(np.zeros(3, code), np.array(first, code)))


# ---- jobs that flatten files in Fortran order: they are read through windows, and not mapped -----

SHAPES = [(500,), (1, 40), (40, 1), (30, 40), (3, 700), (700, 3), (1, 7, 1, 90), (13, 11, 9),
          (5, 4, 6, 7), (2, 3, 2, 80), (100, 2, 3, 2)]  # fmt: skip
CODES = ["i8", ">i8", "u1", ">i2"]


def added(a, b):
    """Both fields of structures."""
    made = np.zeros_like(b)
    made["m"], made["c"] = a["m"] + b["m"], a["c"] + b["c"]
    return made


ADDED = distscan.Operator("added", numpy=added)


@pairs(
    shape=SHAPES, memory=[700, 9000, None], threads=[1, 2], reverse=[False, True], group_by="memory"
)
def test_shapes(shape, memory, reverse, threads, save, folder, comm, rng):
    """In windows of a part of a row, of some rows, and of all."""
    x = np.asfortranarray(rng.integers(0, 99, shape).astype(rng.choice(CODES)))
    save("x.npy", x)
    given = {"memory": memory, "threads": threads, "reverse": reverse, "check": True}
    distscan.scan_file(folder / "x.npy", folder / "y.npy", comm=comm, backend="cpu", force=True,
                       dtype="i8", **given)  # fmt: skip
    flat = x.ravel().astype("i8")
    want = np.cumsum(flat[::-1])[::-1] if reverse else np.cumsum(flat)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), want)


@pytest.mark.parametrize("memory", [1, 2000, None])
@pytest.mark.parametrize("shape", [(9, 40), (40, 9), (6, 7, 8)])
def test_structures(shape, memory, save, folder, comm, rng):
    """With bytes between their fields, which are not read, and fields of two byte orders."""
    dtype = np.dtype({"names": ["m", "c"], "formats": [">u8", "<u8"], "offsets": [3, 16],
                      "itemsize": 29})  # fmt: skip
    x = np.ndarray(shape, dtype, rng.bytes(29 * math.prod(shape)), order="F")
    save("x.npy", x)
    distscan.scan_file(folder / "x.npy", folder / "y.npy", comm=comm, memory=memory, op=ADDED)
    y = np.load(folder / "y.npy").ravel()
    for name in dtype.names:
        np.testing.assert_array_equal(y[name], np.cumsum(x[name].ravel().astype("u8")))
    bare = np.frombuffer(y.tobytes(), np.uint8).reshape(y.size, -1).copy()
    fields = np.ndarray(y.shape, y.dtype, bare)
    fields["m"] = fields["c"] = 0
    assert not bare.any()


def test_threads_that_share_windows(save, folder, comm, rng, monkeypatch):
    """Chunks are small, and several threads wait for the same window, or for the next one."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 1 << 14)
    x = np.asfortranarray(rng.integers(-99, 99, (300, 20, 70)))
    save("x.npy", x)
    for memory, reverse in itertools.product((1 << 18, 1 << 21), (False, True)):
        distscan.scan_file(folder / "x.npy", folder / "y.npy", comm=comm, backend="cpu", threads=4,
                           memory=memory, reverse=reverse, op="max", force=True)  # fmt: skip
        flat = x.ravel()
        want = np.maximum.accumulate(flat[::-1])[::-1] if reverse else np.maximum.accumulate(flat)
        np.testing.assert_array_equal(np.load(folder / "y.npy"), want)


# A job whose input becomes shorter behind the check that begins each read of elements.
SHORTER = """
import os, sys
from distscan import cli
look, path, reads = os.fstat, sys.argv[1], []

def shorten(descriptor):
    found = look(descriptor)
    if os.path.samestat(found, os.stat(path)) and sys._getframe(1).f_code.co_name == "fill":
        reads.append(found)
        if len(reads) == int(sys.argv[2]):
            os.truncate(path, 5000)
    return found

os.fstat = shorten
sys.exit(cli.main([path, *sys.argv[3:]]))
"""


@pytest.mark.one_rank
@pairs(ranks=[1, 2], threads=["1", "2"], turn=[1, 2])
def test_becomes_shorter(turn, threads, ranks, tmp_path):
    """While it is read: the job ends with a message, no rank by a signal, and leaves nothing."""
    if ranks > 1 and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    np.save(tmp_path / "x.npy", np.asfortranarray(np.ones((1000, 3000))))
    script = Path(__file__).parents[2] / "launch" / "mpirun.sh"
    launcher = [] if ranks == 1 else ["bash", script, ranks]
    options = ["--quiet", "--backend", "cpu", "--threads", threads, "--memory", "2M"]
    command = [*launcher, sys.executable, "-c", SHORTER, tmp_path / "x.npy", turn, *options]
    run = subprocess.run([*map(str, command)], check=False, env=processes.environment(),
                         capture_output=True, text=True, timeout=60)  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert f"{tmp_path / 'x.npy'} became shorter while it was read" in run.stderr
    assert os.listdir(tmp_path) == ["x.npy"]


# ---- ``--segments``: flags and keys of every type, whose heads lie at edges of chunks and of ranks

OP = "support.operators:COMPOSE"  # it does not commute
TEXT = ["U3", ">U2", "S2"]
OTHERS = ["g", "F", ">c16", ">i4", ">f8", "M8[s]", ">M8[D]", "m8[ns]"]
KINDS = ["flags", *data.KEY_TYPES, *OTHERS, *TEXT]
WAYS = {
    "1K": ["--memory", "1K"],
    "threads": ["--memory", "3000", "--threads", "3"],
    "few": ["--memory", "50", "--threads", "1"],
    "ample": None,
}


def choose(streams, way):
    if way == "ample":
        streams.choose(way, strategy="reduce-scan")
    else:
        streams.options = ["--backend", "cpu", *WAYS[way]]


def marks_at(rng, heads, kind):
    """Flags, or keys that change, where heads are."""
    if kind == "flags":
        return heads
    if np.dtype(kind).kind in "US":
        return np.array(["", "a", "b", "ab"])[np.cumsum(heads) % 4].astype(kind)
    return data.keys_at(rng, heads, kind)


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


def edges(n, chunk, reverse):
    """The first elements of chunks and of shards, in the order of the scan."""
    found = set()
    for rank in range(RANKS):
        low, high = bounds(n, RANKS, rank)
        starts = range(low, high, chunk)
        # In reverse, a chunk begins with its last element.
        found |= {min(i + chunk, high) - 1 for i in starts} if reverse else set(starts)
    return np.array(sorted(found))


@pairs(form=some(FORMS), way=["1K", "few", "ample"], group_by="way")
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
def test_few_elements(kind, streams, rng):
    """Some ranks have none."""
    for n in sorted({0, 1, 2, RANKS - 1, RANKS, RANKS + 1}):
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
    reader, turns = files.reader, []

    def changing(file, stream):
        fill = reader(file, stream)

        def filled(elements, low):
            turns.append(None)
            if len(turns) == 3 and comm.rank == 0:
                (folder / "marks.npy").touch()
            fill(elements, low)

        return filled

    monkeypatch.setattr(files, "reader", changing)
    options = ["--segments", "marks.npy", "--memory", "100", "--threads", "1", "--quiet"]
    options += ["--backend", "cpu"]
    status, out, err = run("x.npy", *options)
    assert (status, out) == (2, "")
    assert "marks.npy was changed while it was read" in err
    assert left(comm, folder) == ["marks.npy", "x.npy"]
