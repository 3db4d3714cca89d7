"""Mistakes on the command line: one line says what is wrong and what to do; nothing is left."""

import errno
import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from distscan.__main__ import main
from distscan.service import commands, errors
from support.jobs import raises
from support.processes import left

ALL = "--help lists the arguments"  # what to do about a word that is no argument

#: The arguments; what the message says; what to do. {here} is the folder.
MISTAKES = {
    # ---- commands
    "command": ("sbumit x.npy", "no command sbumit", "did you mean submit?"),
    "command, singular": ("job", "no command job", "did you mean jobs?"),
    "command, longer": ("server", "no command server", "did you mean serve?"),
    "command, far": ("frobnicate", "no command frobnicate", "The commands are serve, submit, jobs"),
    "help of none": ("help x", "no command x", "--help explains them"),
    "nothing": ("", "required: INPUT", ALL),
    "shell": ("--print-completion tcsh", "invalid choice: 'tcsh'", "'bash', 'zsh', 'fish'"),
    # ---- words
    "option": ("x.npy --fast", "unrecognized arguments: --fast", ALL),
    "short option": ("x.npy -q", "unrecognized arguments: -q", ALL),
    "half an option": ("x.npy --excl", "unrecognized arguments: --excl", ALL),
    "no value": ("x.npy -o", "-o/--output: expected one argument", ALL),
    "one of two values": ("x.npy --op fsum --window 1", "expected 2 arguments", ALL),
    "operator": ("x.npy --op mean", "invalid choice: 'mean'", "choose from bitwise_and"),
    "backend": ("x.npy --backend gpu", "invalid choice: 'gpu'", "'auto', 'cpu', 'cuda'"),
    "strategy": ("x.npy --strategy fused", "invalid choice: 'fused'", "'reduce-scan'"),
    "nulls": ("x.npy --nulls none", "invalid choice: 'none'", "'refuse', 'skip', 'zero'"),
    "axis of letters": ("x.npy --axis a", "--axis: invalid int value: 'a'", ALL),
    "threads of letters": ("x.npy --threads two", "--threads: invalid int value: 'two'", ALL),
    "memory": ("x.npy --memory lots", "not 'lots'", "a size is such as 128M or 2G"),
    "no memory": ("x.npy --memory 0", "not '0'", "a size is such as 128M or 2G"),
    "shape": ("raw.bin --raw --dtype f4 --shape 5,x", "not '5,x'", "a shape is such as 1000,3"),
    # ---- operators in modules
    "module": ("x.npy --op nowhere:op", "No module named 'nowhere'", "Python looks for MODULE"),
    "name in a module": ("x.npy --op math:op", "no attribute 'op'", "Python looks for MODULE"),
    "no Operator": ("x.npy --op math:pi", "math:pi is no Operator, but float", "distscan.Op"),
    # ---- inputs
    "missing": ("none.npy", "cannot read none.npy: No such file", "check the path"),
    "missing, several": ("x.npy none.npy -o y.npy", "cannot read none.npy", "check the path"),
    "pattern": ("*.nothing", "no file matches *.nothing", "check the pattern"),
    "folder": ("folder", "folder is not a regular file", "'folder/*.npy'"),
    "empty": ("empty.npy", "empty.npy is not a .npy file", "write it by numpy.save"),
    "header": ("header.npy", "header.npy is not a .npy file", "write it by numpy.save"),
    "text": ("text.npy", "it is text, such as CSV", "convert it: numpy.save"),
    "cut off": ("cut.npy", "cut.npy is truncated: 200 of 208 bytes", "write it again"),
    "words": ("words.npy", "words.npy holds <U1", "convert it by astype"),
    "objects": ("objects.npy", "holds pickled Python objects", "save x.astype(float)"),
    "member of .csv": ("a.csv::a", "cannot read a.csv::a", "FILE::NAME is for files of HDF5"),
    "member of .npy": ("x.npy::a", "cannot read x.npy::a", "FILE::NAME is for files of HDF5"),
    "several members": ("two.npz", "two.npz has a, b", "name one, such as two.npz::a"),
    "no such member": ("two.npz::c", "there is no two.npz::c", "arrays: a, b"),
    "archive": ("text.npz::a", "is no archive of NumPy's arrays", "write it by numpy.savez"),
    "raw bytes": ("raw.bin --raw --dtype f4", "7 bytes, no multiple of the 4", "check the type"),
    "raw shape": ("raw.bin --raw --dtype i1 --shape 3,2", "(3, 2) has 6", "check the type and"),
    "other parts": ("x.npy rows.npy -o y.npy", "rows.npy has float64", "scan each on its own"),
    # ---- options that do not fit
    "raw": ("x.npy --raw", "--raw needs --dtype", "such as --dtype f4"),
    "shape of .npy": ("x.npy --shape 5", "--shape is for --raw", "leave it out"),
    "dtype": ("x.npy --dtype nonsense", "'nonsense' is not understood", "a type is such as"),
    "dtype of text": ("x.npy --dtype U4", "dtype is <U4", "a scan takes bool, integer, float"),
    "operator's type": ("f.npy --op bitwise_and", "does not take float64", "convert the elements"),
    "initial": ("x.npy --initial three", "'three' is no number", "numbers are such as"),
    "initial's type": ("x.npy --initial 0.5", "initial is float64", "name another initial"),
    "initial's range": ("x.npy --initial -1 --dtype u1", "out of bounds for uint8", "wider dtype"),
    "axis": ("x.npy --axis 3", "axis 3 is out of bounds", "axes are -1 to 0"),
    "threads": ("x.npy --threads 0", "not 0", "threads must be an integer of at least 1"),
    "window": ("x.npy --window 1 2", "--window is for --op fsum", "leave --window out"),
    "window turned": ("x.npy --op fsum --window 5 2", "(5, 2)", "low must be below high"),
    "check of fsum": ("x.npy --op fsum --check", "has no reference for fsum", "leave it out"),
    "check of segments": ("x.npy --check --segments x.npy", "no reference", "leave it out"),
    "trust": ("x.npy --trust-input", "--trust-input is for --resume", "add it"),
    "segments": ("x.npy --segments short.npy", "short.npy has shape (3,)", "an element for each"),
    "missing segments": ("x.npy --segments none.npy", "cannot read none.npy", "check the path"),
    # ---- outputs and other files
    "output exists": ("x.npy -o f.npy", "{here}/f.npy exists", "--force replaces it"),
    "output is input": ("x.npy -o x.npy", "{here}/x.npy exists", "--force replaces it"),
    "output's folder": ("x.npy -o no/y.npy", "no directory {here}/no", "create it: mkdir -p"),
    "output a folder": ("x.npy -o folder", "{here}/folder is a directory", "name a file with -o"),
    "several inputs": ("x.npy f.npy", "several INPUTs are scanned as one", "-o names its OUTPUT"),
    "each": ("--each x.npy -o y.npy", "-o is a folder, and y.npy is none", "create it"),
    "each's trace": ("--each x.npy --trace t.json", "are for one array", "run one job for each"),
    "state of no state": ("x.npy --state text.npy", "text.npy cannot be used", "name another file"),
    "state is input": ("x.npy --state x.npy", "is an input and the state", "name another"),
    "state of fsum": ("x.npy --op fsum --state s.json", "does not take fsum", "of one job"),
    "state at a URL": ("x.npy --state http://a/b", "not the URL http://a/b", "it must be a file"),
    "trace is input": ("x.npy --trace x.npy", "is an input and the trace", "name another"),
    "trace's folder": ("x.npy --trace no/t.json", "no directory {here}/no", "create it: mkdir -p"),
    # ---- services: what every rank reads
    "port alone": ("serve --port 3", "--port and --token-file are for TCP", "name a --host"),
    "host alone": ("serve --host 127.0.0.1", "any user of this machine", "--token-file is needed"),
    "open host": ("serve --host 0.0.0.0 --token-file f", "0.0.0.0 can be reached", "ssh -L"),
    "days": ("serve --keep -1", "not -1.0", "a number of days, 0 or more"),
    # ---- the benchmark
    "sizes": ("bench --sizes a", "not 'a'", "sizes are powers A or ranges A:B"),
    "large sizes": ("bench --sizes 50", "not '50'", "0 <= A <= B <= 36"),
    "contenders": ("bench --contenders fast", "'fast' is none of", "copy, single-pass"),
    "limit": ("bench --limit 3", "--limit is for --against", "by --against FILE"),
}  # fmt: skip

