"""A cumulative integral of a NetCDF field: how much rain has fallen since the year began.

The problem: a file has the rain of each hour of a year on a grid, and is larger than a rank's
memory. A file of the same shape is wanted, with the sums up to each hour; and sums that begin anew
with each month.

The idea: the integral of what fell in each hour is a running sum along time. The file job
``distscan.scan_file`` reads and writes only each rank's part, in chunks, and carries over
dimensions, coordinates and attributes. For the months, every rank reads its hours, and
``distscan.xarray.cumsum(..., segments="time.month")`` begins anew where the month changes, also
between two ranks.

The usual way is ``cumsum`` of xarray, with the whole field in memory, and ``to_netcdf``. The
program writes rain.nc, total.nc and usual.nc into FOLDER.

    mpirun -n 2 python examples/rain.py --picture rain.png
    mpirun -n 2 python examples/rain.py --n 240 --folder /tmp
"""

import argparse
from pathlib import Path

import numpy as np
import xarray
from mpi4py import MPI

import distscan
import distscan.xarray

parser = argparse.ArgumentParser(description="Integrate rain along time.")
parser.add_argument("--n", type=int, default=20, help="longitudes of the grid; twice its latitudes")
parser.add_argument("--folder", default=".", help="where the files are written")
parser.add_argument("--picture", help="the file of the picture, such as rain.png")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
folder = Path(arguments.folder)
HOURS = 365 * 24


def write_field():
    """Write the rain of each hour in mm: showers, more of them in the north and in winter."""
    rng, hours = np.random.default_rng(7), np.arange(HOURS)
    latitude = np.linspace(40, 60, arguments.n // 2)
    season = 1 + 0.7 * np.cos(2 * np.pi * hours / HOURS)
    mean = 0.1 * season[:, None, None] * np.linspace(0.5, 2, len(latitude))[:, None]
    rain = rng.standard_exponential((HOURS, len(latitude), arguments.n), np.float32)
    rain *= mean * (rng.random((HOURS, 1, 1)) < 0.2) / 0.2
    time = np.datetime64("2025-01-01", "ns") + hours.astype("m8[h]")
    attributes = {"units": "mm", "long_name": "rain", "cell_methods": "time: sum"}
    xarray.DataArray(
        rain,
        {"time": time, "latitude": latitude},
        ("time", "latitude", "longitude"),
        name="rain",
        attrs=attributes,
    ).to_netcdf(folder / "rain.nc", engine="h5netcdf", encoding={"rain": {"_FillValue": None}})


def integrate():
    """Write the sums along time, by a file job."""
    path, total = f"{folder / 'rain.nc'}::rain", folder / "total.nc"
    return distscan.scan_file(path, total, axis=0, comm=comm, backend="cpu", force=True)


def integrate_as_usual():
    """Do the same with the whole field in memory."""
    with xarray.open_dataset(folder / "rain.nc", engine="h5netcdf") as data:
        data.rain.cumsum("time", keep_attrs=True).to_netcdf(folder / "usual.nc", engine="h5netcdf")


def measure(function, comm):
    """Return what a function returns on the ranks of ``comm``, and its least seconds of three."""
    seconds = []
    for _ in range(3):
        comm.Barrier()
        start = MPI.Wtime()
        result = function()
        comm.Barrier()
        seconds.append(MPI.Wtime() - start)
    return result, min(seconds)


if comm.rank == 0:
    write_field()
report, seconds = measure(integrate, comm)

with xarray.open_dataset(folder / "rain.nc", engine="h5netcdf") as data:
    part = distscan.xarray.slab(data.rain.isel(longitude=0), "time", comm).load()
parts = comm.gather(distscan.xarray.cumsum(part, "time", segments="time.month", comm=comm))

if comm.rank == 0:
    _, usual_seconds = measure(integrate_as_usual, MPI.COMM_SELF)
    with xarray.open_dataset(folder / "total.nc", engine="h5netcdf") as data:
        total = data.rain.load()
    with xarray.open_dataset(folder / "usual.nc", engine="h5netcdf") as data:
        np.testing.assert_allclose(total, data.rain, rtol=1e-4)
    with xarray.open_dataset(folder / "rain.nc", engine="h5netcdf") as data:
        assert total.attrs == data.rain.attrs
        assert total.time.equals(data.time)
        groups = data.rain.isel(longitude=0).load().groupby("time.month")
    months = xarray.concat(parts, "time")
    np.testing.assert_allclose(months, groups.map(lambda x: x.cumsum("time")), rtol=1e-4)
    print(f"rain: {total.nbytes / 1e9:.3g} GB, ranks: {comm.size}, {seconds:.3g} s")
    print(f"rain: xarray {usual_seconds:.3g} s, factor {usual_seconds / seconds:.2g}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    year, month = figure.subplots(2, sharex=True)
    for row in (0, len(total.latitude) // 2, -1):
        label = f"{float(total.latitude[row]):.0f}° N"
        year.plot(total.time, total[:, row, 0], label=label)
        month.plot(months.time, months[:, row], label=label)
    year.set(title="Rain since the year began", ylabel="mm")
    month.set(title="Rain since the month began; lines: where ranks meet", ylabel="mm")
    for each in parts[1:]:
        month.axvline(each.time[0].values, color="black", linewidth=0.8)
    month.set(xlabel="time")
    year.legend()
    figure.savefig(arguments.picture)
