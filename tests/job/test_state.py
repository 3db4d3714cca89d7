"""``--state``: files scanned one after the other are scanned as one array, or are refused."""

import errno
import itertools
import json

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.job import restart
from support import data, reference
from support.cases import pairs
from support.jobs import FORMS, RANKS, draw_elements, full_after, refuse, some, spoil, wanted
from support.operators import COMPOSE, FINGERPRINTS, digits, maps, printed
from support.processes import left

pytestmark = pytest.mark.timeout(60)


# ---- ``--state``: files scanned one after the other are scanned as one array ---------------------

MAPS, PRINTS = "support.operators:COMPOSE", "support.operators:FINGERPRINTS"
TURNS = 3 if RANKS == 1 else 1
MEMORY = [[], ["--memory", "1K"], ["--memory", "100"], ["--resume"]]


class Series:
    """Scans parts of an array one after the other, each behind the state that another has left."""

    def __init__(self, run, save, folder, comm, rng):
        self.run, self.save, self.folder, self.comm, self.rng = run, save, folder, comm, rng
        self.state = folder / "s.json"

    def cut(self, x, *, empty=True):
        """Cut an array along axis 0 into some parts, of which a few are empty."""
        cuts = sorted(self.rng.integers(0, len(x) + 1, 3))
        return np.split(x, [*cuts[:1] * (1 + empty), *cuts])

    def scan(self, parts, options, marks=None):
        """Return the results of all parts, joined."""
        self.comm.Barrier()  # other ranks have read the state of the last series
        if self.comm.rank == 0:
            self.state.unlink(missing_ok=True)
        results, order = {}, range(len(parts))
        for i in reversed(order) if "--reverse" in options else order:
            self.save(f"x{i}.npy", parts[i])
            given = ["--state", "s.json", "--force", "--quiet", "--json", *options]
            if "--backend" not in options:  # not all types are on GPUs
                given += ["--backend", "cpu"]
            if marks is not None:
                self.save(f"k{i}.npy", marks[i])
                given += ["--segments", f"k{i}.npy"]
            memory = MEMORY[self.rng.integers(len(MEMORY))]
            status, out, err = self.run(f"x{i}.npy", "-o", f"y{i}.npy", *given, *memory)
            assert status == 0, (i, err)
            self.report = json.loads(out)
            results[i] = np.load(self.folder / f"y{i}.npy")
            assert results[i].shape == parts[i].shape or "--axis" not in options
        return np.concatenate([results[i] for i in order])

    def saved(self):
        return json.loads(self.state.read_text())


@pytest.fixture
def series(run, save, folder, comm, rng):
    return Series(run, save, folder, comm, rng)


def given(form, rng):
    """The form, with a map for ``--initial``."""
    return [f"--initial={maps(rng, 1)[0]}" if "=" in option else option for option in form]


def equal(y, want):
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(y, want)


CASES = {
    "sum": ["i2", "e", ">f4", "D"],
    "prod": ["d"],
    "max": [">i4", "f", "?"],
    "min": ["g"],
    "bitwise_xor": ["L"],
    "logical_xor": ["h"],
}
PAIRS = [(op, code) for op, codes in CASES.items() for code in codes]


@pytest.mark.parametrize(("op", "code"), some(PAIRS))
def test_operators(op, code, series, rng):
    """What comes before the first element comes before it once."""
    for i in rng.choice(len(FORMS), TURNS, replace=False):
        x, form = draw_elements(rng, op, code, int(rng.integers(10, 300))), FORMS[i]
        y = series.scan(series.cut(x), ["--op", op, *form])
        equal(y, wanted(x, op, form, None, None))
        if "--exclusive" not in form and y.dtype.kind in "iub":
            assert series.report["total"] == y[0 if "--reverse" in form else -1]


