"""Climate and Forecast conventions, which NetCDF and Zarr files follow: attributes with a meaning.

Numbers that stand for other ones are refused: packed ones, and those that mean that there is none.
See https://cfconventions.org, sections 2.5, 5, 7 and 8.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from .files import File, Indirect
from .interface import NUMBERS, WINDOW, Fill, Source

#: Attributes that do not hold of the scan of a variable.
OF_VALUES = {
    "_FillValue",
    "missing_value",
    "valid_range",
    "valid_min",
    "valid_max",
    "actual_range",
}


def check(source: Any, attributes: Mapping[str, Any]) -> Source:
    """Return a source that refuses missing values; raise ``InputError`` for packed numbers."""
    for name, plain in (("scale_factor", 1), ("add_offset", 0)):
        if np.any(attributes.get(name, plain) != plain):
            raise InputError(f"{source.name} is packed, by its {name}: unpack it first")
    if attributes.get("_Unsigned") in {"true", b"true"}:
        raise InputError(f"{source.name} has numbers without a sign, by its _Unsigned: convert it")
    missing = list[NDArray[Any]]()
    for name in ("_FillValue", "missing_value"):
        if name in attributes and source.dtype.kind in NUMBERS:
            value = np.asarray(attributes[name]).ravel()
            try:
                with np.errstate(all="ignore"):
                    cast = value.astype(source.dtype)
                    # No element of integers is a value that they cannot be.
                    missing.append(cast[cast == value] if cast.dtype.kind in "iu" else cast)
            except (ValueError, TypeError):
                raise InputError(f"{source.name}: its {name}, {value}, is no number") from None
    values = np.unique(np.concatenate(missing)) if missing else np.empty(0)
    values = values[~np.isnan(values)]  # NaN is one, as in NumPy
    return Variable(source, values.tolist()) if values.size else source


class Variable(Indirect):
    """A variable without values that mean that there is none."""

    def __init__(self, source: Any, missing: list[Any]) -> None:
        super().__init__(source if isinstance(source, File) else source.file)
        self.source, self._missing, self.tile = source, missing, source.tile

    def needs_window(self, *, flattened: bool) -> bool:
        """Return whether the data set needs one."""
        return bool(self.source.needs_window(flattened=flattened))

    @contextmanager
    def reading(self, *, flattened: bool = False, window: int = WINDOW) -> Iterator[Fill]:
        """Open the file, and yield a function that fills arrays, and refuses missing values."""
        with self.source.reading(flattened=flattened, window=window) as fill:
            yield _Checked(self, fill, self._missing)


class _Checked:
    """A ``Fill`` that refuses missing values; a ``BoxFill``, if the one that it calls is."""

    def __init__(self, source: Variable, fill: Any, missing: list[Any]) -> None:
        self._source, self._fill, self._missing = source, fill, missing
        if hasattr(fill, "box"):
            self.box = self._box

    def __call__(self, elements: NDArray[Any], low: int) -> None:
        """Fill an array with the elements from number ``low`` on."""
        self._fill(elements, low)
        self._check(elements, lambda at: low + at)

    def _box(self, array: NDArray[Any], box: tuple[slice, ...]) -> None:
        """Fill an array with the elements of a box."""
        self._fill.box(array, box)
        starts, shape = [part.start for part in box], self._source.shape

        def place(at: int) -> int:
            inside = np.unravel_index(at, array.shape)
            return int(np.ravel_multi_index(tuple(np.add(starts, inside)), shape))

        self._check(array, place)

    def _check(self, elements: NDArray[Any], place: Callable[[int], int]) -> None:
        for value in self._missing:
            if (elements == value).any():
                raise InputError(
                    f"{self._source.name} has no value at element "
                    f"{place(int((elements == value).argmax()))}, but {value}, its _FillValue or "
                    "missing_value: fill it first"
                )


def coordinate_names(dimensions: tuple[str, ...], attributes: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables that may be coordinates of one.

    >>> coordinate_names(("time", "y"), {"coordinates": "lat lon", "grid_mapping": "crs: y"})
    ['time', 'y', 'lat', 'lon', 'crs', 'y']
    """
    text = " ".join(str(attributes.get(name, "")) for name in ("coordinates", "grid_mapping"))
    return [*dimensions, *text.replace(":", " ").split()]
