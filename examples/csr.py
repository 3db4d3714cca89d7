"""A sparse matrix in CSR form, from triplets (row, column, value) that are spread over ranks.

The problem: the triplets are in no order, and some entries have several, whose values are summed.
In the end each rank has some rows of the matrix: ``indptr``, ``indices`` and ``data``, as SciPy
names them. ``indptr`` counts the entries of all ranks.

The idea: triplets go to the rank that owns their row, and are sorted there by row and column. Three
scans do the rest. ``distscan.scan(values, segments=keys)`` sums the values of each entry.
``distscan.compact`` keeps the last triplet of each entry, which has the sum.
``distscan.scan(counts, exclusive=True)`` over all ranks gives ``indptr``.

Source: Blelloch, Heroux and Zagha, "Segmented operations for sparse matrix computation on vector
multiprocessors", 1993. The usual way is ``scipy.sparse.coo_matrix(...).tocsr()``.

    mpirun -n 2 python examples/csr.py --picture csr.png
    mpirun -n 2 python examples/csr.py --n 20_000_000
    mpirun -n 4 python examples/csr.py --n 100_000_000 --gpu     # CuPy, a GPU for each rank
"""

import argparse
from importlib import import_module

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Make a sparse matrix from triplets.")
parser.add_argument("--n", type=int, default=500_000, help="triplets of all ranks")
parser.add_argument("--picture", help="the file of the picture, such as csr.png")
parser.add_argument("--gpu", action="store_true", help="with CuPy, a GPU for each rank")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
if arguments.gpu:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
else:
    import numpy as xp

SIDE = arguments.n // 20  # rows, and columns
CUTS = SIDE * np.arange(comm.size + 1) // comm.size  # rank r owns the rows CUTS[r] to CUTS[r + 1]


def on_host(array):
    """Return a NumPy or CuPy array in host memory, where any MPI finds it."""
    return array.get() if hasattr(array, "get") else array


def send_to_owners(keys, values):
    """Exchange triplets; return those whose rows this rank owns."""
    owner = xp.searchsorted(xp.asarray(CUTS[1:] << 32), keys, "right").astype(np.uint16)
    order = xp.argsort(owner, kind="stable")
    counts = on_host(xp.bincount(owner, minlength=comm.size))
    received = np.empty_like(counts)
    comm.Alltoall(counts, received)
    arrays = []
    for array in keys, values:
        arrays.append(np.empty(received.sum(), array.dtype))
        comm.Alltoallv([on_host(array[order]), counts], [arrays[-1], received])
    return map(xp.asarray, arrays)


def to_csr(rows, columns, values):
    """Return ``indptr``, ``indices`` and ``data`` of this rank's rows; ``indptr`` counts all."""
    keys = rows << 32 | columns  # in the order of rows, and of columns in a row
    if comm.size > 1:
        keys, values = send_to_owners(keys, values)
    order = xp.argsort(keys)
    keys, values = keys[order], values[order]

    sums = distscan.scan(values, segments=keys, comm=comm)
    is_last = xp.ones(len(keys), bool)  # of its entry; rows of two ranks differ
    is_last[:-1] = keys[1:] != keys[:-1]
    (keys, data), _ = distscan.compact((keys, sums), is_last, comm=comm)

    first, end = CUTS[comm.rank : comm.rank + 2].tolist()
    counts = xp.bincount((keys >> 32) - first, minlength=end - first)
    return distscan.scan(counts, exclusive=True, comm=comm), keys & 0xFFFFFFFF, data


def to_csr_as_usual(rows, columns, values):
    """Return the whole matrix in one process."""
    sparse = import_module("cupyx.scipy.sparse" if arguments.gpu else "scipy.sparse")
    return sparse.coo_matrix((values, (rows, columns)), shape=(SIDE, SIDE)).tocsr()


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


# Every rank draws the same triplets, and takes its part. The entries are near the diagonal, and
# some away from it; sums of integers are exact in any order.
rng = np.random.default_rng(7)
rows = rng.integers(0, SIDE, arguments.n)
distance = np.where(rng.random(arguments.n) < 0.9, 8, SIDE / 5)
columns = np.clip(rows + rng.normal(0, distance), 0, SIDE - 1).astype(np.int64)
triplets = rows, columns, rng.integers(1, 10, arguments.n).astype(np.float64)
parts = [xp.asarray(np.array_split(array, comm.size)[comm.rank]) for array in triplets]
csr, seconds = measure(lambda: to_csr(*parts), comm)

all_parts = [comm.gather(on_host(array)) for array in csr]
if comm.rank == 0:
    indptr, indices, data = map(np.concatenate, all_parts)
    whole = tuple(map(xp.asarray, triplets))
    usual, usual_seconds = measure(lambda: to_csr_as_usual(*whole), MPI.COMM_SELF)
    np.testing.assert_array_equal(np.append(indptr, len(data)), on_host(usual.indptr))
    np.testing.assert_array_equal(indices, on_host(usual.indices))
    np.testing.assert_array_equal(data, on_host(usual.data))
    print(
        f"csr: {arguments.n} triplets, {len(data)} entries of {SIDE} x {SIDE}, "
        f"ranks: {comm.size}, {seconds:.3g} s"
    )
    print(f"csr: coo_matrix.tocsr {usual_seconds:.3g} s, factor {usual_seconds / seconds:.2g}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    some = rng.permutation(arguments.n)[:4000]
    sources = np.repeat(range(comm.size), [len(each) for each in np.array_split(rows, comm.size)])
    left.scatter(columns[some], rows[some], s=2, c=[f"C{rank % 10}" for rank in sources[some]])
    row_of = np.repeat(np.arange(SIDE), np.diff(np.append(indptr, len(data))))
    some = np.sort(rng.permutation(len(data))[:4000])
    owners = np.searchsorted(CUTS[1:], row_of[some], "right")
    right.scatter(indices[some], row_of[some], s=2, c=[f"C{rank % 10}" for rank in owners])
    left.set(title="Triplets; color: the rank that has them", xlabel="column", ylabel="row")
    right.set(title="Entries of the matrix; color: the rank", xlabel="column")
    left.set_ylim(SIDE, 0)
    figure.savefig(arguments.picture)
