"""The formats of files: every .npy that NumPy writes, and a format of one module."""

import errno
import gzip
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO

import numpy as np
import pytest
from numpy.lib import format

from distscan.core.errors import InputError, OutputError
from distscan.core.form import chunks
from distscan.job import formats, output, plan
from distscan.job.formats import files, npy
from distscan.job.formats.interface import Layout
from support import text_format
from support.cases import pairs
from support.jobs import raises

# ---- every .npy that NumPy writes is read; what is none is refused in one line -------------------


@pytest.fixture
def held():
    """What is entered here ends when it is closed, at the latest with the test."""
    with ExitStack() as stack:
        yield stack


def whole(file, piece=1 << 10, *, flattened=False):
    """All elements of a file."""
    return part(file, 0, file.n, piece, flattened=flattened)


def part(file, low, high, piece=1 << 10, *, flattened=False):
    """Some elements of a file, read in pieces of so many bytes."""
    dtype = file.dtype.newbyteorder("=")
    y = np.full((high - low) * dtype.itemsize, 85, np.uint8).view(dtype)
    with file.reading(flattened=flattened) as fill:
        for a, b in chunks(low, high, piece // dtype.itemsize):
            fill(y[a - low : b - low], a)
    return y


@pairs(
    version=[(1, 0), (2, 0), (3, 0)],
    code=["<f4", ">f4", "<i8", ">i2", "|b1", "|u1", ">c16", "<f2", ">c8"],
    n=[0, 1, 1000],
    group_by="version",
)
def test_versions_and_byte_orders(version, code, n, tmp_path, rng):
    x = rng.integers(0, 100, n).astype(code)
    with (tmp_path / "x.npy").open("wb") as stream:
        format.write_array(stream, x, version=version)
    file = npy.inspect(tmp_path / "x.npy")
    assert file.n == n
    y = whole(file)
    assert y.dtype.isnative
    np.testing.assert_array_equal(y, x)


def test_a_part(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000))
    file = npy.inspect(tmp_path / "x.npy")
    np.testing.assert_array_equal(part(file, 300, 700, 800), np.arange(300, 700))


@pytest.mark.parametrize("flattened", [False, True])
@pytest.mark.parametrize("code", ["<i8", ">f4"])
def test_parts_in_any_order(code, flattened, tmp_path, rng):
    """By several threads, each of which fills no more than its piece."""
    x = np.asfortranarray(rng.integers(0, 10**6, (300, 70)).astype(code))
    np.save(tmp_path / "x.npy", x)
    y, pieces = np.zeros(x.size, x.dtype.newbyteorder("=")), list(chunks(0, x.size, 101))
    rng.shuffle(pieces)
    with (
        ThreadPoolExecutor(4) as threads,
        npy.inspect(tmp_path / "x.npy").reading(flattened=flattened) as fill,
    ):
        list(threads.map(lambda piece: fill(y[slice(*piece)], piece[0]), pieces))
    np.testing.assert_array_equal(y, x.ravel() if flattened else x.ravel("K"))


def test_shapes(tmp_path):
    for name, x in {"0d": np.array(5.0), "2d": np.arange(6).reshape(2, 3)}.items():
        np.save(tmp_path / f"{name}.npy", x)
        np.testing.assert_array_equal(whole(npy.inspect(tmp_path / f"{name}.npy")), x.ravel())
    np.save(tmp_path / "f1.npy", np.asfortranarray(np.arange(5)))
    np.testing.assert_array_equal(whole(npy.inspect(tmp_path / "f1.npy")), np.arange(5))


@pairs(
    code=["<f4", ">i8", "|u1"],
    shape=[(2, 3), (30, 40), (5, 1, 600), (700, 2), (3, 4, 5, 6), (0, 4)],
    group_by="shape",
)
def test_fortran_order(shape, code, tmp_path, rng):
    """As it lies in the file, and flattened as NumPy does it; from any element to any other."""
    x = np.asfortranarray(rng.integers(0, 100, shape).astype(code))
    np.save(tmp_path / "f.npy", x)
    file = npy.inspect(tmp_path / "f.npy")
    assert file.fortran is not x.flags.c_contiguous
    np.testing.assert_array_equal(whole(file), x.ravel("K"))
    for piece in (8, 1 << 10):
        np.testing.assert_array_equal(whole(file, piece, flattened=True), x.ravel())
    for _ in range(20):
        low, high = sorted(rng.integers(0, x.size + 1, 2))
        np.testing.assert_array_equal(
            part(file, low, high, 1 << 8, flattened=True), x.ravel()[low:high]
        )


