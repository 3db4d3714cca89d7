"""``fsum`` of files: every prefix correctly rounded, in chunks of few elements."""

import json

import numpy as np
import pytest

import distscan
from distscan.engine.shard_scan import adds_exactly
from distscan.job import plan, restart, rounds
from support.cases import FORMS, forms, pairs
from support.exact import finite_bits, grid, normal, same, scanned, special
from support.jobs import full_after, spoil
from support.processes import left

pytestmark = pytest.mark.timeout(60)
WAYS = {
    "streaming": {"memory": 3000, "threads": 1},
    "threads": {"memory": 20000, "threads": 3},
    "ample": {},
}
DATA = [finite_bits, special, grid, normal]


@pytest.fixture
def job(save, folder, comm):
    """Scan an array by way of files; each call has files of its own."""

    def job(x, way="streaming", marks=None, **options):
        save("x.npy", x)
        if marks is not None:
            save("k.npy", marks)
            options["segments"] = folder / "k.npy"
        given = {"comm": comm, "backend": "cpu", "force": True, **WAYS[way], **options}
        report = distscan.scan_file(folder / "x.npy", folder / "y.npy", "fsum", **given)
        y = np.load(folder / "y.npy")
        comm.Barrier()
        return report, y

    return job


@pairs(group_by="data", data=DATA, form=FORMS, way=WAYS)
def test_forms(form, data, way, job, rng):
    form = form | {"initial": form["initial"] and float(rng.standard_normal())}
    x = data(rng, "float64", 501)
    report, y = job(x, way, **form)
    assert same(y, scanned(x, "float64", **form))
    last = scanned(x, "float64", **(form | {"exclusive": False}))[0 if form["reverse"] else -1]
    assert same(np.array(report.total), np.array(float(last)))
    assert (report.op, report.dtype_in, report.dtype_out) == ("fsum", "float64", "float64")


@pairs(
    group_by="data",
    data=[special, grid, normal],
    form=FORMS,
    often=[0.0, 0.1, 1.0],
    kind=["flags", "keys"],
)
def test_segments(data, form, often, kind, job, rng):
    n = 501
    x, heads = data(rng, "float64", n), rng.random(n) < often
    heads[0] = True
    _, y = job(x, marks=heads if kind == "flags" else np.cumsum(heads) % 7, **form)
    assert same(y, scanned(x, "float64", heads=heads, **form))


@pairs(data=[special, normal], axis=[None, 0, 1, 2], fortran=[False, True], way=WAYS)
def test_axes(data, axis, fortran, way, job, rng):
    form = {"exclusive": bool(rng.integers(2)), "reverse": bool(rng.integers(2))}
    x = data(rng, "float32", 23 * 5 * 7).reshape(23, 5, 7)
    memory = None if way == "ample" else 60000  # of some columns
    _, y = job(np.asfortranarray(x) if fortran else x, way, axis=axis, memory=memory, **form)
    assert same(y, scanned(x, "float32", axis=axis, **form))


def test_rows_longer_than_a_chunk(job, rng):
    x = special(rng, "float64", 9 * 700).reshape(9, 700)
    _, y = job(x, memory=60000, axis=0)
    assert same(y, scanned(x, "float64", axis=0))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("code", ["<f2", ">f8", "?", "i1", "u8"])
def test_one_rounding(code, dtype, job, rng):
    """Elements of any type enter exactly; the sum is rounded to the type of the result."""
    bits = rng.integers(0, 256, (501, np.dtype(code).itemsize), np.uint8)
    x = bits[:, 0] % 2 == 1 if code == "?" else bits.view(code).reshape(-1)
    if x.dtype.kind == "f":
        x = finite_bits(rng, x.dtype.name, 501).astype(code)
    _, y = job(x, dtype=dtype)
    assert same(y, scanned(x, dtype))


def test_integers_give_float64(job):
    report, y = job(np.arange(100, dtype="i4"))
    assert same(y, np.cumsum(np.arange(100.0)))
    assert report.total == 4950.0


