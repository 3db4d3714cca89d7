"""Scans by the compiled kernels: data for every operator and type, and memory that is watched.

Scans of ``exact`` data are exact in every order of association. They change on all their way: a
running maximum of random numbers would soon be constant, and hide what is wrong after it.
"""

import contextlib
import os

import numpy as np
import pytest

import distscan
from distscan.cpu import compiled, library
from distscan.engine import cache
from support import data, reference
from support.exact import dtype_of
from support.reference import wanted

UFUNCS = {name: ufunc for name, ufunc in reference.UFUNCS.items() if name != "logaddexp"}
INTEGERS = "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"
HALVES = "float16", "bfloat16"
FLOATS = "float32", "float64"
COMPLEX = "complex64", "complex128"
TYPES = "bool", *INTEGERS, *HALVES, *FLOATS, *COMPLEX


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


# ---- scans with everything around them watched ---------------------------------------------------


FORMS = [
    {"exclusive": exclusive, "reverse": reverse}
    for exclusive in (False, True)
    for reverse in (False, True)
]
#: Whether the kernels are compiled, not NumPy's.
COMPILED = library.load() is not None
compiled_only = pytest.mark.skipif(not COMPILED, reason="no compiled kernels")
GUARD = 192  # bytes before and behind the results
POISON = 0xA5


def expected(op, x, *, heads=None, dtype=None, **form):
    """The scan of the whole; heads [x.size] flag where segments begin."""
    return wanted(x, op, dtype=dtype, segments=heads, **form)


def ends(heads):
    """Flag the last element of each segment: its head in a scan from the end."""
    last = np.ones_like(heads)
    last[:-1] = heads[1:]
    return last


def scanned(x, op, *, dtype=None, shift=0, **options):
    """Scan into poisoned memory, ``shift`` bytes off a cache line; nothing else may be written."""
    heads = options.pop("heads", None)
    if heads is not None:
        options["segments"] = heads
    shape = x.shape if options.get("axis") is not None else (x.size,)
    dtype = dtype_of(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    nbytes = dtype.itemsize * int(np.prod(shape))
    memory = np.full(nbytes + 2 * GUARD + 64, POISON, np.uint8)
    begin = GUARD + (-(memory.ctypes.data + GUARD) % 64 + shift) % 64
    out = memory[begin : begin + nbytes].view(dtype).reshape(shape)
    source = x.tobytes()
    assert distscan.scan(x, op, out=out, **options) is out
    assert x.tobytes() == source, "the input has changed"
    for guard in memory[:begin], memory[begin + nbytes :]:
        assert (guard == POISON).all(), "bytes around the results have changed"
    if dtype.kind == "b" and library.load() is not None:  # NumPy copies other bytes
        assert out.view(np.uint8).max(initial=0) <= 1
    return out


def is_nan(a):
    with np.errstate(invalid="ignore"):  # of bfloat16
        return a != a  # noqa: PLR0124 - np.isnan does not take bfloat16


def bits(a):
    """View the bits of an array, as unsigned integers."""
    size = min(a.dtype.itemsize, 8)
    return np.ascontiguousarray(a).reshape(-1).view(f"u{size}")


def assert_same(got, want, what=""):
    """The same types, shapes and values; NaN is NaN."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    equal = (got == want) | (is_nan(got) & is_nan(want))
    if not equal.all():
        at = tuple(np.argwhere(~equal)[0])
        text = f"{np.sum(~equal)} of {equal.size} wrong, first {at}: {got[at]}, not {want[at]}"
        raise AssertionError(f"{text}; {what}")


@contextlib.contextmanager
def anew(monkeypatch, *, streamed=None, threads=None, level=None, block=None, columns_block=None):
    """Decide again how scans are done: results past the caches, threads, level, bytes of blocks.

    ``columns_block`` is of scans of columns; ``block`` is of all others, and of the reductions of
    exact sums.
    """
    with monkeypatch.context() as patch:
        if streamed is not None:
            patch.setattr(compiled, "_STREAMED", 0)
            patch.setenv("DISTSCAN_STREAM", str(int(streamed)))
        if threads is not None:
            patch.setenv("DISTSCAN_THREADS", str(threads))
            patch.setattr(compiled, "_THREAD", 1)  # small arrays have several threads, too
        if block is not None:
            patch.setattr(compiled, "BLOCK", block)
        if columns_block is not None:
            patch.setattr(compiled, "_COLUMNS_BLOCK", columns_block)
        if level is not None:
            patch.setenv("DISTSCAN_CPU", level)
        cache.clear()
        yield
    cache.clear()


def levels():
    """The levels of instructions that this CPU has and that are built, the baseline first."""
    flags = library.cpu_flags()
    every = library.machine_levels()
    return [
        level
        for level in reversed(every)
        if every[level].flags <= flags and os.path.isfile(library.path_of(level, library.FOLDER))
    ]
