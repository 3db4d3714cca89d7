"""distscan.xarray with output=: what xarray has not loaded is scanned from file to file."""

import numpy as np
import pytest

xarray = pytest.importorskip("xarray", reason="no xarray")
pytest.importorskip("zarr", reason="no zarr")
pytest.importorskip("h5netcdf", reason="no h5netcdf")
dask = pytest.importorskip("dask", reason="no dask")
import distscan.xarray as scans  # noqa: E402
from distscan import InputError, OutputError  # noqa: E402

pytestmark = [  # of consolidation
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

ENGINES = {"zarr": "zarr", "nc": "h5netcdf"}


def field(rng, dtype="f8", n=23):
    values = rng.integers(-5, 9, (4, n, 3)).astype(dtype)
    if values.dtype.kind == "f":
        values = values / 4
        values[1, n // 2] = np.nan
    return xarray.DataArray(
        values.astype(dtype),
        dims=("y", "time", "x"),
        coords={
            "time": np.datetime64("2000-01-01", "ns") + np.arange(n).astype("m8[D]"),
            "height": (("time", "x"), rng.random((n, 3))),
        },
        name="rain",
        attrs={"units": "mm"},
    )


@pytest.fixture
def stored(comm, folder):
    """Write a DataArray on rank 0, and open it, not loaded, on every rank."""
    opened = []

    def store(x, form="zarr", *, version=3, group=None, encoding=None, **options):
        path = folder / f"x.{form}"
        if comm.rank == 0:
            data, encoding = x.to_dataset(), {"rain": encoding or {}}
            if form == "zarr":
                encoding["rain"].setdefault("chunks", (2, 10, 3))
                data.to_zarr(path, group=group, zarr_format=version, encoding=encoding)
            else:
                encoding["rain"].setdefault("chunksizes", (2, 10, 3))
                data.to_netcdf(path, group=group, engine="h5netcdf", encoding=encoding)
        comm.Barrier()
        engine = options.pop("engine", ENGINES[form])
        opened.append(xarray.open_dataset(path, group=group, engine=engine, **options))
        return opened[-1]["rain"]

    with dask.config.set(scheduler="synchronous"):
        yield store
    for each in opened:
        each.close()


def is_loaded(x):
    return x.variable._in_memory


@pytest.mark.parametrize("chunks", [None, {}, {"time": 7}], ids=["lazy", "stored", "dask"])
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("zarr", {"version": 2}),
        ("zarr", {"version": 3}),
        ("nc", {"engine": "h5netcdf"}),
        ("nc", {"engine": "netcdf4"}),
    ],
)
@pytest.mark.filterwarnings("ignore:The specified chunks separate")
def test_as_xarray(form, options, chunks, stored, folder, comm, rng):
    if options.get("engine") == "netcdf4":
        pytest.importorskip("netCDF4")
    x = field(rng)
    lazy = stored(x, form, chunks=chunks, **options)
    got = scans.cumsum(lazy, "time", output=folder / f"y.{form}")
    assert not is_loaded(got)
    assert not is_loaded(lazy)
    assert (got.name, got.attrs, got.dtype) == ("rain", {"units": "mm"}, np.float64)
    assert got.chunks == lazy.chunks
    want = x.cumsum("time")
    xarray.testing.assert_allclose(got.variable, want.variable)
    assert got.coords.identical(lazy.coords)
    with xarray.open_dataset(folder / f"y.{form}", engine=ENGINES[form]) as data:
        xarray.testing.assert_allclose(data["rain"].variable, want.variable)
        assert data["rain"].time.equals(x.time)
    comm.Barrier()


