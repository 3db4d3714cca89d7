"""``python -m distscan``: what it writes, prints and returns, and what it cannot read or write."""

import errno
import io
import itertools
import json
import os
import re
import signal
import sys
from contextlib import suppress
from time import monotonic

import numpy as np
import pytest

import distscan
from distscan import binding, cli
from distscan.__main__ import main
from distscan.cpu import steps as cpu
from distscan.job import check, job
from distscan.job.formats import storage
from distscan.job.formats.files import File
from distscan.job.formats.interface import Layout
from support.data import OPS, exact
from support.jobs import raises, refuse, spoil
from support.processes import left
from support.reference import wanted

# ---- ``python -m distscan``: what it writes, prints and returns ----------------------------------

KEYS = ["elements", "dtype_in", "dtype_out", "op", "ranks", "nodes", "backend", "device",
        "strategy", "total", "output", "seconds", "bytes", "bounds"]  # fmt: skip
PHASES = ["start", "read", "copy_in", "reduce", "exscan", "scan", "copy_out", "write", "upload",
          "check", "all"]  # fmt: skip


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("code", ["<f4", ">i2", "?", "<c16", "<f2"])
def test_the_main_job(op, code, run, save, folder, comm, rng):
    x = exact(rng, op, code, 40003)
    save("x.npy", x)
    status, out, err = run("x.npy", "--op", op, "--check")
    assert status == 0, err
    y = np.load(folder / "x.scan.npy")
    want = wanted(x.astype(x.dtype.newbyteorder("=")), op)
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(y, want)
    assert left(comm, folder) == ["x.npy", "x.scan.npy"]
    assert f"{op} of 40003 elements" in out
    assert "(checked)" in out
    phases = ["distscan: scan", "distscan: write", "distscan: check"]
    assert [line for line in err.splitlines() if line] == phases


@pytest.mark.parametrize(
    ("op", "code"),
    [("logaddexp", "f"), ("logaddexp", "h"), ("bitwise_xor", "i"), ("logical_or", "d")],
)
def test_check_of_other_operators(op, code, run, save, folder, rng):
    x = (rng.normal(size=30001) * 20).astype(code)
    save("x.npy", x)
    status, _, err = run("x.npy", "--op", op, "--check", "--quiet")
    assert status == 0, err
    assert np.load(folder / "x.scan.npy").dtype == getattr(np, op).accumulate(x[:0]).dtype


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_fewer_elements_than_ranks(n, run, save, folder):
    save("x.npy", np.arange(n) + 3)
    status, out, err = run("x.npy", "--json", "--check")
    assert status == 0, err
    np.testing.assert_array_equal(np.load(folder / "x.scan.npy"), np.cumsum(np.arange(n) + 3))
    assert json.loads(out)["total"] == int((np.arange(n) + 3).sum())


@pytest.mark.parametrize("threads", ["1", "2"])
def test_pieces(threads, run, save, folder, comm, rng, monkeypatch):
    """Files much larger than the memory that they pass through."""
    x, written = rng.integers(-9, 9, 30011).astype(">i4"), []

    def note(elements, index):
        written.append((index, index + len(elements)))
        return elements

    spoil(monkeypatch, note)
    save("x.npy", x)
    status, _, err = run("x.npy", "--check", "--memory", "4K", "--threads", threads)
    assert status == 0, err
    np.testing.assert_array_equal(np.load(folder / "x.scan.npy"), np.cumsum(x))
    # Each element once, and at most as many at a time as have room.
    ranks = comm.allgather(written)
    ends = [at for piece in sorted(itertools.chain(*ranks)) for at in piece]
    assert ends[0] == 0
    assert ends[-1] == x.size
    assert ends[1:-1:2] == ends[2::2]
    assert max(high - low for low, high in written) <= 4096 // 8


