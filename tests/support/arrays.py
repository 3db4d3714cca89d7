"""Arrays in host memory, of any layout, and of array libraries that know DLPack alone."""

import ctypes
from typing import Any

import numpy as np


def host(array: Any) -> np.ndarray:
    """The array in host memory, whichever library it is of."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


# ---- the same elements in memory, one after the other or not -------------------------------------


def contiguous(xp, x):
    return xp.asarray(x.copy())


def fortran(xp, x):
    # asfortranarray of CuPy changes bits of NaNs
    return x.copy(order="F") if xp is np else xp.asarray(x.T.copy()).T


def transposed(xp, x):
    """The first axis is the innermost."""
    return xp.moveaxis(xp.asarray(np.moveaxis(x, 0, -1).copy()), -1, 0)


def every_second(xp, x):
    return xp.asarray(x.repeat(2, axis=-1))[..., ::2]


def wider_rows(xp, x):
    """Rows of a table that has three columns more."""
    table = np.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    table[..., :-3] = x
    return xp.asarray(table)[..., :-3]


def backwards(xp, x):
    return xp.asarray(x[::-1].copy())[::-1]


def byte_swapped(xp, x):
    return x.astype(x.dtype.newbyteorder())


def misaligned(xp, x):
    """One byte off."""
    moved = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


def read_only(xp, x):
    frozen = x.copy()
    frozen.flags.writeable = False
    return frozen


# Results have every layout but "read-only".
LAYOUTS = {
    "contiguous": contiguous,
    "Fortran": fortran,
    "transposed": transposed,
    "every second": every_second,
    "wider rows": wider_rows,
    "backwards": backwards,
    "byte-swapped": byte_swapped,
    "misaligned": misaligned,
    "read-only": read_only,
}
ON_GPUS = [*LAYOUTS][:6]


def lay_out(xp, x, layout):
    """A copy of ``x``; where CuPy has no such layout, or text no bytes, it is contiguous."""
    has_it = xp is np or layout in ON_GPUS
    return LAYOUTS[layout if has_it and x.ndim > 0 else "contiguous"](xp, x)


# ---- array libraries of which no more is known than DLPack ---------------------------------------


class Exporter:
    """An array of a library that only exports arrays: it has no ``from_dlpack``."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Foreign(Exporter):
    """An array of a library that takes arrays, too."""

    def __array_namespace__(self):
        return Library


class Library:
    """The namespace of ``Foreign``."""

    @staticmethod
    def from_dlpack(array):
        return Foreign(np.from_dlpack(array))


def exported_as_bfloat16(bits, **options):
    """Return the capsule of bfloat16 numbers, whose ``bits`` are an array of uint16."""
    capsule = bits.__dlpack__(**options)
    ctypes.c_uint8.from_address(_tensor(capsule) + 20).value = 4  # kDLBfloat
    return capsule


def exported_read_only(array, **options):
    """Return the capsule of an array that must not be written; of DLPack 1.0."""
    capsule = array.__dlpack__(**options)
    if "max_version" in options:
        ctypes.c_uint64.from_address(_tensor(capsule) - 8).value |= 1
    return capsule


def _tensor(capsule):
    """Return the address of the DLTensor in a capsule."""
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    if '"dltensor"' in repr(capsule):
        return pointer(capsule, b"dltensor")
    return pointer(capsule, b"dltensor_versioned") + 32
