"""Files of HDF5, NetCDF-4 and .npz, written and read by their own libraries."""

import errno

import numpy as np
import pytest

from distscan import InputError, OutputError, scan_file
from distscan.job import formats, output, plan
from distscan.job.formats import hdf5, storage
from distscan.job.formats.interface import Location
from support.processes import python

h5py = pytest.importorskip("h5py", reason="no h5py")
netCDF4 = pytest.importorskip("netCDF4", reason="no netCDF4")


def dataset(**options):
    """Write a data set of HDF5 with such options."""

    def write(path, x):
        with h5py.File(path, "w") as file:
            file.create_dataset("other", data=[1, 2])
            file.create_dataset("run/x", data=x, **options)
        return f"{path}::/run/x"

    return write


def big_endian(path, x):
    with h5py.File(path, "w") as file:
        file["x"] = x.astype(x.dtype.newbyteorder(">"))
    return str(path)  # its only one


def narrow(path, x):
    """Integers of 24 bits in 32, which HDF5 converts."""
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(24)
    with h5py.File(path, "w") as file:
        made = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple(x.shape))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(x, "i4"))
    return f"{path}::x"


def variable(**options):
    """Write a variable of NetCDF-4 with such options, and its coordinates."""

    def write(path, x):
        with netCDF4.Dataset(path, "w") as file:
            file.title = "a test"
            for axis, length in enumerate(x.shape):
                file.createDimension(f"d{axis}", None if options.get("grows") else length)
                each = file.createVariable(f"d{axis}", "f8", (f"d{axis}",))
                each[:], each.units = np.arange(length) / 2, "m"
            names = tuple(f"d{axis}" for axis in range(x.ndim))
            others = {key: value for key, value in options.items() if key != "grows"}
            made = file.createVariable("x", x.dtype, names, **others)
            made.set_auto_maskandscale(False)
            made[...], made.units, made.valid_max = x, "kg", 9.0
        return f"{path}::x"

    return write


def member(save):
    def write(path, x):
        save(path, first=np.zeros(3), x=x)
        return f"{path}::x"

    return write


KINDS = {
    "contiguous": (".h5", dataset()),
    "chunked": (".hdf5", dataset(chunks=True)),
    "compressed": (".h5", dataset(chunks=True, compression="gzip", shuffle=True, fletcher32=True)),
    "big-endian": (".h5", big_endian),
    "24 bits": (".h5", narrow),
    "netcdf": (".nc", variable()),
    "netcdf compressed": (".nc", variable(zlib=True, chunksizes=None)),
    "netcdf that grows": (".nc4", variable(grows=True)),
    "npz": (".npz", member(np.savez)),
    "npz compressed": (".npz", member(np.savez_compressed)),
}
FORMS = [{}, {"axis": 0}, {"axis": 1, "reverse": True}, {"axis": -1, "exclusive": True},
         {"reverse": True, "op": "max"}]  # fmt: skip


@pytest.fixture
def made(comm, folder):
    """Write a file on rank 0; return its location, the same on every rank."""

    def make(name, write, x):
        location = write(folder / name, x) if comm.rank == 0 else None
        return comm.bcast(location)

    return make


def scanned(x, op="sum", axis=None, *, exclusive=False, reverse=False):
    ufunc = {"sum": np.add, "max": np.maximum}[op]
    y = x.ravel() if axis is None else np.moveaxis(x, axis, 0)
    y = y[::-1] if reverse else y
    y = ufunc.accumulate(y, 0, dtype=np.result_type(x, "i8") if op == "sum" else None)
    if exclusive:
        y = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
    y = y[::-1] if reverse else y
    return y if axis is None else np.moveaxis(y, 0, axis)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_inputs(kind, form, made, folder, comm, rng, monkeypatch):
    """Any shape, cut into small pieces."""
    monkeypatch.setattr(plan, "CPU_CHUNK", int(rng.integers(200, 3000)))
    suffix, write = KINDS[kind]
    x = rng.integers(-99, 99, rng.integers(1, 12, 3) * [5, 1, 1] + [0, 1, 0])
    x = x.astype("i4" if kind == "24 bits" else rng.choice(["i8", "f4", "i2"]))
    if x.dtype.kind == "f" and form.get("op") != "max":
        x = x.astype("f8")
    threads = int(rng.integers(1, 4))
    given = made(f"x{suffix}", write, x)
    report = scan_file(given, folder / "y.npy", backend="cpu", threads=threads, **form)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), scanned(x, **form))
    assert report.elements == x.size
    comm.Barrier()