@pytest.mark.parametrize("shape", [(3, *[1] * 40, 5), (1,) * 64, (1, 4, *[1] * 40, 0)],
                         ids=["40", "64", "empty"])  # fmt: skip
def test_fortran_order_of_many_axes(shape, tmp_path, rng):
    """NumPy iterates over 32 axes."""
    x = np.asfortranarray(rng.integers(0, 100, shape))
    with (tmp_path / "f.npy").open("wb") as stream:
        descr = {"descr": x.dtype.str, "fortran_order": True, "shape": shape}
        format.write_array_header_1_0(stream, descr)
        stream.write(x.tobytes("F"))
    file = npy.inspect(tmp_path / "f.npy")
    np.testing.assert_array_equal(whole(file, 8, flattened=True), x.ravel())


def test_fortran_order_becomes_shorter(tmp_path, held):
    np.save(tmp_path / "f.npy", np.asfortranarray(np.zeros((200, 300))))
    file = npy.inspect(tmp_path / "f.npy")
    fill = held.enter_context(file.reading(flattened=True))
    fill(np.empty(128), 0)
    os.truncate(tmp_path / "f.npy", 1000)
    with pytest.raises(InputError, match="became shorter"):
        fill(np.empty(128), 128)
    with pytest.raises(InputError, match="was changed while it was read"):
        held.close()


@pytest.mark.parametrize("code", ["<f4", ">i8", "|b1"])
def test_raw(code, tmp_path, rng):
    x = rng.integers(0, 2, 600).astype(code)
    x.tofile(tmp_path / "x.bin")
    for shape in (None, (600,), (20, 30), (1, 600, 1)):
        file = files.inspect_raw(tmp_path / "x.bin", np.dtype(code), shape)
        assert (file.shape, file.n) == (shape or (600,), 600)
        np.testing.assert_array_equal(whole(file), x)


RAW_FAULTS = {
    "no multiple": ("<f8", None, "has 1001 bytes, no multiple of the 8 of float64"),
    "fewer bytes": ("<f4", (251,), r"has 1001 bytes; float32 of shape \(251,\) has 1004"),
    "more bytes": ("<f4", (250,), r"has 1001 bytes; float32 of shape \(250,\) has 1000"),
    "negative": ("|u1", (-7, -143), r"the impossible shape \(-7, -143\)"),
    "objects": ("O", None, "pickled Python objects"),
    "text": ("U1", None, "a scan takes bool"),
    "nothing in an element": ("V0", None, "a scan takes bool"),
}


@pytest.mark.parametrize("fault", RAW_FAULTS)
def test_raw_faults(fault, tmp_path):
    code, shape, message = RAW_FAULTS[fault]
    (tmp_path / "x.bin").write_bytes(bytes(1001))
    with pytest.raises(InputError, match=message):
        files.inspect_raw(tmp_path / "x.bin", np.dtype(code), shape)
    with pytest.raises(InputError, match="cannot read"):
        files.inspect_raw(tmp_path / "none.bin", np.dtype("f4"), None)


def header(text):
    data = text.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(data).to_bytes(2, "little") + data


def versioned(descr, version, pad=0):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (0,)}}"
    data = text.encode("latin1").ljust(pad) + b"\n"
    return b"\x93NUMPY" + version + len(data).to_bytes(4, "little") + data


def shaped(shape):
    return header(f"{{'descr': '|i1', 'fortran_order': False, 'shape': {shape}}}") + b"1"


def npy_bytes(tmp_path, x):
    np.save(tmp_path / "good.npy", x, allow_pickle=True)
    return (tmp_path / "good.npy").read_bytes()