@pairs(form=some(FORMS), shape=[(), (1,), (5,), (60,), (3, 4)], group_by="shape")
def test_order(form, shape, series, rng):
    """Maps do not commute. Along axis 0 the state is a row, which may be longer than a chunk."""
    form, n = given(form, rng), int(rng.integers(5, 40))
    x = maps(rng, n * int(np.prod(shape))).reshape(n, *shape)
    y = series.scan(series.cut(x), ["--op", MAPS, *form, "--axis", "0"])
    equal(y, wanted(x, MAPS, form, 0, None))


CHECKED = [
    ("sum", "f"),
    ("sum", "D"),
    ("sum", "i4"),
    ("prod", "d"),
    ("logaddexp", "d"),
    ("max", "i2"),
]


@pytest.mark.parametrize(("op", "code"), some(CHECKED))
def test_a_check_begins_behind_the_state(op, code, series, folder, comm, rng, monkeypatch):
    """Right results pass; an element that is wrong, in the second file, is found by its number."""
    form = FORMS[rng.integers(len(FORMS))]
    form = [option for option in form if "initial" not in option]
    for shape in ((40,), (40, 3)):
        x = rng.integers(1, 9, shape).astype(code)
        series.scan([x[:25], x[25:25], x[25:]], ["--op", op, "--axis", "0", "--check", *form])
    last = "x0.npy" if "--reverse" in form else "x2.npy"
    wrong = rng.integers(15 * 3)

    def double(elements, index):
        if index <= wrong < index + elements.size:
            elements.reshape(-1)[wrong - index] *= 2
        return elements

    spoil(monkeypatch, double)
    options = ["--op", op, "--axis", "0", "--check", *form, "--backend", "cpu", "--quiet"]
    end = series.run(last, "-o", "z.npy", "--state", "s.json", *options)
    assert (end[0], end[1]) == (1, "")
    assert f"element {wrong} of the result is " in end[2]


KINDS = ["flags", "i1", ">i4", "f8", "g", "F", "M8[s]", "U3", "S2"]


@pytest.mark.parametrize("kind", some(KINDS))
def test_segments(kind, series, rng):
    """A segment goes on from file to file if the last key is the first one, or by the flag."""
    for i in rng.choice(len(FORMS), TURNS, replace=False):
        form = given(FORMS[i], rng)
        n = int(rng.integers(20, 200))
        heads = rng.random(n) < rng.choice([0.02, 0.3])
        marks = heads if kind == "flags" else data.keys_at(rng, heads, kind)
        x, cuts = maps(rng, n), np.sort(rng.integers(0, n + 1, 3))
        y = series.scan(np.split(x, cuts), ["--op", MAPS, *form], np.split(marks, cuts))
        equal(y, wanted(x, MAPS, form, None, marks))


def test_text_of_each_file_is_as_wide_as_its_longest(series, rng):
    """NumPy stores so; the last key of a file goes on in the next one."""
    marks = [np.array(["a", "b", "b"]), np.array(["b", "long", "longer"]), np.array(["longer"])]
    x = maps(rng, 7)
    for reverse in (False, True):
        form = ["--reverse"] if reverse else []
        y = series.scan(np.split(x, [3, 6]), ["--op", MAPS, *form], marks)
        equal(y, wanted(x, MAPS, form, None, np.concatenate(marks)))


def test_structures(series, rng):
    """Their initial value has one number in all fields."""
    for form in some(FORMS):
        x = digits(rng, 60)
        y = series.scan(series.cut(x), ["--op", PRINTS, *form])
        first = (3, 3) if "--initial=3" in form else (0, 1)
        line = np.concatenate([np.array([first], x.dtype), x[::-1] if "--reverse" in form else x])
        if first == (3, 3):  # a word before the others
            want = [line[:1]]
            for element in line[1:]:
                want.append(FINGERPRINTS.numpy(want[-1], element[None]))
            want = np.concatenate(want)
        else:
            want = np.concatenate([line[:1], printed(line[1:])])
        want = want[:-1] if "--exclusive" in form else want[1:]
        equal(y, want[::-1] if "--reverse" in form else want)


