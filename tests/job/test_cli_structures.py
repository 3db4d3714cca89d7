"""Structures on the command line, combined by an Operator of a module: ``--op MODULE:NAME``."""

import itertools
import json
import math
import sys

import numpy as np
import pytest

from support.streams import FORMS, some
from support.together import left

pytestmark = pytest.mark.timeout(60)
MAP = np.dtype([("m", "u8"), ("c", "u8")])  # v -> m v + c; maps do not commute
MODULE = '''
import numpy as np
from distscan import Operator

def then(a, b):
    m, c = b.dtype.names
    made = np.empty_like(b)
    made[m], made[c] = b[m] * a[m], b[m] * a[c] + b[c]
    return made

def added(a, b):
    """Field by field, also inside fields."""
    if b.dtype.names is None:
        return a + b
    made = np.empty_like(b)
    for name in b.dtype.names:
        made[name] = added(a[name], b[name])
    return made

MAPS = Operator("maps", numpy=then, identity=(1, 0))
ANY = Operator("maps without identity", numpy=then)
SUMS = Operator("sums", numpy=added, identity=0)
NUMBER = 7
'''
OPTIONS = ["--quiet", "--force", "--json"]
numbers = itertools.count()


@pytest.fixture
def module(folder, comm, monkeypatch):
    """Write a module to a folder where Python finds it; return its name, a new one each time."""
    monkeypatch.syspath_prepend(folder / "modules")
    made = []

    def module(text=MODULE):
        made.append(f"operators_of_test_{next(numbers)}")
        if comm.rank == 0:
            (folder / "modules").mkdir(exist_ok=True)
            (folder / "modules" / f"{made[-1]}.py").write_text(text)
        comm.Barrier()
        return made[-1]

    yield module
    for name in made:
        sys.modules.pop(name, None)


def maps(rng, n, dtype=MAP):
    """Any maps of u8; of other types, which do not wrap, those whose scan has small numbers."""
    x = np.zeros(n, dtype)
    for name, limit in zip(dtype.names, (3, 16), strict=True):
        wraps = dtype[name].newbyteorder("=") == "u8"
        x[name] = rng.integers(0, 2**64 if wraps else limit, n, np.uint64)
    if not wraps:  # c grows as long as no factor is 0
        x[dtype.names[0]] = np.arange(n) % 4 % 3
    return x


def by_hand(x, form, initial=None):
    """The scan of [n] as its definition reads, in Python's integers."""
    exclusive, result = "--exclusive" in form, []
    before = initial if initial is not None else (1, 0) if exclusive else None
    for m, c in (x[::-1] if "--reverse" in form else x).tolist():
        after = (m, c) if before is None else (m * before[0] % 2**64, (m * before[1] + c) % 2**64)
        result.append(before if exclusive else after)
        before = after
    y = np.array(result, x.dtype.newbyteorder("="))
    return y[::-1] if "--reverse" in form else y


def equal(y, want):
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    assert y.tolist() == want.tolist()


# ---- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "strategy"), some(itertools.product(FORMS, ["auto", "reduce-scan", "scan-add"]))
)
def test_forms(form, strategy, module, run, save, folder, rng):
    """From an identity, or from an initial structure whose fields are all one number."""
    op = module() + ":MAPS"
    for n, memory in ((0, "1K"), (2, "1K"), (int(rng.integers(100, 400)), "1K"), (20, "1")):
        x = maps(rng, n)
        save("x.npy", x)
        options = ["--op", op, "--memory", memory, "--strategy", strategy, *form, *OPTIONS]
        status, out, err = run("x.npy", *options)
        assert status == 0, err
        y = by_hand(x, form, (3, 3) if "--initial=3" in form else None)
        equal(np.load(folder / "x.scan.npy"), y)
        report = json.loads(out)
        assert (report["op"], report["backend"], report["elements"]) == ("maps", "cpu", n)
        if n > 0 and "--exclusive" not in form:
            assert tuple(report["total"]) == y[0 if "--reverse" in form else -1].tolist()


