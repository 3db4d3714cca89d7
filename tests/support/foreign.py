"""Array libraries of which no more is known than DLPack."""

import ctypes

import numpy as np


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
    """Its namespace."""

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