def test_json(run, save, comm):
    save("x.npy", np.arange(10, dtype="i2"))
    strategy = ["--strategy", "scan-add"]
    status, out, _ = run("x.npy", "-o", "y.npy", "--json", "--quiet", "--backend", "cpu", *strategy)
    assert status == 0
    report = json.loads(out)
    assert list(report) == KEYS
    assert list(report["seconds"]) == list(report["bytes"]) == PHASES
    assert list(report["bounds"]) == PHASES[1:-2]
    assert {key: report[key] for key in KEYS[:7]} == {
        "elements": 10, "dtype_in": "int16", "dtype_out": "int64", "op": "sum",
        "ranks": comm.size, "nodes": 1, "backend": "cpu",
    }  # fmt: skip
    assert (report["strategy"], report["total"], report["output"]) == ("scan-add", 45, "y.npy")
    # Ranks need the totals of the others.
    assert (report["seconds"]["reduce"] > 0) == (comm.size > 1)
    assert report["seconds"]["all"] >= report["seconds"]["read"] > 0
    assert report["seconds"]["check"] == 0
    moved = report["bytes"]
    assert (moved["read"], moved["write"], moved["scan"], moved["all"]) == (20, 80, 100, 100)
    assert moved["reduce"] == 20 * (comm.size > 1)
    strategy[1] = "reduce-scan"
    report = json.loads(run("x.npy", "--json", "--quiet", "--backend", "cpu", *strategy)[1])
    assert report["strategy"] == "reduce-scan"
    assert (report["seconds"]["reduce"] > 0) == (comm.size > 1)


@pytest.mark.parametrize(
    ("x", "op", "total"),
    [
        (np.array([1.0, np.nan]), "sum", "nan"),
        (np.array([1 + 2j]), "sum", [1.0, 2.0]),
        (np.array([-np.inf]), "max", "-inf"),
        (np.array([True, True]), "max", True),
        (np.array([2**63 - 1, 1], "u8"), "sum", 2**63),
        (np.zeros(0), "prod", 1),
        (np.zeros(0), "max", None),
        (np.array([0.5], "g"), "sum", 0.5),
    ],
)
def test_totals_in_json(x, op, total, run, save):
    save("x.npy", x)
    status, out, err = run("x.npy", "--op", op, "--json")
    assert status == 0, err
    assert json.loads(out)["total"] == total


def test_dtype_and_default_backend(run, save, folder):
    save("x.npy", np.array([1.75, 2.75, 3.75]))
    status, out, _ = run("x.npy", "--dtype", "int32", "--check")
    assert status == 0
    np.testing.assert_array_equal(np.load(folder / "x.scan.npy"), np.array([1, 3, 6], "i4"))
    assert "backend cpu" in out or "backend cuda" in out


def test_output_is_kept_unless_forced(run, save, folder, comm):
    save("x.npy", np.arange(5))
    save("x.scan.npy", np.array([7]))
    status, out, err = run("x.npy")
    assert (status, out) == (2, "")
    assert "x.scan.npy exists; --force replaces it" in err
    np.testing.assert_array_equal(np.load(folder / "x.scan.npy"), [7])
    comm.Barrier()
    assert run("x.npy", "--force")[0] == 0
    np.testing.assert_array_equal(np.load(folder / "x.scan.npy"), np.cumsum(np.arange(5)))


def test_outputs_that_are_not_files(run, save, folder, comm):
    """A pipe is not replaced; a symbolic link is followed."""
    save("x.npy", np.arange(5))
    if comm.rank == 0:
        os.mkfifo(folder / "pipe")
        (folder / "target").mkdir()
        (folder / "link.npy").symlink_to(folder / "target" / "y.npy")
    comm.Barrier()
    status, _, err = run("x.npy", "-o", "pipe", "--force")
    assert status == 2
    assert "not a regular file" in err
    assert run("x.npy", "-o", "link.npy", "--quiet")[0] == 0
    assert (folder / "link.npy").is_symlink()
    np.testing.assert_array_equal(np.load(folder / "target" / "y.npy"), np.cumsum(np.arange(5)))


def test_input_replaced_by_its_scan(run, save, folder):
    save("x.npy", np.arange(5.0))
    assert run("x.npy", "-o", "x.npy", "--force", "--check")[0] == 0
    np.testing.assert_array_equal(np.load(folder / "x.npy"), np.cumsum(np.arange(5.0)))