@forms
def test_complex(form, job, rng):
    x = np.empty(501, "c16")
    x.real, x.imag = special(rng, "float64", 501), finite_bits(rng, "float64", 501)
    form = form | {"initial": form["initial"] and complex(*rng.standard_normal(2))}
    _, y = job(x, **form)
    assert same(y, scanned(x, "float64", **form))
    if form["initial"] is None:
        _, y = job(x.real.copy(), dtype="c16", **form)
        assert same(y.real, scanned(x.real, "float64", **form))


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_fewer_elements_than_ranks(n, job, rng):
    x = finite_bits(rng, "float64", n)
    report, y = job(x)
    want = scanned(x, "float64")
    assert same(y, want)
    assert report.total == (float(want[-1]) if n else 0.0)


def test_the_same_bits_whatever_the_chunks(job, rng):
    x = finite_bits(rng, "float32", 3001)
    found = [job(x, way, memory=memory)[1].tobytes() for way in WAYS for memory in (2000, 9000)]
    assert len(set(found)) == 1


def test_window(job, rng):
    x = rng.integers(-(2**20), 2**20, 501) / 2.0**10
    _, y = job(x, window=(-10, 11))
    assert same(y, scanned(x, "float64"))


@pytest.mark.parametrize(
    ("element", "options", "text"),
    [
        (0.25, {"window": (-1, 4)}, r"the input needs window=\(-2, 3\), beyond window=\(-1, 4\)"),
        (np.inf, {"window": (-1, 4)}, r"the input is not finite everywhere, and window=\(-1, 4\)"),
        (1.0, {"window": (-1, 4), "initial": 99}, r"initial needs window=\(0, 7\), beyond"),
        (1.0, {"window": (4, -1)}, "low must be below high"),
        (1.0, {"window": 4}, "window is two integers"),
        (1.0, {"strategy": "scan-add"}, "'scan-add' adds to rounded results"),
        (1.0, {"state": "s.json"}, "state does not take fsum"),
        (1.0, {"check": True}, "check=True has no reference for fsum"),
        (1.0, {"dtype": "int64"}, "dtype is int64; fsum rounds to floats"),
        (1.0, {"initial": "1j"}, "initial is complex128; the result is float64"),
        (1.0, {"initial": 1 << 1024}, "initial is an integer of 1025 bits; fsum takes integers"),
        (1.0, {"initial": str(-(1 << 1024))}, "initial is an integer of 1025 bits; fsum takes"),
    ],
)
def test_refusals(element, options, text, job, folder, comm, rng):
    x = np.full(50, 4.5)
    x[rng.integers(50)] = element
    with pytest.raises((ValueError, TypeError), match=text):
        job(x, **options)
    assert left(comm, folder) == ["x.npy"]


def test_window_of_another_operator(save, folder, comm):
    save("x.npy", np.ones(3))
    with pytest.raises(ValueError, match="window= goes with op='fsum', not 'sum'"):
        distscan.scan_file(folder / "x.npy", folder / "y.npy", comm=comm, window=(0, 1))


def test_elements_that_are_no_floats(save, folder, comm):
    save("x.npy", np.ones(3, "g"))
    with pytest.raises(TypeError, match="fsum adds integers, and floats of up to 64 bits"):
        distscan.scan_file(folder / "x.npy", folder / "y.npy", "fsum", comm=comm)


