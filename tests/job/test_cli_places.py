"""The command line where ranks see different files, and where files cannot be read or written."""

import errno
import io
import os
import re
import signal
import sys
from contextlib import suppress
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest

from distscan import binding, cli
from distscan.job import check, job
from distscan.job.formats import storage
from distscan.job.formats.files import File
from support.writers import raises, refuse, spoil


def each_its_own(comm, monkeypatch, tmp_path):
    """Every rank works in a folder of its own, as on disks of its node."""
    monkeypatch.chdir(tmp_path)
    comm.Barrier()


@pytest.mark.parametrize("what", ["size", "content", "mtime_ns", "missing"])
def test_inputs_that_differ(what, run, comm, tmp_path, monkeypatch):
    """Under one path the last rank has another file than the others, or none."""
    each_its_own(comm, monkeypatch, tmp_path)
    odd = comm.rank == comm.size - 1
    x = np.arange(100_000.0)
    if odd and what == "size":
        x = x[:-1]
    if odd and what == "content":
        x[-1] = 7
    if not odd or what != "missing":
        np.save("x.npy", x)
        os.utime("x.npy", ns=(0, 10**18 + (odd and what == "mtime_ns")))
    status, out, err = run("x.npy", "--quiet")
    if comm.size == 1 and what != "missing":
        assert (status, out, err) == (0, "", "")
        return
    assert (status, out) == (2, "")
    if what == "missing":
        assert "No such file" in err
    else:
        assert f"the ranks disagree on the {what} of x.npy, which must be on a file system" in err
    if comm.size > 1:
        assert f"rank {comm.size - 1}: " in err
    assert os.listdir() == (["x.npy"] if not odd or what != "missing" else [])


def test_a_folder_that_is_not_shared(run, save, comm, folder, tmp_path, monkeypatch):
    """The input is everywhere, the folder for the output on each rank another."""
    x = np.arange(100)
    save("x.npy", x)
    each_its_own(comm, monkeypatch, tmp_path)
    (tmp_path / "here").symlink_to(folder)
    (tmp_path / "out").mkdir()
    places = comm.allgather(tmp_path / "out")
    if comm.rank == 0:
        (folder / "y.npy").symlink_to(places[0] / "y.npy")
    if comm.rank > 0:  # rank 0's folder, as another node sees it
        check = File.check_shared
        monkeypatch.setattr(
            File,
            "check_shared",
            lambda file: check(file._replace(path=tmp_path / "out" / file.path.name)),
        )
    status, out, err = run("here/x.npy", "-o", "here/y.npy", "--quiet")
    if comm.size == 1:
        assert (status, err) == (0, "")
        return
    assert (status, out) == (2, "")
    assert "is not as rank 0 sees it (No such file or directory: .y.npy.distscan-" in err
    assert "put the output on a file system that all ranks share" in err
    assert "rank 1: " in err
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("step", "number", "status"),
    [
        ("create", errno.EROFS, 2),
        ("write", errno.ENOSPC, 1),
        ("write everywhere", errno.ENOSPC, 1),
        ("mapped write", errno.ENOSPC, 1),
        ("fsync", errno.ENOSPC, 1),
        ("publish", errno.EACCES, 2),
    ],
)
def test_what_the_system_refuses(step, number, status, run, save, comm, folder, monkeypatch):
    """The message names the output, and every rank once; nothing is left."""
    save("x.npy", np.arange(100))
    monkeypatch.setattr(storage, "is_in_memory", lambda _: step == "mapped write")
    if step == "create":
        monkeypatch.setattr(os, "open", raises(number))
    elif step == "fsync":  # one rank of each node calls it
        refuse(monkeypatch, step, number)
    elif "everywhere" in step or ("write" in step and comm.rank == comm.size - 1):
        refuse(monkeypatch, "write", number)
    elif step == "publish":
        monkeypatch.setattr(type(folder), "replace", raises(number))
    found = run("x.npy", "--quiet", "--force")
    monkeypatch.undo()
    assert found[:2] == (status, "")
    assert re.search(rf"cannot write (/\S+/)?x.scan.npy: {os.strerror(number)}$", found[2])
    assert found[2].count("rank") == (comm.size > 1)
    comm.Barrier()
    assert os.listdir(folder) == ["x.npy"]


def test_on_the_disk_before_it_has_its_name(run, save, comm, folder, monkeypatch):
    """What all ranks have written."""
    written, synced, fsync = [], [], os.fsync

    def note(elements, _):
        written.append(monotonic())
        return elements

    def sync(opened):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{opened}"))
        synced.append((monotonic(), name, (folder / "x.scan.npy").exists()))
        fsync(opened)

    save("x.npy", np.arange(1000))
    monkeypatch.setattr(storage, "is_in_memory", lambda _: False)
    spoil(monkeypatch, note)
    monkeypatch.setattr(os, "fsync", sync)
    assert run("x.npy", "--quiet")[0] == 0
    last = max(at for times in comm.allgather(written) for at in times)
    if comm.rank == 0:
        (_, header, _), (at, part, named), (_, place, there) = synced
        assert header == part
        assert part.endswith(".part")
        assert at > last
        assert (named, place, there) == (False, folder.name, True)


