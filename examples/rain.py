"""Rain of a year is added up along time, in a NetCDF file, by a file job; and month by month.

The file job reads and writes only each rank's part of rain.nc and total.nc, and carries over
dimensions, coordinates and attributes. For the sums of each month, every rank reads its days, and
``distscan.xarray.cumsum(..., segments="month")`` begins anew where the month changes, also between
two ranks.

The program writes rain.nc, total.nc and rain.png into FOLDER, or else where you are. Run it with

    mpirun -n 4 python examples/rain.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
import xarray
from matplotlib.figure import Figure
from mpi4py import MPI

import distscan
import distscan.xarray

DAYS, ROWS, COLUMNS = 365, 20, 30

comm = MPI.COMM_WORLD
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
path, total_path = folder / "rain.nc", folder / "total.nc"

if comm.rank == 0:  # millimetres of each day, more of them in the north and in winter
    rng, days = np.random.default_rng(7), np.arange(DAYS)
    season = 1 + 0.7 * np.cos(2 * np.pi * days / DAYS)
    mean = season[:, None, None] * np.linspace(0.5, 4, ROWS)[:, None]
    values = rng.gamma(0.4, mean, (DAYS, ROWS, COLUMNS)).astype("f4")
    coords = {
        "time": np.datetime64("2025-01-01", "ns") + days.astype("m8[D]"),
        "latitude": np.linspace(40, 60, ROWS),
    }
    dims = "time", "latitude", "longitude"
    attributes = {"units": "mm", "long_name": "rain"}
    field = xarray.DataArray(values, coords, dims, name="rain", attrs=attributes)
    field.to_netcdf(path, engine="h5netcdf", encoding={"rain": {"zlib": True, "_FillValue": None}})
comm.Barrier()

distscan.scan_file(f"{path}::rain", total_path, axis=0, comm=comm, backend="cpu", force=True)

with xarray.open_dataset(path, engine="h5netcdf") as data:
    rain = distscan.xarray.slab(data["rain"], "time", comm)
    rain = rain.assign_coords(month=rain.time.dt.month).load()
by_month = distscan.xarray.cumsum(rain, "time", segments="month", comm=comm)

parts = comm.gather(by_month.isel(longitude=0))
if comm.rank == 0:
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        field = data["rain"].load()
    with xarray.open_dataset(total_path, engine="h5netcdf") as data:
        total = data["rain"].load()
    np.testing.assert_allclose(total, field.cumsum("time"), rtol=1e-4)
    assert total.attrs == field.attrs
    assert total.time.equals(field.time)
    months = xarray.concat(parts, "time")
    groups = field.isel(longitude=0).groupby("time.month")
    np.testing.assert_allclose(months, groups.map(lambda x: x.cumsum("time")), rtol=1e-4)
    print(f"rain: {total.sizes['time']} days are added up in {total_path} (ranks: {comm.size})")

    figure = Figure(figsize=(8, 6), layout="constrained")
    year, month = figure.subplots(2, sharex=True)
    for row in (0, ROWS // 2, ROWS - 1):
        label = f"{float(total.latitude[row]):.0f}° N"
        year.plot(total.time, total[:, row, 0], label=label)
        month.plot(months.time, months[:, row], label=label)
    year.set(title="Rain since the year began", ylabel="mm")
    month.set(title="Rain since the month began; lines are where ranks meet", ylabel="mm")
    for part in parts[1:]:
        if part.sizes["time"]:
            month.axvline(part.time[0].values, color="black", linewidth=0.8)
    year.legend()
    figure.savefig(folder / "rain.png")
    print(f"rain: the picture is {folder / 'rain.png'}")