def test_the_state_is_that_of_one_scan(series, run, folder, rng):
    """To the last bit, and whatever the number of files, of types in them, and of shapes."""
    x = draw_elements(rng, "sum", "i2", 120)
    parts = [x[:30].reshape(5, 6), x[30:30], x[30:90].astype("i8"), x[90:].reshape(1, 30, 1)]
    want = wanted(x, "sum", [], None, None)
    equal(series.scan(parts, []), want)
    several, total = series.saved(), series.report["total"]
    series.scan([x], [])
    assert series.saved() == several
    assert series.report["total"] == total == want[-1]
    # Several inputs are one array; with --each, the next one goes on.
    parts = series.cut(x)
    for i, part in enumerate(parts):
        series.save(f"p{i}.npy", part)
    assert run("p?.npy", "-o", "y.npy", "--state", "t.json", "--quiet")[0] == 0
    equal(np.load(folder / "y.npy"), want)
    assert json.loads((folder / "t.json").read_text()) == several
    assert run("p?.npy", "--each", "--state", "u.json", "--quiet")[0] == 0
    equal(np.concatenate([np.load(folder / f"p{i}.scan.npy") for i in range(len(parts))]), want)
    assert json.loads((folder / "u.json").read_text()) == several


@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_files_without_elements(reverse, shape, series, comm, folder, rng):
    """Before all others, between them, after them, and alone; the value stays as it is."""
    x = maps(rng, 20 * (1 if not shape else 4)).reshape(20, *shape)
    empty, form = x[:0], ["--reverse"] * reverse
    options = ["--op", MAPS, "--axis", "0", *form]
    for parts in ([empty, empty], [empty, x], [x, empty], [x[:7], empty, empty, x[7:]]):
        y = series.scan(parts, options)
        equal(y, wanted(np.concatenate(parts), MAPS, form, 0, None))
    whole = series.saved()
    series.scan([x], options)
    assert series.saved() == whole
    assert "s.json.new" not in left(comm, folder)


def test_fewer_elements_than_ranks(series, rng):
    """The rank with the state may have no elements."""
    for n, form in some(itertools.product([1, 2, 3], [[], ["--reverse"]])):
        x, marks = maps(rng, 4 * n), np.array(["a", "b"])[rng.integers(0, 2, 4 * n)]
        y = series.scan(np.split(x, 4), ["--op", MAPS, *form])
        equal(y, wanted(x, MAPS, form, None, None))
        y = series.scan(np.split(x, 4), ["--op", MAPS, *form], np.split(marks, 4))
        equal(y, wanted(x, MAPS, form, None, marks))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("segmented", [False, True], ids=["plain", "segments"])
def test_other_ranks_in_each_job(segmented, reverse, save, comm, folder, rng):
    """All ranks, the first one alone, and the first two."""
    x, n = maps(rng, 150), 50
    marks = np.cumsum(rng.random(150) < 0.05)
    order = [2, 1, 0] if reverse else [0, 1, 2]
    for i, most in zip(order, (comm.size, 1, 2), strict=True):
        part = slice(i * n, i * n + n)
        save(f"x{i}.npy", x[part])
        save(f"k{i}.npy", marks[part])
        some_ranks = comm.Split(0 if comm.rank < most else MPI.UNDEFINED, comm.rank)
        if some_ranks != MPI.COMM_NULL:
            distscan.scan_file(
                folder / f"x{i}.npy", folder / f"y{i}.npy", COMPOSE, comm=some_ranks,
                segments=folder / f"k{i}.npy" if segmented else None, reverse=reverse,
                state=folder / "s.json", memory=200, backend="cpu",
            )  # fmt: skip
            some_ranks.Free()
        comm.Barrier()
    heads = reference.heads_of(marks) if segmented else None
    want = reference.scan(COMPOSE.numpy, x, reverse=reverse, heads=heads)
    equal(np.concatenate([np.load(folder / f"y{i}.npy") for i in range(3)]), want)


