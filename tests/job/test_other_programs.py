"""Files that other programs write than the libraries that read them: netCDF's Zarr, nco, PyTables.

Where a program is not installed, its tests are skipped by its name.
"""

import json
import shutil
import subprocess

import numpy as np
import pytest

from distscan import InputError, scan_file
from support.processes import python

netCDF4 = pytest.importorskip("netCDF4", reason="no netCDF4")
h5py = pytest.importorskip("h5py", reason="no h5py")


@pytest.fixture
def put(comm, folder):
    """Call a function with the folder on rank 0; if it skips the test, all ranks do."""

    def put(write):
        missing = ""
        if comm.rank == 0:
            try:
                write(folder)
            except pytest.skip.Exception as skipped:
                missing = str(skipped)
        missing = comm.bcast(missing)
        if missing:
            pytest.skip(missing)

    return put


@pytest.fixture
def same(comm, folder):
    """Scan a file along axis 0 into a .npy file, and compare the result with NumPy."""

    def same(given, x):
        scan_file(folder / given, folder / "y.npy", axis=0, backend="cpu", force=True)
        np.testing.assert_array_equal(np.load(folder / "y.npy"), x.cumsum(0))
        comm.Barrier()

    return same


@pytest.fixture
def x(comm, rng):
    return comm.bcast(rng.integers(-99, 99, (30, 6, 5)).astype("f8"))


# ---- Zarr of the netCDF library ------------------------------------------------------------------


@pytest.fixture
def zarr():
    return pytest.importorskip("zarr", reason="no zarr")


# Its own process: netCDF brings an HDF5 of its own, and fills it with filters for Zarr. After that,
# h5py fails to write with those of hdf5plugin.
WRITE = """
import json, sys
import netCDF4, numpy as np
folder, mode, options, of_axes = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
x = np.load(f"{folder}/given.npy")
try:
    file = netCDF4.Dataset(f"file://{folder}/x.zarr#mode={mode},file", "w")
except OSError as error:
    sys.exit(f"no Zarr in the netCDF library: {error}")
with file:
    for axis, length in enumerate(x.shape):
        file.createDimension(f"d{axis}", length)
        made = file.createVariable(f"d{axis}", "f8", (f"d{axis}",), **of_axes)
        made[:] = np.arange(length) / 2
    for code in ("f4", "f8", "i2"):
        made = file.createVariable(code, code, ("d0", "d1", "d2"), **options)
        made.units, made[...] = "kg", x
"""
READ = """
import sys
import netCDF4, numpy as np
folder, mode = sys.argv[1:]
with netCDF4.Dataset(f"file://{folder}/y.zarr#mode={mode},file") as file:
    print(*file["f8"].dimensions, file["f8"].units)
    for name in ("f8", "d0", "d1", "d2"):
        np.save(f"{folder}/{name}.npy", np.ma.getdata(file[name][...]))
"""


def said(program, *arguments):
    """Return what a program says; skip the test if it needs something that is not here."""
    run = python(program, *arguments)
    if run.stderr.startswith("no "):
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def netcdf(x, mode="nczarr", of_axes=None, **options):
    """Write x.zarr by the netCDF library, with a variable for each of some types."""

    def write(folder):
        np.save(folder / "given.npy", x)
        said(WRITE, folder, mode, json.dumps(options), json.dumps(of_axes or {}))

    return write


SHUFFLED = {"zlib": True, "shuffle": True, "chunksizes": (7, 4, 5)}
OPTIONS = {
    "plain": {},
    "fill": {"fill_value": -200},
    "shuffled": SHUFFLED,
    "checked": SHUFFLED | {"fletcher32": True},
    "zstd": {"compression": "zstd", "chunksizes": (7, 4, 5)},
}


@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_zarr_of_netcdf(kind, mode, zarr, put, same, x):
    put(netcdf(x, mode, **OPTIONS[kind]))
    for code in ("f4", "f8", "i2"):
        same(f"x.zarr::{code}", x)


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
def test_zarr_to_netcdf(mode, zarr, put, x, folder, comm):
    """The netCDF library reads the output, with its coordinates, which were shuffled, too."""
    put(netcdf(x, mode, of_axes={"zlib": True}, **SHUFFLED))
    scan_file(f"{folder}/x.zarr::f8", folder / "y.zarr", axis=0, backend="cpu")
    if comm.rank == 0:
        assert said(READ, folder, mode) == ["d0", "d1", "d2", "kg"]
        np.testing.assert_array_equal(np.load(folder / "f8.npy"), x.cumsum(0))
        for axis, length in enumerate(x.shape):
            np.testing.assert_array_equal(np.load(folder / f"d{axis}.npy"), np.arange(length) / 2)
    comm.Barrier()