@pytest.mark.parametrize("fortran", [False, True], ids=["C", "F"])
@pytest.mark.parametrize("code", some([">u8,>u8", ">u8,<u8", "<u4,>f8", ">i2,<f4", ">f8,|u1"]))
def test_byte_orders(code, fortran, module, run, save, folder, rng):
    """Of all fields, or of one of them; the result has the machine's."""
    x = maps(rng, 15, np.dtype(code)).reshape(3, 5)
    save("x.npy", np.asfortranarray(x) if fortran else x)
    op = module() + ":MAPS"
    status, _, err = run("x.npy", "--op", op, "--memory", "50", *OPTIONS)
    assert status == 0, err
    equal(np.load(folder / "x.scan.npy"), by_hand(x.ravel(), []))
    status, _, err = run("x.npy", "--op", op, "--axis", "1", *OPTIONS)
    assert status == 0, err
    equal(np.load(folder / "x.scan.npy"), np.array([by_hand(row, []) for row in x]))


@pytest.mark.parametrize("shape", [None, (100,), (20, 5)])
@pytest.mark.parametrize("code", ["u8,u8", ">u8,>u8", ">u8,<u8"])
def test_raw(code, shape, module, run, comm, folder, rng):
    """``--dtype`` is a list of types; their fields are f0 and f1."""
    x = maps(rng, 100, np.dtype(code))
    if comm.rank == 0:
        x.tofile(folder / "x.bin")
    comm.Barrier()
    options = ["--raw", "--dtype", code, "--op", module() + ":MAPS", "--memory", "1K", *OPTIONS]
    options += [] if shape is None else ["--shape", ",".join(map(str, shape))]
    status, _, err = run("x.bin", *options)
    assert status == 0, err
    equal(np.load(folder / "x.bin.scan.npy"), by_hand(x, []))


@pytest.mark.parametrize(("axis", "form"), some(itertools.product((0, 1, -1), FORMS)))
def test_axes(axis, form, module, run, save, folder, rng):
    """Rows and columns that are longer than a chunk, and shorter."""
    op = module() + ":MAPS"
    for shape in ((7, 9), (40, 1), (1, 40)):
        x = maps(rng, int(np.prod(shape))).reshape(shape)
        save("x.npy", x)
        options = ["--op", op, "--axis", str(axis), "--memory", "100", *form, *OPTIONS]
        status, _, err = run("x.npy", *options)
        assert status == 0, err
        lines, first = np.moveaxis(x, axis, -1), (3, 3) if "--initial=3" in form else None
        want = np.array([by_hand(line, form, first) for line in lines])
        equal(np.load(folder / "x.scan.npy"), np.moveaxis(want, -1, axis))


def test_parts_and_segments(module, run, save, folder, rng):
    """Parts of structures, in which segments begin."""
    x, op = maps(rng, 130), module() + ":MAPS"
    for i, part in enumerate(np.split(x, [50, 50, 111])):
        save(f"p{i}.npy", part)
    heads = rng.random(130) < 0.1
    save("flags.npy", heads)
    save("keys.npy", np.cumsum(heads).astype("U"))
    cuts = [i for i in np.flatnonzero(heads) if i > 0]
    for name in ("flags.npy", "keys.npy"):
        for form in some(FORMS):
            options = ["--op", op, "--memory", "500", "--segments", name, *form, *OPTIONS]
            status, _, err = run("p?.npy", "-o", "y.npy", *options)
            assert status == 0, err
            first = (3, 3) if "--initial=3" in form else None
            pieces = [by_hand(piece, form, first) for piece in np.split(x, cuts)]
            equal(np.load(folder / "y.npy"), np.concatenate(pieces))


