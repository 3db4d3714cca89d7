"""Particles that left the box are removed, and every rank knows where its rest begins.

Each rank keeps its own particles that are inside. Where they begin among those of all ranks is the
exclusive sum of the numbers that earlier ranks keep. ``distscan.compact`` does both. A particle is
an element of a structured array, so position and velocity stay together.

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
PARTICLE = np.dtype([("position", "f8", 2), ("velocity", "f8", 2)])


def is_inside(position):
    """Say which positions [n, 2] are in the box."""
    return np.all((position >= 0) & (position <= 1), axis=1)


# Each rank's particles fly apart from one point, the faster ones leave the box sooner.
particles = np.zeros(rng.integers(300, 600), PARTICLE)
particles["position"] = rng.uniform(0.2, 0.8, 2)
particles["velocity"] = rng.normal(0, 0.4, (len(particles), 2))

at_first = comm.gather(particles)
history = []  # of every step: where this rank's particles begin, and how many they are
for _ in range(STEPS):
    particles["position"] += TIME_STEP * particles["velocity"]
    particles, start = distscan.compact(particles, is_inside(particles["position"]), comm=comm)
    history.append((start, len(particles)))

rests, histories = comm.gather(particles), comm.gather(history)
if comm.rank == 0:
    # Without ranks and scans: all particles take all steps. Who leaves the box does not come back.
    known = np.concatenate(at_first)
    for _ in range(STEPS):
        known["position"] += TIME_STEP * known["velocity"]
    inside = is_inside(known["position"])
    rest = np.concatenate(rests)
    assert np.array_equal(rest, known[inside])
    for begins_and_counts in zip(*histories, strict=True):
        starts, counts = np.transpose(begins_and_counts)
        assert np.array_equal(starts, np.cumsum(counts) - counts)
    print(f"compaction: {len(rest)} of {len(known)} particles are in the box (ranks: {comm.size})")

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.scatter(*known["position"][~inside].T, s=3, color="lightgray")
    for rank in range(comm.size):
        starts, counts = np.transpose(histories[rank])
        left.scatter(*rests[rank]["position"].T, s=3, color=f"C{rank}")
        right.fill_between(range(1, STEPS + 1), starts, starts + counts, color=f"C{rank}")
        right.text(STEPS * 0.1, starts[0] + counts[0] / 2, f"rank {rank}", va="center")
    left.set(title="At the end; gray: those that were removed", xlim=(-0.5, 1.5), ylim=(-0.5, 1.5))
    left.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], color="black")
    left.set(aspect="equal", xticks=[0, 1], yticks=[0, 1])
    right.set(title="Where each rank's rest begins and ends", xlabel="step", ylabel="particle")
    figure.savefig(folder / "compaction.png")
    print(f"compaction: the picture is {folder / 'compaction.png'}")
