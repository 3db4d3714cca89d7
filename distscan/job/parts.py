"""Several files as one array: they are joined along axis 0, in the order given."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from .interface import Fill, Source


class Parts:
    """A ``Source`` made of files of one type, whose shapes differ in their first axis only."""

    fortran = False

    def __init__(self, files: Sequence[Source]) -> None:
        self._files, first = files, files[0]
        for file in files:
            if file.fortran:
                raise InputError(f"{file.name} is in Fortran order; parts must be in C order")
            if not file.shape:
                raise InputError(f"{file.name} has no axis along which to join it with others")
            if file.dtype != first.dtype or file.shape[1:] != first.shape[1:]:
                raise InputError(
                    f"{file.name} has {file.dtype} of shape {file.shape}, {first.name} "
                    f"{first.dtype} of shape {first.shape}: parts differ in their first axis only"
                )
        self.dtype: np.dtype[Any] = first.dtype
        self.shape = (sum(file.shape[0] for file in files), *first.shape[1:])
        self._starts = [0, *accumulate(file.n for file in files)]

    @property
    def n(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self._files[0].name} and {len(self._files) - 1} more"

    def terms(self) -> dict[str, object]:
        """Return what must be the same on every rank, by name."""
        found: dict[str, object] = {"the parts": [file.name for file in self._files]}
        for file in self._files:
            found |= file.terms()
        return found

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = 0) -> Iterator[Fill]:
        """Yield a function that fills arrays. It opens files when it needs them."""

        def fill(elements: NDArray[Any], low: int) -> None:
            at, high = low, low + elements.size
            while at < high:
                i = bisect_right(self._starts, at) - 1
                start, end = self._starts[i], min(self._starts[i + 1], high)
                with self._files[i].reading() as fill_part:
                    fill_part(elements[at - low : end - low], at - start)
                at = end

        yield fill