@pytest.mark.parametrize("dim", ["y", "time", "x"])
@pytest.mark.parametrize("skipna", [None, True, False])
@pytest.mark.parametrize("dtype", ["f4", "i2"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_missing_values(name, dtype, skipna, dim, stored, folder, rng):
    x = field(rng, dtype, 9)
    lazy = stored(x)
    got = getattr(scans, name)(lazy, dim, skipna=skipna, output=folder / "y.zarr")
    want = getattr(x, name)(dim, skipna=skipna)
    xarray.testing.assert_allclose(got.variable, want.variable, rtol=1e-5)
    assert got.dtype == want.dtype
    assert bool(got.isnull().any()) == (dtype == "f4" and skipna is False)


@pytest.mark.parametrize("form", ["zarr", "nc"])
@pytest.mark.parametrize("reverse", [False, True])
def test_other_scans(reverse, form, stored, folder, rng):
    x = field(rng, "i8")
    lazy, step = stored(x, form), slice(None, None, -1 if reverse else None)
    into = {"output": folder / f"y.{form}", "force": True}
    for function, ufunc in ((scans.cummax, np.maximum), (scans.cummin, np.minimum)):
        got = function(lazy, "time", reverse=reverse, **into)
        np.testing.assert_array_equal(got, ufunc.accumulate(x.values[:, step], 1)[:, step])
        got.close()
    got = scans.scan(lazy, "time", "sum", exclusive=True, initial=100, **into)
    np.testing.assert_array_equal(got, x.values.cumsum(1) - x.values + 100)


@pytest.mark.parametrize("form", ["zarr", "nc"])
def test_names(form, stored, folder, rng):
    """The variable is that of the file, whatever its name, its dimensions and labels are now."""
    x = field(rng, "i4")
    lazy = stored(x, form, group="a/b")
    other = lazy.rename("other", x="lon").assign_coords(lon=[7, 8, 9])
    got = scans.cumsum(other, "lon", output=f"{folder / 'y'}.{form}::c/total")
    np.testing.assert_array_equal(got, x.values.cumsum(2))
    assert (got.name, got.dims, got.lon.values.tolist()) == (
        "other",
        ("y", "time", "lon"),
        [7, 8, 9],
    )


def test_other_byte_order(stored, folder, rng):
    x = field(rng, "i4")
    lazy = stored(x, "nc", encoding={"dtype": ">i4"})
    assert lazy.dtype.isnative
    got = scans.cumsum(lazy, "time", output=folder / "y.nc")
    np.testing.assert_array_equal(got, x.values.cumsum(1))


# ---- what may not be the file's variable ------------------------------------------------------


def assign(x):
    x[0, 0, 0] = 77
    return x


def plot(x):
    assert x.values.size > 0
    return x


CHANGES = {
    "part": (lambda x: x.isel(time=slice(0, 9)), "a part of a variable"),
    "step": (lambda x: x.isel(time=slice(None, None, 2)), "a part of a variable"),
    "reversed": (lambda x: x[:, ::-1], "in another order"),
    "shuffled": (lambda x: x[[1, 0, 2, 3]], "in another order"),
    "dropped": (lambda x: x[0], "a part of a variable"),
    "transposed": (lambda x: x.transpose("time", "y", "x"), "its data is LazilyVectorized"),
    "computed": (lambda x: x + 1, "it is loaded"),
    "type": (lambda x: x.astype("f4"), "it is loaded"),
    "shifted": (lambda x: x.shift(time=1), "it is loaded"),
    "filled": (lambda x: x.fillna(0), "it is loaded"),
    "assigned": (assign, "it is loaded"),
    "loaded": (lambda x: x.load(), "it is loaded"),
    "values": (plot, "it is loaded"),
    "repeated": (lambda x: x.expand_dims(z=2), "it is loaded"),
}
LAZY = {
    "part": lambda x: x.isel(time=slice(0, 9)),
    "reversed": lambda x: x[:, ::-1],
    "transposed": lambda x: x.transpose("time", "y", "x"),
    "computed": lambda x: x + 0,
    "type": lambda x: x.astype("f4"),
    "assigned": assign,
    "chunked": lambda x: x.chunk({"time": 5}),
    "persisted": lambda x: x.persist(),
    "optimized": lambda x: dask.optimize(x + 0)[0],
    "mapped": lambda x: x.copy(data=x.data.map_blocks(np.negative)),
    "joined": lambda x: xarray.concat([x[:2], x[2:]], "y"),
    "shifted": lambda x: x.shift(time=1),
}


@pytest.mark.parametrize("form", ["zarr", "nc"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed(change, form, stored, folder, comm, rng):
    function, reason = CHANGES[change]
    x = function(stored(field(rng), form))
    with pytest.raises(ValueError, match=reason):
        scans.cumsum(x, "time" if "time" in x.dims else "x", output=folder / f"y.{form}")
    assert not (folder / f"y.{form}").exists()
    comm.Barrier()


@pytest.mark.parametrize("change", LAZY)
def test_changed_lazily(change, stored, folder, comm, rng):
    x = LAZY[change](stored(field(rng), chunks={}))
    assert x.chunks
    with pytest.raises(ValueError, match="computed from others, or has other chunks"):
        scans.cumsum(x, "time", output=folder / "y.zarr")
    assert not (folder / "y.zarr").exists()
    comm.Barrier()


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("f8", {"encoding": {"_FillValue": -9.0}}),
        ("f8", {"encoding": {"_FillValue": 0.0}, "version": 2}),
        ("f8", {"encoding": {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -99}}),
        ("?", {"form": "nc"}),
        ("m8[ns]", {"form": "nc"}),
    ],
    ids=["missing", "zero", "packed", "bool", "time"],
)
def test_decoded(dtype, options, chunks, stored, folder, comm, rng):
    """xarray computes what it shows from what is in the file."""
    x = field(rng).fillna(-9)
    x = x > 0 if dtype == "?" else x.astype(dtype)
    form = options.get("form", "zarr")
    lazy = stored(x.drop_attrs(), **options, chunks=chunks, decode_timedelta=True)
    with pytest.raises(ValueError, match="its numbers are decoded"):
        scans.cumsum(lazy, "time", output=folder / f"y.{form}")
    assert not (folder / f"y.{form}").exists()
    comm.Barrier()


@pytest.mark.parametrize("form", ["zarr", "nc"])
def test_not_decoded(form, stored, folder, rng):
    """A _FillValue that no element has is no hindrance; the first one is."""
    x = field(rng).fillna(1)
    encoding = {"_FillValue": -99.0}
    lazy = stored(x, form, encoding=encoding, mask_and_scale=False)
    got = scans.cumsum(lazy, "time", output=folder / f"y.{form}")
    xarray.testing.assert_allclose(got.variable, x.cumsum("time").variable.copy(), rtol=1e-6)


def test_zero_as_the_value_of_what_is_not_stored(stored, folder, rng):
    """Of version 2, for which xarray takes it for a missing value, unless it decodes nothing."""
    x = field(rng).fillna(1)
    x[:, :2] = 0
    lazy = stored(x, version=2, encoding={"_FillValue": 0.0}, mask_and_scale=False)
    got = scans.cumsum(lazy, "time", skipna=False, output=folder / "y.zarr")
    xarray.testing.assert_allclose(got.variable, x.cumsum("time").variable)


@pytest.mark.parametrize("form", ["zarr", "nc"])
def test_a_missing_value(form, stored, folder, rng):
    lazy = stored(field(rng), form, encoding={"_FillValue": -99.0}, mask_and_scale=False)
    with pytest.raises(InputError, match=r"has no value at element .* but -99.0"):
        scans.cumsum(lazy, "time", output=folder / f"y.{form}")
    assert not (folder / f"y.{form}").exists()


def test_refusals(stored, folder, comm, rng):
    """On every rank, whichever is at fault."""
    x, last = field(rng), comm.rank == comm.size - 1
    lazy, path = stored(x), folder / "y.zarr"
    with pytest.raises(ValueError, match="a part of a variable"):
        scans.cumsum(lazy[:, :5] if last else lazy, "time", output=path)
    with pytest.raises(TypeError, match="one variable of a Dataset"):
        scans.cumsum(lazy.to_dataset() if last else lazy, "time", output=path)
    with pytest.raises(ValueError, match="does not go with output="):
        scans.cumsum(lazy, "time", output=path, segments="time.month" if last else None)
    with pytest.raises(ValueError, match=r"output= must be a \.zarr, not .*y\.nc"):
        scans.cumsum(lazy, "time", output=folder / "y.nc" if last else path)
    with pytest.raises(TypeError):
        scans.cumsum(lazy, "time", output=7 if last else path)
    with pytest.raises(ValueError, match="force=True goes with output="):
        scans.cumsum(x, "time", force=True)
    if comm.size > 1:
        with pytest.raises(Exception, match="the ranks disagree"):
            scans.cumsum(lazy, "time", output=folder / "z.zarr" if last else path)
        with pytest.raises(Exception, match="the ranks disagree"):
            scans.cumsum(x if last else lazy, "time", **({} if last else {"output": path}))
    assert not path.exists()
    comm.Barrier()
    scans.cumsum(lazy, "time", output=path)
    with pytest.raises(OutputError, match="force"):
        scans.cumsum(lazy, "time", output=path)
    scans.cumsum(lazy, "x", output=path, force=True)


def test_another_suffix(folder, comm, rng):
    """The suffix says the format, of the file job's input, too."""
    path = folder / "x.data"
    if comm.rank == 0:
        field(rng).to_dataset().to_zarr(path)
    comm.Barrier()
    with xarray.open_zarr(path) as data, pytest.raises(ValueError, match="another suffix than"):
        scans.cumsum(data["rain"], "time", output=folder / "y.zarr")
    comm.Barrier()


def test_a_store_in_memory(folder, comm, rng):
    import zarr

    store = zarr.storage.MemoryStore()
    field(rng).to_dataset().to_zarr(store)
    with xarray.open_zarr(store) as data, pytest.raises(ValueError, match="no folder"):
        scans.cumsum(data["rain"], "time", output=folder / "y.zarr")
    comm.Barrier()