def test_fortran_order(series, comm, rng):
    """Along its last axis, the rows of such a file are its columns: it is that, or refused."""
    x = np.asfortranarray(rng.integers(0, 9, (7, 12)))
    for i, part in enumerate((x[:, :5], x[:, 5:])):
        series.save(f"x{i}.npy", np.asfortranarray(part))
    options = ["--axis", "1", "--state", "s.json", "--quiet"]
    ends = [series.run(f"x{i}.npy", *options) for i in range(2)]
    if ends[0][0] == 2:
        assert "--state" in ends[0][2]
        assert left(comm, series.folder) == ["x0.npy", "x1.npy"]
        return
    assert [status for status, _, _ in ends] == [0, 0], ends
    made = [np.load(series.folder / f"x{i}.scan.npy") for i in range(2)]
    equal(np.concatenate(made, axis=1), np.cumsum(x, axis=1))
    series.save("x2.npy", np.asfortranarray(np.ones((9, 5), int)))  # rows of another length
    status, _, err = series.run("x2.npy", *options)
    assert status == 2
    assert "s.json" in err


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("form", [[], ["--exclusive"], ["--initial=0.1"], ["--axis=0"]])
@pytest.mark.parametrize("code", "ef")
def test_rounded_sums(code, form, backend, series, rng):
    """They are accumulated in a wider type, in which one file begins where another has ended."""
    x = rng.normal(size=(1500, 2)).astype(code)
    y = series.scan(np.split(x, [0, 400, 611]), ["--op", "sum", "--backend", backend, *form])
    want = np.cumsum(x, axis=0 if form == ["--axis=0"] else None, dtype="d")
    if form == ["--exclusive"]:
        want = np.concatenate([[0], want[:-1]])
    want += 0.1 * (form == ["--initial=0.1"])
    eps = 20 * np.finfo(code).eps
    np.testing.assert_allclose(y, want, eps, 20 * eps)


# ---- with --resume: a job that has stopped goes on after the state that it began with ----------

# Chunks of 6 elements; each one is recorded.
STOPPED = ["--op", MAPS, "--state", "s.json", "--resume", "--quiet", "--backend", "cpu",
           "--memory", "650", "--threads", "1"]  # fmt: skip


@pytest.fixture
def records(monkeypatch):
    """Let journals record each chunk."""
    monkeypatch.setattr(restart, "PERIOD", 0)
    monkeypatch.setattr(restart, "_SHARE", 0)