def resized(size, *, marked):
    """Write x.zarr, whose filter has another text for the size of elements, as netCDF's or not."""

    def write(folder, x):
        netcdf(x, **SHUFFLED)(folder)
        for name in (".zattrs", "f8/.zattrs"):
            path = folder / "x.zarr" / name
            kept = {} if not marked else json.loads(path.read_text())
            path.write_text(json.dumps(kept))
        path = folder / "x.zarr/f8/.zarray"
        text = path.read_text()
        assert '"elementsize": 0' in text or '"elementsize": "' in text
        document = json.loads(text)
        for each in document["filters"]:
            if each["id"] == "shuffle":
                each["elementsize"] = size
        path.write_text(json.dumps(document))

    return write


@pytest.mark.parametrize("size", [0, "0", 8, "8"])
def test_sizes_of_shuffled_elements(size, zarr, put, same, x):
    """Versions of netCDF write 0 for that of the type, and sizes as a text."""
    put(lambda folder: resized(size, marked=True)(folder, x))
    same("x.zarr::f8", x)


def test_elements_of_no_size(zarr, put, x, folder, comm):
    """Of another program, 0 may be what numcodecs takes it for: bytes that are not shuffled."""
    put(lambda folder: resized(0, marked=False)(folder, x))
    with pytest.raises(InputError, match="is shuffled in elements of 0 bytes") as caught:
        scan_file(f"{folder}/x.zarr::f8", folder / "y.npy", axis=0, backend="cpu")
    assert "\n" not in str(caught.value)
    comm.Barrier()


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_compressor_that_shuffles(version, dtype, zarr, put, folder, comm):
    """It gets the size of the results, or gives way to another one."""
    x = np.arange(21.0)
    given = {"id": "shuffle", "elementsize": 8}
    if version == 3:
        given = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 8}}
    options = {"shape": x.shape, "dtype": "f8", "chunks": (7,), "zarr_format": version}

    def write(folder):
        zarr.create_array(folder / "x.zarr", compressors=given, **options)[:] = x

    put(write)
    scan_file(folder / "x.zarr", folder / "y.zarr", dtype=dtype, backend="cpu")
    found = zarr.open(folder / "y.zarr")
    np.testing.assert_array_equal(found[...], x.cumsum())
    assert ("shuffle" in str(found.compressors[0]).lower()) == (dtype == "f8" or version == 3)
    comm.Barrier()


# ---- TIFF, by tifffile ---------------------------------------------------------------------------


def tiff(write):
    """Write x.tif, and call a function with it as a Zarr store."""

    def made(folder, x):
        tifffile = pytest.importorskip("tifffile", reason="no tifffile")
        tifffile.imwrite(folder / "x.tif", x, tile=(16, 16), photometric="minisblack")
        with tifffile.TiffFile(folder / "x.tif") as file, file.aszarr() as store:
            write(folder, store)

    return made


def test_a_copy_of_a_tiff(zarr, put, same, x):
    x = abs(x).astype("u2")
    store_of = tiff(
        lambda folder, store: zarr.create_array(folder / "x.zarr", data=zarr.open(store))
    )
    put(lambda folder: store_of(folder, x))
    same("x.zarr", x)


def test_parts_of_a_tiff(zarr, put, x, folder, comm, monkeypatch):
    """A list of a file's parts is a store by fsspec; as a file, it is refused."""
    fsspec = pytest.importorskip("fsspec", reason="no fsspec")
    x = abs(x).astype("u2")
    names = {"url": f"file://{folder}/", "groupname": "x.zarr"}
    listed = tiff(lambda folder, store: store.write_fsspec(f"{folder}/parts.json", **names))
    put(lambda folder: listed(folder, x))
    with pytest.raises(InputError, match="a list of parts of other files"):
        scan_file(folder / "parts.json", folder / "y.npy", backend="cpu")
    monkeypatch.setitem(fsspec.config.conf, "reference", {"fo": f"{folder}/parts.json"})
    scan_file("reference://x.zarr", folder / "y.npy", axis=0, backend="cpu")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), x.cumsum(0))
    comm.Barrier()