@pytest.mark.parametrize("name", ["y.h5", "y.h5::/a/b", "y.nc", "y.nc::z"])
@pytest.mark.parametrize("kind", ["contiguous", "compressed", "netcdf", "npz"])
@pytest.mark.parametrize("axis", [None, 1])
def test_outputs(kind, axis, name, made, folder, comm, rng):
    """Ranks write one array, under the name of the input's, or under another."""
    suffix, write = KINDS[kind]
    x = rng.integers(-99, 99, (37, 5, 3))
    given = made(f"x{suffix}", write, x)
    scan_file(given, f"{folder}/{name}", axis=axis, backend="cpu", check=True)
    path, found = Location.parse(folder / name)
    want = found or Location.parse(given).member
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file[want], scanned(x, axis=axis))
        assert file[want].chunks is None
    if path.suffix == ".nc":
        with netCDF4.Dataset(path) as file:
            np.testing.assert_array_equal(file[want][...], scanned(x, axis=axis))
    comm.Barrier()


def test_what_is_carried_over(made, folder, comm):
    x = np.arange(24.0).reshape(4, 6)

    def write(path, x):
        with h5py.File(path, "w") as file:
            file.attrs["who"] = "we"
            made = file.create_dataset("g/x", data=x)
            made.attrs["units"], made.attrs["range"] = "m", [1.0, 2.0]
            file["g"].attrs["run"] = 7
            file["time"] = np.arange(4) * 0.5
            file["time"].make_scale("time")
            made.dims[0].attach_scale(file["time"])
            made.dims[1].label = "column"
        return f"{path}::g/x"

    scan_file(made("x.h5", write, x), folder / "y.h5", axis=0, backend="cpu")
    with h5py.File(folder / "y.h5") as file:
        y = file["g/x"]
        assert (file.attrs["who"], file["g"].attrs["run"], y.attrs["units"]) == ("we", 7, "m")
        np.testing.assert_array_equal(y.attrs["range"], [1, 2])
        np.testing.assert_array_equal(y.dims[0]["time"], [0, 0.5, 1, 1.5])
        assert y.dims[1].label == "column"
    scan_file(made("x.nc", variable(), x), folder / "y.nc", axis=0, backend="cpu")
    with netCDF4.Dataset(folder / "y.nc") as file:
        assert (file.title, file["x"].units, file["d0"].units) == ("a test", "kg", "m")
        assert file["x"].dimensions == ("d0", "d1")
        assert "valid_max" not in file["x"].ncattrs()
        np.testing.assert_array_equal(file["d1"], np.arange(6) / 2)
    filled = made("z.nc", variable(fill_value=-7.0), x)  # none of its elements is missing
    scan_file(filled, folder / "z.h5", axis=0, backend="cpu")
    with h5py.File(folder / "z.h5") as file:
        assert file["x"].attrs["units"] == b"kg"  # as netCDF4 has written it
    comm.Barrier()


def odd(path, x):
    with h5py.File(path, "w") as file:
        file["scalar"], file["none"] = 5, np.zeros((0, 3))
        file["bools"], file["words"] = x > 0, np.array(["a"] * 3 + ["b"] * (len(x) - 3), "S1")
        file.create_dataset("grows", (4, 0), "f4", chunks=True, maxshape=(None, None))
        file.create_dataset("unwritten", (5,), "i4", chunks=(2,), fillvalue=3)
        file["x"] = x
        attributes = file["x"].attrs
        attributes["none"], attributes["text"] = h5py.Empty("f4"), "\u00e9"
        attributes["words"], attributes["there"] = ["a", "bc"], file["bools"].ref
    return str(path)


def test_odd_data_sets(made, folder, comm):
    x = np.arange(-3, 9)
    path = made("x.h5", odd, x)
    for name, want in (
        ("scalar", [5]), ("none", []), ("bools", (x > 0).cumsum()), ("grows", []),
        ("unwritten", np.arange(1, 6) * 3), ("x", x.cumsum()),
    ):  # fmt: skip
        scan_file(f"{path}::{name}", folder / "y.h5", backend="cpu", force=True)
        with h5py.File(folder / "y.h5") as file:
            np.testing.assert_array_equal(file[name], want)
            found = dict(file[name].attrs)
        comm.Barrier()
    assert found.pop("none") == h5py.Empty("f4")
    assert {key: np.ravel(value).tolist() for key, value in found.items()} == {
        "text": ["\u00e9"],
        "words": ["a", "bc"],
    }
    scan_file(f"{path}::x", folder / "y.npy", segments=f"{path}::words", backend="cpu")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), [*x[:3].cumsum(), *x[3:].cumsum()])
    comm.Barrier()


