"""``fsum`` in a thread that flushes subnormal numbers: they count, as elements and as sums."""

import contextlib
import ctypes
import platform
from collections.abc import Iterator

import numpy as np
import pytest

import distscan
from distscan.cpu import compiled, library, reductions
from support.cases import FORMS, pairs, two_cuts
from support.cpu import anew, levels
from support.exact import FORMATS, dtype_of, same, scanned

# ---- a thread that takes subnormal numbers for 0, as many programs have it

# In fenv_t of the C library, the offset of the register that controls floats, and its bits: of
# x86-64 FTZ and DAZ of MXCSR, of aarch64 FZ of FPCR.
_REGISTERS = {"x86_64": (28, 1 << 15 | 1 << 6), "aarch64": (0, 1 << 24)}
_ROOM = 256  # bytes: fenv_t has 8 to 32
TINY = 5e-324


def can_flush() -> bool:
    """Whether this machine has such a register, and a C library of a known layout."""
    return platform.machine() in _REGISTERS and platform.libc_ver()[0] == "glibc"


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Flush subnormal numbers in this thread, and in those that it starts."""
    offset, bits = _REGISTERS[platform.machine()]
    library = ctypes.CDLL("libm.so.6")
    before, changed = (ctypes.create_string_buffer(_ROOM) for _ in range(2))
    for each in (before, changed):
        assert library.fegetenv(each) == 0
    register = ctypes.c_uint32.from_buffer(changed, offset)
    register.value |= bits
    try:
        library.fesetenv(changed)
        assert is_flushed()
        yield
        assert is_flushed(), "the call has changed how this thread computes"
    finally:
        library.fesetenv(before)
    assert not is_flushed()


def is_flushed() -> bool:
    """Whether this thread takes the least number for 0."""
    return TINY + TINY == 0.0


pytestmark = pytest.mark.skipif(not can_flush(), reason="no known way to flush subnormal numbers")

# ---- exact sums in such a thread -----------------------------------------------------------------

names = pytest.mark.parametrize("name", list(FORMATS))


def near_zero(rng, name, n, width):
    """Draw multiples of the lowest bit of a type below 2^width of it, most of them subnormal."""
    least = FORMATS[name][1]
    x = np.ldexp(rng.integers(-(1 << width), 1 << width, n).astype(float), least)
    x[rng.random(n) < 0.1] = np.ldexp(1.0, least)
    return x.astype(dtype_of(name))


@two_cuts
@pairs(name=FORMATS, form=FORMS)
def test_scans(name, form, cut, rng):
    """In narrow windows, and in one that has digits; ``initial`` is subnormal, too."""
    precision, least, end = FORMATS[name]
    mine, form = cut(301), form | {"initial": form["initial"] and 2.0**least}
    for width, large in ((3, None), (precision - 1, None), (3, 2.0 ** (end - 2))):
        x = near_zero(rng, name, 301, width)
        if large:
            x[[5, 200]] = large, -large
        for result in (name, "float32", "float64"):
            with flushed():
                y = distscan.scan(x[mine].copy(), "fsum", dtype=dtype_of(result), **form)
            assert same(y, scanned(x, result, **form)[mine]), (width, large, result)


@pytest.mark.one_rank
@pytest.mark.skipif(library.load() is None, reason="no compiled kernels")
@pytest.mark.parametrize("threads", [1, 3])
@names
def test_kernels(name, threads, rng, monkeypatch):
    """Rows, columns and windows, at every level of instructions, by one thread and by three."""
    monkeypatch.setattr(compiled, "BLOCK", 1 << 10)
    monkeypatch.setattr(reductions, "PART", 1 << 9)
    x = near_zero(rng, name, 960, FORMATS[name][0] - 1).reshape(-1, 30)
    window = reductions.find_window(x, 1)
    assert window[0].low == FORMATS[name][1]
    for level in levels():
        with anew(monkeypatch, level=level, threads=threads):
            for axis in (None, 0, 1):
                with flushed():
                    found = reductions.find_window(x, threads)
                    y = distscan.scan(x, "fsum", axis=axis)
                assert found == window
                assert same(y, scanned(x, name, axis=axis)), (level, axis)


@pytest.mark.parametrize("window", [None, (-1074, 0)])
@pytest.mark.parametrize("code", "dD")
def test_plans(window, code, comm):
    """``initial`` is checked and kept when the plan is made."""
    x = np.full(3, 5e-324, code)
    given = {"initial": 5e-324, "window": window, "backend": "cpu"}
    with flushed():
        y = distscan.Plan(comm, 3, code, "fsum", **given)(x)
    assert same(y, np.arange(2 + 3 * comm.rank, 5 + 3 * comm.rank) * x)
