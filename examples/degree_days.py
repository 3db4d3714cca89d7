"""Degree days: the heat of a year is added up along time, in a Zarr store.

The store has chunks of some days of some places. Each rank reads and writes whole columns of
chunks, so no rank waits for another one, and no chunk is decompressed twice. The result is a store
with the same chunks, dimensions, coordinates and attributes, which xarray opens.

The program writes heat.zarr, degree_days.zarr and degree_days.png into FOLDER, or else where you
are. Run it with

    mpirun -n 4 python examples/degree_days.py [FOLDER]
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import xarray
from matplotlib.figure import Figure
from mpi4py import MPI

import distscan

DAYS, ROWS, COLUMNS, BASE = 365, 30, 40, 10.0

comm = MPI.COMM_WORLD
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
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
    print(f"degree_days: {DAYS} days are added up in {total_path} (ranks: {comm.size})")

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for row in (0, ROWS // 2, ROWS - 1):
        axes.plot(total.time, total[:, row, 0], label=f"{float(total.latitude[row]):.0f}° N")
    axes.set(title=f"Degree days above {BASE:.0f} °C since the year began", ylabel="K d")
    axes.legend()
    figure.savefig(folder / "degree_days.png")
    print(f"degree_days: the picture is {folder / 'degree_days.png'}")
