"""A signal that is spread over ranks is filtered: y[t] = a y[t-1] + (1 - a) x[t], a low-pass.

Each value needs the one before it, which may be on the rank before. In a loop, each rank would wait
for the one before it. But a step is a map, h -> a h + b, and maps may be composed in any grouping:
the filter is a scan, ``distscan.linear_recurrence``. The filtered signal lags behind. A second
filter from the end to the start (``reverse=True``) lags the other way, which puts it right.

The program writes filter.png into FOLDER, or else where you are. Run it with

    mpirun -n 4 python examples/filter.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from mpi4py import MPI

import distscan

comm = MPI.COMM_WORLD
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
rng = np.random.default_rng(comm.rank)
SAMPLES, A = 2000, 0.97

# This rank's part: samples first to last of the signal.
first, last = SAMPLES * comm.rank // comm.size, SAMPLES * (comm.rank + 1) // comm.size
time = np.arange(first, last) / SAMPLES
clean = np.sin(2 * np.pi * 2 * time) + 0.5 * np.sin(2 * np.pi * 5 * time)
signal = clean + rng.normal(0, 0.5, last - first)

a = np.full(len(signal), A)
filtered = distscan.linear_recurrence(a, (1 - A) * signal, comm=comm)
centered = distscan.linear_recurrence(a, (1 - A) * filtered, reverse=True, comm=comm)


def filter_in_a_loop(x):
    """Filter a whole signal on one rank."""
    y, value = np.empty(len(x)), 0.0
    for t in range(len(x)):
        value = y[t] = A * value + (1 - A) * x[t]
    return y


parts = [comm.gather(part) for part in (time, clean, signal, filtered, centered)]
if comm.rank == 0:
    time, clean, signal, filtered, centered = map(np.concatenate, parts)
    np.testing.assert_allclose(filtered, filter_in_a_loop(signal), rtol=0, atol=1e-12)
    np.testing.assert_allclose(centered, filter_in_a_loop(filtered[::-1])[::-1], rtol=0, atol=1e-12)
    print(f"filter: {SAMPLES} samples are filtered as in a loop (ranks: {comm.size})")

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(time, signal, color="lightgray", linewidth=0.8, label="signal")
    axes.plot(time, clean, color="black", linestyle=":", label="signal without noise")
    axes.plot(time, filtered, color="C0", label="filtered")
    axes.plot(time, centered, color="C3", label="filtered forward and backward")
    for rank in range(1, comm.size):
        axes.axvline(rank / comm.size, color="black", linewidth=0.5)
    axes.set(xlabel="time; vertical lines: where a rank's part ends", xlim=(0, 1))
    axes.legend(loc="upper right")
    figure.savefig(folder / "filter.png")
    print(f"filter: the picture is {folder / 'filter.png'}")
