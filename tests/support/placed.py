"""Scans on a GPU from any address to any other, of which every byte around is checked."""

import functools

import numpy as np
from mpi4py import MPI

import distscan
from support.data import exact
from support.seed import SEED

POISON, GUARD = 0xA5, 64  # bytes


class Placed:
    """An array at any address, between bytes that are not its own."""

    def __init__(self, cp, n, dtype, shift):
        dtype = np.dtype(dtype)
        begin = GUARD + shift
        end = begin + n * dtype.itemsize
        whole = cp.full(end + GUARD, POISON, np.uint8)
        self.array = whole[begin:end].view(dtype)
        self.around = whole[:begin], whole[end:]

    def untouched(self):
        before, behind = self.around
        return (before == POISON).all() & (behind == POISON).all()


@functools.lru_cache(maxsize=1)
def sums(types, n):
    """Numbers and their sums, on the GPU; every element matters to all behind it."""
    import cupy

    x = exact(np.random.default_rng(SEED), "sum", types.x.char, n)
    with np.errstate(over="ignore"):
        y = np.cumsum(x, dtype=types.acc).astype(types.out)
    return cupy.asarray(x), cupy.asarray(y)


def parts(array):
    """The same memory as reals: CuPy's own kernels want complex numbers aligned to their size."""
    return array.view(array.dtype.char.lower()) if array.dtype.kind == "c" else array


def check(cp, types, strategy, n, x, want, shift_x, shift_out, scan=distscan.scan):
    """Scan the first n elements of x from one address to another."""
    source, target = Placed(cp, n, types.x, shift_x), Placed(cp, n, types.out, shift_out)
    parts(source.array)[...] = parts(x[:n])
    scan(source.array, comm=MPI.COMM_SELF, dtype=types.acc, out=target.array, strategy=strategy)
    right = (parts(target.array) == parts(want[:n])).all() & target.untouched() & source.untouched()
    right &= (parts(source.array) == parts(x[:n])).all()
    assert bool(right), f"{n} elements, x {shift_x} and out {shift_out} bytes behind a boundary"


def check_in_place(cp, types, strategy, n, x, want, shift, scan=distscan.scan):
    target = Placed(cp, n, types.x, shift)
    parts(target.array)[...] = parts(x[:n])
    scan(target.array, comm=MPI.COMM_SELF, dtype=types.acc, out=target.array, strategy=strategy)
    right = (parts(target.array) == parts(want[:n])).all() & target.untouched()
    assert bool(right), f"{n} elements in place, {shift} bytes behind a boundary"
