"""``python -m distscan``: what it writes, prints and returns."""

import json
import os

import numpy as np
import pytest

import distscan
from distscan.cpu import steps as cpu
from support.data import OPS, exact, expected
from support.together import left
from support.writers import spoil

KEYS = ["elements", "dtype_in", "dtype_out", "op", "ranks", "nodes", "backend", "device",
        "strategy", "total", "output", "seconds", "bytes", "bounds"]  # fmt: skip
PHASES = ["start", "read", "copy_in", "reduce", "exscan", "scan", "copy_out", "write", "check",
          "all"]  # fmt: skip


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("code", ["<f4", ">i2", "?", "<c16", "<f2"])
def test_the_main_job(op, code, run, save, folder, comm, rng):
    x = exact(rng, op, code, 40003)
    save("x.npy", x)
    status, out, err = run("x.npy", "--op", op, "--check")
    assert status == 0, err
    y = np.load(folder / "x.scan.npy")
    want = expected(op, x.astype(x.dtype.newbyteorder("=")))
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(y, want)
    assert left(comm, folder) == ["x.npy", "x.scan.npy"]
    assert f"{op} of 40003 elements" in out
    assert "(checked)" in out
    assert [line for line in err.splitlines() if line] == [
        f"distscan: {phase}" for phase in ["reduce"] * (comm.size > 1) + ["scan", "check"]
    ]


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
    ends = [at for pieces in comm.allgather(sorted(written)) for piece in pieces for at in piece]
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
    # Ranks need the totals of the others, so that they read their shards twice or keep them.
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