#: The same of commands that have no ranks, with their exit status.
OF_CLIENTS = {
    "no service": (1, "submit x.npy --address {here}/s", "no service answers", "start one: mpirun"),
    "no server": (1, "jobs --address http://127.0.0.1:1", "no service answers", "start one"),
    "key of several": (2, "submit --each x.npy --key k", "--key is for one job", "leave one"),
    "submitted word": (2, "submit x.npy --fast", "unrecognized arguments: --fast", "submit " + ALL),
    "submitted input": (2, "submit *.nothing", "no file matches", "check the pattern"),
    "token": (1, "jobs --token-file none", "cannot read the token in none", "name the file of the"),
    "short token": (1, "jobs --token-file key", "fewer than 16 characters", "openssl rand"),
    "open token": (1, "jobs --token-file a.csv", "others may read a.csv", "run chmod 600 a.csv"),
    "job": (2, "show", "required: JOB", "show " + ALL),
    "job of letters": (2, "show x", "JOB: invalid int value: 'x'", "show " + ALL),
    "jobs": (2, "cancel 1 2", "unrecognized arguments: 2", "cancel " + ALL),
    "arch": (2, "warm --arch 12", "'12'", "a compute capability is such as 90"),
    "kernels' operator": (2, "warm --ops mean --arch 90", "unknown operator 'mean'", "choose from"),
}  # fmt: skip


