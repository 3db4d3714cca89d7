"""Every form and axis of a scan on the command line, and what ``--check`` makes of them."""

import itertools
import json

import numpy as np
import pytest

from distscan.core.operators import BUILTIN
from distscan.job import check, plan
from support import reference
from support.data import OPS, exact, expected
from support.pairs import pairs
from support.writers import spoil

FORMS = [
    [option for option in each if option]
    for each in itertools.product(("", "--exclusive"), ("", "--reverse"), ("", "--initial=3"))
]
# With little memory, ranks read their shards twice; else they keep them.
MEMORIES = [[], ["--memory=1K"]]


def keywords(form):
    return {
        "exclusive": "--exclusive" in form,
        "reverse": "--reverse" in form,
        "initial": 3 if "--initial=3" in form else None,
    }


def small_pieces(monkeypatch):
    """Read, scan, write and check files in many pieces."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 1 << 10)
    monkeypatch.setattr(plan, "GPU_CHUNK", 1 << 10)
    monkeypatch.setattr(check, "PIECE", 1 << 9)


@pairs(
    case=[("sum", "<i2"), ("max", ">f4"), ("sum", "<f2"), ("prod", "<f8"), ("sum", "<c8")],
    form=FORMS,
    memory=MEMORIES,
)
def test_forms(case, form, memory, run, save, folder, rng, monkeypatch):
    """In many pieces, of the file and of the check."""
    small_pieces(monkeypatch)
    op, code = case
    x = exact(rng, op, code, 3001).astype(code)
    save("x.npy", x)
    status, out, err = run("x.npy", "--op", op, "--check", "--json", "--quiet", *form, *memory)
    assert status == 0, err
    native = x.astype(x.dtype.newbyteorder("="))
    plain = expected(op, native)
    acc = np.dtype("f") if code == "<f2" else plain.dtype
    identity = BUILTIN[op].identity(acc)
    want = reference.scan(OPS[op], native, acc=acc, identity=identity, **keywords(form))
    y = np.load(folder / "x.scan.npy")
    assert y.dtype == plain.dtype
    np.testing.assert_array_equal(y, want.astype(plain.dtype))
    whole = reference.scan(OPS[op], native, acc=acc, **keywords(form) | {"exclusive": False})
    total = whole[0 if "--reverse" in form else -1].astype(plain.dtype)
    want = [total.real, total.imag] if plain.dtype.kind == "c" else total
    assert json.loads(out)["total"] == pytest.approx(want, rel=2e-3 if code == "<f2" else 0)


@pairs(
    shape=[(7, 5), (40, 3, 2), (2, 300), (1, 1), (0, 3), (3, 0)],
    code=["i4", "f4", "c16"],
    form=[[], FORMS[-1]],
    memory=MEMORIES,
)
def test_axes(shape, code, form, memory, run, save, folder, rng, monkeypatch):
    monkeypatch.setattr(check, "PIECE", 1 << 9)
    x = exact(rng, "sum", code, int(np.prod(shape))).reshape(shape)
    save("x.npy", x)
    for axis in range(-1, len(shape)):
        arguments = ["--axis", str(axis), "--check", "--json", "--force", *form, *memory]
        status, out, err = run("x.npy", *arguments)
        assert status == 0, err
        want = reference.scan(np.add, x, axis=axis, acc=np.cumsum(x).dtype, identity=0,
                              **keywords(form))  # fmt: skip
        y = np.load(folder / "x.scan.npy")
        assert (y.shape, y.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(y, want)
        report = json.loads(out)
        assert (report["elements"], report["total"]) == (x.size, None)


@pytest.mark.parametrize("code", ["<f4", ">i2", "|u1", "<c16"])
@pytest.mark.parametrize("shape", [None, (601,), (30, 20)])
def test_raw(shape, code, run, comm, folder, rng):
    """The type of the result is NumPy's choice, and the file has the shape that is given."""
    x = rng.integers(0, 100, shape or 601).astype(code)
    if comm.rank == 0:
        x.tofile(folder / "x.bin")
    comm.Barrier()
    options = [] if shape is None else ["--shape", ",".join(map(str, shape)), "--axis", "0"]
    status, out, err = run("x.bin", "--raw", "--dtype", code, "--check", "--json", *options)
    assert status == 0, err
    y = np.load(folder / "x.bin.scan.npy")
    want = np.cumsum(x.astype(x.dtype.newbyteorder("=")), axis=0)
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(y, want)
    assert json.loads(out)["dtype_in"] == x.dtype.newbyteorder("=").name


