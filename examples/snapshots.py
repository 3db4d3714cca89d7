"""Snapshots of a simulation go into one HDF5 file, each rank's behind those of the ranks before it.

This is a small MPI code with its own time loop. Each rank's fountain throws up particles, and those
that fall to the ground are removed, so their number differs between ranks and steps. A rank's rows
in the file begin at the exclusive sum of the numbers on earlier ranks. ``distscan.offsets`` finds
this sum, and the number of all rows.

Two lines are distscan's: the import, and the call of ``offsets``. The program writes snapshots.h5
into FOLDER.

    mpirun -n 4 python examples/snapshots.py --picture snapshots.png
"""

import argparse
from pathlib import Path

import h5py
import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Write particles of all ranks into one file.")
parser.add_argument("--folder", default=".", help="where the files are written")
parser.add_argument("--picture", help="the file of the picture, such as snapshots.png")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)
path = Path(arguments.folder) / "snapshots.h5"
TIME_STEP, STEPS, STEPS_PER_SNAPSHOT = 0.02, 160, 20


def write(step, rows, start, total, **options):
    """Write this rank's rows into the dataset of the step, which has ``total`` rows."""
    with h5py.File(path, "r+", **options) as file:
        dataset = file.require_dataset(f"step{step:03}", (total, 4), "f8")
        dataset[start : start + len(rows)] = rows


if comm.rank == 0:
    h5py.File(path, "w").close()
comm.Barrier()
particles = np.empty((0, 4))  # of each: x, height, and the velocity in both directions
stretches = []  # of the file that this rank wrote: step, start, count
for step in range(STEPS + 1):
    born = rng.poisson(4 + 4 * (comm.rank % 3))
    new = rng.normal([comm.rank, 0, 0, 1.3], [0, 0, 0.2, 0.1], (born, 4))
    particles = np.concatenate([particles, new])
    particles[:, 3] -= TIME_STEP  # gravity
    particles[:, :2] += TIME_STEP * particles[:, 2:]
    particles = particles[particles[:, 1] > 0]
    if step % STEPS_PER_SNAPSHOT == 0:
        start, total = distscan.offsets(len(particles), comm=comm)
        if h5py.get_config().mpi:  # all ranks write at once
            write(step, particles, start, total, driver="mpio", comm=comm)
        else:  # the ranks take turns
            for turn in range(comm.size):
                if turn == comm.rank:
                    write(step, particles, start, total)
                comm.Barrier()
        stretches.append((step, start, len(particles)))

# Rank 0 reads the last snapshot, and compares it with what the ranks have.
particles, stretches = comm.gather(particles), comm.gather(stretches)
if comm.rank == 0:
    with h5py.File(path) as file:
        rows = file[f"step{STEPS:03}"][:]
    assert np.array_equal(rows, np.concatenate(particles))
    print(f"snapshots: {total} particles are in the last one, rank after rank, ranks: {comm.size}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for rank, pieces in enumerate(stretches):
        steps, starts, counts = np.transpose(pieces)
        x, height = rows[starts[-1] : starts[-1] + counts[-1], :2].T
        left.scatter(x, height, s=4, color=f"C{rank}")
        right.barh(steps, counts, 12, starts, color=f"C{rank}", label=f"rank {rank}")
    left.set(title=f"The last snapshot, step {STEPS}", xlabel="x", ylabel="height")
    right.set(title="Rows of each rank in the file", xlabel="row", ylabel="step", yticks=steps)
    right.legend(loc="lower right", fontsize="small")
    figure.savefig(arguments.picture)
