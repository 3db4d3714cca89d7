"""A thread that takes subnormal numbers for 0 and flushes them to 0, as many programs have it."""

import contextlib
import ctypes
import platform
from collections.abc import Iterator

import pytest

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


needs_flush = pytest.mark.skipif(not can_flush(), reason="no known way to flush subnormal numbers")
