"""The windows of floats by compiled kernels: the bits that they need, and what is special."""

import ctypes
import functools
from ctypes import POINTER, Structure, c_char_p, c_int64, c_void_p
from itertools import count
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..fsum.window import Window
from . import library, threads

PART = 1 << 20  # bytes that a thread takes at a time: few calls, and even shares


class Found(Structure):
    """``Found`` of kernels/cpu/window.hpp."""

    _fields_: ClassVar = [("low", c_int64), ("high", c_int64), ("special", c_int64)]


class _Entry(Structure):
    """``Window`` of kernels/cpu/window.hpp: the function for a type."""

    _fields_: ClassVar = [
        ("type", c_char_p),
        ("find", ctypes.CFUNCTYPE(None, c_void_p, c_int64, POINTER(Found))),
    ]


def find(x: NDArray[Any], most: int) -> tuple[Window, int] | None:
    """Return the window of an array of floats, and what is special among them.

    The second is as ``fsum.special.found_special`` has it. ``most`` is the most threads that look.
    None: no kernel takes this array, because it is of another type, not contiguous, not aligned or
    of another byte order.
    """
    contiguous = x.flags.c_contiguous or x.flags.f_contiguous
    if not (contiguous and x.flags.aligned) or (loaded := library.load()) is None:
        return None
    if (function := _function(loaded.handle, x.dtype)) is None:
        return None
    address, step = x.__array_interface__["data"][0], PART // x.itemsize
    parts = max(1, -(-x.size // step))
    found = (Found * parts)()
    drawn = count()  # the next part; drawing is atomic

    def work() -> None:
        while (part := next(drawn)) < parts:
            begin = part * step
            size = min(step, x.size - begin)
            function(address + begin * x.itemsize, size, ctypes.byref(found[part]))

    if most == 1 or parts == 1:
        work()
    else:
        threads.run(work, min(most, parts))
    window, special = Window(0, 0, 0), 0
    for each in found:
        window = window.joined(Window(each.low, each.high, 0))
        special |= each.special
    return window._replace(most=x.size), special


@functools.cache
def _function(handle: ctypes.CDLL, dtype: np.dtype[Any]) -> Any:
    """Return a library's function for a type; None if none is compiled."""
    address = ctypes.addressof(c_char_p.in_dll(handle, "distscan_windows"))
    while dtype.isnative and (entry := _Entry.from_address(address)).type:
        if entry.type.decode() == dtype.name:
            return entry.find
        address += ctypes.sizeof(_Entry)
    return None
