"""Radix sort: keys that are spread over ranks are sorted, and stay spread.

The problem: no rank has room for all keys, and equal keys must keep their order (a stable sort).

The idea: each pass sorts by one digit of the keys, the lowest digit first. A key's place after the
pass is the number of keys that come before it: keys of lower digits, keys of its digit on earlier
ranks, and earlier keys of its digit on its own rank. The second number is a scan over ranks of a
row of counts, one for each digit: ``distscan.scan(counts, axis=0, exclusive=True)``. Then one
exchange moves the keys.

Source: Zagha and Blelloch, "Radix sort for vector multiprocessors", 1991.

    python examples/radix_sort.py --picture radix_sort.png
    mpirun -n 2 python examples/radix_sort.py --n 100_000_000
    mpirun -n 4 python examples/radix_sort.py --n 100_000_000 --gpu     # CuPy, a GPU for each rank
"""

import argparse

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Sort keys that are spread over ranks.")
parser.add_argument("--n", type=int, default=500_000, help="keys of all ranks")
parser.add_argument("--picture", help="the file of the picture, such as radix_sort.png")
parser.add_argument("--gpu", action="store_true", help="with CuPy, a GPU for each rank")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
if arguments.gpu:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
else:
    import numpy as xp

BITS, PASSES = 16, 2  # of a digit, and digits of a key
DIGITS = 2**BITS


def on_host(array):
    """Return a NumPy or CuPy array in host memory, where any MPI finds it."""
    return array.get() if hasattr(array, "get") else array


def sort_locally(keys, number):
    """Sort keys by one digit; equal digits keep their order. Return the number of each, too."""
    digits = (keys >> number * BITS & DIGITS - 1).astype(np.uint16)
    return keys[xp.argsort(digits, kind="stable")], xp.bincount(digits, minlength=DIGITS)


def sort_by_digit(keys, number, ends):
    """Sort all ranks' keys by one digit. ``ends`` are the places behind each rank's keys."""
    keys, counts = map(on_host, sort_locally(keys, number))

    # The place of this rank's first key of each digit.
    on_earlier_ranks = distscan.scan(counts[None], axis=0, exclusive=True, comm=comm)[0]
    on_all_ranks = np.empty_like(counts)
    comm.Allreduce(counts, on_all_ranks)
    first = np.cumsum(on_all_ranks) - on_all_ranks + on_earlier_ranks

    # This rank's keys whose places are before the end of each rank, and so those on each rank.
    before = np.array([np.clip(end - first, 0, counts).sum() for end in ends])
    send_counts = np.diff(before, prepend=0)
    receive_counts = np.empty_like(send_counts)
    comm.Alltoall(send_counts, receive_counts)
    received = np.empty_like(keys)
    comm.Alltoallv([keys, send_counts], [received, receive_counts])

    # They come in the order of ranks, so a stable sort puts them in their places.
    return xp.asarray(received) if comm.size == 1 else sort_locally(xp.asarray(received), number)[0]


def sort(keys):
    """Sort all ranks' keys; each rank has as many keys in the end as at first."""
    start, _ = distscan.offsets(len(keys), comm=comm)
    ends = np.array(comm.allgather(start + len(keys)))
    states = [keys]
    for number in range(PASSES):
        states.append(sort_by_digit(states[-1], number, ends))
    return states


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


# Every rank draws the same numbers, and takes its part.
keys = np.random.default_rng(7).integers(0, 2**32, arguments.n, np.uint32)
part = xp.asarray(np.array_split(keys, comm.size)[comm.rank])
states, seconds = measure(lambda: sort(part), comm)

parts = comm.gather(on_host(states[-1]))
some = max(len(part) // 20_000, 1)  # one key of so many goes into the picture
samples = [comm.gather(on_host(state[::some])) for state in states]
if comm.rank == 0:
    whole = xp.asarray(keys)
    stable, stable_seconds = measure(lambda: xp.sort(whole, kind="stable"), MPI.COMM_SELF)
    _, quick_seconds = measure(lambda: xp.sort(whole), MPI.COMM_SELF)
    np.testing.assert_array_equal(np.concatenate(parts), on_host(stable))
    print(f"radix_sort: {len(keys)} keys, ranks: {comm.size}, {seconds:.3g} s")
    print(
        f'radix_sort: {xp.__name__}.sort(kind="stable") {stable_seconds:.3g} s, factor '
        f"{stable_seconds / seconds:.2g}; not stable {quick_seconds:.3g} s"
    )

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    titles = "at first", "sorted by the low 16 bits", "and by the high 16 bits"
    for axes, title, sample in zip(
        figure.subplots(1, 3, sharey=True), titles, samples, strict=True
    ):
        sample_keys = np.concatenate(sample)
        place = np.linspace(0, 100, len(sample_keys))
        dots = axes.scatter(place, sample_keys / 2**32, s=1, c=sample_keys % DIGITS / DIGITS)
        ends = np.cumsum([len(part) for part in parts]) / len(keys) * 100
        axes.vlines(ends[:-1], 0, 1, colors="black", linewidths=1)
        axes.set(title=title, xlabel="place in %")
    figure.supylabel("key / 2^32")
    figure.colorbar(dots, ax=axes, label="low 16 bits / 2^16")
    figure.savefig(arguments.picture)
