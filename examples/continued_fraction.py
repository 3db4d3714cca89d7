"""All convergents of a long continued fraction, by products of 2 x 2 matrices.

The problem: 4/pi = 1 + 1^2 / (2 + 3^2 / (2 + 5^2 / (2 + ...))), which Brouncker found in 1655. How
close are its first k terms, for every k? From the end, each k needs a calculation of its own. From
the start, numerator and denominator follow from the two before them, one after the other.

The idea: a term is a matrix, [[2, 1], [(2 k - 1)^2, 0]] for term k, and the product of the first k
matrices has both numbers of convergent k. Products of matrices may be taken in any grouping: a
scan by an operator of one's own, which is not commutative, over a tuple of four arrays
(``arity=4``), an array for each entry. The numbers grow beyond the range of floats. Their quotient
alone matters, so the operator divides each product by the sum of its entries.

Convergent k is 1 / (1 - 1/3 + 1/5 - ...), with k + 1 terms: this checks the result.

Source: Blelloch, "Prefix sums and their applications", 1990. The usual way is the recurrence of
numerators and denominators, in a loop of Python.

    python examples/continued_fraction.py --picture continued_fraction.png
    mpirun -n 2 python examples/continued_fraction.py --n 10_000_000
    mpirun -n 4 python examples/continued_fraction.py --n 100_000_000 --gpu     # CuPy
"""

import argparse

import numpy as np
from mpi4py import MPI

import distscan

parser = argparse.ArgumentParser(description="Find the convergents of a continued fraction.")
parser.add_argument("--n", type=int, default=300_000, help="terms, over all ranks")
parser.add_argument("--picture", help="the file of the picture, such as continued_fraction.png")
parser.add_argument("--gpu", action="store_true", help="with CuPy, a GPU for each rank")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
if arguments.gpu:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
else:
    import numpy as xp


def multiply(a, b):
    """Return the product of matrices, each divided by the sum of its entries."""
    product = [a[i] * b[j] + a[i + 1] * b[j + 2] for i in (0, 2) for j in (0, 1)]
    scale = 1 / (product[0] + product[1] + product[2] + product[3])
    return tuple(entry * scale for entry in product)


matrices = distscan.Operator(
    "matrices",
    numpy=multiply,
    cuda="""double m0 = a.x0 * b.x0 + a.x1 * b.x2, m1 = a.x0 * b.x1 + a.x1 * b.x3;
            double m2 = a.x2 * b.x0 + a.x3 * b.x2, m3 = a.x2 * b.x1 + a.x3 * b.x3;
            double scale = 1 / (m0 + m1 + m2 + m3);
            return {m0 * scale, m1 * scale, m2 * scale, m3 * scale};""",
    arity=4,
)


def convergents(first, count):
    """Return the convergents ``first`` + 1 to ``first`` + ``count``, those of this rank."""
    k = xp.arange(first + 1, first + count + 1, dtype=np.float64)
    one = xp.ones(count)
    entries = 2 * one, one, (2 * k - 1) ** 2, 0 * one
    x0, _, x2, _ = distscan.scan(entries, matrices, comm=comm)
    return (x0 + x2) / x0  # convergent 0 is 1 / 1, and the one before it 1 / 0


def convergents_as_usual(count):
    """Return the first convergents, by a loop."""
    results = np.empty(count)
    a, b, a_before, b_before = 1.0, 1.0, 1.0, 0.0
    for k in range(1, count + 1):
        term = (2 * k - 1) ** 2
        a, a_before = 2 * a + term * a_before, a
        b, b_before = 2 * b + term * b_before, b
        scale = 1 / b
        a, b, a_before, b_before = a * scale, 1.0, a_before * scale, b_before * scale
        results[k - 1] = a
    return results


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


n = arguments.n
first, end = n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size
part, seconds = measure(lambda: convergents(first, end - first), comm)
parts = comm.gather(part.get() if arguments.gpu else part)
if comm.rank == 0:
    results = np.concatenate(parts)
    odd = np.arange(3, 2 * n + 2, 2)
    leibniz = 1 + np.cumsum(np.where(odd % 4 == 1, 1, -1) / odd)
    np.testing.assert_allclose(results, 1 / leibniz, rtol=1e-15 * n)
    usual, usual_seconds = measure(lambda: convergents_as_usual(n), MPI.COMM_SELF)
    np.testing.assert_allclose(results, usual, rtol=1e-15 * n)
    print(f"continued_fraction: {n} convergents, ranks: {comm.size}, {seconds:.3g} s")
    print(f"continued_fraction: loop {usual_seconds:.3g} s, factor {usual_seconds / seconds:.2g}")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    some = np.unique(np.geomspace(1, n, 400).astype(int))  # k
    axes.loglog(some, np.abs(4 / results[some - 1] - np.pi), label="|4 / convergent k - pi|")
    axes.loglog(some, 1 / some, "k:", label="1 / k")
    for rank in range(1, comm.size):
        axes.axvline(n * rank // comm.size, color="black", linewidth=0.5)
    axes.set(title="Brouncker's continued fraction of 4 / pi", xlabel="k", ylabel="error")
    axes.legend()
    figure.savefig(arguments.picture)
