"""An array library of which no more is known than DLPack."""

import numpy as np


class Foreign:
    """An array of another library: all that is known of it is DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return Library


class Library:
    """Its namespace."""

    @staticmethod
    def from_dlpack(array):
        return Foreign(np.from_dlpack(array))
