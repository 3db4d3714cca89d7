"""Arrays in the memory of a GPU that one element is spread over: a structure of arrays."""

import itertools
from collections.abc import Iterable
from typing import Any

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
