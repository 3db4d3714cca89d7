"""Keys that are spread over ranks are sorted, by a radix sort.

Each pass sorts by one digit of the keys, the lowest first, and keeps the order of equal digits. A
key's place after the pass is the number of keys that come before it: keys of lower digits, keys of
its digit on earlier ranks, and earlier keys of its digit on its own rank. The second number is a
scan over ranks of a row of counts, one for each digit: ``distscan.scan(counts, axis=0,
exclusive=True)``. ``distscan.offsets`` says which places are on which rank. So each rank knows how
many keys it sends to each rank, and one exchange moves them. Each rank has as many keys in the end
as at first.

The program writes radix_sort.png into FOLDER, or else where you are. Run it with

    mpirun -n 4 python examples/radix_sort.py [FOLDER]
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
BITS, PASSES = 4, 3  # of a digit, and digits of a key
DIGITS = 2**BITS


def on_host(array):
    """Return a NumPy or CuPy array in host memory, where MPI finds it."""
    return array.get() if hasattr(array, "get") else array


def sort_by_digit(keys, number, ends):
    """Sort all ranks' keys by one digit; equal digits keep their order.

    ``keys`` [n] is a NumPy or CuPy array of integers that are not negative. ``ends`` are the places
    behind each rank's keys.
    """
    xp = sys.modules[type(keys).__module__.partition(".")[0]]  # NumPy or CuPy
    digits = (keys >> number * BITS & DIGITS - 1).astype(np.uint8)
    sent = on_host(keys[xp.argsort(digits, kind="stable")])

    # The place of this rank's first key of each digit.
    counts = on_host(xp.bincount(digits, minlength=DIGITS))
    on_earlier_ranks = distscan.scan(counts[None], axis=0, exclusive=True, comm=comm)[0]
    on_all_ranks = np.empty_like(counts)
    comm.Allreduce(counts, on_all_ranks)
    first = np.cumsum(on_all_ranks) - on_all_ranks + on_earlier_ranks

    # This rank's keys whose places are before the end of each rank, and so those on each rank.
    before = np.clip(ends - first[:, None], 0, counts[:, None]).sum(axis=0)
    send_counts = np.diff(before, prepend=0)
    receive_counts = np.empty_like(send_counts)
    comm.Alltoall(send_counts, receive_counts)
    received = np.empty_like(sent)
    comm.Alltoallv([sent, send_counts], [received, receive_counts])

    # They come in the order of ranks, so a stable sort puts them in their places.
    digits = (received >> number * BITS & DIGITS - 1).astype(np.uint8)
    return xp.asarray(received[np.argsort(digits, kind="stable")])


keys = rng.integers(0, DIGITS**PASSES, rng.integers(500, 1500))
start, total = distscan.offsets(len(keys), comm=comm)
ends = np.array(comm.allgather(start + len(keys)))

history = [comm.gather(keys)]  # rank 0 keeps it for the picture
for number in range(PASSES):
    keys = sort_by_digit(keys, number, ends)
    history.append(comm.gather(keys))

if comm.rank == 0:
    states = [np.concatenate(parts) for parts in history]
    assert np.array_equal(states[-1], np.sort(states[0]))
    print(f"radix_sort: {total} keys are sorted in {PASSES} passes (ranks: {comm.size})")

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for number, axes in enumerate(figure.subplots(1, PASSES + 1, sharey=True)):
        digits = states[number] >> max(number - 1, 0) * BITS & DIGITS - 1
        axes.scatter(range(total), states[number], s=1, c=digits)
        axes.vlines(ends[:-1], 0, DIGITS**PASSES, colors="black", linewidths=0.8)
        axes.set(title=f"after {number} of {PASSES} passes", xlabel="place")
    figure.suptitle("Color: the digit that a pass sorts by. Lines: where a rank's keys end")
    figure.supylabel("key")
    figure.savefig(folder / "radix_sort.png")
    print(f"radix_sort: the picture is {folder / 'radix_sort.png'}")
