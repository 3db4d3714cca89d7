"""The compiled kernels, as the library's tables list them, and the jobs that they take."""

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import Any, ClassVar

import numpy as np

from ..core.dtypes import Types
from ..core.nan import SKIPPING_NAN
from ..core.operators import BUILTIN, MAPS, MAPS_IN_SEGMENTS, Operator, unloaded
from ..fsum.words import TWO_WORDS, FixedSum
from . import library


class Job(Structure):
    """``Job`` of kernels/cpu/job.hpp: one call, on which all threads work together."""

    _fields_: ClassVar = [
        ("x", c_void_p),
        ("y", c_void_p),
        ("heads", c_void_p),
        ("find", c_void_p),
        ("before", c_void_p),
        ("first", c_void_p),
        ("slots", c_void_p),
        ("states", c_void_p),
        ("outer", c_int64),
        ("n", c_int64),
        ("inner", c_int64),
        ("x_step", c_int64),
        ("y_step", c_int64),
        ("block", c_int64),
        ("strip", c_int64),
        ("ticket", c_int64),
        ("end", c_int64),
        ("exclusive", c_int),
        ("reverse", c_int),
        ("before_row", c_int),
        ("stream", c_int),
        ("a", c_void_p),
        ("a_step", c_int64),
        ("a_column", c_int64),
        ("lowest", c_int64),
        ("low", c_int64),
        ("high", c_int64),
        ("outside", c_void_p),
    ]


Function = Callable[[Any], None]  # of a pointer to a job
_Function = ctypes.CFUNCTYPE(None, POINTER(Job))  # the interpreter's lock is free while it runs


class Kernel(Structure):
    """``Kernel`` of kernels/cpu/table.hpp: the functions for one operator and three types."""

    _fields_: ClassVar = [
        ("op", c_char_p),
        ("x", c_char_p),
        ("acc", c_char_p),
        ("out", c_char_p),
        ("scan", _Function),
        ("reduce", _Function),
        ("scan_columns", _Function),
        ("reduce_columns", _Function),
        ("total", _Function),
        ("seed", _Function),
    ]
    scan: Function
    reduce: Function
    scan_columns: Function
    reduce_columns: Function
    total: Function
    seed: Function


_TABLES = ("sum", "prod", "max", "min", "bitwise", "recurrence", "nan", "logaddexp", "fsum")


@functools.cache
def _tables(handle: ctypes.CDLL) -> dict[tuple[str, str, str, str], Kernel]:
    """Return the kernels of a library by operator, type of x, of the running value, of results."""
    kernels = {}
    for name in _TABLES:
        address = ctypes.addressof(c_char_p.in_dll(handle, f"distscan_{name}"))
        while (kernel := Kernel.from_address(address)).op:
            key = (kernel.op, kernel.x, kernel.acc, kernel.out)
            kernels[tuple(text.decode() for text in key)] = kernel
            address += ctypes.sizeof(Kernel)
    return kernels


def find(op: Operator, types: Types) -> Kernel | None:
    """Return the kernel for an operator and three types; None if none is compiled."""
    op = unloaded(op)
    if BUILTIN.get(op.name) is not op:
        return None
    return _find(op.name, types)


def find_skipping_nan(op: Operator, types: Types) -> Kernel | None:
    """Return the kernel for elements of which ``op`` replaces NaN; it reads them as they are."""
    skips = SKIPPING_NAN.get(op.name) is op
    return _find(f"nan{op.name}", types) if skips else None


def find_fixed(op: Operator, types: Types) -> Kernel | None:
    """Return the kernel for exact sums of floats of a narrow window, and the type of results."""
    return _find("fsum", types) if isinstance(op, FixedSum) else None


def find_recurrence(op: Operator, types: Types) -> Kernel | None:
    """Return the kernel for a linear recurrence, of which ``h`` alone is stored; else None.

    The arrays that it reads have the type of ``h``.
    """
    if op not in {MAPS, MAPS_IN_SEGMENTS} or types.out.names != ("x1",):
        return None
    number = types.out["x1"]
    return _find(op.name, Types(number, types.acc["x1"], number))


def _find(name: str, types: Types) -> Kernel | None:
    if (found := library.load()) is None:
        return None
    names: Any = (name, *(_name(dtype) for dtype in types))
    return _tables(found.handle).get(names)


class Keys(Structure):
    """``Keys`` of kernels/cpu/keys.hpp: the function that finds the heads among keys of a type."""

    _fields_: ClassVar = [("type", c_char_p), ("find", c_void_p)]


def finder(keys: np.dtype[Any] | None) -> int | None:
    """Return the address of the function for ``Job.find``; None if no kernel compares such keys."""
    if keys is None or (found := library.load()) is None:
        return None
    address = ctypes.addressof(c_char_p.in_dll(found.handle, "distscan_keys"))
    while (entry := Keys.from_address(address)).type:
        if entry.type.decode() == keys.name:
            return int(entry.find)
        address += ctypes.sizeof(Keys)
    return None


@functools.cache  # NumPy takes 4 us to name a type
def _name(dtype: Any) -> str:
    if dtype == TWO_WORDS:
        return "fixed128"
    return dtype.name if dtype.isnative else ""
