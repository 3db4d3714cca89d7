"""Degree days: the heat of a year is added up along time, in a Zarr store.

The store has chunks of some days of some places. Each rank reads and writes whole columns of
chunks, so no rank waits for another one, and no chunk is decompressed twice. The result is a store
with the same chunks, dimensions, coordinates and attributes, which xarray opens.

The program writes heat.zarr and degree_days.zarr into FOLDER.

    mpirun -n 2 python examples/degree_days.py --picture degree_days.png
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import xarray
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Sum degree days up along time.")
parser.add_argument("--folder", default=".", help="where the files are written")
parser.add_argument("--picture", help="the file of the picture, such as degree_days.png")
arguments = parser.parse_args()
DAYS, ROWS, COLUMNS, BASE = 365, 30, 40, 10.0
comm = MPI.COMM_WORLD
folder = Path(arguments.folder)
heat_path, total_path = folder / "heat.zarr", folder / "degree_days.zarr"
warnings.filterwarnings("ignore", message="Consolidated metadata")

if comm.rank == 0:  # degrees above the base, where plants begin to grow
    rng, days = np.random.default_rng(5), np.arange(DAYS)
    mean = np.linspace(16, 2, ROWS)[:, None] - 11 * np.cos(2 * np.pi * (days - 15) / DAYS)
    air = mean.T[:, :, None] + rng.normal(0, 3, (DAYS, ROWS, COLUMNS))
    coords = {
        "time": np.datetime64("2025-01-01", "ns") + days.astype("m8[D]"),
        "latitude": np.linspace(35, 65, ROWS),
    }
    heat = xarray.DataArray(
        np.maximum(air - BASE, 0).astype("f4"),
        coords,
        ("time", "latitude", "longitude"),
        name="heat",
        attrs={"units": "K d", "long_name": "degree days"},
    )
    chunks = {"heat": {"chunks": (100, 10, 10)}}
    heat.to_dataset().to_zarr(heat_path, mode="w", encoding=chunks)
comm.Barrier()

distscan.scan_file(f"{heat_path}::heat", total_path, axis=0, comm=comm, backend="cpu", force=True)

if comm.rank == 0:
    heat = xarray.open_zarr(heat_path).heat.load()
    total = xarray.open_zarr(total_path).heat.load()
    np.testing.assert_allclose(total, heat.cumsum("time"), rtol=1e-4)
    assert total.attrs == heat.attrs
    assert total.time.equals(heat.time)
    print(f"degree_days: {DAYS} days are added up in {total_path}, ranks: {comm.size}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for row in (0, ROWS // 2, ROWS - 1):
        axes.plot(total.time, total[:, row, 0], label=f"{float(total.latitude[row]):.0f}° N")
    axes.set(title=f"Degree days above {BASE:.0f} °C since the year began", ylabel="K d")
    axes.set_xlabel("time")
    axes.legend()
    figure.savefig(arguments.picture)