def saved_as(tmp_path, save):
    with (tmp_path / "other").open("wb") as stream:
        save(stream, np.arange(9))
    return (tmp_path / "other").read_bytes()


BAD = {
    "empty": ("not a .npy", lambda _: b""),
    "text": ("not a .npy", lambda _: b"1.0, 2.0\n"),
    "magic only": ("not a .npy", lambda _: b"\x93NUMPY"),
    "version 9": ("version 9.0 is unknown", lambda _: b"\x93NUMPY\x09\x00" + b"\0" * 64),
    "version 0": ("version 0.0 is unknown", lambda _: versioned("<f4", b"\0\0")),
    "version 1.1": ("version 1.1 is unknown", lambda _: versioned("<f4", b"\1\1")),
    "version 4": ("version 4.0 is unknown", lambda _: versioned("<f4", b"\4\0")),
    "version 255": ("version 255.255 is unknown", lambda _: versioned("<f4", b"\xff\xff")),
    "no UTF-8": ("not a .npy", lambda _: versioned("\xe9", b"\3\0")),
    "a long header": ("has 1048577 bytes", lambda _: versioned("<f4", b"\2\0", 1 << 20)),
    "4 GiB of header": ("more than", lambda _: b"\x93NUMPY\2\0" + b"\xff" * 40),
    "no dict": ("not a .npy", lambda _: header("[1, 2]")),
    "code": ("not a .npy", lambda _: header("__import__('os').getcwd()")),
    "no token": ("not a .npy", lambda _: header("{'descr': '<f4', 'shape': (3,")),
    "no descr": ("not a .npy", lambda _: header("{'descr': '', 'fortran_order': 0, 'shape': 3}")),
    "unhashable": ("not a .npy", lambda _: header("{[]: 1}")),
    "deep": ("not a .npy", lambda _: header("(" * 300)),
    "cut header": ("not a .npy", lambda t: npy_bytes(t, np.zeros(9))[:40]),
    "truncated": ("truncated", lambda t: npy_bytes(t, np.zeros(9))[:-1]),
    "negative": (
        "impossible shape",
        lambda _: header("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}"),
    ),
    "bools": ("impossible shape", lambda _: shaped((True,))),
    "floats": ("not a .npy", lambda _: shaped((1.0,))),
    "65 axes": ("65 axes", lambda _: shaped((1,) * 65)),
    "2^63 elements": ("impossible shape", lambda _: shaped((1 << 62, 2))),
    "2^63 beside 0": ("impossible shape", lambda _: shaped((0, 1 << 62, 2))),
    ".npz": (r"an archive; name it \.npz", lambda t: saved_as(t, np.savez)),
    "CSV": ("text, such as CSV.*loadtxt", lambda t: saved_as(t, np.savetxt)),
    "a pickle": ("a pickle", lambda _: pickle.dumps(np.arange(9))),
    "HDF5": (r"an HDF5 file; name it \.h5", lambda _: b"\x89HDF\r\n\x1a\n" + bytes(99)),
    "gzip": ("compressed", lambda _: gzip.compress(bytes(99))),
    "huge": (
        "truncated",
        lambda _: header("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999,)}"),
    ),
    "pickled": ("pickled", lambda t: npy_bytes(t, np.array([{}, 1], object))),
    "strings": ("holds <U1", lambda t: npy_bytes(t, np.array(["a"]))),
    "bytes": (r"holds \|V4", lambda t: npy_bytes(t, np.zeros(3, "V4"))),
    "records": (
        "holds .*structures take .* op=distscan.Operator",
        lambda t: npy_bytes(t, np.zeros(3, [("a", "f4")])),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case, tmp_path):
    message, make = BAD[case]
    path = tmp_path / "x.npy"
    path.write_bytes(make(tmp_path))
    with pytest.raises(InputError, match=message) as caught:
        npy.inspect(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


NAMES = {
    "ascii": ["a", "b'\"\\"],
    "latin-1": ["\xe9", "b"],
    "beyond": ["\u03b1", "\\\u0394t", "\U0001f600"],
    "long": ["a" * 70_000],
    "long, beyond": ["\u03b1" * 20_000],
}


@pytest.mark.parametrize("case", NAMES)
@pytest.mark.filterwarnings("ignore:Stored array in format")
def test_names_of_fields(case, tmp_path):
    """Read as NumPy writes them, and written as NumPy reads them, in the same version."""
    x = np.zeros(2, [(name, "<f8") for name in NAMES[case]])
    np.save(tmp_path / "x.npy", x)
    assert npy.inspect(tmp_path / "x.npy", kinds="V").dtype == x.dtype
    made = npy.create(tmp_path / "y.npy", Layout(x.dtype, x.shape))
    assert (made.start % 64, npy.inspect(tmp_path / "y.npy", kinds="V").dtype) == (0, x.dtype)
    assert np.load(tmp_path / "y.npy", max_header_size=1 << 20).dtype == x.dtype
    versions = [(tmp_path / name).read_bytes()[:8] for name in ("x.npy", "y.npy")]
    assert versions[0] == versions[1]


@pytest.mark.parametrize(
    "dtype",
    [
        {"names": ["a", "b"], "formats": ["f8", "i1"], "offsets": [8, 0]},
        [("a" * 200_000, "f8")],
        "U8",
        "V8",
    ],
    ids=["order", "long", "text", "bytes"],
)
def test_types_that_no_header_holds(dtype, tmp_path):
    with pytest.raises(OutputError, match="cannot hold"):
        npy.create(tmp_path / "y.npy", Layout(np.dtype(dtype), (3,)))


@pytest.mark.filterwarnings("ignore:Reading `.npy`", "ignore:Data type alias")
def test_damaged_headers(tmp_path, rng):
    """What is not refused is as NumPy reads it."""
    path, accepted = tmp_path / "x.npy", 0
    for turn in range(300):
        x = np.zeros((2, 3), [("a", "<i2"), ("\xe9", "<i2")] if turn % 3 else "<i4")
        stream = BytesIO()
        format.write_array(stream, np.asfortranarray(x), version=(1 + turn % 2, 0))
        data, end = bytearray(stream.getvalue()), stream.tell() - x.nbytes
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, end))
            data[at] = rng.choice([data[rng.integers(end)], rng.integers(256)])
        path.write_bytes(data)
        try:
            file = npy.inspect(path, kinds="biufcV")
        except InputError:
            continue
        y = np.load(path)
        assert (file.dtype, file.shape) == (y.dtype, y.shape)
        assert file.fortran == (y.flags.f_contiguous and not y.flags.c_contiguous)
        accepted += 1
    assert 0 < accepted < 300