KINDS = {
    "aligned": np.dtype([("a", "i1"), ("b", "f8")], align=True),
    "arrays": np.dtype([("a", "f4", (2, 3)), ("b", "i8")]),
    "nested": np.dtype([("a", [("x", "f8"), ("y", ">i4")]), ("b", "u2")]),
    "complex": np.dtype([("a", "c8"), ("b", "c16")]),
    "one": np.dtype([("a", "f8")]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_fields(kind, module, run, save, folder, rng):
    """Of any types; sums of few small numbers fit into all of them."""
    x = np.zeros(20, KINDS[kind])

    def leaves(array):
        if array.dtype.names is None:
            return [array]
        return [leaf for name in array.dtype.names for leaf in leaves(array[name])]

    for leaf in leaves(x):
        leaf[...] = rng.integers(0, 6, leaf.shape)
    save("x.npy", x)
    options = ["--op", module() + ":SUMS", "--memory", "200", "--quiet", "--force"]
    for form in ([], ["--reverse"]):
        status, _, err = run("x.npy", *options, *form)
        assert status == 0, err
        y = np.load(folder / "x.scan.npy")
        assert y.dtype.names == x.dtype.names
        for leaf, want in zip(leaves(y), leaves(x[::-1] if form else x), strict=True):
            np.testing.assert_array_equal(leaf[::-1] if form else leaf, np.cumsum(want, axis=0))


@pytest.mark.parametrize(
    ("code", "total"),
    [
        ("f8,i4", ["nan", 3]),
        ("c16,f8", [[3.0, -3.0], "inf"]),
        ("(2,)f4,u8", [[3.0, 3.0], 3]),
        ("g,?", [3.0, True]),
    ],
    ids=["float", "complex", "array", "longdouble"],
)
def test_totals_in_json(code, total, module, run, save):
    """Plain JSON, as for numbers: complex as a pair, and NaN and infinities as text."""
    x = np.zeros(3, code)
    x["f0"] = 1 - 1j if code[0] == "c" else math.nan if total[0] == "nan" else 1
    x["f1"] = math.inf if total[1] == "inf" else 1
    save("x.npy", x)
    status, out, err = run("x.npy", "--op", module() + ":SUMS", *OPTIONS)
    assert status == 0, err

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    assert json.loads(out, parse_constant=refuse)["total"] == total


# ---- refusals --------------------------------------------------------------------------------

REFUSED = {
    "sum": (["--op", "sum"], "a scan takes bool, integer, float and complex types"),
    "cuda": (["--op", "M:MAPS", "--backend", "cuda"], "x.npy holds structures"),
    "no identity": (["--op", "M:ANY", "--exclusive"], "has no identity: exclusive=True needs"),
    "check": (["--op", "M:MAPS", "--check"], "--check has no reference for"),
    "number": (["--op", "M:NUMBER"], "M:NUMBER is no Operator, but int"),
    "ufunc": (["--op", "numpy:add"], "numpy:add is no Operator, but ufunc"),
    "no name": (["--op", "M:NONE"], "cannot import M:NONE"),
    "no module": (["--op", "no_such_module:X"], "cannot import no_such_module:X"),
    "dtype": (["--op", "M:MAPS", "--dtype", "f8"], ""),
    "initial": (["--op", "M:MAPS", "--initial", "three"], "initial 'three' is no number"),
}


@pytest.mark.parametrize("case", some(REFUSED))
def test_refused(case, module, run, save, comm, folder, rng):
    options, message = REFUSED[case]
    name = module()
    save("x.npy", maps(rng, 20))
    options = [each.replace("M:", f"{name}:") for each in options]
    status, out, err = run("x.npy", "--quiet", *options)
    assert (status, out) == (2, ""), err
    assert message.replace("M:", f"{name}:") in err
    assert err.startswith("distscan: error: ")
    assert err.count("\n") == 1
    assert left(comm, folder) == ["modules", "x.npy"]


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "raise KeyError('x')", "a = ("])
def test_a_module_that_fails(text, module, run, save, comm, folder, rng):
    """Also one that ends the process, as scripts do."""
    name = module(text)
    save("x.npy", maps(rng, 20))
    status, out, err = run("x.npy", "--quiet", "--op", f"{name}:MAPS")
    assert (status, out) == (2, "")
    assert f"cannot import {name}:MAPS" in err


@pytest.mark.parametrize("who", ["first", "last"])
def test_an_operator_that_fails(who, module, run, save, comm, folder, rng):
    """On one rank, after some chunks: all ranks end, and nothing is left."""
    guilty = 0 if who == "first" else comm.size - 1
    text = (
        MODULE
        + f"""
from mpi4py import MPI
calls = []

def fails(a, b):
    calls.append(None)
    if MPI.COMM_WORLD.rank == {guilty} and len(calls) > 3:
        raise ZeroDivisionError("no more")
    return then(a, b)

FAILS = Operator("fails", numpy=fails)
"""
    )
    save("x.npy", maps(rng, 300))
    options = ["--op", module(text) + ":FAILS", "--memory", "500", "--quiet"]
    status, out, err = run("x.npy", *options)
    assert (status, out) == (1, "")
    assert "no more" in err
    assert left(comm, folder) == ["modules", "x.npy"]