PARTS = {"x/0": ["x.h5", 3496, 36], ".zgroup": '{"zarr_format": 2}'}
OTHERS = {
    "kerchunk.json": ({"version": 1, "refs": PARTS}, "a list of parts of other files"),
    "kerchunk.zarr": ({"version": 1, "refs": PARTS}, "a list of parts of other files"),
    "tifffile.json": ({".zattrs": "{}", ".zarray": "{}"}, "a list of parts of other files"),
    "version3.json": ({"zarr.json": "{}", "c/0": ["x.tif", 8, 9]}, "a list of parts of other"),
    "of_a_group.json": ({"x.zarr/.zattrs": "{}"}, "a list of parts of other files"),
    "numbers.json": ({"numbers": [1, 2]}, "it is text"),
    "x.tif": (b"II*\0\x08\0\0\0", "it is a TIFF; .*tifffile"),
    "big.tiff": (b"MM\0+\0\x08\0\0", "it is a TIFF; .*tifffile"),
    "zip.zarr": (b"PK\3\4" + bytes(30), "no Zarr store: it is an archive; .*unpack it"),
    "no.zarr": (bytes(30), "no Zarr store: it is a file, and no folder"),
    "classic.h5": (b"CDF\1" + bytes(30), "it is NetCDF-3; convert it"),
    "hdf5.parquet": (b"\x89HDF\r\n\x1a\n" + bytes(99), r"it is an HDF5 file; name it \.h5"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats(name, put, folder, comm):
    """They are named in a line, whatever the suffix of the file."""
    if name.endswith(".zarr"):
        pytest.importorskip("zarr", reason="no zarr")
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="no pyarrow")
    contents, fault = OTHERS[name]
    data = contents if isinstance(contents, bytes) else json.dumps(contents, indent=1).encode()
    put(lambda folder: (folder / name).write_bytes(data))
    with pytest.raises(InputError, match=fault) as caught:
        scan_file(folder / name, folder / "y.npy", backend="cpu")
    assert "\n" not in str(caught.value)
    comm.Barrier()


# ---- nco -----------------------------------------------------------------------------------------


def nco(*commands):
    """Write a.nc, NetCDF-3 with a time that grows, and call commands of nco on it."""

    def write(folder, x):
        if shutil.which("ncks") is None:
            pytest.skip("no nco")
        with netCDF4.Dataset(folder / "a.nc", "w", format="NETCDF3_CLASSIC") as file:
            for name, length in (("time", None), ("lat", x.shape[1]), ("lon", x.shape[2])):
                file.createDimension(name, length)
                made = file.createVariable(name, "f8", (name,))
                made[:] = np.arange(length or len(x))
            made = file.createVariable("air", "f8", ("time", "lat", "lon"))
            made[...], made.units = x, "K"
        for command in commands:
            subprocess.run(["nc" + command[0], "-O", *command[1:]], cwd=folder, check=True,
                           timeout=60, capture_output=True)  # fmt: skip

    return write


def swapped(x):
    return np.ascontiguousarray(x.transpose(2, 1, 0))


PROGRAMS = {
    "NetCDF-4": ([("ks", "-4", "a.nc", "x.nc")], "x.nc", np.asarray),
    "classic model": ([("ks", "-7", "-L", "1", "a.nc", "x.nc")], "x.nc", np.asarray),
    "chunks": (
        [("ks", "-4", "-L", "5", "--cnk_dmn=time,7", "--cnk_dmn=lat,4", "a.nc", "x.nc")],
        "x.nc",
        np.asarray,
    ),
    "quantized": (
        [("ks", "-4", "-L", "5", "--ppc", "default=9", "a.nc", "x.nc")], "x.nc", np.asarray
    ),
    "groups": ([("ks", "-4", "-G", "g1/g2:", "a.nc", "x.nc")], "x.nc::/g1/g2/air", np.asarray),
    "slice": ([("ks", "-4", "-d", "time,3,20", "a.nc", "x.nc")], "x.nc", lambda x: x[3:21]),
    "fixed": (
        [("ks", "-4", "a.nc", "b.nc"), ("ks", "--fix_rec_dmn", "time", "b.nc", "x.nc")],
        "x.nc",
        np.asarray,
    ),
    "joined": (
        [("ks", "-4", "-L", "1", "a.nc", "b.nc"), ("rcat", "b.nc", "b.nc", "x.nc")],
        "x.nc",
        lambda x: np.concatenate([x, x]),
    ),
    "ensemble": (
        [("ks", "-4", "a.nc", "b.nc"), ("ecat", "b.nc", "b.nc", "x.nc")],
        "x.nc",
        lambda x: np.stack([x, x]),
    ),
    "computed": (
        [("ap2", "-4", "-s", "air2=air*2", "a.nc", "x.nc")], "x.nc::air2", lambda x: x * 2
    ),
    "permuted": ([("pdq", "-4", "-a", "lon,lat,time", "a.nc", "x.nc")], "x.nc", swapped),
    "mean": ([("ra", "-4", "a.nc", "x.nc")], "x.nc", lambda x: x.mean(0, keepdims=True)),
}  # fmt: skip


@pytest.mark.one_rank
@pytest.mark.parametrize("kind", PROGRAMS)
def test_nco(kind, x, tmp_path):
    commands, given, want = PROGRAMS[kind]
    nco(*commands)(tmp_path, x)
    scan_file(f"{tmp_path}/{given}", tmp_path / "y.nc", axis=0, backend="cpu")
    name = given.partition("::")[2] or "air"
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        np.testing.assert_allclose(file[name][...], want(x).cumsum(0), rtol=1e-12)
    command = ["ncks", "-O", "-4", "y.nc", "again.nc"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60, capture_output=True)


REFUSED = {
    "classic": ([], "a.nc", "is NetCDF-3"),
    "packed": ([("pdq", "-4", "a.nc", "x.nc")], "x.nc", "is packed"),
    "missing": (
        [("ks", "-4", "a.nc", "x.nc"), ("atted", "-a", "_FillValue,air,o,d,0.0", "x.nc")],
        "x.nc",
        "has no value at element 0",
    ),
    "two": ([("ap2", "-4", "-s", "air2=air*2", "a.nc", "x.nc")], "x.nc", "/air, /air2: name one"),
}


@pytest.mark.one_rank
@pytest.mark.parametrize("kind", REFUSED)
def test_nco_that_is_refused(kind, x, tmp_path):
    commands, given, fault = REFUSED[kind]
    nco(*commands)(tmp_path, x * 0 if kind == "missing" else x)
    with pytest.raises(InputError, match=fault):
        scan_file(tmp_path / given, tmp_path / "y.npy", backend="cpu")


# ---- PyTables, which pandas writes HDF5 by -------------------------------------------------------


# Its own process: launch/tools, where tests find scripts, has another module of this name.
PANDAS = """
import sys
try:
    import pandas, tables
except ImportError as error:
    sys.exit(f"no {error.name}")
frame = pandas.DataFrame({"a": range(200), "b": range(200, 400)})
folder, library = sys.argv[1:]
options = {"complevel": 5, "complib": library} if library else {}
frame.to_hdf(f"{folder}/x.h5", key="frame", **options)
frame.a.to_hdf(f"{folder}/x.h5", key="series", **options)
frame.to_hdf(f"{folder}/table.h5", key="frame", format="table", **options)
"""


@pytest.mark.one_rank
@pytest.mark.parametrize("library", ["", "zlib", "bzip2", "blosc", "blosc:zstd"])
def test_pandas(library, tmp_path):
    if library not in {"", "zlib"}:
        pytest.importorskip("hdf5plugin", reason="no hdf5plugin")
    said(PANDAS, tmp_path, library)
    x, y = np.stack([np.arange(200), np.arange(200, 400)], axis=1), tmp_path / "y.npy"
    for name, want in (("frame/block0_values", x), ("series/values", x[:, 0])):
        scan_file(f"{tmp_path}/x.h5::{name}", y, axis=0, backend="cpu", force=True)
        np.testing.assert_array_equal(np.load(y), want.cumsum(0))
    with pytest.raises(TypeError, match="structures"):  # its only data set: a row is one
        scan_file(tmp_path / "table.h5", y, backend="cpu", force=True)


def test_indices_of_tables(put, same, x):
    """PyTables hides them by their names: they are not among the data sets to choose from."""

    def write(folder):
        with h5py.File(folder / "x.h5", "w") as file:
            for name in ("_i_table/index/ranges", "run/_i_table/index/ranges"):
                file[name] = np.arange(3)
            file["run/table"] = x

    put(write)
    same("x.h5", x)
    same("x.h5::run/_i_table/index/ranges", np.arange(3))