def test_what_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        npy.inspect(tmp_path / "none.npy")
    with pytest.raises(InputError, match="not a regular file"):
        npy.inspect(tmp_path)
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="not a regular file"):
        npy.inspect(tmp_path / "pipe.npy")


def test_shrinks_while_read(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(100))
    file = npy.inspect(tmp_path / "x.npy")
    os.truncate(tmp_path / "x.npy", 500)
    with pytest.raises(InputError, match="became shorter"):
        whole(file)


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_changes_while_read(when, tmp_path, held):
    np.save(tmp_path / "x.npy", np.zeros(100))
    file = npy.inspect(tmp_path / "x.npy")

    def change(now):
        if now == when:
            with (tmp_path / "x.npy").open("r+b") as stream:
                stream.seek(-1, os.SEEK_END)
                stream.write(b"1")
            os.utime(tmp_path / "x.npy", ns=(0, file.stamp.mtime_ns + 1))

    change("before")
    fill = held.enter_context(file.reading())
    fill(np.empty(50), 0)
    change("between")
    fill(np.empty(50), 50)
    change("after")
    with pytest.raises(InputError, match="was changed while it was read"):
        held.close()


def test_grows_while_read(tmp_path):
    """And says that it was not touched."""
    np.save(tmp_path / "x.npy", np.zeros(100))
    file = npy.inspect(tmp_path / "x.npy")
    with (tmp_path / "x.npy").open("ab") as stream:
        stream.write(b"1")
    os.utime(tmp_path / "x.npy", ns=(0, file.stamp.mtime_ns))
    with pytest.raises(InputError, match="was changed while it was read"):
        whole(file)