def test_a_fault_of_the_output_is_not_one_of_the_input(made, folder, comm, monkeypatch):
    given = made("x.h5", dataset(chunks=True), np.arange(1000))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.Writer, "__call__", full)
    monkeypatch.setattr(storage.MappedWriter, "__call__", full)
    with pytest.raises(OSError, match="No space left") as caught:
        scan_file(given, folder / "y.npy", backend="cpu")
    assert not isinstance(caught.value, InputError)
    comm.Barrier()


def test_segments_and_several_inputs(made, folder, comm, rng):
    x, keys = rng.integers(-9, 9, 700), np.arange(700) // 9

    def write(path, x):
        with h5py.File(path, "w") as file:
            file["x"] = x
            file.create_dataset("keys", data=keys, chunks=(64,), compression="gzip")
        return f"{path}::x"

    given = made("x.h5", write, x)
    path = Location.parse(given).path
    scan_file(given, folder / "y.npy", segments=f"{path}::keys", backend="cpu")
    want = np.concatenate([x[keys == key].cumsum() for key in np.unique(keys)])
    np.testing.assert_array_equal(np.load(folder / "y.npy"), want)
    inputs = [made(f"{i}{suffix}", write, x) for i, (suffix, write) in enumerate(KINDS.values())
              if write not in (narrow, big_endian)]  # fmt: skip
    scan_file(inputs, folder / "all.h5::z", backend="cpu", force=True)
    with h5py.File(folder / "all.h5") as file:
        np.testing.assert_array_equal(file["z"], np.tile(x, len(inputs)).cumsum())
    comm.Barrier()


@pytest.mark.parametrize("name", ["y.h5", "y.nc"])
def test_resumed(name, made, folder, comm, rng, monkeypatch):
    """What a job has made is opened again, and only if it is of the same array."""
    x = rng.integers(-9, 9, (300, 7))
    given = made("x.h5", dataset(chunks=True, compression="gzip"), x)
    options = {"axis": 0, "backend": "cpu", "resume": True}
    with monkeypatch.context() as patch:

        def fail(*_, **__):
            raise OSError(errno.EIO, "a fault of the disk")

        patch.setattr(output, "publish", fail)
        with pytest.raises(OSError, match="a fault of the disk"):
            scan_file(given, folder / name, **options)
    with pytest.raises(Exception, match="was left by a job with another output"):
        scan_file(given, folder / f"{name}::another", **options)
    made = []
    monkeypatch.setattr(formats.of(folder / name), "create", lambda *_, **__: made.append(1))
    scan_file(given, folder / name, **options)
    assert not made
    with h5py.File(folder / name) as file:
        np.testing.assert_array_equal(file["/run/x"], x.cumsum(0))
    comm.Barrier()


