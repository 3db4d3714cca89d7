"""``distscan.scan_file``: the file job from Python, with the arguments of ``scan``."""

import numpy as np
import pytest

import distscan
from distscan import cli
from support.squares import SQUARES


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


def test_progress(comm, folder, save, rng):
    """It goes to rank 0 alone, never back, and ends at the end."""
    x, seen = rng.normal(size=(1 << 21) + 5), []
    save("x.npy", x)
    distscan.scan_file("x.npy", "y.npy", memory=1 << 18, backend="cpu", comm=comm, check=True,
                       progress=lambda *found: seen.append(found))  # fmt: skip
    if comm.rank > 0:
        assert seen == []
        return
    phases = ["reduce"] * (comm.size > 1) + ["scan", "check"]
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == phases
    for phase in phases[:-1]:
        done = [n for name, n, size in seen if name == phase]
        assert done == sorted(done)
        assert done[-1] == x.nbytes
        assert {size for name, _, size in seen if name == phase} == {x.nbytes}


def test_progress_that_fails(comm, folder, save):
    """On rank 0; every rank raises, and there is no output."""

    def broken(*_):
        raise RuntimeError("nobody looks")

    save("x.npy", np.arange(100.0))
    with pytest.raises(RuntimeError, match="nobody looks"):
        distscan.scan_file("x.npy", "y.npy", comm=comm, backend="cpu", progress=broken)
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


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("done", "size", "seconds", "text"),
    [
        (0, 0, 1, "distscan: scan"),
        (
            10**9,
            4 * 10**9,
            2,
            "scan    [#####...............]  25%  1.00 of 4.00 GB  0.50 GB/s  6 s",
        ),
        (1, 10**12, 1, "0.00 GB/s  277777777:46:39 left"),
        (10**9, 10**9, 90, "100%  1.00 of 1.00 GB  0.01 GB/s  0 s left"),
    ],
)
def test_the_line_of_progress(done, size, seconds, text):
    assert text in cli._progress("scan", done, size, seconds)
