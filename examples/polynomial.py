"""A polynomial of high degree, whose coefficients are spread over ranks, by Horner's rule.

The problem: Horner's rule, h[k] = z h[k+1] + c[k], goes from the last coefficient to the first, one
after the other.

The idea: a step is the matrix [[z, c[k]], [0, 1]], and products of matrices may be taken in any
grouping. So Horner's rule is a scan from the end, ``distscan.linear_recurrence(z, c,
reverse=True)``. The value p(z) is h[0], the first element of rank 0. The scan finds all h[k], too:
z^k h[k] is what the terms from k on add to p(z).

The coefficients are 1 and -1, those of Thue and Morse: c[k] is 1 if k has an even number of bits
that are 1. At z = exp(2 pi i / 3) the path of the sums of terms is a Koch curve. The program checks
p(z) by its product, (1 - z) (1 - z^2) (1 - z^4) ... (1 - z^(n/2)), where n is a power of two.

Source: Blelloch, "Prefix sums and their applications", 1990; Ma and Holdener, "When Thue-Morse
meets Koch", 2005. The usual way is ``numpy.polynomial.polynomial.polyval``.

    python examples/polynomial.py --picture polynomial.png
    mpirun -n 2 python examples/polynomial.py --bits 24               # 2^24 coefficients
    mpirun -n 4 python examples/polynomial.py --bits 26 --gpu         # CuPy, a GPU for each rank
"""

import argparse
from math import prod

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Evaluate a polynomial spread over ranks.")
parser.add_argument("--bits", type=int, default=18, help="the degree is 2^BITS - 1")
parser.add_argument("--picture", help="the file of the picture, such as polynomial.png")
parser.add_argument("--gpu", action="store_true", help="with CuPy, a GPU for each rank")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
if arguments.gpu:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
else:
    import numpy as xp

Z = np.exp(2j * np.pi / 3)


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


# Every rank makes all coefficients, twice as many in each step, and takes its part.
n = 2**arguments.bits
coefficients = np.ones(1)
for _ in range(arguments.bits):
    coefficients = np.concatenate([coefficients, -coefficients])
part = xp.asarray(np.array_split(coefficients, comm.size)[comm.rank])

h, seconds = measure(lambda: distscan.linear_recurrence(Z, part, reverse=True, comm=comm), comm)
start, _ = distscan.offsets(len(part), comm=comm)
some = slice(-start % max(n // 4**6, 1), None, max(n // 4**6, 1))  # for the picture
sample = np.arange(start, start + len(part))[some], h[some].get() if arguments.gpu else h[some]
samples = comm.gather(sample)
if comm.rank == 0:
    value = complex(h[0])
    bound = 1e-15 * n * abs(value)  # each power of z adds a rounding
    factors = prod(1 - Z ** (1 << bit) for bit in range(arguments.bits))
    assert abs(value - factors) < bound, (value, factors)
    horner = lambda: np.polynomial.polynomial.polyval(Z, coefficients)  # noqa: E731
    usual, usual_seconds = measure(horner, MPI.COMM_SELF)
    assert abs(value - usual) < bound, (value, usual)
    print(f"polynomial: {n} coefficients, p(z) = {value:.9g}, ranks: {comm.size}, {seconds:.3g} s")
    print(f"polynomial: polyval {usual_seconds:.3g} s, factor {usual_seconds / seconds:.2g}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for rank, (k, remainders) in enumerate(samples):
        path = value - Z ** (k % 3) * remainders  # z^3 = 1
        axes.plot(path.real, path.imag, linewidth=0.9, color=f"C{rank % 10}", label=f"rank {rank}")
    axes.plot([0, value.real], [0, value.imag], "k.")
    axes.annotate("0", (0, 0), xytext=(4, 4), textcoords="offset points")
    axes.annotate("p(z)", (value.real, value.imag), xytext=(4, 4), textcoords="offset points")
    axes.margins(0.06, 0.12)
    axes.set(title="Sums of the terms 0 to k - 1 of p(z)", aspect="equal")
    axes.set(xlabel="real part", ylabel="imaginary part")
    axes.legend()
    figure.savefig(arguments.picture)