LIKE = {
    "chunked": (".h5", dataset(chunks=(7, 2, 5)), {}),
    "filtered": (
        ".h5",
        dataset(chunks=(5, 3, 2), compression="gzip", compression_opts=3, shuffle=True,
                fletcher32=True),
        {"compression": "gzip", "compression_opts": 3, "shuffle": True, "fletcher32": True},
    ),
    "lzf": (".h5", dataset(chunks=(40, 1, 1), compression="lzf"), {"compression": "lzf"}),
    "grows": (
        ".h5",
        dataset(chunks=(64, 8, 6), maxshape=(None, 8, None), fillvalue=3),
        {"maxshape": (None, 8, None)},
    ),
    "netcdf": (
        ".nc",
        variable(zlib=True, complevel=2, chunksizes=(8, 5, 2)),
        {"compression": "gzip", "compression_opts": 2, "shuffle": True},
    ),
    "netcdf filled": (
        ".nc",
        variable(zlib=True, chunksizes=(8, 5, 2), fill_value=-99.5, grows=True),
        {"compression": "gzip"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["y.h5", "y.nc", "y.h5::/a/b"])
@pytest.mark.parametrize("kind", LIKE)
def test_like(kind, name, made, folder, comm, rng, monkeypatch):
    """The output has the chunks and the filters of the input, whatever the memory."""
    suffix, write, want = LIKE[kind]
    monkeypatch.setattr(hdf5, "WINDOW", int(rng.integers(1, 4000)))
    x = rng.integers(-99, 99, (41, 8, 6)).astype("f8" if kind == "netcdf filled" else "i4")
    given = made(f"x{suffix}", write, x)
    axis, shown = int(rng.integers(3)), []
    options = {"axis": axis, "reverse": True, "op": "max", "backend": "cpu", "check": True}
    progress = lambda *each: shown.append(each)  # noqa: E731
    scan_file(given, f"{folder}/{name}", like=True, progress=progress, **options)
    path, found = Location.parse(folder / name)
    member = Location.parse(given).member
    with h5py.File(Location.parse(given).path) as file:
        chunks = file[member].chunks
    with h5py.File(path) as file:
        y = file[found or member]
        np.testing.assert_array_equal(y, scanned(x, "max", axis, reverse=True))
        if path.suffix == ".nc":  # its dimensions do not grow
            chunks, want = tuple(map(min, chunks, x.shape)), want | {"maxshape": x.shape}
        assert y.chunks == chunks
        assert {key: getattr(y, key) for key in want} == want
    if comm.rank == 0:
        assert [each for each in shown if each[0] == "encode"][-1] == ("encode", x.nbytes, x.nbytes)
    comm.Barrier()


def test_like_has_the_elements(made, folder, comm, rng, monkeypatch):
    """And all that is carried over without it; the size of elements may be another."""
    x = rng.integers(-99, 99, (41, 8, 6)).astype("i2")
    given = made("x.h5", dataset(chunks=(9, 3, 4), compression="gzip", shuffle=True), x)
    if comm.rank == 0:
        with h5py.File(folder / "x.h5", "r+") as file:
            file["run/x"].attrs["units"] = "m"
    comm.Barrier()
    empty = made("empty.h5", dataset(chunks=(9, 3), maxshape=(None, 3)), x[:0, :3, 0])
    scan_file(empty, folder / "y.h5", axis=0, backend="cpu", like=True)
    with h5py.File(folder / "y.h5") as file:
        assert (file["run/x"].shape, file["run/x"].chunks) == ((0, 3), (9, 3))
    comm.Barrier()
    for most in (1, 30, 700, 1 << 20):
        monkeypatch.setattr(hdf5, "WINDOW", most)
        for axis in (0, 1, 2):
            scan_file(given, folder / "y.h5", axis=axis, backend="cpu", like=True, force=True)
            with h5py.File(folder / "y.h5") as file:
                np.testing.assert_array_equal(file["run/x"], scanned(x, axis=axis))
                assert file["run/x"].attrs["units"] == "m"
            comm.Barrier()
    names = [path.name for path in sorted(folder.iterdir())]
    assert names == ["empty.h5", "x.h5", "y.h5"]


def test_like_of_filters_of_others(made, folder, comm):
    plugin = pytest.importorskip("hdf5plugin", reason="no hdf5plugin")
    x = np.arange(30_000) % 9
    for filters in (plugin.Zstd(clevel=5), plugin.Bitshuffle(), plugin.LZ4()):
        given = made("x.h5", dataset(chunks=(10_000,), **filters), x)
        scan_file(given, folder / "y.h5", axis=0, op="max", backend="cpu", like=True, force=True)
        with h5py.File(folder / "y.h5") as file:
            np.testing.assert_array_equal(file["run/x"], np.maximum.accumulate(x))
            with h5py.File(folder / "x.h5") as source:
                pairs = [each["run/x"].id.get_create_plist() for each in (source, file)]
            assert pairs[0].get_filter(0) == pairs[1].get_filter(0)
            assert file["run/x"].id.get_storage_size() < x.nbytes / 4
        comm.Barrier()


@pytest.mark.parametrize("name", ["y.h5", "y.nc"])
def test_like_is_resumed(name, made, folder, comm, rng, monkeypatch):
    x = rng.integers(-9, 9, (300, 7))
    given = made("x.h5", dataset(chunks=True, compression="gzip"), x)
    options = {"axis": 0, "backend": "cpu", "resume": True, "like": True}
    with monkeypatch.context() as patch:

        def fail(*_, **__):
            raise OSError(errno.EIO, "a fault of the disk")

        patch.setattr(hdf5, "write_boxes", fail)
        with pytest.raises(OSError, match="a fault of the disk"):
            scan_file(given, folder / name, **options)
    with pytest.raises(Exception, match="was left by a job with another output"):
        scan_file(given, folder / name, **options | {"like": False})
    made = []
    monkeypatch.setattr(formats.of(folder / name), "create", lambda *_, **__: made.append(1))
    scan_file(given, folder / name, **options)
    assert not made
    with h5py.File(folder / name) as file:
        np.testing.assert_array_equal(file["/run/x"], x.cumsum(0))
        assert file["/run/x"].compression == "gzip"
    comm.Barrier()


@pytest.mark.parametrize(
    ("write", "name", "options", "fault"),
    [
        (dataset(), "y.h5", {}, "like=True needs an input .* that is chunked: .*::/run/x is not"),
        (dataset(chunks=True), "y.npy", {}, "like=True is for outputs of HDF5 and NetCDF-4"),
        (dataset(chunks=(3, 4)), "y.h5", {"axis": None}, r"chunks of shape \(3, 4\) do not fit"),
        (
            dataset(chunks=(3, 4), scaleoffset=0),
            "y.nc",
            {},
            "filter 6 of HDF5, scaleoffset, which may change a result: leave out like=True",
        ),
    ],
)
def test_like_is_refused(write, name, options, fault, made, folder, comm):
    given = made("x.h5", write, np.arange(40).reshape(5, 8))
    with pytest.raises((InputError, OutputError), match=fault):
        scan_file(given, folder / name, **{"axis": 0, "backend": "cpu", "like": True} | options)
    assert [path.name for path in folder.iterdir()] == ["x.h5"]
    comm.Barrier()


# ---- what is refused -----------------------------------------------------------------------------


def special(make):
    def write(path, x):
        with h5py.File(path, "w") as file:
            make(file, path, x)
        return f"{path}::x"

    return write


def virtual(file, path, x):
    layout = h5py.VirtualLayout(x.shape, x.dtype)
    layout[:] = h5py.VirtualSource("gone.h5", "x", x.shape)
    file.create_virtual_dataset("x", layout)


def damaged(path, x):
    """A chunk that is no longer what was compressed."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=x, chunks=(10,), compression="gzip")
        place = made.id.get_chunk_info(1).byte_offset
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 8)
    return f"{path}::x"


def cut_off(write):
    def cut(path, x):
        location = write(path, np.tile(x, 100))
        path.write_bytes(path.read_bytes()[:-600])
        return location

    return cut


def text(path, x):
    path.write_text("1,2,3")
    return str(path)


def classic(path, x):
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.createDimension("t", len(x))
        file.createVariable("x", "i4", ("t",))[:] = x
    return f"{path}::x"


def packed(**options):
    def write(path, x):
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("t", len(x))
            made = file.createVariable("x", "i2", ("t",), **options)
            made.scale_factor, made[:] = 0.5, x
        return f"{path}::x"

    return write


def missing(path, x):
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("t", len(x))
        made = file.createVariable("x", "f4", ("t",), fill_value=-999.0)
        made[:] = np.ma.masked_equal(x, 5)
    return f"{path}::x"


def unknown(name):
    def write(path, x):
        return dataset()(path, x).replace("/run/x", name)

    return write


KEPT = np.arange(40)
REFUSED = {
    "no file": (".h5", lambda path, x: f"{path}::x", "cannot read"),
    "text": (".h5", text, "as HDF5: it is text"),
    "text.npz": (".npz", text, "no archive"),
    "two": (".h5", unknown(""), "name one, such as"),
    "unknown": (".h5", unknown("/run/y"), "data sets: /other, /run/x"),
    "a group": (".h5", unknown("run"), "is a group"),
    "cut off": (".h5", cut_off(dataset()), "truncated"),
    "cut off.npz": (".npz", cut_off(member(np.savez)), "no archive"),
    "damaged": (".h5", damaged, "cannot read"),
    "virtual": (".h5", special(virtual), "is virtual"),
    "external": (
        ".h5",
        special(lambda file, path, x: file.create_dataset(
            "x", x.shape, x.dtype, external=[(f"{path}.raw", 0, x.nbytes)])),
        "in other files",
    ),
    "a link": (
        ".h5",
        special(lambda file, path, x: file.__setitem__("x", h5py.ExternalLink("gone.h5", "x"))),
        "there is no",
    ),
    "an enumeration": (
        ".h5",
        special(lambda file, path, x: file.create_dataset(
            "x", data=x % 2, dtype=h5py.enum_dtype({"A": 0, "B": 1}))),
        "holds an enumeration",
    ),
    "words": (".h5", special(lambda file, path, x: file.__setitem__("x", ["a"])), "holds text"),
    "arrays": (
        ".h5",
        special(lambda file, path, x: file.create_dataset("x", 3, h5py.vlen_dtype("i4"))),
        "arrays of various lengths",
    ),
    "opaque": (
        ".h5",
        special(lambda file, path, x: file.create_dataset("x", 3, np.dtype("V5"))),
        "opaque bytes",
    ),
    "no shape": (
        ".h5",
        special(lambda file, path, x: file.create_dataset("x", data=h5py.Empty("f4"))),
        "has no shape",
    ),
    "netcdf-3": (".nc", classic, "is NetCDF-3"),
    "packed": (".nc", packed(), "is packed"),
    "packed and compressed": (".nc", packed(zlib=True, chunksizes=(9,)), "is packed"),
    "packed and by zstd": (".nc", packed(compression="zstd", shuffle=True), "is packed"),
    "missing": (".nc", missing, "has no value at element 5"),
    "unknown.npz": (".npz", lambda path, x: member(np.savez)(path, x) + "y", "arrays: first, x"),
    "of one": (".npy", lambda path, x: f"{path}.npy::x", "No such file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_inputs(kind, made, folder, comm):
    """In one line, on every rank; nothing is left behind."""
    suffix, write, fault = REFUSED[kind]
    given = made(f"x{suffix}", write, KEPT)
    before = sorted(folder.iterdir())
    comm.Barrier()
    with pytest.raises(InputError, match=fault) as caught:
        scan_file(given, folder / "y.npy", backend="cpu")
    assert "\n" not in str(caught.value)
    assert sorted(folder.iterdir()) == before
    comm.Barrier()


@pytest.mark.one_rank
def test_filters_of_others(tmp_path):
    """A package brings them; without it, the error names it."""
    plugin = pytest.importorskip("hdf5plugin", reason="no hdf5plugin")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=KEPT, chunks=(9,), **plugin.Zstd())
    scan_file(tmp_path / "x.h5", tmp_path / "y.npy", backend="cpu")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), KEPT.cumsum())
    program = """
import sys
class NoPlugin:
    def find_spec(self, name, path=None, target=None):
        if name == "hdf5plugin":
            raise ImportError("there is none")
sys.meta_path.insert(0, NoPlugin())
from distscan.cli import main
sys.exit(main([sys.argv[1], "--backend", "cpu"]))
"""
    run = python(program, tmp_path / "x.h5", HDF5_PLUGIN_PATH=str(tmp_path))  # it has none
    assert run.returncode == 2
    assert "compressed by zstd, filter 32015 of HDF5, which is missing: pip install" in run.stderr


@pytest.mark.one_rank
def test_a_file_that_another_program_writes(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = KEPT
        file.flush()
        program = "import sys; from distscan.cli import main; sys.exit(main(sys.argv[1:]))"
        run = python(program, tmp_path / "x.h5", "--backend", "cpu")
    assert run.returncode == 2
    assert "another program has opened it for writing" in run.stderr


@pytest.mark.parametrize(
    ("name", "dtype", "fault"),
    [
        ("y.npz", None, "are read, not written"),
        ("y.nc", "e", "NetCDF has no float16"),
        ("y.nc", "F", "NetCDF has no complex64"),
    ],
)
def test_refused_outputs(name, dtype, fault, made, folder, comm):
    given = made("x.h5", dataset(), KEPT)
    before = sorted(folder.iterdir())
    comm.Barrier()
    with pytest.raises(Exception, match=fault):
        scan_file(given, folder / name, dtype=dtype, backend="cpu")
    assert sorted(folder.iterdir()) == before
    comm.Barrier()


def test_a_file_that_changes(made, folder, comm, monkeypatch):
    given = made("x.h5", dataset(chunks=True), np.arange(1000))
    real = plan.JobPlan.of

    def change(*arguments):
        comm.Barrier()
        if comm.rank == 0:
            with h5py.File(folder / "x.h5", "r+") as file:
                file["other"][0] = 9
                file["more"] = np.ones(1000)
        comm.Barrier()
        return real(*arguments)

    monkeypatch.setattr(plan.JobPlan, "of", change)
    with pytest.raises(InputError, match="was changed while it was read"):
        scan_file(given, folder / "y.npy", backend="cpu")
    comm.Barrier()
