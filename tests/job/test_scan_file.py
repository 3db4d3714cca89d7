"""``distscan.scan_file``, and the roles of the files of a job."""

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import distscan
from distscan import scan_file
from distscan.core.errors import OutputError
from distscan.job import job, output, restart
from distscan.job.formats import storage
from support.display import rows
from support.jobs import full_after, raises, spoil
from support.operators import SQUARES
from support.processes import everywhere, left

# ---- ``distscan.scan_file``: the file job from Python, with the arguments of ``scan`` ------------


@pytest.fixture(autouse=True)
def _inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_as_scan(comm, folder, save, rng):
    """Every argument that both have."""
    x = rng.integers(-9, 9, (301, 7))
    save("x.npy", x)
    low, high = 301 * comm.rank // comm.size, 301 * (comm.rank + 1) // comm.size
    for form in (
        {},
        {"axis": 0, "reverse": True},
        {"axis": -1, "op": np.maximum},
        {"op": "max", "exclusive": True, "initial": 3, "strategy": "reduce-scan"},
        {"dtype": "f8", "initial": 0.5, "threads": 1},
    ):
        report = distscan.scan_file(
            "x.npy", folder / "y.npy", comm=comm, backend="cpu", force=True, memory=1 << 10, **form
        )
        y = np.load(folder / "y.npy")
        want = distscan.scan(x[low:high], comm=comm, **form)
        start = low if y.ndim > 1 else low * 7
        np.testing.assert_array_equal(y[start : start + len(want)], want)
        assert y.dtype == want.dtype
        assert (report.elements, report.ranks) == (x.size, comm.size)
        comm.Barrier()


def test_the_report_shows_itself(comm, folder, save, rng):
    x = rng.integers(1, 9, 1000)
    save("x.npy", x)
    report = distscan.scan_file("x.npy", folder / "a&b.npy", comm=comm, backend="cpu", force=True)
    head = "sum of 1000 elements, int64 to int64"
    assert repr(report).startswith(f"<Report: {head}, ")
    shown = rows(report._repr_html_())
    assert f">{head}</caption>" in report._repr_html_()
    assert "a&amp;b.npy" in report._repr_html_()
    assert (shown["total"], shown["output"]) == (str(x.sum()), report.output)
    assert shown["all"].startswith(f"{report.seconds['all']:.4f} s")
    assert "read" in shown


def test_several_files_and_options(comm, folder, save, rng):
    x = rng.integers(-9, 9, 1000)
    keys = np.repeat(np.arange(10), 100)
    save("a.npy", x[:300])
    save("b.npy", x[300:])
    save("keys.npy", keys)
    report = distscan.scan_file(
        ["a.npy", folder / "b.npy"],
        "y.npy",
        segments="keys.npy",
        backend="cpu",
        state="state.json",
        trace="trace.json",
        comm=comm,
    )
    want = np.cumsum(x.reshape(10, 100), axis=1).reshape(-1)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), want)
    assert report.total == want[-1]
    assert (folder / "state.json").exists()
    assert (folder / "trace.json").exists()


def test_raw(comm, folder, rng):
    x = rng.integers(0, 100, (40, 3), "u1")
    if comm.rank == 0:
        x.tofile(folder / "x.bin")
    comm.Barrier()
    for dtype in (None, "i4"):
        distscan.scan_file("x.bin", "y.npy", raw="u1", shape=(40, 3), axis=0, dtype=dtype,
                           force=True, resume=True, comm=comm, backend="cpu")  # fmt: skip
        y = np.load(folder / "y.npy")
        np.testing.assert_array_equal(y, np.cumsum(x, axis=0))
        assert y.dtype == (dtype or np.cumsum(x).dtype)
        comm.Barrier()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("width", "pieces"), [(30_000, 12), (9000, 6), (3000, 1)])
