"""The message for an empty list whose type, float64 as in NumPy, disagrees with other ranks."""

from typing import Any

from .mpi.agree import Terms


def terms(same: Terms, x: Any, segments: Any) -> Terms:
    """Return the terms of a scan, with a hint to be shown where those of an empty list disagree.

    >>> dtype = terms(Terms({"the dtype of x": "float64"}), [], None).texts()["the dtype of x"]
    >>> dtype == "float64"
    True
    >>> print(dtype)
    float64 of an empty list (pass an empty array of the others' type and shape)
    """
    empty: list[str] = []
    if _is_empty_list(x):
        empty += "the operator's MPI form", "the dtype of x", "the shape beyond axis 0"
    if _is_empty_list(segments):
        empty.append("the dtype of segments")
    return _Terms(same, empty) if empty else same


def _is_empty_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and not value


class _Terms(Terms):
    """Terms, some of which come from an empty list."""

    def __init__(self, same: Terms, empty: list[str]) -> None:
        super().__init__(same)
        self._empty = empty

    def texts(self) -> dict[str, str]:
        return {
            name: _OfAnEmptyList(text) if name in self._empty else text
            for name, text in super().texts().items()
        }


class _OfAnEmptyList(str):
    """A text that equals an array's text, so that ranks can agree; it is printed with a hint."""

    __slots__ = ()

    def __str__(self) -> str:
        hint = "pass an empty array of the others' type and shape"
        return f"{super().__str__()} of an empty list ({hint})"
