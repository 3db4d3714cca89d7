"""The summed-area table of an image whose rows are spread over ranks.

The problem: the sum of the pixels in any box, for many boxes of many sizes, as for a blur whose
width changes from place to place.

The idea: entry (i, j) of the table is the sum of all pixels above and to the left of it. The table
is a scan along rows, ``distscan.scan(image, axis=1)``, which needs no exchange, and then one down
the columns, ``axis=0``, over all ranks: they exchange one row. The sum of any box is then four
entries.

Source: Crow, "Summed-area tables for texture mapping", 1984. The usual way is ``numpy.cumsum``,
twice.

    mpirun -n 2 python examples/summed_area.py --picture summed_area.png
    mpirun -n 2 python examples/summed_area.py --n 8192
    mpirun -n 4 python examples/summed_area.py --n 32768 --gpu     # CuPy, a GPU for each rank
"""

import argparse

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Make the summed-area table of an image.")
parser.add_argument("--n", type=int, default=1024, help="rows, and columns, of the image")
parser.add_argument("--picture", help="the file of the picture, such as summed_area.png")
parser.add_argument("--gpu", action="store_true", help="with CuPy, a GPU for each rank")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
if arguments.gpu:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
else:
    import numpy as xp


def table_over_ranks(rows):
    """Return this rank's rows of the table."""
    along_rows = distscan.scan(rows, axis=1, dtype=np.int64, comm=comm)
    return distscan.scan(along_rows, axis=0, out=along_rows, comm=comm)


def table_as_usual(image):
    """Return the whole table in one process."""
    along_rows = xp.cumsum(image, axis=1, dtype=np.int64)
    return xp.cumsum(along_rows, axis=0, out=along_rows)


def blur(table, radius):
    """Return the mean of the box around each pixel; ``radius`` is an array of the same shape."""
    table = np.pad(table, ((1, 0), (1, 0)))
    side = len(radius)
    i, j = np.indices(radius.shape)
    top, bottom = np.maximum(i - radius, 0), np.minimum(i + radius + 1, side)
    left, right = np.maximum(j - radius, 0), np.minimum(j + radius + 1, side)
    sums = table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left]
    return sums / ((bottom - top) * (right - left))


def measure(function, comm):
    """Return what a function returns on the ranks of ``comm``, and its least seconds of three."""
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


def on_host(array):
    """Return a NumPy or CuPy array in host memory."""
    return array.get() if hasattr(array, "get") else array


# Every rank draws the same image, rings and a grid with noise, and takes its rows.
n = arguments.n
noise = np.random.default_rng(7).integers(0, 64, (n, n), np.uint8)
y, x = np.ogrid[-1 : 1 : n * 1j, -1 : 1 : n * 1j]
image = noise + (96 * (np.hypot(x, y) * 8 % 1 < 0.5)).astype(np.uint8)
image += (95 * ((x * 12 % 1 < 0.12) | (y * 12 % 1 < 0.12))).astype(np.uint8)
rows = xp.asarray(np.array_split(image, comm.size)[comm.rank])
table, seconds = measure(lambda: table_over_ranks(rows), comm)

parts = comm.gather(on_host(table))
if comm.rank == 0:
    whole = xp.asarray(image)
    usual, usual_seconds = measure(lambda: table_as_usual(whole), MPI.COMM_SELF)
    table = np.concatenate(parts)
    np.testing.assert_array_equal(table, on_host(usual))
    print(f"summed_area: {n} x {n} pixels, ranks: {comm.size}, {seconds:.3g} s")
    print(
        f"summed_area: {xp.__name__}.cumsum twice {usual_seconds:.3g} s, factor "
        f"{usual_seconds / seconds:.2g}"
    )

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    some = slice(None, None, max(n // 512, 1))
    radius = np.broadcast_to(np.linspace(0, n / 16, n).astype(int), (n, n))
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    pictures = {
        "the image": (image, "gray"),
        "its summed-area table": (table, "viridis"),
        "blur by boxes, wider to the right": (blur(table, radius), "gray"),
    }
    for axes, (title, (values, colors)) in zip(
        figure.subplots(1, 3), pictures.items(), strict=True
    ):
        axes.imshow(values[some, some], colors, extent=(0, n, n, 0))
        axes.set(title=title, xlabel="column", ylabel="row")
        axes.hlines(np.cumsum([len(part) for part in parts])[:-1], 0, n, "C1")
    figure.savefig(arguments.picture)