@pairs(
    shape=[(7, 5, 9), (1, 40, 3), (60, 1, 1)],
    axis=[None, -1, 0, 1, 2],
    form=[[], ["--reverse"], ["--exclusive", "--initial=3"]],
    memory=MEMORIES,
)
def test_fortran_order(shape, axis, form, memory, run, save, folder, rng):
    """Along an axis, the result is in the order of the input; flattened, it is as NumPy's."""
    x = np.asfortranarray(rng.integers(-50, 50, shape).astype("i4"))
    save("x.npy", x)
    along = [] if axis is None else ["--axis", str(axis)]
    status, out, err = run("x.npy", "--check", "--json", "--force", *along, *form, *memory)
    assert status == 0, err
    given = x.ravel() if axis is None else x
    want = reference.scan(np.add, given, axis=axis, acc=np.cumsum(x).dtype, identity=0,
                          **keywords(form))  # fmt: skip
    y = np.load(folder / "x.scan.npy")
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    assert axis is None or y.flags.f_contiguous
    np.testing.assert_array_equal(y, want)
    assert json.loads(out)["elements"] == x.size


@pairs(form=[[], ["--exclusive", "--initial=2.5"], ["--reverse"]], axis=[None, 0, 1, 2], code="fF")
def test_check_allows_rounding(form, axis, code, run, save, rng):
    x = rng.normal(size=(50, 30, 40))
    save("x.npy", (x * (1 + 1j) if code == "F" else x).astype(code))
    along = [] if axis is None else ["--axis", str(axis)]
    status, _, err = run("x.npy", "--check", "--quiet", *along, *form)
    assert status == 0, err


@pairs(reverse=[False, True], axis=[None, 0, 1, 2], code="lfD", memory=MEMORIES)
def test_check_names_the_element(memory, reverse, axis, code, run, save, rng, monkeypatch):
    """One element is spoilt between the scan and the file."""
    monkeypatch.setattr(check, "PIECE", 1 << 9)
    x = rng.integers(1, 9, (6, 5, 8)).astype(code)
    save("x.npy", x)
    spoilt = int(rng.integers(x.size))

    def wrong(elements, index):
        if index <= spoilt < index + len(elements):
            elements[spoilt - index] += 7 if code != "D" else 7j
        return elements

    spoil(monkeypatch, wrong)
    options = ["--reverse"] * reverse + ([] if axis is None else ["--axis", str(axis)])
    status, out, err = run("x.npy", "--check", "--quiet", *options, *memory)
    assert (status, out) == (1, "")
    assert f"element {spoilt} of the result is " in err


def test_no_elements(run, save):
    save("x.npy", np.zeros(0))
    for form, total in (([], 0), (["--initial", "4"], 4), (["--exclusive"], 0)):
        status, out, err = run("x.npy", "--json", "--force", "--check", *form)
        assert status == 0, err
        assert json.loads(out)["total"] == total


@pytest.mark.timeout(20)
@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("shape", [(0, 10**12), (10**12, 0), (10**9, 0, 10**9), (0,) * 3])
def test_no_elements_in_many_rows(shape, fortran, run, comm, folder):
    """What takes no memory takes no time, however long its axes are."""
    if comm.rank == 0:
        with (folder / "x.npy").open("wb") as stream:
            header = {"descr": "<f4", "fortran_order": fortran, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
    comm.Barrier()
    for axis in range(-1, len(shape)):
        for form in ([], ["--exclusive", "--reverse"]):
            arguments = ["--axis", str(axis), "--check", "--json", "--force", *form]
            status, out, err = run("x.npy", *arguments)
            assert status == 0, err
            assert json.loads(out)["elements"] == 0
            assert np.load(folder / "x.scan.npy", mmap_mode=None).shape == shape
    assert run("x.npy", "--axis", str(len(shape)), "--force")[0] == 2


@pytest.mark.parametrize(
    ("text", "code", "first"),
    [("1e3", "d", 1000), ("-inf", "d", -np.inf), ("2j", "D", 2j), ("+5", "d", 5), ("1", "?", 1)],
)
def test_numbers(text, code, first, run, save, folder):
    save("x.npy", np.zeros(3, code))
    status, _, err = run("x.npy", f"--initial={text}", "--op", "max", "--check")
    assert status == 0, err
    y = np.load(folder / "x.scan.npy")
    np.testing.assert_array_equal(y, np.maximum(np.zeros(3, code), np.array(first, code)))