def test_a_failed_check_keeps_the_file(run, save, comm, folder, monkeypatch):
    save("x.npy", np.ones(1000, int))
    with monkeypatch.context() as patch:
        spoil(patch, lambda elements, _: elements + (comm.rank == 0))
        status, _, err = run("x.npy", "--check", "--quiet")
    assert status == 1
    assert "element 0 of the result is 2, NumPy gives 1; it is in " in err
    comm.Barrier()
    (kept,) = set(os.listdir(folder)) - {"x.npy"}
    assert err.rstrip().endswith(kept)
    assert np.load(folder / kept)[0] == 2
    comm.Barrier()
    assert run("x.npy", "--check", "--quiet")[0] == 0
    assert set(os.listdir(folder)) == {"x.npy", "x.scan.npy"}  # the next run removes it


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ended_by_a_signal(number, threads, run, save, comm, folder, monkeypatch):
    """While it writes, in the rank's own thread or in another."""
    if comm.size > 1:
        pytest.skip("MPI_Abort would end the tests")
    save("x.npy", np.ones(1000))

    def kill(elements, _):
        os.kill(os.getpid(), number)
        return elements

    handler = signal.default_int_handler if number == signal.SIGINT else lambda *_: None
    before = signal.signal(number, handler)
    spoil(monkeypatch, kill)
    try:
        status, _, err = run("x.npy", "--quiet", "--threads", threads)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert (status, err) == (130, "distscan: error: interrupted\n")
    assert os.listdir(folder) == ["x.npy"]


def test_any_rank_removes_the_part_file(comm, folder):
    """When it is interrupted: rank 0 may be waiting inside MPI."""
    plan = SimpleNamespace(types=SimpleNamespace(out=np.dtype("d")), shape=(3,), fortran=False)
    with suppress(KeyboardInterrupt), job.part_file(comm, folder / "y.npy", plan) as part:
        comm.Barrier()
        if comm.rank == comm.size - 1:
            raise KeyboardInterrupt
    comm.Barrier()
    assert os.listdir(folder) == []
    assert part.shape == (3,)


@pytest.mark.parametrize(
    ("fault", "status"), [(KeyboardInterrupt(), 130), (ValueError("of one rank"), 1)]
)
def test_a_rank_that_ends_alone_ends_the_others(fault, status, monkeypatch):
    """They would wait for it."""

    class Comm:
        rank, size, ended = 1, 2, None

        def Abort(self, number):
            self.ended = number

    def fail(*_):
        raise fault

    comm = Comm()
    monkeypatch.setattr(cli.communicators, "communicator", lambda _: comm)
    cli.run("distscan", fail, [])
    assert comm.ended == status


@pytest.mark.parametrize("rank", [0, 3])
def test_another_launcher(rank, run, comm, monkeypatch):
    """Each process is a rank on its own: the launcher's first says so."""
    if comm.size > 1:
        pytest.skip("MPI and launcher agree here")
    monkeypatch.setattr(cli.communicators, "launched_ranks", lambda: 8)
    monkeypatch.setattr(cli.launcher, "launched_rank", lambda: rank)
    status, out, err = run("x.npy")
    assert (status, out) == (1, "")
    assert ("the launcher started 8 ranks but MPI sees 1" in err) == (rank == 0)
    assert err.count("\n") == (rank == 0)


def test_an_error_is_one_line(run):
    """Whatever the name of the file."""
    status, out, err = run("a\n\tb.npy")
    assert (status, out) == (2, "")
    assert err.startswith("distscan: error: ")
    assert err.endswith("cannot read a b.npy: No such file or directory\n")
    assert err.count("\n") == 1


def test_nohup(run, save, comm, monkeypatch):
    """What ignores SIGHUP goes on."""
    save("x.npy", np.ones(1000))

    def hang_up(elements, _):
        os.kill(os.getpid(), signal.SIGHUP)
        return elements

    spoil(monkeypatch, hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run("x.npy", "--quiet")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["\u00e9.npy", "\udcff.npy", "-x.npy", "a b\nc.npy", "x"],
                         ids=["accent", "no_text", "minus", "newline", "bare"])  # fmt: skip
def test_odd_names(name, run, comm, folder, monkeypatch):
    """Also where the report's stream has no letters for them."""
    if comm.rank == 0:
        with (folder / name).open("wb") as stream:
            np.save(stream, np.arange(9))
    comm.Barrier()
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert run("--check", "--", name)[0] == 0
    assert (b"(checked)" in stdout.buffer.getvalue()) == (comm.rank == 0)
    found = np.load(folder / f"{name.removesuffix('.npy')}.scan.npy")
    np.testing.assert_array_equal(found, np.cumsum(np.arange(9)))


@pytest.mark.parametrize("axis", [[], ["--axis=0"], ["--axis=-1"]])
def test_one_number(axis, run, save, folder):
    """0-d, as numpy.cumsum: one element."""
    save("x.npy", np.array(3.5))
    assert run("x.npy", "--check", *axis)[0] == 0
    np.testing.assert_array_equal(np.load(folder / "x.scan.npy"), np.array([3.5]))


@pytest.mark.parametrize("when", ["read", "write", "check"])
def test_an_input_that_changes(when, run, save, folder, comm, monkeypatch):
    """Before it is read, while it is read and written, or before it is checked."""
    save("x.npy", np.arange(1000.0))
    owner, name = (binding, "bind") if when == "read" else (check, "check")
    work = getattr(owner, name)

    def change(elements=None, _=0):
        if comm.rank == comm.size - 1:
            os.utime(folder / "x.npy", ns=(0, 1))
        return elements

    def changes(*arguments, **options):
        change()
        return work(*arguments, **options)

    if when == "write":
        spoil(monkeypatch, change)
    else:
        monkeypatch.setattr(owner, name, changes)
    status, _, err = run("x.npy", "--check", "--quiet")
    assert status == 2
    assert "x.npy was changed while it was read" in err
    comm.Barrier()
    assert os.listdir(folder) == ["x.npy"]
