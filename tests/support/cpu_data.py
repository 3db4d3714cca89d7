"""Data for the compiled kernels, for every operator and type that CPUs have.

Scans of ``exact`` data are exact in every order of association. They change on all their way: a
running maximum of random numbers would soon be constant, and hide what is wrong behind it.
"""

import os

import numpy as np

from support import data, reference
from support.bfloat16 import BFLOAT16

UFUNCS = {name: ufunc for name, ufunc in reference.UFUNCS.items() if name != "logaddexp"}
INTEGERS = "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"
HALVES = "float16", "bfloat16"
FLOATS = "float32", "float64"
COMPLEX = "complex64", "complex128"
TYPES = "bool", *INTEGERS, *HALVES, *FLOATS, *COMPLEX


def dtype_of(name):
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def takes(op, name):
    """Whether an operator takes a type."""
    return not op.startswith("bitwise") or name in ("bool", *INTEGERS)


CASES = [(op, name) for op in UFUNCS for name in TYPES if takes(op, name)]


def exact(rng, op, name, n, *, reverse=False):
    """Draw [n]; with ``reverse``, the changes are spread for a scan from the end."""
    dtype = dtype_of(name)
    if op.startswith("logical") or (name == "bool" and op.startswith("bitwise")):
        rare = rng.random(n) < 1 / (n + 1)
        flags = rng.random(n) < 0.5 if op.endswith("xor") else rare ^ op.endswith("and")
        return flags.astype(dtype) * dtype.type(3)
    if op in ("bitwise_and", "bitwise_or"):
        bits, every = np.zeros(n, dtype), 8 * dtype.itemsize
        if n > 0:  # each bit changes once
            one = np.left_shift(dtype.type(1), np.arange(every).astype(dtype))
            np.bitwise_or.at(bits, rng.integers(0, n, every), one)
        return ~bits if op == "bitwise_and" else bits
    if op == "bitwise_xor" or (name not in HALVES and op in ("sum", "prod")):
        return data.exact(rng, "sum" if op == "bitwise_xor" else op, name, n)
    if name == "bool":
        return data.exact(rng, op, name, n)
    if op in ("sum", "prod"):
        return data.exact(rng, op, "float32", n).astype(dtype)
    # Half of the elements rise to the end of the scan (min: they fall), the others are random.
    x = data.exact(rng, op, "float32" if name in HALVES else name, n)
    x = np.where(rng.random(n) < 0.5, np.sort(x), x).astype(dtype)
    if op == "min":
        x = x[::-1]
    return np.ascontiguousarray(x[::-1] if reverse else x)


def initial(rng, op, name):
    """Draw a value that comes before the first element, and does not hide what follows."""
    value = exact(rng, op, name, 100)[0]
    return bool(value) if op.startswith("logical") else value


def edges(acc, out):
    """Sizes around the edges of vectors, tiles and blocks, for itemsizes in bytes.

    A vector holds 64 bytes of the accumulating type, a tile 2048 bytes of results, a block 2^17
    bytes of the accumulating type.
    """
    vector, tile, block = 64 // acc, 2048 // out, 2**17 // acc
    near = (n + d for n in (vector, 2 * vector, tile, 2 * tile, block) for d in (-1, 0, 1))
    return sorted({0, 1, 2, 3, *near, tile + vector + 3, block + tile - 5, 3 * block + vector + 1})


def some(rng, cases):
    """A quarter of the cases, drawn for each test; with ``DISTSCAN_WHOLE=1`` all."""
    cases = list(cases)
    if os.environ.get("DISTSCAN_WHOLE") == "1":
        return cases
    return [cases[i] for i in rng.permutation(len(cases))[: -(-len(cases) // 4)]]
