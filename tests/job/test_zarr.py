"""Zarr stores, versions 2 and 3, written and read by zarr and by xarray."""

import errno
import json
import subprocess
import sys
import time

import numpy as np
import pytest

from distscan import InputError, OutputError, scan_file
from distscan.job import formats, output, plan
from support.processes import environment

zarr = pytest.importorskip("zarr", reason="no zarr")
xarray = pytest.importorskip("xarray", reason="no xarray")
pandas = pytest.importorskip("pandas", reason="no pandas")

pytestmark = [  # of consolidation, and of text
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
VERSIONS = pytest.mark.parametrize("version", [2, 3])


def dataset(rng, n=20):
    x = rng.integers(-9, 9, (n, 5, 7)).astype("i4")
    return xarray.Dataset(
        {"rain": (("time", "y", "x"), x, {"units": "mm", "actual_range": [-9, 9]})},
        coords={
            "time": pandas.date_range("2020", periods=n),
            "y": np.arange(5.0),
            "lat": (("y", "x"), rng.random((5, 7))),
        },
        attrs={"title": "a test"},
    )


@pytest.fixture
def put(comm, folder, rng):
    """Write a store on rank 0 by a function of its path; return the path on every rank."""

    def make(write, name="x.zarr"):
        if comm.rank == 0:
            write(folder / name)
        comm.Barrier()
        return f"{folder}/{name}"

    return make


@VERSIONS
def test_xarray(version, put, folder, comm, rng):
    """Coordinates, dimensions, attributes and chunks are those of the input."""
    data = comm.bcast(dataset(rng))
    encoding = {"rain": {"chunks": (6, 2, 3)}}
    given = put(lambda path: data.to_zarr(path, zarr_format=version, encoding=encoding))
    scan_file(given, folder / "y.zarr", axis=0, backend="cpu", check=True)
    with xarray.open_zarr(folder / "y.zarr") as found:
        xarray.testing.assert_identical(
            found.drop_vars("rain").compute(), data.drop_vars("rain").compute()
        )
        assert (found.rain.attrs, found.rain.dims) == ({"units": "mm"}, ("time", "y", "x"))
        assert found.rain.encoding["chunks"] == (6, 2, 3)
        np.testing.assert_array_equal(found.rain, data.rain.cumsum("time"))
    assert zarr.open(folder / "y.zarr").metadata.zarr_format == version
    scan_file(f"{given}::rain", folder / "flat.zarr::total", backend="cpu")
    found = zarr.open(folder / "flat.zarr")["total"]
    np.testing.assert_array_equal(found, data.rain.values.cumsum())
    comm.Barrier()


@VERSIONS
def test_missing_values_of_xarray(version, put, folder, comm, rng):
    """They are refused, in each of the ways in which xarray writes them; NaN is a number."""
    for code, fill in (("f4", np.nan), ("f8", -999.0), ("f4", 0.5), ("i2", -1)):
        x = np.arange(60, dtype=code).reshape(20, 3)
        data = xarray.Dataset({"v": (("t", "x"), x)})
        for missing in [False] if np.isnan(fill) else [False, True]:
            if missing:
                data["v"][4, 1] = fill
            name = f"{code}{fill}{missing}.zarr"
            options = {"encoding": {"v": {"_FillValue": fill}}, "zarr_format": version}
            given = put(lambda path: data.to_zarr(path, **options), name)  # noqa: B023
            if missing:
                with pytest.raises(InputError, match="has no value at element 13, but "):
                    scan_file(given, folder / "z.zarr", axis=0, backend="cpu", force=True)
                continue
            scan_file(given, folder / "z.zarr", axis=0, backend="cpu", force=True)
            found = xarray.open_zarr(folder / "z.zarr", decode_cf=False)["v"]
            np.testing.assert_array_equal(found, x.cumsum(0))
            assert np.isnan(found.attrs.get("_FillValue", np.nan))
            comm.Barrier()


COORDINATES = {
    "text": np.array(["a", "bb", "ccc"], object),
    "times": pandas.to_datetime(["2020", "2021", "NaT"]),
    "bools": np.array([True, False, True]),
    "missing": np.array([1, -9, 3]),
}


@VERSIONS
@pytest.mark.parametrize("kind", COORDINATES)
def test_coordinates(version, kind, put, folder, comm):
    """They are those of the input, also where some are missing."""
    variables = {"v": (("t", "x"), np.arange(12.0).reshape(4, 3))}
    data = xarray.Dataset(variables, coords={"x": COORDINATES[kind]})
    encoding = {"x": {"_FillValue": -9}} if kind == "missing" else {}
    given = put(lambda path: data.to_zarr(path, zarr_format=version, encoding=encoding))
    scan_file(f"{given}::v", folder / "y.zarr", axis=0, backend="cpu")
    with xarray.open_zarr(given) as before, xarray.open_zarr(folder / "y.zarr") as after:
        xarray.testing.assert_identical(after.x.load(), before.x.load())
    comm.Barrier()


@VERSIONS
def test_what_is_carried_over(version, put, folder, comm, rng):
    """Codecs, shards, the value of what is not stored; also if the type is another one."""
    shards = {"compressors": zarr.codecs.BloscCodec(cname="zstd"), "shards": (8, 6)}
    codecs = {2: {}, 3: shards}  # {}: zarr's own choice
    x = rng.integers(-9, 9, (30, 7)).astype("f4")

    def write(path):
        made = zarr.create_array(
            path, shape=x.shape, dtype="f4", chunks=(4, 3), fill_value=np.nan, zarr_format=version,
            attributes={"a": [1, "b"]}, **codecs[version],
        )  # fmt: skip
        made[...] = x

    given = put(write)
    scan_file(given, folder / "y.zarr", axis=0, backend="cpu")
    before, found = zarr.open(given), zarr.open(folder / "y.zarr")
    for name in ("chunks", "shards", "compressors", "filters", "attrs", "dtype", "order"):
        assert getattr(found, name) == getattr(before, name)
    np.testing.assert_array_equal(found, x.cumsum(0))
    scan_file(given, folder / "z.zarr", axis=0, dtype="f8", backend="cpu")
    found = zarr.open(folder / "z.zarr")
    assert found.dtype == "f8"
    assert np.isnan(found.fill_value)
    assert type(found.compressors[0]) is type(before.compressors[0])
    np.testing.assert_array_equal(found, x.astype("f8").cumsum(0))
    comm.Barrier()


def test_chunks_of_a_new_store(folder, comm, rng, monkeypatch):
    """Of an input without chunks; those that are not stored are read, too."""
    monkeypatch.setattr(formats.zarr, "_CHUNK", 500)
    x = rng.integers(0, 3, (40, 9)) * (np.arange(40) >= 30)[:, None]
    if comm.rank == 0:
        np.save(folder / "x.npy", x)
    comm.Barrier()
    for axis, shape in ((0, x.shape), (None, (360,)), (1, x.shape)):
        scan_file(folder / "x.npy", folder / "y.zarr", axis=axis, backend="cpu", force=True)
        found = zarr.open(folder / "y.zarr")
        assert found.shape == shape
        np.testing.assert_array_equal(found, x.cumsum(axis))
        assert np.prod(found.chunks) * 8 <= 500
        comm.Barrier()
        scan_file(folder / "y.zarr", folder / "z.npy", axis=axis, backend="cpu", force=True)
        np.testing.assert_array_equal(np.load(folder / "z.npy"), x.cumsum(axis).cumsum(axis))
        comm.Barrier()


TYPES = ["?", "i1", "u2", ">i4", "u8", "f2", "f4", ">f8", "c8", "c16", "m8[s]"]


@VERSIONS
@pytest.mark.parametrize("code", TYPES)
def test_types(version, code, put, folder, comm, rng):
    x = rng.integers(0, 2 if code == "?" else 9, 300).astype(code)
    given = put(lambda path: zarr.create_array(path, data=x, chunks=(64,), zarr_format=version))
    scan_file(given, folder / "y.zarr", backend="cpu", op="sum")
    found, want = zarr.open(folder / "y.zarr")[...], x.astype(x.dtype.newbyteorder("=")).cumsum()
    np.testing.assert_array_equal(found, want)
    assert found.dtype == want.dtype
    comm.Barrier()


def test_odd_arrays(put, folder, comm):
    """Of no axes, without elements, never written."""

    def write(path):
        group = zarr.create_group(path)
        group.create_array("scalar", shape=(), dtype="f8")[()] = 5
        group.create_array("none", shape=(0, 3), dtype="f8")
        group.create_array("unwritten", shape=(5,), dtype="i4", chunks=(2,), fill_value=3)

    given = put(write)
    for name, want in (("scalar", [5]), ("none", []), ("unwritten", [3, 6, 9, 12, 15])):
        for axis in [None, 0][: 1 if name == "scalar" else 2]:
            y = folder / f"{name}{axis}.zarr"
            scan_file(f"{given}::{name}", y, axis=axis, backend="cpu")
            shape = (0, 3) if name == "none" and axis == 0 else np.shape(want)
            np.testing.assert_array_equal(zarr.open(y)[name][...], np.reshape(want, shape))
    comm.Barrier()


def test_segments_and_several_inputs(put, folder, comm, rng):
    x, keys = comm.bcast((rng.integers(-9, 9, 700), np.arange(700) // 9))

    def write(path):
        group = zarr.create_group(path)
        group.create_array("x", data=x, chunks=(50,))
        group.create_array("keys", data=keys, chunks=(64,))

    given = put(write)
    scan_file(f"{given}::x", folder / "y.npy", segments=f"{given}::keys", backend="cpu")
    want = np.concatenate([x[keys == key].cumsum() for key in np.unique(keys)])
    np.testing.assert_array_equal(np.load(folder / "y.npy"), want)
    scan_file([f"{given}::x", f"{given}::x"], folder / "z.zarr::z", backend="cpu")
    np.testing.assert_array_equal(zarr.open(folder / "z.zarr")["z"], np.tile(x, 2).cumsum())
    comm.Barrier()


# ---- the store that appears ----------------------------------------------------------------------


def test_an_existing_store(put, folder, comm):
    """It is replaced as a whole, and only if that is asked for; other folders never are."""
    x = np.arange(100)
    given = put(lambda path: zarr.create_array(path, data=x, chunks=(9,)))
    for i in range(3):
        scan_file(given, folder / "y.zarr", backend="cpu", force=i > 0)
        found = zarr.open(folder / "y.zarr")
        np.testing.assert_array_equal(found, x.cumsum())
        comm.Barrier()
    with pytest.raises(OutputError, match=r"y.zarr exists; force=True replaces it"):
        scan_file(given, folder / "y.zarr", backend="cpu")
    comm.Barrier()
    if comm.rank == 0:
        (folder / "home.zarr").mkdir()
        (folder / "home.zarr" / "precious").touch()
    comm.Barrier()
    with pytest.raises(OutputError, match="is a directory"):
        scan_file(given, folder / "home.zarr", backend="cpu", force=True)
    names = {each.name for each in folder.iterdir()}
    assert names == {"x.zarr", "y.zarr", "home.zarr"}
    comm.Barrier()


def test_without_exchanges(put, folder, comm, monkeypatch):
    """Some file systems cannot exchange two names."""
    monkeypatch.setattr(output, "_renameat2", lambda *_: -1)
    given = put(lambda path: zarr.create_array(path, data=np.arange(100), chunks=(9,)))
    for _ in range(2):
        scan_file(given, folder / "y.zarr", backend="cpu", force=True)
        np.testing.assert_array_equal(zarr.open(folder / "y.zarr"), np.arange(100).cumsum())
        comm.Barrier()
    assert {each.name for each in folder.iterdir()} == {"x.zarr", "y.zarr"}
    comm.Barrier()


def test_a_file_is_replaced_by_a_store(put, folder, comm):
    given = put(lambda path: zarr.create_array(path, data=np.arange(100), chunks=(9,)))
    if comm.rank == 0:
        (folder / "y.zarr").write_text("a file")
    comm.Barrier()
    scan_file(given, folder / "y.zarr", backend="cpu", force=True)
    np.testing.assert_array_equal(zarr.open(folder / "y.zarr"), np.arange(100).cumsum())
    comm.Barrier()


def test_the_input_is_replaced(put, folder, comm):
    given = put(lambda path: zarr.create_array(path, data=np.arange(100), chunks=(9,)))
    scan_file(given, given, backend="cpu", force=True)
    np.testing.assert_array_equal(zarr.open(given), np.arange(100).cumsum())
    comm.Barrier()


@VERSIONS
def test_resumed(version, put, folder, comm, rng, monkeypatch):
    """What a job has made is opened again, and only if it is of the same array."""
    x = comm.bcast(rng.integers(-9, 9, (300, 7)))
    options = {"axis": 0, "backend": "cpu", "resume": True}
    given = put(
        lambda path: zarr.create_array(
            path, name="a/x", data=x, chunks=(16, 2), zarr_format=version
        )
    )
    given += "::a/x"

    def fail(*_, **__):
        raise OSError(errno.EIO, "a fault of the disk")

    with monkeypatch.context() as patch:
        patch.setattr(output, "publish", fail)
        with pytest.raises(OSError, match="a fault of the disk"):
            scan_file(given, folder / "y.zarr", **options)
    assert not (folder / "y.zarr").exists()
    comm.Barrier()
    with pytest.raises(Exception, match="was left by a job with another output"):
        scan_file(given, folder / "y.zarr::another", **options)
    made = []
    monkeypatch.setattr(formats.zarr, "create", lambda *_, **__: made.append(1))
    scan_file(given, folder / "y.zarr", **options)
    assert not made
    np.testing.assert_array_equal(zarr.open(folder / "y.zarr")["a/x"], x.cumsum(0))
    assert {each.name for each in folder.iterdir()} == {"x.zarr", "y.zarr"}
    comm.Barrier()


@pytest.mark.one_rank
def test_a_killed_job(tmp_path, rng):
    """It leaves no store under the output's name; the next job removes what is left."""
    x = rng.random((4000, 500))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(10, 100))
    y = tmp_path / "y.zarr"
    command = [sys.executable, "-m", "distscan", "x.zarr", "--axis=0", "-o", "y.zarr", "--quiet"]
    options = {"cwd": tmp_path, "env": environment()}
    process = subprocess.Popen([*command, "--backend=cpu"], **options)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".y.zarr*.whole")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert not y.exists()
    assert list(tmp_path.glob(".y.zarr*"))
    subprocess.run([*command, "--backend=cpu"], check=True, timeout=60, **options)
    np.testing.assert_allclose(zarr.open(y), x.cumsum(0), rtol=1e-12)
    assert {each.name for each in tmp_path.iterdir()} == {"x.zarr", "y.zarr"}


# ---- what is refused -----------------------------------------------------------------------------


def damage(name, contents):
    """Write a store, and other contents into one of its files."""

    def write(path):
        zarr.create_array(path, data=np.arange(100.0), chunks=(40,))
        file = path / name
        assert file.exists()
        file.write_bytes(contents(file.read_bytes()))

    return write


def array(**options):
    def write(path):
        x = options.pop("data", np.arange(100))
        zarr.create_group(path).create_array("x", data=x, **options)
        zarr.open(path).create_array("y", data=np.arange(3))

    return write


REFUSED = {
    "no store": (lambda path: path.mkdir(), "", "is no Zarr store"),
    "no folder": (lambda path: None, "", "No such file"),
    "a file": (lambda path: path.write_text("1, 2"), "", "is no Zarr store"),
    "two": (array(), "", "name one, such as"),
    "unknown": (array(), "::z", "arrays: /x, /y"),
    "of one": (damage("zarr.json", lambda text: text), "::z", "the store is one array"),
    "a group": (lambda path: zarr.create_group(path).create_group("g"), "::g", "is a group"),
    "empty": (zarr.create_group, "", "has no array"),
    "text": (array(data=np.array(["a", "b"])), "::x", "holds"),
    "packed": (array(attributes={"scale_factor": 0.5}), "::x", "is packed"),
    "missing": (array(attributes={"_FillValue": 70}), "::x", "has no value at element 70"),
    "a damaged chunk": (damage("c/1", lambda data: b"\xff" * len(data)), "", "cannot read"),
    "a short chunk": (damage("c/0", lambda data: data[:20]), "", "cannot read"),
    "damaged metadata": (damage("zarr.json", lambda text: text[:-9]), "", "cannot read"),
    "another codec": (
        damage("zarr.json", lambda text: text.replace(b'"zstd"', b'"none"')), "", "cannot read"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_inputs(kind, put, folder, comm):
    """In one line, on every rank; nothing is left behind."""
    write, member, fault = REFUSED[kind]
    given = put(write) + member
    before = sorted(folder.iterdir())
    comm.Barrier()
    with pytest.raises(InputError, match=fault) as caught:
        scan_file(given, folder / "y.npy", backend="cpu")
    assert "\n" not in str(caught.value)
    assert sorted(folder.iterdir()) == before
    comm.Barrier()


def test_refused_outputs(put, folder, comm):
    given = put(array())
    if comm.rank == 0:
        np.save(folder / "f.npy", np.asfortranarray(np.ones((3, 4))))
    comm.Barrier()
    for source, options, fault in (
        (f"{given}::x", {"dtype": "g"}, "cannot write"),
        (folder / "f.npy", {"axis": 0}, "Zarr has no Fortran order"),
    ):
        with pytest.raises(OutputError, match=fault):
            scan_file(source, folder / "y.zarr", backend="cpu", **options)
        assert {each.name for each in folder.iterdir()} == {"x.zarr", "f.npy"}
        comm.Barrier()


@pytest.mark.parametrize("what", ["a chunk", "metadata"])
def test_a_store_that_changes(what, put, folder, comm, monkeypatch):
    given = put(lambda path: zarr.create_array(path, data=np.arange(1000), chunks=(100,)))
    real = plan.JobPlan.of

    def change(*arguments):
        comm.Barrier()
        if comm.rank == 0 and what == "a chunk":
            zarr.open(given, mode="r+")[950] = 7
        elif comm.rank == 0:
            metadata = json.loads((folder / "x.zarr" / "zarr.json").read_text())
            metadata["attributes"] = {"another": 1}
            (folder / "x.zarr" / "zarr.json").write_text(json.dumps(metadata))
        comm.Barrier()
        return real(*arguments)

    monkeypatch.setattr(plan.JobPlan, "of", change)
    with pytest.raises(InputError, match="was changed while it was read"):
        scan_file(given, folder / "y.npy", backend="cpu")
    comm.Barrier()


def test_a_full_disk(put, folder, comm, monkeypatch):
    """It is a fault of the output, and not of the input."""
    given = put(lambda path: zarr.create_array(path, data=np.arange(1000), chunks=(100,)))
    real = zarr.Array.__setitem__

    def full(self, *arguments):
        if "y.zarr" in str(self.store):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, *arguments)

    monkeypatch.setattr(zarr.Array, "__setitem__", full)
    with pytest.raises(OSError, match=r"cannot write .*y.zarr: No space left") as caught:
        scan_file(given, folder / "y.zarr", backend="cpu")
    assert not isinstance(caught.value, InputError)
    assert {each.name for each in folder.iterdir()} == {"x.zarr"}
    comm.Barrier()


# ---- what must not be lost -----------------------------------------------------------------------


def test_codecs_that_round_are_not_carried_over(put, folder, comm, rng):
    import numcodecs

    x = comm.bcast(np.round(rng.random(200), 1))
    fixed = numcodecs.FixedScaleOffset(offset=0, scale=10, dtype="f8", astype="u1")
    options = {"shape": x.shape, "dtype": "f8", "chunks": (50,), "zarr_format": 2}

    def write(path):
        zarr.create_array(path, filters=[fixed], **options)[...] = x

    given = put(write)
    scan_file(given, folder / "y.zarr", backend="cpu")
    want = np.asarray(zarr.open(given, mode="r")[...]).cumsum()
    np.testing.assert_allclose(zarr.open(folder / "y.zarr")[...], want, 1e-12)
    comm.Barrier()


def test_signs_of_zero(folder, comm):
    """Chunks of -0.0 are stored, also of complex numbers."""
    x = -np.zeros(20, "c16")
    if comm.rank == 0:
        np.save(folder / "x.npy", x)
    comm.Barrier()
    scan_file(folder / "x.npy", folder / "y.zarr", backend="cpu")
    found = zarr.open(folder / "y.zarr")[...]
    assert np.signbit(found.real).all()
    assert np.signbit(found.imag).all()
    comm.Barrier()


def test_a_damaged_coordinate(put, folder, comm, rng):
    """The job fails, also when it is resumed: nothing is left out."""
    data = comm.bcast(dataset(rng))

    def write(path):
        data.to_zarr(path, zarr_format=3)
        (path / "y" / "c" / "0").write_bytes(b"\xff" * 30)

    given = put(write)
    for _ in range(2):
        with pytest.raises(InputError, match="cannot read"):
            scan_file(f"{given}::rain", folder / "y.zarr", axis=0, backend="cpu", resume=True)
        comm.Barrier()
        assert {each.name for each in folder.iterdir()} == {"x.zarr"}
        comm.Barrier()


def test_metadata_that_is_not_consolidated_again(put, folder, comm):
    def write(path):
        zarr.create_group(path).create_array("a", data=np.arange(48).reshape(12, 4), chunks=(5, 3))
        zarr.consolidate_metadata(path)
        zarr.open_array(path, path="a", mode="r+").resize((12, 6))

    given = put(write)
    for axis in (None, 0):
        with pytest.raises(InputError, match="not as the consolidated metadata says"):
            scan_file(f"{given}::a", folder / "y.npy", axis=axis, backend="cpu")
        comm.Barrier()


@pytest.mark.one_rank
def test_a_folder_that_appears_is_not_replaced(tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(100), chunks=(9,))
    precious = tmp_path / "y.zarr" / "precious"

    def appear(*_):
        precious.parent.mkdir(exist_ok=True)
        precious.touch()

    with pytest.raises(OutputError, match="is a directory"):
        scan_file(
            tmp_path / "x.zarr", tmp_path / "y.zarr", backend="cpu", force=True, progress=appear
        )
    assert precious.exists()


@pytest.mark.one_rank
def test_who_may_read_a_file_may_enter_the_store_in_its_place(tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(100), chunks=(9,))
    y = tmp_path / "y.zarr"
    y.touch()
    y.chmod(0o640)
    scan_file(tmp_path / "x.zarr", y, backend="cpu", force=True)
    assert y.stat().st_mode & 0o777 == 0o750


@pytest.mark.one_rank
def test_the_output_goes_if_the_state_cannot_be_published(tmp_path, monkeypatch):
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(100), chunks=(9,))
    real = output.publish

    def publish(part, path, *, force):
        if path.name == "state":
            raise OSError(errno.EIO, "a fault of the disk")
        real(part, path, force=force)

    monkeypatch.setattr(output, "publish", publish)
    with pytest.raises(OSError, match="a fault of the disk"):
        scan_file(tmp_path / "x.zarr", tmp_path / "y.zarr", backend="cpu", state=tmp_path / "state")
    assert {each.name for each in tmp_path.iterdir()} == {"x.zarr"}


@pytest.mark.one_rank
def test_a_link_in_the_way_is_not_followed(tmp_path, monkeypatch):
    """It has the name of the store that a killed job has left."""
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(100), chunks=(9,))
    zarr.create_array(tmp_path / "other.zarr", data=np.zeros(100, "i8"), chunks=(9,))
    whole = output.whole_of(output.resumable(tmp_path / "y.zarr"))
    whole.symlink_to(tmp_path / "other.zarr")
    scan_file(tmp_path / "x.zarr", tmp_path / "y.zarr", backend="cpu", resume=True)
    assert not (tmp_path / "y.zarr").is_symlink()
    assert not zarr.open(tmp_path / "other.zarr")[...].any()
    np.testing.assert_array_equal(zarr.open(tmp_path / "y.zarr"), np.arange(100).cumsum())


@pytest.mark.one_rank
def test_warnings_stay_as_they_are(tmp_path, rng):
    import warnings

    zarr.create_array(tmp_path / "x.zarr", data=rng.random((400, 40)), chunks=(10, 10))
    before = list(warnings.filters)
    scan_file(tmp_path / "x.zarr", tmp_path / "y.zarr", axis=0, backend="cpu", threads=4)
    assert list(warnings.filters) == before