def test_long_rows(width, pieces, reverse, comm, folder, save, rng):
    """Ranks divide the columns, as many as are in 64 KiB at least, and wait for no other one."""
    x = rng.integers(-9, 9, (11, 3, width))
    save("x.npy", x)
    report = distscan.scan_file("x.npy", "y.npy", axis=0, reverse=reverse, backend="cpu", comm=comm,
                                check=True)  # fmt: skip
    want = x[::-1].cumsum(0)[::-1] if reverse else x.cumsum(0)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), want)
    assert (report.seconds["exscan"] > 0) == (pieces < comm.size)
    assert report.bytes["read"] == x.nbytes


@pytest.mark.parametrize("shape", [(10_007,), (9, 30_000), (2000, 7)])
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 0, "reverse": True}, {"axis": -1}])
def test_while_a_gpu_starts(options, shape, comm, folder, save, rng, monkeypatch):
    """Or its driver is there alone: other threads read ahead, and allocate the output."""
    monkeypatch.setattr(job, "_DRIVERS", ("/",))
    monkeypatch.setattr(job, "GPU_CHUNK", 4096)
    monkeypatch.setattr(storage, "is_mapped", lambda path: True)
    x = rng.integers(-9, 9, shape)
    save("x.npy", x)
    distscan.scan_file("x.npy", "y.npy", **options, comm=comm)
    axis = options.get("axis")
    turned = x[::-1] if "reverse" in options else x
    want = np.cumsum(turned, axis)[:: -1 if "reverse" in options else 1]
    np.testing.assert_array_equal(np.load(folder / "y.npy"), want)


def test_progress(comm, folder, save, rng):
    """It goes to rank 0 alone, never back, and ends at the end."""
    x, seen = rng.normal(size=(1 << 21) + 5), []
    save("x.npy", x)
    distscan.scan_file("x.npy", "y.npy", memory=1 << 18, backend="cpu", comm=comm, check=True,
                       progress=lambda *found: seen.append(found))  # fmt: skip
    if comm.rank > 0:
        assert seen == []
        return
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == ["scan", "write", "check"]
    assert ("write", 0, 0) in seen
    for phase in ("scan", "check"):
        done = [n for name, n, size in seen if name == phase]
        assert done == sorted(done)
        assert done[-1] == x.nbytes
        assert {size for name, _, size in seen if name == phase} == {x.nbytes}


@pytest.mark.parametrize("phase", ["scan", "check"])
def test_progress_that_fails(phase, comm, folder, save):
    """On rank 0; every rank raises, and there is no output."""

    def broken(shown, *_):
        if shown == phase:
            raise RuntimeError("nobody looks")

    save("x.npy", np.arange(100.0))
    with pytest.raises(RuntimeError, match="nobody looks"):
        distscan.scan_file("x.npy", "y.npy", comm=comm, backend="cpu", progress=broken, check=True)
    comm.Barrier()
    assert sorted(path.name for path in folder.iterdir()) == ["x.npy"]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"op": "mean"}, ValueError, "unknown operator"),
        ({"axis": 1.5}, TypeError, "axis must be"),
        ({"axis": 1}, ValueError, "out of bounds"),
        ({"dtype": "U3"}, TypeError, "dtype is"),
        ({"backend": "gpu"}, ValueError, "unknown backend"),
        ({"initial": "three"}, ValueError, "is no number"),
        ({"raw": "c16"}, distscan.InputError, "no multiple"),
        ({"input": "none.npy"}, distscan.InputError, "No such file"),
        ({"output": "x.npy"}, distscan.OutputError, "exists"),
    ],
)
def test_faults(options, kind, message, comm, folder, save):
    save("x.npy", np.arange(100, dtype="i2"))
    with pytest.raises(kind, match=message):
        distscan.scan_file(**{"input": "x.npy", "output": "y.npy", "comm": comm} | options)
    comm.Barrier()
    assert sorted(path.name for path in folder.iterdir()) == ["x.npy"]


