"""Particles that left the box are removed, and every rank knows where its rest begins.

Each rank keeps its own particles that are inside. Where they begin among those of all ranks is the
exclusive sum of the numbers that earlier ranks keep. ``distscan.compact`` does both. One mask keeps
rows of two arrays, so position and velocity stay together.

The program writes compaction.png into FOLDER, or else where you are. Run it with

    mpirun -n 4 python examples/compaction.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from mpi4py import MPI

import distscan

comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
TIME_STEP, STEPS = 0.02, 60


def is_inside(position):
    """Say which positions [n, 2] are in the box."""
    return np.all((position >= 0) & (position <= 1), axis=1)


# Each rank's particles fly apart from one point, the faster ones leave the box sooner.
number = rng.integers(300, 600)
position = np.tile(rng.uniform(0.2, 0.8, 2), (number, 1))
velocity = rng.normal(0, 0.4, (number, 2))

at_first = comm.gather((position, velocity))
history = []  # of every step: where this rank's particles begin, and how many they are
for _ in range(STEPS):
    position += TIME_STEP * velocity
    inside = is_inside(position)
    (position, velocity), start = distscan.compact((position, velocity), inside, comm=comm)
    history.append((start, len(position)))

rests, histories = comm.gather((position, velocity)), comm.gather(history)
if comm.rank == 0:
    # Without ranks and scans: all particles take all steps. Who leaves the box does not come back.
    positions, velocities = map(np.concatenate, zip(*at_first, strict=True))
    for _ in range(STEPS):
        positions += TIME_STEP * velocities
    inside = is_inside(positions)
    rest, their_velocities = map(np.concatenate, zip(*rests, strict=True))
    assert np.array_equal(rest, positions[inside])
    assert np.array_equal(their_velocities, velocities[inside])
    for begins_and_counts in zip(*histories, strict=True):
        starts, counts = np.transpose(begins_and_counts)
        assert np.array_equal(starts, np.cumsum(counts) - counts)
    kept = f"{len(rest)} of {len(positions)} particles"
    print(f"compaction: {kept} are in the box (ranks: {comm.size})")

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.scatter(*positions[~inside].T, s=3, color="lightgray")
    for rank in range(comm.size):
        starts, counts = np.transpose(histories[rank])
        left.scatter(*rests[rank][0].T, s=3, color=f"C{rank}")
        right.fill_between(range(1, STEPS + 1), starts, starts + counts, color=f"C{rank}")
        right.text(STEPS * 0.1, starts[0] + counts[0] / 2, f"rank {rank}", va="center")
    left.set(title="At the end; gray: those that were removed", xlim=(-0.5, 1.5), ylim=(-0.5, 1.5))
    left.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], color="black")
    left.set(aspect="equal", xticks=[0, 1], yticks=[0, 1])
    right.set(title="Where each rank's rest begins and ends", xlabel="step", ylabel="particle")
    figure.savefig(folder / "compaction.png")
    print(f"compaction: the picture is {folder / 'compaction.png'}")