def contents(path):
    return path.read_bytes() if path.exists() else None


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    ("form", "kind"),
    some(itertools.product([[], ["--reverse"], ["--exclusive"]], ["plain", "rows", "segments"])),
)
def test_a_series_of_jobs_that_stop(form, kind, run, save, comm, folder, rng, monkeypatch):
    """Each job stops twice; the state changes when it has ended, and not before."""
    n, shape, marked = 90 * comm.size, (3,) if kind == "rows" else (), kind == "segments"
    x = maps(rng, n * (3 if shape else 1)).reshape(n, *shape)
    marks = np.cumsum(rng.random(n) < 0.05)
    files = np.split(np.arange(n), [n // 3, 2 * n // 3])
    given = [*STOPPED, *form, "--axis", "0", *(["--segments", "k.npy"] if marked else [])]
    made = {}
    for i in (2, 1, 0) if "--reverse" in form else (0, 1, 2):
        save("x.npy", x[files[i]])
        save("k.npy", marks[files[i]])
        state = contents(folder / "s.json")
        comm.Barrier()
        guilty = int(rng.integers(comm.size))  # the others may have come to their ends meanwhile
        for turn in rng.integers(1, 3, 2):
            with monkeypatch.context() as patch:
                if comm.rank == guilty:
                    spoil(patch, full_after(turn))
                assert run("x.npy", "-o", f"y{i}.npy", *given)[0] == 1
            assert contents(folder / "s.json") == state
            comm.Barrier()
        status, _, err = run("x.npy", "-o", f"y{i}.npy", *given)
        assert status == 0, err
        made[i] = np.load(folder / f"y{i}.npy")
    want = wanted(x, MAPS, form, 0 if shape else None, marks if marked else None)
    np.testing.assert_array_equal(np.concatenate([made[i] for i in range(3)]), want)


@pytest.mark.usefixtures("records")
def test_another_state(run, save, comm, folder, rng, monkeypatch):
    """A job that has stopped does not go on behind another one: what it has written is wrong."""
    save("x.npy", maps(rng, 60 * comm.size))
    with monkeypatch.context() as patch:
        spoil(patch, full_after(2))
        assert run("x.npy", "-o", "y.npy", *STOPPED)[0] == 1
    save("other.npy", maps(rng, 5))
    given = ["--op", MAPS, "--state", "s.json", "--quiet"]
    assert run("other.npy", "-o", "z.npy", *given)[0] == 0
    state = contents(folder / "s.json")
    status, _, err = run("x.npy", "-o", "y.npy", *STOPPED)
    assert status == 2
    assert "the state was" in err
    assert "--resume" in err
    assert contents(folder / "s.json") == state
    comm.Barrier()
    # Without --resume it begins anew.
    assert run("x.npy", "-o", "y.npy", *given)[0] == 0
    both = np.concatenate([np.load(folder / name) for name in ("other.npy", "x.npy")])
    y = np.concatenate([np.load(folder / name) for name in ("z.npy", "y.npy")])
    np.testing.assert_array_equal(y, wanted(both, MAPS, [], None, None))


# ---- ``--state`` and what may go wrong: the file is of another scan, or damaged, or the job fails

STATE = ["--state", "s.json", "--quiet"]


@pytest.fixture
def before(run, save, comm, folder, rng):
    """Scan a file, so that there is a state; return a function that says that all is as it was."""
    save("x.npy", rng.integers(1, 9, 50))
    assert run("x.npy", "-o", "y.npy", *STATE)[0] == 0
    state, y = (folder / "s.json").read_bytes(), (folder / "y.npy").read_bytes()
    comm.Barrier()

    def unchanged(*more):
        names = left(comm, folder)
        assert names == sorted(["s.json", "x.npy", "y.npy", *more])
        assert (folder / "s.json").read_bytes() == state
        assert (folder / "y.npy").read_bytes() == y
        comm.Barrier()

    return unchanged


def is_refused(end, *words):
    status, out, err = end
    assert (status, out) == (2, ""), err
    assert err.startswith("distscan: error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


# ---- the state of another scan ---------------------------------------------------------------

OTHER = {
    "max": (["--op", "max"], "the operator was sum, and is max"),
    "own": (["--op", "support.operators:COMPOSE", "--dtype", "i8"], "the operator was sum"),
    "dtype": (["--dtype", "f8"], "the type of the result was int64, and is float64"),
    "narrow": (["--dtype", "i2"], "the type of the result was int64, and is int16"),
    "initial": (["--initial", "3"], "initial was None"),
    "exclusive": (["--exclusive"], "exclusive was False, and is True"),
    "reverse": (["--reverse"], "reverse was False, and is True"),
    "segments": (["--segments", "x.npy"], "the type of segments was None, and is int64"),
}


@pytest.mark.parametrize("case", OTHER)
def test_another_scan(case, before, run):
    """The message says what differs, and what to do."""
    options, message = OTHER[case]
    for _ in range(2):  # and it stays so
        end = run("x.npy", "-o", "y.npy", "--force", *STATE, *options)
        is_refused(end, f"s.json was written for another job: {message}", "name another file")
        before()


def test_another_type(before, run, save, rng):
    """Of the input, if its scan has another type; a narrower one that is widened is the same."""
    save("f.npy", rng.normal(size=20))
    end = run("f.npy", "-o", "y.npy", "--force", *STATE)
    is_refused(end, "s.json was written for another job: the type of the result was int64")
    save("f.npy", rng.integers(0, 2, 20).astype("?"))
    before("f.npy")
    assert run("f.npy", "-o", "z.npy", *STATE)[0] == 0


def test_other_rows(before, run, save, comm, folder, rng):
    x = rng.integers(0, 9, (4, 3))
    save("r.npy", x)
    end = run("r.npy", "-o", "y.npy", "--axis", "0", "--force", *STATE)
    is_refused(end, "s.json was written for another job: the shape", "[3]")
    before("r.npy")
    assert run("r.npy", "-o", "r1.npy", "--axis", "0", "--quiet", "--state", "t.json")[0] == 0
    state = (folder / "t.json").read_bytes()
    for shape in ((4,), (3, 4), (4, 3, 1), (4, 1)):
        save("q.npy", rng.integers(0, 9, shape))
        end = run("q.npy", "-o", "q1.npy", "--axis", "0", "--quiet", "--state", "t.json")
        is_refused(end, "t.json was written for another job")
        assert (folder / "t.json").read_bytes() == state
    before("q.npy", "r.npy", "r1.npy", "t.json")


def test_other_segments(run, save, comm, folder):
    """Flags are no keys, and keys of another type are no keys of this one."""
    save("x.npy", np.arange(6))
    save("k.npy", np.array([1, 1, 2, 2, 2, 3]))
    assert run("x.npy", "-o", "y.npy", "--segments", "k.npy", *STATE)[0] == 0
    state = (folder / "s.json").read_bytes()
    for other in ("?", "i2", "f8", "U1", "m8[s]"):
        save("k.npy", np.arange(6).astype(other))
        end = run("x.npy", "-o", "z.npy", "--segments", "k.npy", *STATE)
        is_refused(end, "s.json was written for another job: the type of segments")
    is_refused(run("x.npy", "-o", "z.npy", *STATE), "s.json was written for another job")
    assert (folder / "s.json").read_bytes() == state
    assert left(comm, folder) == ["k.npy", "s.json", "x.npy", "y.npy"]


@pytest.mark.parametrize("options", [["--axis=1"], ["--axis=-1", "--resume"]])
def test_scans_without_a_state(options, run, save, comm, folder):
    """Rows that are independent have none."""
    save("x.npy", np.ones((4, 3)))
    is_refused(run("x.npy", *options, *STATE), "--state")
    assert left(comm, folder) == ["x.npy"]


def test_rows_in_pieces_with_a_journal(run, save, comm, folder):
    """A resumed job has the state of some pieces of a row only: it is refused at its beginning."""
    save("x.npy", np.ones((4, 50)))
    options = ["--axis=0", "--memory=100", "--threads=1", "--backend=cpu"]
    status, _, err = run("x.npy", "--resume", *options, *STATE)
    if status != 0:
        assert status == 2
        assert "--state and --resume" in err
        assert left(comm, folder) == ["x.npy"]


# ---- damaged files ---------------------------------------------------------------------------


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


def having(name, value):
    return lambda state: state | {name: value}


DAMAGED = {
    "empty": "",
    "no text": b"\xff\xfe\x00\x80",
    "numpy": b"\x93NUMPY\x01\x00",
    "cut off": lambda text: text[:-20],
    "half": lambda text: text[: len(text) // 2],
    "list": "[]",
    "number": "7",
    "other": '{"a": 1}',
    "later format": lambda text: text.replace('"format": 2', '"format": 3'),
    "no format": lambda text: text.replace("format", "fromat"),
    "cut digest": lambda text: text.replace('"digest": "', '"digest": "0'),
    "no terms": without("terms"),
    "terms": having("terms", []),
    "empty terms": having("terms", {}),
    "no value": without("value"),
    "no key": without("key"),
    "value": having("value", 5),
    "value of text": having("value", "text"),
    "value too short": having("value", ["<i8", [], "BgAAAA=="]),
    "value too long": having("value", ["<i8", [], "AAAAAAAAAAAAAAAAAAAAAA=="]),
    "value no base64": having("value", ["<i8", [], "Bg*"]),
    "value of a row": having("value", ["<i8", [1], "BgAAAAAAAAA="]),
    "value of a type": having("value", ["<f8", [], "BgAAAAAAAAA="]),
    "value of objects": having("value", ["|O", [], "BgAAAAAAAAA="]),
    "value of no type": having("value", ["nonsense", [], "BgAAAAAAAAA="]),
    "value of a shape": having("value", ["<i8", "x", "BgAAAAAAAAA="]),
    "key": having("key", 5),
}


@pytest.mark.parametrize("case", some(DAMAGED))
def test_damaged(case, before, run, comm, folder):
    """The message names the file; nothing is written, and the file stays for whoever looks."""
    path, damage = folder / "s.json", DAMAGED[case]
    whole = path.read_text()
    comm.Barrier()
    if comm.rank == 0:
        if case.startswith(("cut", "half", "later", "no format")):
            damage = damage(whole)
        elif callable(damage):
            damage = restart.seal(damage(json.loads(whole)["contents"]))
        path.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    comm.Barrier()
    damaged = path.read_bytes()
    is_refused(run("x.npy", "-o", "z.npy", *STATE), "s.json")
    assert path.read_bytes() == damaged
    comm.Barrier()
    if comm.rank == 0:
        path.write_text(whole)
    before()


def test_no_file(before, run, comm, folder):
    """A folder is none, and a new one is not made: that shows before there is a result."""
    if comm.rank == 0:
        (folder / "folder").mkdir()
    for path in ("folder", "none/s.json", "x.npy/s.json", "s" * 300):
        end = run("x.npy", "-o", "z.npy", "--quiet", "--state", path)
        is_refused(end, path.partition("/")[0])
        before("folder")


# ---- jobs that fail --------------------------------------------------------------------------


def test_a_check_that_fails(before, run, comm, folder, monkeypatch):
    """The wrong result is kept, but the state is not of it."""
    spoil(monkeypatch, lambda elements, index: elements + 1)
    status, out, err = run("x.npy", "-o", "z.npy", "--check", *STATE)
    assert (status, out) == (1, "")
    assert "NumPy gives" in err
    kept = [name for name in left(comm, folder) if name.endswith(".part")]
    assert len(kept) == 1
    before(*kept)


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_full_disk(step, before, run, monkeypatch):
    with monkeypatch.context() as patch:
        refuse(patch, step, errno.ENOSPC)
        status, out, err = run("x.npy", "-o", "z.npy", *STATE)
    if status == 0:  # nothing in memory is synchronised
        assert step == "fsync"
        return
    assert (status, out) == (1, "")
    assert "No space left" in err
    before()


FAILING = {
    "exists": (["x.npy", "-o", "y.npy"], "y.npy exists"),
    "missing": (["none.npy", "-o", "z.npy"], "cannot read none.npy"),
    "later missing": (["x.npy", "none.npy", "-o", "z.npy"], "cannot read none.npy"),
    "text": (["text.npy", "-o", "z.npy"], "a scan takes"),
    "segments": (["x.npy", "-o", "z.npy", "--segments", "text.npy"], "text.npy"),
    "trace": (["x.npy", "-o", "z.npy", "--trace", "none/t.json"], "none"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_job_that_fails(case, before, run, save):
    arguments, message = FAILING[case]
    save("text.npy", np.array(["a", "b"]))
    is_refused(run(*arguments, *STATE), message)
    before("text.npy")


def test_a_job_that_begins_again(before, run, folder, comm):
    """A series goes on behind the last job that has succeeded."""
    is_refused(run("x.npy", "-o", "y.npy", *STATE), "y.npy exists")
    before()
    for turn in range(1, 4):
        assert run("x.npy", "-o", "z.npy", "--force", *STATE)[0] == 0
        x = np.load(folder / "x.npy")
        np.testing.assert_array_equal(np.load(folder / "z.npy"), np.cumsum(x) + turn * x.sum())
    assert left(comm, folder) == ["s.json", "x.npy", "y.npy", "z.npy"]
