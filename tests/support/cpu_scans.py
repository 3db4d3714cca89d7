"""Scans on CPUs with everything around them watched, and NumPy's answers to the same scans."""

import contextlib
import os

import numpy as np

import distscan
from distscan import plan_cache
from distscan.cpu import compiled, library
from support.cpu_data import UFUNCS, dtype_of

FORMS = [
    {"exclusive": exclusive, "reverse": reverse}
    for exclusive in (False, True)
    for reverse in (False, True)
]
GUARD = 192  # bytes before and behind the results
POISON = 0xA5


def expected(op, x, *, axis=None, exclusive=False, initial=None, reverse=False, dtype=None,
             heads=None):  # fmt: skip
    """The scan of a whole by the ufunc's own accumulate; heads [x.size] flag where segments begin.

    float16 and bfloat16 accumulate in float32, float32 sums in float64; each result is rounded
    once. Data is exact, or the bound on the error is the caller's.
    """
    ufunc, result = UFUNCS[op], None if dtype is None else np.dtype(dtype)
    if op.startswith("logical"):
        x = x.astype(bool)
    if result is None:
        result = x.dtype
        if result.name != "bfloat16":
            result = ufunc.accumulate(np.zeros(0, result)).dtype
    acc = np.dtype(np.float32) if result.name in ("float16", "bfloat16") else result
    if op == "sum" and acc == np.float32 == result:
        acc = np.dtype(np.float64)
    x = x.astype(acc)
    if axis is None:
        x, axis = x.reshape(-1), 0
    lines = np.moveaxis(x, axis, -1)
    if reverse:
        lines = lines[..., ::-1]
        heads = None if heads is None else ends(heads)[::-1]
    first = acc.type(initial) if initial is not None else identity(op, acc) if exclusive else None
    with np.errstate(all="ignore"):
        if heads is None:
            lines = line(ufunc, lines, first, exclusive)
        else:
            lines = segments(ufunc, lines, first, exclusive, heads)
        if reverse:
            lines = lines[..., ::-1]
        return np.moveaxis(lines, -1, axis).astype(result)


def identity(op, acc):
    if op in ("max", "min"):
        if acc.kind in "iu":
            limits = np.iinfo(acc)
            return acc.type(limits.min if op == "max" else limits.max)
        if acc.kind == "b":
            return acc.type(op == "min")
        lowest = acc.type(complex(-np.inf, -np.inf) if acc.kind == "c" else -np.inf)
        return lowest if op == "max" else -lowest
    if op.endswith("_and"):
        return np.invert(np.zeros((), acc))[()]
    return acc.type(op == "prod")


def ends(heads):
    """Flag the last element of each segment: its head in a scan from the end."""
    last = np.ones_like(heads)
    last[:-1] = heads[1:]
    return last


def line(ufunc, x, first, exclusive):
    """Scan [..., n] along its last axis."""
    if x.shape[-1] == 0:
        return x
    if first is not None:
        x = np.concatenate([np.full((*x.shape[:-1], 1), first, x.dtype), x], -1)
    running = ufunc.accumulate(x, -1, x.dtype)
    if first is None:
        return running
    return running[..., :-1] if exclusive else running[..., 1:]


def segments(ufunc, x, first, exclusive, heads):
    """Scan [n]: element i of all segments at once, or segment by segment if they are few."""
    begins = np.flatnonzero(heads)
    begins = begins if begins.size and begins[0] == 0 else np.concatenate([[0], begins])
    lengths = np.diff(begins, append=x.size)
    if begins.size < lengths.max(initial=0):
        parts = [line(ufunc, part, first, exclusive) for part in np.split(x, begins[1:])]
        return np.concatenate(parts)
    running = x.copy()
    if first is not None and x.size:
        running[begins] = ufunc(first, x[begins])
    for i in range(1, lengths.max(initial=0)):
        at = begins[lengths > i] + i
        running[at] = ufunc(running[at - 1], x[at])
    if exclusive:
        running[1:] = running[:-1].copy()
        running[begins[: x.size]] = first
    return running


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
def anew(monkeypatch, *, streamed=None, threads=None, level=None):
    """Decide again how scans are done: results past the caches, threads, level of instructions."""
    with monkeypatch.context() as patch:
        if streamed is not None:
            patch.setattr(compiled, "_STREAMED", 0 if streamed else 1 << 62)
        if threads is not None:
            patch.setenv("DISTSCAN_THREADS", str(threads))
            patch.setattr(compiled, "_THREAD", 1)  # small arrays have several threads, too
        if level is not None:
            patch.setenv("DISTSCAN_CPU", level)
        plan_cache.clear()
        yield
    plan_cache.clear()


def levels():
    """The levels of instructions that this CPU has and that are built, the baseline first."""
    flags = library.cpu_flags()
    every = library.machine_levels()
    return [
        level
        for level in reversed(every)
        if every[level].flags <= flags and os.path.isfile(library.path_of(level, library.FOLDER))
    ]