@pytest.mark.parametrize("n", [0, 1, 1000, 10_000, 100_000])
def test_stamps(n, tmp_path):
    """Of a file's own: a byte at either end, the size and the time tell it from others."""
    np.save(tmp_path / "x.npy", np.zeros(n, np.uint8))
    stamp = npy.inspect(tmp_path / "x.npy").stamp
    assert stamp == npy.inspect(tmp_path / "x.npy").stamp
    for at in [0, -1] if n else []:
        x = np.zeros(n, np.uint8)
        x[at] = 1
        np.save(tmp_path / "y.npy", x)
        os.utime(tmp_path / "y.npy", ns=(0, stamp.mtime_ns))
        other = npy.inspect(tmp_path / "y.npy").stamp
        assert other.content != stamp.content
        assert other == (stamp.size, other.content, stamp.mtime_ns)


# ---- a format is one module; the rest of a job does not know it ----------------------------------


@pytest.fixture(autouse=True)
def text(monkeypatch):
    """Files that end in .text are text."""
    monkeypatch.setitem(formats._FORMATS, ".text", text_format)


@pytest.fixture
def write(comm, folder):
    """Write an input that every rank then sees."""

    def write(name, x):
        if comm.rank == 0:
            made = text_format.create(folder / name, Layout(x.dtype, x.shape))
            with made.writing() as put:
                put(x, 0)
        comm.Barrier()

    return write


def read(path):
    found = text_format.inspect(path)
    y = np.empty(found.n, found.dtype)
    with found.reading() as fill:
        fill(y, 0)
    return y


def drawn(rng):
    return rng.integers(-(1 << 40), 1 << 40, int(rng.integers(0, 3000)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_from_and_to_a_format(threads, reverse, run, folder, write, rng, monkeypatch):
    monkeypatch.setattr(plan, "CPU_CHUNK", 800)
    x, options = drawn(rng), ["--reverse"] * reverse
    write("x.text", x)
    given = ["x.text", "-o", "y.text", "--backend", "cpu", "--threads", threads, "--check"]
    status, out, err = run(*given, *options, "--json", "--quiet")
    assert status == 0, err
    step = -1 if reverse else 1
    np.testing.assert_array_equal(read(folder / "y.text"), x[::step].cumsum()[::step])
    assert json.loads(out)["elements"] == x.size


def test_formats_may_differ(run, folder, write, save, rng):
    x = drawn(rng)
    write("a.text", x)
    save("b.npy", x)
    for given, name, load, times in (
        (["a.text"], "a.scan.text", read, 1),
        (["a.text", "b.npy", "-o", "both.npy"], "both.npy", np.load, 2),
    ):
        status, _, err = run(*given, "--backend", "cpu", "--quiet")
        assert status == 0, err
        np.testing.assert_array_equal(load(folder / name), np.tile(x, times).cumsum())


@pytest.mark.parametrize("same", [True, False])
def test_resumed(same, run, folder, write, rng, comm, monkeypatch):
    """What a format has created is opened again, and only if it is of the same array."""
    x = drawn(rng)
    write("x.text", x)
    write("other.text", np.append(x, 1))
    given = ["-o", "y.text", "--backend", "cpu", "--resume", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(output, "publish", raises(errno.EIO))
        assert run("x.text", *given)[0] == 1
    if same:
        created = []
        monkeypatch.setattr(text_format, "create", lambda *_, **__: created.append(1))
        status, _, err = run("x.text", *given)
        assert status == 0, err
        assert created == []
        np.testing.assert_array_equal(read(folder / "y.text"), x.cumsum())
    else:
        status, _, err = run("other.text", *given)
        assert status == 2
        assert "was left by a job with another output" in err
    comm.Barrier()


def test_a_type_that_a_format_cannot_hold(run, folder, save, comm):
    save("x.npy", np.ones(10))
    for options in ([], ["--resume"]):
        status, _, err = run("x.npy", "-o", "y.text", "--backend", "cpu", "--quiet", *options)
        assert status == 2
        assert "text cannot hold float64 of shape (10,)" in err
        assert sorted(path.name for path in folder.iterdir()) == ["x.npy"]
        comm.Barrier()
