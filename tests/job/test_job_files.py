"""The files of a job: each has one role, all appear together, and none is written by a link."""

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from distscan import scan_file
from distscan.core.errors import OutputError
from distscan.job import output, restart
from support.together import everywhere, left
from support.writers import full_after, raises, spoil

pytestmark = pytest.mark.timeout(60)
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
