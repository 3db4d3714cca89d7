"""Scans on CPUs with everything around them watched, and NumPy's answers to the same scans."""

import contextlib
import os

import numpy as np
import pytest

import distscan
from distscan.cpu import compiled, library
from distscan.engine import cache
from support.cpu_data import dtype_of
from support.reference import wanted

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
            patch.setattr(compiled, "_STREAMED", 0 if streamed else 1 << 62)
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