def test_the_command(run, save, folder, comm, rng):
    x = finite_bits(rng, "float64", 501)
    save("x.npy", x)
    status, out, err = run("x.npy", "--op", "fsum", "--json", "--backend", "cpu")
    assert status == 0, err
    assert same(np.load(folder / "x.scan.npy"), scanned(x, "float64"))
    phases = ["distscan: window", "distscan: scan", "distscan: write"]
    assert [line for line in err.splitlines() if line] == phases
    report = json.loads(out)
    assert report["op"] == "fsum"
    assert report["seconds"]["reduce"] > 0  # the look for the window counts as reduce
    arguments = ["--op", "fsum", "--window", "-2", "3", "--force"]
    save("x.npy", np.full(9, 0.25))
    assert run("x.npy", *arguments)[0] == 0
    save("x.npy", np.full(9, 8.0))
    status, _, err = run("x.npy", *arguments)
    assert status == 2
    assert "beyond window=(-2, 3)" in err


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [90, 130, 150, 170, 250])
def test_a_named_window_of_sums_that_begin_with_negative_zero(
    n, reverse, comm, folder, monkeypatch
):
    """The first chunks of a rank in a round may have no elements."""
    h5py = pytest.importorskip("h5py", reason="no h5py")
    monkeypatch.setattr(plan, "CPU_CHUNK", 80)
    x = np.ones(n)
    x[-2:] = x[:2] = -0.0
    if comm.rank == 0:
        with h5py.File(folder / "x.h5", "w") as file:
            file.create_dataset("x", data=x, chunks=(40,))
    comm.Barrier()
    distscan.scan_file(folder / "x.h5::x", folder / "y.npy", "fsum", reverse=reverse,
                       window=(0, 10), backend="cpu", comm=comm)  # fmt: skip
    assert same(np.load(folder / "y.npy"), scanned(x, "float64", reverse=reverse))


def test_a_named_window_saves_a_look_at_all_elements(job, rng):
    """Of one scan; without ``initial``, the first chunk is read to look for -0.0."""
    x = grid(rng, "float64", 5001)
    x[x == 0] = 1.0  # for a shard that begins with -0.0, all elements are read
    options = {"window": (-10, 11)}
    read = {"free": job(x)[0].bytes["read"], "named": job(x, **options)[0].bytes["read"]}
    read["from 0"] = job(x, initial=0.0, **options)[0].bytes["read"]
    assert read["free"] == 2 * x.nbytes
    if adds_exactly(x.dtype, x.dtype, None):
        assert x.nbytes < read["named"] < 1.5 * x.nbytes
        assert read["from 0"] == x.nbytes


@pytest.fixture
def recorded(monkeypatch):
    """Each chunk is recorded in the journal."""
    monkeypatch.setattr(restart, "PERIOD", 0)
    monkeypatch.setattr(restart, "_SHARE", 0)


RESUMED = ["--op", "fsum", "--initial", "0.1", "--resume", "--backend", "cpu", "--quiet",
           "--memory", "3000", "--threads", "1"]  # fmt: skip


@pytest.mark.parametrize("data", [special, grid, normal])
@pytest.mark.usefixtures("recorded")
def test_resume(data, run, save, folder, comm, rng, monkeypatch):
    """A job that has stopped goes on, with the same window and the running value so far."""
    x = data(rng, "float64", 701 * comm.size)
    save("x.npy", x)
    for turn in (1, 3):
        with monkeypatch.context() as patch:
            spoil(patch, full_after(turn))
            assert run("x.npy", *RESUMED)[0] == 1
    status, _, err = run("x.npy", *RESUMED)
    assert status == 0, err
    assert same(np.load(folder / "x.scan.npy"), scanned(x, "float64", initial=0.1))


@pytest.mark.usefixtures("recorded")
def test_resume_with_other_kernels(run, save, comm, rng, monkeypatch):
    """The running value of kernels is not that of digits, and no other one."""
    x = grid(rng, "float64", 701 * comm.size)
    if not adds_exactly(x.dtype, x.dtype, None):
        pytest.skip("there are no compiled kernels")
    save("x.npy", x)
    with monkeypatch.context() as patch:
        spoil(patch, full_after(2))
        assert run("x.npy", *RESUMED)[0] == 1
    monkeypatch.setattr(rounds, "adds_exactly", lambda *_: False)
    status, _, err = run("x.npy", *RESUMED)
    assert status == 2
    assert "the journal is of a job with other kernels" in err
