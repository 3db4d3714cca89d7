"""``--state`` and what may go wrong: the file is of another scan, or damaged, or the job fails."""

import errno
import json

import numpy as np
import pytest

from distscan.job import restart
from support.streams import some
from support.together import left
from support.writers import refuse, spoil

pytestmark = pytest.mark.timeout(60)
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
    "own": (["--op", "support.maps:COMPOSE", "--dtype", "i8"], "the operator was sum"),
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