def test_an_operator(comm, folder, save, rng):
    x = rng.integers(-9, 9, 500)
    save("x.npy", x)
    distscan.scan_file("x.npy", "y.npy", SQUARES, comm=comm, backend="cpu", memory=1 << 9)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), np.cumsum(x**2))


# ---- the files of a job: each has one role, all appear together, and none is written by a link ---

X = np.arange(1, 50)


@pytest.fixture
def files(save, comm, folder):
    """An input, flags, another name of the input, and a file of somebody else."""
    save("x.npy", X)
    save("flags.npy", np.zeros(X.size, bool))
    if comm.rank == 0:
        os.link(folder / "x.npy", folder / "hard.npy")
        (folder / "old").write_text("precious")
        (folder / "soft").symlink_to("old")
    return left(comm, folder)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


PART = ".y.npy.distscan-1.part"
ROLES = {
    "trace INPUT": (["--trace", "x.npy", "--force"], "an input and the trace"),
    "trace a link of INPUT": (["--trace", "hard.npy", "--force"], "an input and the trace"),
    "trace SEGMENTS": (["--segments", "flags.npy", "--trace", "flags.npy", "--force"],
                       "the segments and the trace"),
    "state INPUT": (["--state", "x.npy"], "x.npy"),
    "state OUTPUT": (["--state", "y.npy"], "the output and the state"),
    "trace OUTPUT": (["--trace", "./y.npy", "--force"], "the output and the trace"),
    "state trace": (["--state", "j", "--trace", "j"], "the state and the trace"),
    "trace another file": (["--trace", "old"], "old exists; --force replaces it"),
    "trace a link": (["--trace", "soft"], "old exists; --force replaces it"),
    "state another file": (["--state", "old"], "old cannot be used: it was not written"),
    "state a link": (["--state", "soft"], "soft cannot be used: it was not written"),
    "state a folder": (["--state", "."], "not a regular file"),
    "trace a part": (["--trace", PART], "may be a part file of the output"),
    "each": (["--each", "hard.npy"], None),
}  # fmt: skip


@pytest.mark.parametrize("case", ROLES)
def test_one_file_in_two_roles(case, files, run, comm, folder):
    options, message = ROLES[case]
    before = contents(folder)
    comm.Barrier()
    if message is None:  # an output of one job is an input of another
        options, message = ["--each", "x.npy", "x.scan.npy"], "and the output"
        os.link(folder / "old", folder / "x.scan.npy") if comm.rank == 0 else None
        before["x.scan.npy"] = b"precious"
        comm.Barrier()
        end = run(*options, "--force", "--quiet")
    else:
        end = run("x.npy", "-o", "y.npy", "--quiet", *options)
    assert (end[0], end[2].count("\n")) == (2, 1), end[2]
    assert message in end[2] or message == "and the output"
    comm.Barrier()
    assert contents(folder) == before
    comm.Barrier()


def test_a_pipe_as_state(files, run, comm, folder):
    if comm.rank == 0:
        os.mkfifo(folder / "pipe")
    comm.Barrier()
    status, _, err = run("x.npy", "-o", "y.npy", "--state", "pipe", "--quiet")
    assert status == 2
    assert "pipe is not a regular file" in err


# ---- links at names that others can predict --------------------------------------------------


def predictable(folder):
    """Of the part file of a resumed job, its journals, and the part file of the state."""
    part = output.resumable(folder / "y.npy")
    journals = [part.with_name(part.name + end) for end in (".0", ".0.new")]
    return {"part": part, "journal": journals[0], "new journal": journals[1],
            "state": output.resumable(folder / "s")}  # fmt: skip