BAD = {
    "nothing": ([], "the following arguments are required: INPUT"),
    "unknown": (["x.npy", "--fast"], "unrecognized arguments: --fast"),
    "operator": (["x.npy", "--op", "mean"], "invalid choice: 'mean'"),
    "missing": (["none.npy"], "cannot read none.npy: No such file"),
    "directory": (["."], "not a regular file"),
    "dtype": (["x.npy", "--dtype", "nonsense"], "nonsense"),
    "half a dtype": (["x.npy", "--dtype", "f4,("], "is not understood"),
    "long name": (["x.npy", "-o", "y" * 300], "File name too long"),
    "text dtype": (["x.npy", "--dtype", "U4"], "dtype is <U4"),
    "axis": (["x.npy", "--axis", "3"], "axis 3 is out of bounds"),
    "initial": (["x.npy", "--initial", "three"], "initial 'three' is no number"),
    "initial type": (["x.npy", "--initial", "0.5"], "initial is float64; the scan accumulates in"),
    "initial range": (["x.npy", "--initial", "-1", "--dtype", "u1"], "out of bounds for uint8"),
    "strategy": (["x.npy", "--strategy", "fused"], "invalid choice: 'fused'"),
    "output": (["x.npy", "-o", "none/y.npy"], "there is no directory"),
    "raw without a type": (["x.npy", "--raw"], "--raw needs --dtype"),
    "raw of another size": (["x.npy", "--raw", "--dtype", "f8", "--shape", "3,2"], "has 168 bytes"),
    "shape of .npy": (["x.npy", "--shape", "5"], "--shape is for --raw"),
    "shape": (
        ["x.npy", "--raw", "--dtype", "f4", "--shape", "5,x"],
        "a shape is such as 1000,3, not '5,x'",
    ),
    "objects": (["objects.npy"], "holds pickled Python objects"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_and_inputs(case, run, save, folder, comm):
    arguments, message = BAD[case]
    save("x.npy", np.arange(5))
    save("objects.npy", np.array([{}, 1], object))
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("distscan: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert left(comm, folder) == ["objects.npy", "x.npy"]


@pytest.mark.parametrize("method", ["begin", "finish"])
def test_a_fault_midway_leaves_no_output(method, run, save, folder, comm, monkeypatch):
    def fails(*_, **__):
        raise MemoryError("no room")

    save("x.npy", np.arange(100))
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(cpu.ScanAdd, method, fails)
    status, out, err = run("x.npy", "--quiet", "--backend", "cpu", "--strategy", "scan-add")
    assert (status, out) == (1, "")
    assert "no room" in err
    assert err.count("\n") == 1
    assert left(comm, folder) == ["x.npy"]


def test_cuda_without_gpu(run, save, comm):
    """A line that says what to install, or, where there is a GPU, the scan on it."""
    save("x.npy", np.arange(9))
    status, out, err = run("x.npy", "--backend", "cuda", "--json", "--quiet")
    if status == 0:
        assert json.loads(out)["backend"] == "cuda"
    else:
        assert status == 1
        assert "pip install '.[cuda13]'" in err or "no usable NVIDIA GPU" in err


def test_help_and_version(run):
    status, out, err = run("--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: python -m distscan")
    status, out, err = run("--version")
    assert (status, out, err) == (0, f"distscan {distscan.__version__}\n", "")


# ---- the command line where ranks see different files, and where files cannot be read or written -


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
    monkeypatch.setattr(storage, "is_mapped", lambda _: step == "mapped write")
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
    monkeypatch.setattr(storage, "is_mapped", lambda _: False)
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
    layout = Layout(np.dtype("d"), (3,))
    with suppress(KeyboardInterrupt), job.part_file(comm, folder / "y.npy", layout) as part:
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
    assert "cannot read a b.npy: No such file or directory; " in err
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


def test_a_package_that_some_ranks_lack(comm, folder, capsys, monkeypatch):
    """All ranks end, and one says so."""
    if comm.rank == comm.size - 1:
        monkeypatch.setitem(sys.modules, "distscan.service.serve", None)
    else:
        pytest.importorskip("starlette")
    assert main(["serve", "--socket", str(folder / "socket")]) == 1
    errors = comm.allgather(capsys.readouterr().err)
    assert errors[0].count("error:") == 1
    assert not any(errors[1:])
    assert "pip install '.[service]'" in errors[0]
