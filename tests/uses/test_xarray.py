"""distscan.xarray: as xarray's own functions of the whole."""

import numpy as np
import pytest
from mpi4py import MPI

xarray = pytest.importorskip("xarray", reason="no xarray")
import distscan.xarray as scans  # noqa: E402


def whole(rng, n=23, dtype="f8"):
    values = rng.integers(-5, 9, (4, n, 3)).astype(dtype)
    if values.dtype.kind == "f":
        values[1, n // 2] = np.nan
    return xarray.DataArray(
        values,
        dims=("y", "time", "x"),
        coords={
            "time": np.datetime64("2000-01-01", "D") + np.arange(n),
            "height": (("time", "x"), rng.random((n, 3))),
            "station": "here",
        },
        name="rain",
        attrs={"units": "mm"},
    )


@pytest.mark.parametrize("dim", ["y", "time", "x"])
@pytest.mark.parametrize("skipna", [None, True, False])
@pytest.mark.parametrize("dtype", ["f8", "i4"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_as_xarray(name, dtype, skipna, dim, comm, rng):
    x = whole(rng, 23 if dtype == "f8" else 9, dtype)
    part = scans.slab(x, dim)
    got = getattr(scans, name)(part, dim, skipna=skipna)
    want = scans.slab(getattr(x, name)(dim, skipna=skipna), dim)
    xarray.testing.assert_allclose(got.variable, want.variable)
    assert (got.name, got.attrs, got.dtype) == ("rain", {"units": "mm"}, want.dtype)
    assert got.coords.identical(part.coords)
    assert np.shares_memory(part.data, x.data) == (part.size > 0)  # the input stays as it is


@pytest.mark.parametrize("reverse", [False, True])
def test_other_scans(reverse, comm, rng):
    x = whole(rng, dtype="i8")
    step = slice(None, None, -1 if reverse else None)
    part = scans.slab(x, "time")
    for function, ufunc in ((scans.cummax, np.maximum), (scans.cummin, np.minimum)):
        got = function(part, "time", reverse=reverse)
        want = x.copy(data=ufunc.accumulate(x.values[:, step], 1)[:, step])
        xarray.testing.assert_identical(got, scans.slab(want, "time"))
    got = scans.scan(part, "time", "sum", exclusive=True, initial=100)
    want = x.copy(data=x.values.cumsum(1) - x.values + 100)
    xarray.testing.assert_identical(got, scans.slab(want, "time"))


def test_a_dataset(comm, rng):
    x = xarray.Dataset({"a": whole(rng), "b": ("y", [1, 2, 3, 4]), "c": ("time", np.arange(23))})
    part = scans.slab(x, "time")
    got = scans.cumsum(part, "time")
    for name in ("a", "c"):
        want = scans.slab(x[name].cumsum("time"), "time")
        xarray.testing.assert_allclose(got[name].variable, want.variable)
    xarray.testing.assert_identical(got["b"], part["b"])


@pytest.mark.parametrize("name", ["cumsum", "cummax"])
def test_groups(name, comm, rng):
    """Along a coordinate whose equal values are neighbours, as of ``groupby``."""
    x = whole(rng, 70)
    x = x.assign_coords(month=("time", x.time.dt.month.data))
    if name == "cummax":
        x = x.fillna(0)
    part = scans.slab(x, "time")
    want = np.concatenate(
        [
            np.nancumsum(group.values, 1)
            if name == "cumsum"
            else np.maximum.accumulate(group.values, 1)
            for _, group in x.groupby("month")
        ],
        axis=1,
    )
    for segments in ("month", "time.month", part.time.dt.month):
        got = getattr(scans, name)(part, "time", segments=segments)
        np.testing.assert_allclose(got, scans.slab(x.copy(data=want), "time"))
    for unknown in ("week", "time.moon", "rain.month"):
        with pytest.raises(ValueError, match=f"no coordinate '{unknown}'"):
            scans.cumsum(part, "time", segments=unknown)
    with pytest.raises(ValueError, match=r"has the dimensions \('x',\), not 'time' alone"):
        scans.cumsum(part, "time", segments=part.x)
    with pytest.raises(ValueError, match="other labels along 'time'"):
        scans.cumsum(part, "time", segments=part.time.dt.month[::-1])


@pytest.mark.parametrize("kind", ["DataArray", "Dataset"])
def test_parts_of_dates(kind, comm, rng):
    """As text, too: February and January are of one season, March is of the next one."""
    x = whole(rng, 70, "i8")
    starts = {"time.month": [31, 60], "time.season": [60]}
    for segments, cuts in starts.items():
        want = np.concatenate([np.cumsum(part, 1) for part in np.split(x.values, cuts, 1)], 1)
        part = scans.slab(x, "time")
        if kind == "Dataset":
            got = scans.cumsum(part.to_dataset(), "time", segments=segments)["rain"]
        else:
            got = scans.cumsum(part, "time", segments=segments)
        xarray.testing.assert_identical(got, scans.slab(x.copy(data=want), "time"))


def test_files(comm, folder, rng):
    """What is not loaded: each rank reads its slab alone."""
    x = whole(rng)
    if comm.rank == 0:
        x.to_netcdf(folder / "x.nc", engine="h5netcdf")
    comm.Barrier()
    with xarray.open_dataarray(folder / "x.nc", engine="h5netcdf") as lazy:
        got = scans.cumsum(scans.slab(lazy, "time"), "time")
    want = scans.slab(x.cumsum("time"), "time")
    xarray.testing.assert_allclose(got.variable, want.variable)
    comm.Barrier()


def test_refusals(comm, rng):
    """On every rank, whichever is at fault."""
    x, last = whole(rng), comm.rank == comm.size - 1
    with pytest.raises(ValueError, match="no dimension 'z'"):
        scans.cumsum(x, "z" if last else "time")
    with pytest.raises(TypeError, match="no DataArray"):
        scans.cumsum(x.values if last else x, "time")
    if comm.size > 1:
        data = xarray.Dataset({"b" if last else "a": x})
        with pytest.raises(Exception, match="the ranks disagree on variables"):
            scans.cumsum(data, "time")
        with pytest.raises(Exception, match="the ranks disagree on the shape beyond axis 0"):
            scans.cumsum(x[:2] if last else x, "time")
    got = scans.cumsum(x, "time", comm=MPI.COMM_SELF)
    xarray.testing.assert_allclose(got.variable, x.cumsum("time").variable)