@pytest.mark.parametrize("link", ["symbolic", "hard", "to nothing"])
@pytest.mark.parametrize("which", ["part", "journal", "new journal", "state"])
def test_links_are_not_followed(which, link, files, run, comm, folder, monkeypatch):
    path = predictable(folder)[which]
    if comm.rank == 0:
        if link == "hard":
            os.link(folder / "old", path)
        else:
            path.symlink_to("old" if link == "symbolic" else "new")
    comm.Barrier()
    monkeypatch.setattr(restart, "PERIOD", 0)
    options = ["--resume", "--state", "s", "--memory", "500", "--threads", "1", "--backend", "cpu"]
    end = run("x.npy", "-o", "y.npy", "--quiet", *options)
    if end[0] != 0:  # a journal that is none may be refused; what it names is whole
        assert which == "journal"
        assert end[0] == 2
    else:
        np.testing.assert_array_equal(np.load(folder / "y.npy"), X.cumsum())
        assert not (folder / "y.npy").is_symlink()
        assert left(comm, folder) == sorted([*files, "s", "y.npy"])
    assert (folder / "old").read_text() == "precious"
    assert not (folder / "new").exists()


def test_killed_before_the_part_file_lost_its_name(files, run, comm, folder, save):
    """The output has two names then: the next job writes into neither."""
    assert run("x.npy", "-o", "y.npy", "--quiet")[0] == 0
    comm.Barrier()
    if comm.rank == 0:
        os.link(folder / "y.npy", output.resumable(folder / "y.npy"))
    comm.Barrier()
    with (folder / "y.npy").open("rb") as stream:
        save("x.npy", -X)
        assert run("x.npy", "-o", "y.npy", "--resume", "--force", "--quiet")[0] == 0
        np.testing.assert_array_equal(np.load(stream), X.cumsum())
    np.testing.assert_array_equal(np.load(folder / "y.npy"), -X.cumsum())
    comm.Barrier()


# ---- all files appear, or none ---------------------------------------------------------------


@pytest.mark.parametrize("what", ["state", "trace", "output", "publish"])
def test_nothing_appears_before_everything_can(what, files, run, comm, folder, monkeypatch):
    """And the same command can be run again."""
    command = ["x.npy", "-o", "y.npy", "--state", "s", "--trace", "t", "--quiet"]

    def appear(elements, index):
        (folder / "y.npy").write_text("came meanwhile")
        return elements

    with monkeypatch.context() as patch:
        if what == "output":
            spoil(patch, appear)
        elif what == "publish":
            patch.setattr(Path, "replace", raises(errno.EACCES))
        else:
            write = output.Draft.write

            def fail(draft, text):
                raises(errno.ENOSPC)() if draft.path.name == what[0] else write(draft, text)

            patch.setattr(output.Draft, "write", fail)
        status, _, err = run(*command)
    assert status == (2 if what in ("output", "publish") else 1), err
    comm.Barrier()
    if what == "output" and comm.rank == 0:
        (folder / "y.npy").unlink()
    assert left(comm, folder) == files
    assert run(*command)[0] == 0
    assert left(comm, folder) == sorted([*files, "s", "t", "y.npy"])


def test_a_job_that_stops_leaves_no_state(files, run, comm, folder, monkeypatch):
    with monkeypatch.context() as patch:
        spoil(patch, full_after(0))
        assert run("x.npy", "-o", "y.npy", "--state", "s", "--trace", "t", "--quiet")[0] == 1
    assert left(comm, folder) == files


def test_one_job_at_a_time_uses_a_state(files, comm, folder):
    given = {"comm": comm, "backend": "cpu", "state": folder / "s"}
    with ExitStack() as held:
        if comm.rank == 0:
            held.enter_context(output.draft(folder / "s", use="uses the state"))
        comm.Barrier()
        everywhere(comm, OutputError, "another job uses the state .*s", lambda: scan_file(
            folder / "x.npy", folder / "y.npy", **given))  # fmt: skip
    comm.Barrier()
    assert scan_file(folder / "x.npy", folder / "y.npy", **given).total == X.sum()
    assert left(comm, folder) == sorted([*files, "s", "y.npy"])
    everywhere(comm, OutputError, "y.npy exists; force=True replaces it", lambda: scan_file(
        folder / "x.npy", folder / "y.npy", **given))  # fmt: skip
