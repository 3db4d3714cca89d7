"""Particles move, leave the box, and migrate between ranks; those that stay are kept in order.

The problem: each rank owns a slab of the box. After each step some particles are outside the box,
and are removed; others are in another rank's slab, and must go there. Every rank must know the
number of its first particle among those of all ranks, as for a file that all ranks write.

The idea: stream compaction. Position, velocity and identity of a particle lie in three arrays, from
which one mask takes the same rows. ``distscan.compact`` returns these rows, in order, and where
they begin among the rows of all ranks: an exclusive sum of the ranks' counts.

The usual way is ``x[mask]`` for each array, and a hand-written ``MPI_Exscan`` of the counts.

Source: Billeter, Olsson and Assarsson, "Efficient stream compaction on wide SIMD many-core
architectures", 2009.

    mpirun -n 2 python examples/particles.py --picture particles.png
    mpirun -n 2 python examples/particles.py --n 10_000_000 --steps 10
    mpirun -n 4 python examples/particles.py --n 10_000_000 --gpu     # CuPy, a GPU for each rank
"""

import argparse

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Move particles between ranks.")
parser.add_argument("--n", type=int, default=50_000, help="particles of all ranks")
parser.add_argument("--steps", type=int, default=30, help="steps of time, of 0.02 each")
parser.add_argument("--picture", help="the file of the picture, such as particles.png")
parser.add_argument("--gpu", action="store_true", help="with CuPy, a GPU for each rank")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
if arguments.gpu:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
else:
    import numpy as xp

TIME_STEP = 0.02
# The ranks whose slabs are beside this one. Those at the ends of the box send to nobody.
LEFT = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
RIGHT = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL


def compact_by_hand(arrays, mask):
    """Do what ``distscan.compact`` does, as MPI codes do it."""
    kept = tuple(array[mask] for array in arrays)
    return kept, comm.exscan(len(kept[0])) or 0  # None on rank 0


def is_inside(position):
    """Say which positions [n, 2] are in the box."""
    return xp.all((position >= 0) & (position < 1), axis=1)


def owner_of(position):
    """Return the rank whose slab each position [n, 2] is in."""
    return (position[:, 0] * comm.size).astype(np.int32)


def run(particles, compact):
    """Move this rank's particles; return those at the end, and each step's first number, count."""
    history = []
    for _ in range(arguments.steps):
        position, velocity, identity = particles
        position = position + TIME_STEP * velocity
        moved, _ = compact((position, velocity, identity), is_inside(position))
        owner = owner_of(moved[0])
        particles, _ = compact(moved, owner == comm.rank)
        if comm.size > 1:  # nobody crosses a whole slab in one step, at up to 25 ranks
            to_left, _ = compact(moved, owner < comm.rank)
            to_right, _ = compact(moved, owner > comm.rank)
            from_right = comm.sendrecv(to_left, LEFT, source=RIGHT)
            from_left = comm.sendrecv(to_right, RIGHT, source=LEFT)
            groups = [group for group in (particles, from_left, from_right) if group is not None]
            particles = tuple(map(xp.concatenate, zip(*groups, strict=True)))
        start, _ = distscan.offsets(len(particles[0]), comm=comm)
        history.append((start, len(particles[0])))
    return particles, history


def measure(function):
    """Return what a function returns on all ranks, and its least seconds of three."""
    seconds = []
    for _ in range(3):
        comm.Barrier()
        start = MPI.Wtime()
        result = function()
        if arguments.gpu:
            xp.cuda.Device().synchronize()
        comm.Barrier()
        seconds.append(MPI.Wtime() - start)
    return result, min(seconds)


# Every rank draws the same particles, two clouds, and takes those in its slab.
rng = np.random.default_rng(7)
center = np.where(rng.random((arguments.n, 1)) < 0.5, [0.3, 0.4], [0.6, 0.6])
everything = (
    np.clip(rng.normal(center, 0.06), 0, 0.999),
    np.clip(rng.normal(0, 0.5, (arguments.n, 2)), -2, 2),
    np.arange(arguments.n),
)
here = owner_of(everything[0]) == comm.rank
particles = tuple(xp.asarray(array[here]) for array in everything)

(rest, history), seconds = measure(lambda: run(particles, distscan.compact))
(_, same_history), usual_seconds = measure(lambda: run(particles, compact_by_hand))
rests = comm.gather([array.get() if arguments.gpu else array for array in rest])
histories = comm.gather(history)
same_histories = comm.gather(same_history)
if comm.rank == 0:
    # Without ranks and scans: all particles take all steps. Who leaves the box does not come back.
    at_end = everything[0].copy()
    for _ in range(arguments.steps):
        at_end += TIME_STEP * everything[1]
    inside = is_inside(xp.asarray(at_end))
    inside = inside.get() if arguments.gpu else inside
    identity = np.concatenate([arrays[2] for arrays in rests])
    np.testing.assert_array_equal(np.sort(identity), np.flatnonzero(inside))
    np.testing.assert_allclose(np.concatenate([arrays[0] for arrays in rests]), at_end[identity])
    assert histories == same_histories
    print(
        f"particles: {inside.sum()} of {arguments.n} are in the box after {arguments.steps} steps, "
        f"ranks: {comm.size}, {seconds:.3g} s"
    )
    print(
        f"particles: by x[mask] and MPI_Exscan {usual_seconds:.3g} s, factor "
        f"{usual_seconds / seconds:.2g}"
    )

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    some = max(arguments.n // 20_000, 1)  # one particle of so many is drawn
    left.scatter(*at_end[~inside][::some].T, s=1, color="lightgray")
    steps = range(1, arguments.steps + 1)
    for rank in range(comm.size):
        starts, counts = np.transpose(histories[rank])
        left.scatter(*rests[rank][0][::some].T, s=1, color=f"C{rank % 10}")
        left.axvline((rank + 1) / comm.size, color="black", linewidth=0.5)
        right.fill_between(steps, starts, starts + counts, color=f"C{rank % 10}", alpha=0.8)
        right.text(steps[0], starts[0] + counts[0] / 2, f"  rank {rank}", va="center")
    left.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], color="black")
    left.set(title="At the end; color: the rank; gray: removed", aspect="equal")
    left.set(xlabel="x", ylabel="y", xlim=(-0.4, 1.4), ylim=(-0.4, 1.4))
    right.set(title="Numbers of each rank's particles", xlabel="step", ylabel="particle")
    figure.savefig(arguments.picture)