@pytest.fixture
def files(save, comm, folder, monkeypatch):
    """Good files and bad ones, in the folder where the commands run."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # a command is no end of this process
    if comm.rank == 0:
        np.save("x.npy", np.arange(10))
        np.save("f.npy", np.arange(5) / 3)
        np.save("rows.npy", np.ones((3, 4)))
        np.save("short.npy", np.ones(3, bool))
        np.save("words.npy", np.array(["a", "b"]))
        np.save("objects.npy", np.array([{}, 1], object), allow_pickle=True)
        np.savez("two.npz", a=np.arange(3), b=np.arange(3))
        Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-8])
        Path("empty.npy").touch()
        Path("header.npy").write_bytes(b"\x93NUMPY \1 no header")
        Path("raw.bin").write_bytes(b"1234567")
        for name in ("text.npy", "text.npz", "a.csv", "d.h5", "d.parquet"):
            Path(name).write_text("1,2,3\n" * 9)
        Path("a.csv").chmod(0o644)
        Path("key").write_text("secret")
        Path("key").chmod(0o600)
        Path("folder").mkdir()
    comm.Barrier()


@pytest.fixture
def refused(comm, folder, files, capsys):
    """Run a command that is refused; return its line."""

    def refused(line, status, *fragments):
        before = left(comm, folder)
        capsys.readouterr()
        found = main(line.format(here=folder).split())
        out, err = capsys.readouterr()
        if comm.rank > 0:
            assert (out, err) == ("", "")
        found, out, err = comm.bcast((found, out, err))
        assert (found, out) == (status, ""), err
        assert err.startswith("distscan: error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        for fragment in fragments:
            assert fragment.format(here=folder.resolve()) in err
        assert left(comm, folder) == before
        return err

    return refused


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case, refused):
    line, *fragments = MISTAKES[case]
    refused(line, 2, *fragments)


@pytest.mark.one_rank
@pytest.mark.parametrize("case", OF_CLIENTS)
def test_mistakes_of_clients(case, refused, monkeypatch):
    monkeypatch.setattr(commands, "_PATIENCE", 0.05)
    status, line, *fragments = OF_CLIENTS[case]
    refused(line, status, *fragments)


@pytest.mark.one_rank
def test_a_job_that_no_service_has(refused, monkeypatch):
    def answer(*_, **__):
        raise errors.NotFoundError("there is no job 77")

    monkeypatch.setattr(commands.Client, "request", answer)
    for command in ("show", "cancel"):
        refused(f"{command} 77", 1, "there is no job 77", "jobs lists them")


def test_no_permission(refused, monkeypatch):
    monkeypatch.setattr(Path, "open", raises(errno.EACCES))
    refused("x.npy", 2, "cannot read x.npy: Permission denied", "chmod +r")


@pytest.mark.parametrize(
    ("line", "module", "status", "action"),
    [
        ("d.h5", "h5py", 2, "pip install 'distscan[hdf5]'"),
        ("d.parquet", "pyarrow", 2, "pip install 'distscan[parquet]'"),
        ("--print-completion bash", "argcomplete", 1, "pip install argcomplete"),
    ],
)
def test_packages_that_are_missing(line, module, status, action, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    refused(line, status, module, action)


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")
def test_no_gpu(refused):
    pytest.importorskip("cupy")
    refused("x.npy --backend cuda", 1, "no usable NVIDIA GPU", "backend cpu needs none")


def test_a_state_of_another_scan(refused, run):
    assert run("x.npy", "--state", "s.json", "--quiet")[0] == 0
    refused("x.npy -o y.npy --state s.json --op max", 2, "s.json", "remove it to begin anew")


@pytest.mark.parametrize("name", ["serve", "jobs"])
def test_files_with_names_of_commands(name, run, files, comm, folder):
    """Their paths are those of files."""
    if comm.rank == 0:
        (folder / "x.npy").rename(folder / name)
    comm.Barrier()
    assert main([f"./{name}", "-o", "y.npy", "--quiet"]) == 0
    comm.Barrier()
    np.testing.assert_array_equal(np.load(folder / "y.npy"), np.arange(10).cumsum())
