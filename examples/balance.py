"""Cells of a grid are dealt out anew, so that every rank has about the same work.

The cells lie along a Morton curve (Z-order), on which cells that are near in the plane are mostly
near, too. Each rank owns one stretch of the curve. Cells near the stars need more work than others,
so stretches of equal length differ in work. The running sum of the work along the curve shows where
to cut it. ``distscan.partition`` makes this scan over all ranks and finds the cuts;
``distscan.offsets`` says where a rank's stretch begins now.

    mpirun -n 4 python examples/balance.py --picture balance.png
"""

import argparse

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Deal out cells so that ranks have equal work.")
parser.add_argument("--bits", type=int, default=6, help="the grid has 2^BITS cells a side")
parser.add_argument("--picture", help="the file of the picture, such as balance.png")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
BITS = arguments.bits
SIDE = 2**BITS  # cells along each side of the grid
STARS = np.array([[0.1, 0.2], [0.3, 0.35], [0.7, 0.6]])


def place(cell):
    """Return x and y of cells of the curve: every second bit of their numbers."""
    x = sum((cell >> 2 * bit & 1) << bit for bit in range(BITS))
    y = sum((cell >> 2 * bit + 1 & 1) << bit for bit in range(BITS))
    return x, y


# At first the stretches are of equal length.
cells = np.array_split(np.arange(SIDE * SIDE), comm.size)[comm.rank]
distances = np.hypot(*(np.stack(place(cells), 1)[:, None] / SIDE - STARS).T)
work = 1 + (300 * np.exp(-15 * distances)).sum(axis=0).astype(np.int64)

# Part r of the curve goes to rank r: the elements cuts[r] to cuts[r + 1].
cuts = distscan.partition(work, comm.size, comm=comm)
start, total = distscan.offsets(len(cells), comm=comm)
send_counts = np.diff(np.clip(cuts, start, start + len(cells)))
receive_counts = np.array(comm.alltoall(send_counts.tolist()))
new_work = np.empty(receive_counts.sum(), np.int64)
comm.Alltoallv([work, send_counts], [new_work, receive_counts])

old_parts, new_parts = comm.gather(work), comm.gather(new_work)
if comm.rank == 0:
    everything = np.concatenate(old_parts)
    assert np.array_equal(
        np.concatenate(new_parts), everything
    )  # nothing is lost, the order is kept
    share = everything.sum() / comm.size
    assert all(abs(part.sum() - share) <= everything.max() for part in new_parts)
    old_most, new_most = (
        max(part.sum() for part in parts) / share for parts in (old_parts, new_parts)
    )
    print(
        f"balance: {total} cells, ranks: {comm.size}; the busiest had {old_most:.2f} times the "
        f"mean work, and has {new_most:.2f} times"
    )

if comm.rank == 0 and arguments.picture:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.4), layout="constrained")
    x, y = place(np.arange(total))
    brightness = 0.4 + 0.6 * np.log(everything) / np.log(everything.max())
    colors = np.array(matplotlib.colormaps["tab10"].colors)
    cases = (
        ("stretches of equal length", old_parts, old_most),
        ("stretches of equal work", new_parts, new_most),
    )
    for axes, (name, parts, most) in zip(figure.subplots(1, 2), cases, strict=True):
        owner = np.repeat(np.arange(comm.size), [len(part) for part in parts])
        image = np.empty((SIDE, SIDE, 3))
        image[y, x] = colors[owner % len(colors)] * brightness[:, None]
        axes.imshow(image, origin="lower")
        axes.set(title=f"{name}\nmost work of a rank: {most:.2f} x mean", xticks=[], yticks=[])
    figure.supxlabel("color: the rank; bright: much work")
    figure.savefig(arguments.picture)
