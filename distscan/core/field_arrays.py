"""Arrays that one element is spread over: a structure of arrays, on a GPU or on the host."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 16  # elements that are gathered at a time
_ALIGNED = 16  # bytes: a multiple of what every type needs


class FieldArrays(tuple[Any, ...]):
    """Contiguous arrays [n] of CuPy on one GPU: the fields of n elements."""

    #: The addresses of the arrays. An array takes ten times as long to tell its address.
    addresses: list[int]

    def __new__(cls, arrays: Iterable[Any]) -> "FieldArrays":
        """Hold ``arrays``."""
        made = super().__new__(cls, arrays)
        made.addresses = [array.data.ptr for array in made]
        return made

    def misaligned(self) -> bool:
        """Return whether an array begins at an address that its type cannot have."""
        return any(address % _ALIGNED for address in self.addresses) and any(
            address % array.dtype.alignment
            for address, array in zip(self.addresses, self, strict=True)
        )

    def overwritten(self, results: "FieldArrays") -> list[int]:
        """Return which arrays a scan into ``results`` may overwrite before it reads them.

        An array in the place of a result, element by element, is safe.
        """
        own, spans = self._spans(), results._spans()
        # Usually all are apart from each other, or the same. That is found without all pairs.
        if all(a == b or a[1] <= b[0] for a, b in itertools.pairwise(sorted(own + spans))):
            return []
        return [
            i
            for i, (begin, end) in enumerate(own)
            if any(
                begin < stop and start < end and (begin, end) != (start, stop)
                for start, stop in spans
            )
        ]

    def _spans(self) -> list[tuple[int, int]]:
        """Return where each array begins and ends."""
        return [
            (begin, begin + array.nbytes) for begin, array in zip(self.addresses, self, strict=True)
        ]


class HostFields:
    """NumPy's arrays of one shape, as if they were one array of structures.

    A part of it is a view. It becomes an array of structures where NumPy needs one: so elements are
    gathered chunk by chunk.
    """

    def __init__(self, arrays: Iterable[NDArray[Any]], dtype: np.dtype[Any]) -> None:
        """Hold ``arrays``; ``dtype`` is that of the structures, whose fields may be of other types.

        >>> fields = HostFields([np.arange(3), np.ones(3)], np.dtype([("x0", "f8"), ("x1", "f8")]))
        >>> np.asarray(fields[1:])
        array([(1., 1.), (2., 1.)], dtype=[('x0', '<f8'), ('x1', '<f8')])
        """
        self.arrays, self.dtype = tuple(arrays), dtype
        self.shape, self.ndim, self.size = (
            self.arrays[0].shape,
            self.arrays[0].ndim,
            self.arrays[0].size,
        )

    def __getitem__(self, index: Any) -> "HostFields":
        """View a part of all arrays."""
        return HostFields((array[index] for array in self.arrays), self.dtype)

    def __setitem__(self, index: Any, values: Any) -> None:
        """Store structures, each field in its array and its type."""
        for name, array in zip(self.dtype.names or (), self.arrays, strict=True):
            array[index] = values[name]

    def reshape(self, *shape: int) -> "HostFields":
        """View all arrays in another shape."""
        return HostFields((array.reshape(*shape) for array in self.arrays), self.dtype)

    def astype(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Gather the elements."""
        elements = np.empty(self.shape, dtype)
        for name, array in zip(dtype.names or (), self.arrays, strict=True):
            elements[name] = array
        return elements

    def digest(self) -> str:
        """Return a digest of all numbers, which tells 0.0 and -0.0 apart."""
        import hashlib  # noqa: PLC0415 - OpenSSL takes 3 ms of a rank's start

        found = hashlib.sha256()
        for low in range(0, len(self.arrays[0]), _CHUNK):
            for array in self[low : low + _CHUNK].arrays:
                padded = array.dtype.char in "gG"  # with bytes that are no part of the number
                found.update(str(array.tolist()).encode() if padded else array.tobytes())
        return found.hexdigest()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Gather the elements, for NumPy."""
        return self.astype(self.dtype if dtype is None else np.dtype(dtype))
