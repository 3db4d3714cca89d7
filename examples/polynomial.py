"""A polynomial, whose coefficients are spread over ranks, is evaluated at many points.

Horner's rule, h[k] = z h[k+1] + c[k], is a recurrence from the last coefficient to the first, and
h[0] is the polynomial's value. ``distscan.linear_recurrence(..., reverse=True)`` finds the h of all
points at once, a column for each point. The value is in the first row of rank 0.

The polynomial is the start of the exponential series, p(z) = 1 + nz + (nz)^2/2! + ... + (nz)^n/n!.
The exponential function has no zeros. Those of p come near to a curve when n grows, as Szegő found
in 1924.

The program writes polynomial.png into FOLDER, or else where you are. Run it with

    mpirun -n 4 python examples/polynomial.py [FOLDER]
"""

import sys
from math import factorial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from mpi4py import MPI

import distscan

comm = MPI.COMM_WORLD
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
DEGREE, SIDE = 20, 200

# Points of the complex plane: a grid, as one row.
side = np.linspace(-1.2, 1.2, SIDE)
x, y = np.meshgrid(side, side)
points = (x + 1j * y).ravel()

# This rank's coefficients, rising powers on rising ranks.
powers = np.array_split(np.arange(DEGREE + 1), comm.size)[comm.rank]
coefficients = np.array([DEGREE**k / factorial(k) for k in powers.tolist()])

# A row of each coefficient, a column for each point.
shape = (len(powers), len(points))
a = np.broadcast_to(points, shape)
b = np.broadcast_to(coefficients[:, None], shape)
h = distscan.linear_recurrence(a, b, reverse=True, comm=comm)

everything = comm.gather(coefficients)
if comm.rank == 0:
    values, whole = h[0], np.concatenate(everything)
    known = np.polynomial.polynomial.polyval(points, whole)
    scale = np.polynomial.polynomial.polyval(np.abs(points), whole)  # what rounding is relative to
    error = np.max(np.abs(values - known) / scale)
    assert error < 1e-14
    print(f"polynomial: {len(whole)} coefficients, {len(points)} points (ranks: {comm.size})")
    print(f"polynomial: numpy.polynomial has the same values, up to rounding of {error:.1e}")

    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.subplots()
    image = axes.pcolormesh(x, y, np.angle(values).reshape(x.shape), cmap="twilight")
    figure.colorbar(image, label="angle of p(z)")
    curve = np.where(np.abs(points) < 1, np.abs(points * np.exp(1 - points)), np.nan)
    axes.contour(x, y, curve.reshape(x.shape), levels=[1], colors="yellow", linestyles="--")
    axes.set(title="Zeros: all colors meet. Dashed: Szegő's curve", aspect="equal")
    axes.set(xlabel="real part of z", ylabel="imaginary part")
    figure.savefig(folder / "polynomial.png")
    print(f"polynomial: the picture is {folder / 'polynomial.png'}")
