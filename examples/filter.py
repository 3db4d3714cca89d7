"""A low-pass filter of a long signal: y[t] = a y[t-1] + (1 - a) x[t].

The problem: each value needs the one before it, which may be on the rank before. A loop over ranks
would let each rank wait for the one before it.

The idea: a step is a map, h -> a h + b, and maps may be composed in any grouping. So a recursive
filter is a scan, ``distscan.linear_recurrence``. The filtered signal lags behind. A second filter
from the end to the start (``reverse=True``) lags the other way, which puts it right.

Source: Blelloch, "Prefix sums and their applications", 1990. The usual way is
``scipy.signal.lfilter``, twice.

    python examples/filter.py --picture filter.png
    mpirun -n 2 python examples/filter.py --n 50_000_000
    mpirun -n 4 python examples/filter.py --n 500_000_000 --gpu     # CuPy, a GPU for each rank
"""

import argparse
from importlib import import_module

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Filter a signal that is spread over ranks.")
parser.add_argument("--n", type=int, default=2_000_000, help="samples of all ranks")
parser.add_argument("--picture", help="the file of the picture, such as filter.png")
parser.add_argument("--gpu", action="store_true", help="with CuPy, a GPU for each rank")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
if arguments.gpu:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
else:
    import numpy as xp

A = 0.98


def filter_over_ranks(signal):
    """Return this rank's part of the signal, filtered forward, and forward and backward."""
    forward = distscan.linear_recurrence(A, signal, comm=comm)
    forward *= 1 - A
    both = distscan.linear_recurrence(A, forward, reverse=True, comm=comm)
    both *= 1 - A
    return forward, both


def filter_as_usual(signal):
    """Do the same with the whole signal in one process."""
    lfilter = import_module("cupyx.scipy.signal" if arguments.gpu else "scipy.signal").lfilter
    b, a = xp.asarray([1 - A]), xp.asarray([1, -A])
    forward = lfilter(b, a, signal)
    return forward, lfilter(b, a, forward[::-1])[::-1]


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


# Every rank draws the same signal, two waves and noise, and takes its part.
time = np.arange(arguments.n) / 2000  # seconds
clean = np.sin(2 * np.pi * 2 * time) + 0.5 * np.sin(2 * np.pi * 5 * time)
signal = clean + np.random.default_rng(7).normal(0, 0.5, arguments.n)
part = xp.asarray(np.array_split(signal, comm.size)[comm.rank])

results, seconds = measure(lambda: filter_over_ranks(part), comm)
parts = [comm.gather(on_host(result)) for result in results]
if comm.rank == 0:
    forward, both = map(np.concatenate, parts)
    whole = xp.asarray(signal)
    usual, usual_seconds = measure(lambda: filter_as_usual(whole), MPI.COMM_SELF)
    np.testing.assert_allclose(forward, on_host(usual[0]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(both, on_host(usual[1]), rtol=0, atol=1e-12)
    print(f"filter: {arguments.n} samples, twice, ranks: {comm.size}, {seconds:.3g} s")
    print(f"filter: lfilter {usual_seconds:.3g} s, factor {usual_seconds / seconds:.2g}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    shown = slice(2000)
    axes.plot(time[shown], signal[shown], color="lightgray", linewidth=0.8, label="signal")
    axes.plot(time[shown], clean[shown], "k:", label="signal without noise")
    axes.plot(time[shown], forward[shown], label="filtered forward: it lags")
    axes.plot(time[shown], both[shown], color="C3", label="filtered forward and backward")
    axes.set(title="The first second", xlabel="time in seconds", ylabel="signal", xlim=(0, 1))
    axes.legend(loc="upper right")
    figure.savefig(arguments.picture)
