"""Several INPUTs on the command line; inputs of structures."""

import itertools
import json
import math
import sys

import numpy as np
import pytest

from support import reference
from support.cases import pairs
from support.jobs import FORMS, some
from support.processes import left

pytestmark = pytest.mark.timeout(60)


# ---- several INPUTs on the command line: one array along axis 0, or with ``--each`` many ---------

# A chunk of many parts, some chunks, and many inside a part.
MEMORIES = [[], ["--memory=1K"], ["--memory=40"]]


@pytest.fixture
def write(save, folder, comm):
    """Write parts as p0.npy, p1.npy, ..., or p0.bin, ...; return their names."""

    def write(parts, raw=False):
        names = [f"p{i}.{'bin' if raw else 'npy'}" for i in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            if not raw:
                save(name, part)
            elif comm.rank == 0:
                np.ascontiguousarray(part).tofile(folder / name)
        comm.Barrier()
        return names

    return write


def drawn(rng, code, rows, *rest):
    return rng.integers(-50, 50, (rows, *rest)).astype(code)


def wanted(parts, axis, form):
    """The scan of the joined parts, as NumPy's with the machine's byte order."""
    x = np.concatenate([part.astype(part.dtype.newbyteorder("=")) for part in parts])
    given = {"exclusive": "--exclusive" in form, "reverse": "--reverse" in form, "identity": 0}
    initial = 3 if "--initial=3" in form else None
    acc = np.cumsum(x.reshape(-1)[:0]).dtype
    return reference.scan(np.add, x, axis=axis, acc=acc, initial=initial, **given)


def is_wanted(folder, parts, axis=None, form=(), name="y.npy"):
    y, want = np.load(folder / name), wanted(parts, axis, form)
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(y, want)


# ---- one array -------------------------------------------------------------------------------


@pairs(
    code=["<i2", ">f4", "<c16"],
    lengths=["odd", "holes", "ends", "empty"],
    memory=MEMORIES,
    group_by="lengths",
)
def test_parts(code, lengths, memory, write, run, folder, rng):
    few = [int(n) for n in rng.integers(0, 60, 5) * 2 + 1]
    lengths = {
        "odd": few,
        "holes": [few[0], 0, 0, few[1], 0, few[2]],
        "ends": [0, 0, few[0], few[1], 0],
        "empty": [0, 0, 0],
    }[lengths]
    parts = [drawn(rng, code, n) for n in lengths]
    form = FORMS[rng.integers(len(FORMS))]
    options = ["-o", "y.npy", "--check", "--json", "--quiet", "--force", *form, *memory]
    status, out, err = run(*write(parts), *options)
    assert status == 0, err
    is_wanted(folder, parts, None, form)
    report = json.loads(out)
    assert (report["elements"], report["output"]) == (sum(lengths), "y.npy")
    assert report["dtype_in"] == np.dtype(code).newbyteorder("=").name


@pairs(axis=[None, 0, 1, 2, -3], memory=some(MEMORIES), group_by="axis")
def test_parts_of_several_axes(axis, memory, write, run, folder, rng):
    """Parts end inside chunks and inside ranks' shards; some have no rows."""
    for rest in ((5, 3), (1, 1), (2, 9)):
        parts = [drawn(rng, "i4", int(n), *rest) for n in [*rng.integers(1, 7, 4), 0, 3, 1]]
        form = FORMS[rng.integers(len(FORMS))]
        along = [] if axis is None else ["--axis", str(axis)]
        options = ["-o", "y.npy", "--check", "--quiet", "--force", *along, *form, *memory]
        status, _, err = run(*write(parts), *options)
        assert status == 0, err
        is_wanted(folder, parts, axis, form)


@pytest.mark.parametrize("rest", [(3, 0), (0, 3), (0,)])
def test_parts_without_columns(rest, write, run, folder):
    parts = [np.zeros((n, *rest), "f4") for n in (2, 0, 3)]
    for axis in range(len(rest) + 1):
        options = ["-o", "y.npy", "--axis", str(axis), "--check", "--quiet", "--force"]
        status, _, err = run(*write(parts), *options)
        assert status == 0, err
        is_wanted(folder, parts, axis)


@pairs(shape=[None, (6, 5), (3, 2, 5)], memory=some(MEMORIES), group_by="shape")
def test_raw_parts(shape, memory, write, run, folder, rng):
    """A shape is that of each part; without one, parts are as long as their files."""
    lengths = [30] * 3 if shape else [int(n) for n in [*rng.integers(1, 99, 4), 0, 7]]
    parts = [drawn(rng, ">i4", n).reshape(shape or -1) for n in lengths]
    options = ["--shape", ",".join(map(str, shape))] if shape else []
    for axis in [None, 0] + [1] * (shape is not None):
        along = [] if axis is None else ["--axis", str(axis)]
        options = [*options, "-o", "y.npy", "--check", "--quiet", "--force", *memory]
        status, _, err = run(*write(parts, raw=True), "--raw", "--dtype", ">i4", *along, *options)
        assert status == 0, err
        is_wanted(folder, parts, axis)


def test_one_file_several_times(write, run, folder, rng):
    """Also as its own OUTPUT: it is replaced when all is read."""
    x = drawn(rng, "i8", 101)
    write([x])
    status, _, err = run("p0.npy", "./p0.npy", "p0.npy", "-o", "p0.npy", "--force", "--check")
    assert status == 0, err
    is_wanted(folder, [x] * 3, name="p0.npy")


REFUSED = {
    "type": np.zeros(4, "i4"),
    "byte order": np.zeros(4, ">i8"),
    "rows": np.zeros((4, 2), "i8"),
    "Fortran order": np.asfortranarray(np.zeros((4, 3), "i8")),
    "no axis": np.array(7),
    "objects": np.array([{}, 1], object),
    "text": np.array(["a", "b"]),
    "nothing": None,
}


@pytest.mark.parametrize("case", some(REFUSED))
def test_a_part_that_differs(case, save, run, comm, folder):
    """The message names it, whatever its place among the others."""
    odd = REFUSED[case]
    alike = np.zeros((4, 3) if case == "Fortran order" else 4, "i8")
    if odd is not None:
        save("odd.npy", odd)
    save("a.npy", alike)
    save("c.npy", alike)
    for names in (["odd.npy", "a.npy", "c.npy"], ["a.npy", "odd.npy", "c.npy"]):
        status, out, err = run(*names, "-o", "y.npy", "--quiet")
        assert (status, out) == (2, "")
        assert err.startswith("distscan: error: ")
        assert err.count("\n") == 1
        assert "odd.npy" in err
        assert left(comm, folder) == ["a.npy", "c.npy"] + ["odd.npy"] * (odd is not None)


def test_a_raw_part_that_differs(write, run, comm, folder):
    """Of no multiple of an element's bytes, and of another size than the shape's."""
    write([np.zeros(6, "i4"), np.zeros(6, "u1")], raw=True)
    for options in ([], ["--shape", "3,2"]):
        given = ["--raw", "--dtype", "i4", *options]
        status, out, err = run("p0.bin", "p1.bin", "-o", "y.npy", "--quiet", *given)
        assert (status, out) == (2, "")
        assert "p1.bin has 6 bytes" in err
        assert left(comm, folder) == ["p0.bin", "p1.bin"]


@pytest.mark.parametrize("names", [["p0.npy", "p1.npy"], ["p[01].npy"]], ids=["names", "glob"])
def test_one_array_needs_a_name(names, write, run, comm, folder, rng):
    write([drawn(rng, "i4", 5), drawn(rng, "i4", 6)])
    status, out, err = run(*names, "--quiet")
    assert (status, out) == (2, "")
    assert "several INPUTs are scanned as one array: -o names its OUTPUT" in err
    assert left(comm, folder) == ["p0.npy", "p1.npy"]


# ---- patterns --------------------------------------------------------------------------------


def test_patterns(save, run, comm, folder, rng):
    """In the order of names, each pattern in its place; a file's own name is no pattern."""
    x = {name: drawn(rng, "i4", int(rng.integers(1, 40)))
         for name in ("b2.npy", "b10.npy", "b1.npy", "a.npy", "b[1].npy")}  # fmt: skip
    for name, part in x.items():
        save(name, part)
    for given, names in {
        ("b?.npy",): ["b1.npy", "b2.npy"],
        ("b*[0-9].npy", "a.npy"): ["b1.npy", "b10.npy", "b2.npy", "a.npy"],
        ("a.npy", "b[1].npy", "b1?.npy"): ["a.npy", "b[1].npy", "b10.npy"],
        ("*.npy", "a.npy"): ["a.npy", "b1.npy", "b10.npy", "b2.npy", "b[1].npy", "a.npy"],
    }.items():
        status, _, err = run(*given, "-o", "y", "--quiet", "--force", "--check")
        assert status == 0, err
        is_wanted(folder, [x[name] for name in names], name="y")
    assert run("b?.npy", "--each", "--quiet")[0] == 0
    assert run("b10*", "--quiet")[0] == 0  # one file: OUTPUT has its name
    made = ["b1.scan.npy", "b10.scan.npy", "b2.scan.npy"]
    assert left(comm, folder) == sorted([*x, "y", *made])
    for name in ("b1", "b10", "b2"):
        is_wanted(folder, [x[f"{name}.npy"]], name=f"{name}.scan.npy")


@pytest.mark.parametrize("options", [[], ["-o", "y.npy"], ["--each"]])
def test_a_pattern_without_files(options, write, run, comm, folder, rng):
    write([drawn(rng, "i4", 5)])
    for names in (["*.dat"], ["p0.npy", "x[0-9].npy"]):
        if not options and len(names) > 1:
            continue
        status, out, err = run(*names, *options, "--quiet")
        assert (status, out) == (2, "")
        assert f"no file matches {names[-1]}" in err
        assert left(comm, folder) == ["p0.npy"]


# ---- each ------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [[], ["-o", "out"]], ids=["beside", "folder"])
def test_each(output, save, run, comm, folder, rng):
    """Of any types and shapes; a report each, in the order given."""
    if comm.rank == 0:
        (folder / "in").mkdir()
        (folder / "out").mkdir()
    comm.Barrier()
    given = {"in/b.npy": (40,), "a.npy": (7, 5), "in/c": (0,), "d.x.npy": (3, 2, 4)}
    codes = iter(["i2", ">f8", "u1", "c8"])
    x = {name: drawn(rng, next(codes), *shape) for name, shape in given.items()}
    for name, array in x.items():
        if comm.rank == 0:
            with (folder / name).open("wb") as file:
                np.save(file, array)
    comm.Barrier()
    status, out, err = run(*x, "--each", *output, "--check", "--json", "--reverse")
    assert status == 0, err
    reports = [json.loads(line) for line in out.splitlines()]
    assert [report["elements"] for report in reports] == [array.size for array in x.values()]
    for (name, array), report in zip(x.items(), reports, strict=True):
        stem = name.removesuffix(".npy")
        made = f"{stem}.scan.npy" if not output else f"out/{stem.rpartition('/')[2]}.scan.npy"
        assert report["output"] == made
        is_wanted(folder, [array], None, ["--reverse"], made)
    made = [len(left(comm, each)) for each in (folder, folder / "in", folder / "out")]
    assert made == ([4, 2, 4] if output else [6, 4, 0])


def test_each_that_fails(save, run, comm, folder, rng):
    """The results before it are complete; the inputs after it are not scanned."""
    x = drawn(rng, "i4", 30)
    save("a.npy", x)
    save("b.npy", np.array(["text"]))
    save("c.npy", x)
    status, out, err = run("a.npy", "b.npy", "c.npy", "--each", "--json", "--quiet")
    assert status == 2
    assert [json.loads(line)["output"] for line in out.splitlines()] == ["a.scan.npy"]
    assert "b.npy holds <U4" in err
    assert err.count("\n") == 1
    assert left(comm, folder) == ["a.npy", "a.scan.npy", "b.npy", "c.npy"]
    is_wanted(folder, [x], name="a.scan.npy")


def test_each_into_no_folder(write, run, comm, folder, rng):
    write([drawn(rng, "i4", 5)])
    for output in ("y.npy", "p0.npy"):
        status, out, err = run("p0.npy", "--each", "-o", output, "--force")
        assert (status, out) == (2, "")
        assert f"with --each, -o is a folder, and {output} is none" in err
        assert left(comm, folder) == ["p0.npy"]


def test_each_of_one_name(run, comm, folder):
    """Two inputs whose results have one name: one of them would be lost, silently."""
    if comm.rank == 0:
        for name in ("a", "b", "out"):
            (folder / name).mkdir()
        for name in "ab":
            np.save(folder / name / "x.npy", np.arange(3))
    comm.Barrier()
    status, out, err = run("a/x.npy", "b/x.npy", "--each", "-o", "out", "--force", "--quiet")
    assert (status, out) == (2, ""), "the second result has replaced the first"
    assert "x.scan.npy" in err
    assert left(comm, folder / "out") == []


def test_files_between_options(run, save, folder):
    """Also behind ``--each``."""
    for name in "ab":
        save(f"{name}.npy", np.arange(5))
    status, _, err = run("a.npy", "--each", "b.npy", "--quiet", "--backend", "cpu")
    assert status == 0, err
    for name in "ab":
        np.testing.assert_array_equal(np.load(folder / f"{name}.scan.npy"), np.arange(5).cumsum())


# ---- structures on the command line, combined by an Operator of a module: ``--op MODULE:NAME`` ---

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


@pairs(form=some(FORMS), strategy=["auto", "reduce-scan", "scan-add"], group_by="strategy")
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


@pairs(
    code=some([">u8,>u8", ">u8,<u8", "<u4,>f8", ">i2,<f4", ">f8,|u1"]),
    fortran=[False, True],
    group_by="code",
)
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


@pairs(shape=[None, (100,), (20, 5)], code=["u8,u8", ">u8,>u8", ">u8,<u8"], group_by="code")
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


@pairs(axis=[0, 1, -1], form=some(FORMS), group_by="axis")
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

REFUSED_STRUCTURES = {
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


@pytest.mark.parametrize("case", some(REFUSED_STRUCTURES))
def test_refused(case, module, run, save, comm, folder, rng):
    options, message = REFUSED_STRUCTURES[case]
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
