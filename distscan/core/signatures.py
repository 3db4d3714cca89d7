"""The signatures of the public functions for type checkers: what goes in comes out.

A decorator here changes nothing when a program runs. It tells mypy and pyright that the result is
of the kind of the argument: a NumPy array for a NumPy array or a sequence, and for any other array
with DLPack, such as CuPy's or a tensor of PyTorch, the type of this array. The element type of a
result is not known here: a sum of int8 is int64. ``tests/signatures`` has the cases.
"""

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")


class Convertible(Protocol):
    """What ``numpy.asarray`` converts, such as a Series of pandas."""

    def __array__(self, *args: Any, **options: Any) -> NDArray[Any]:
        """Return the array."""


#: What becomes a NumPy array: numbers in sequences. A tuple of arrays is none of them.
Numbers: TypeAlias = (
    "complex | Convertible | list[Any] | Sequence[complex | np.generic | Sequence[Any]]"
)


class DLPackArray(Protocol):
    """An array that supports DLPack: of CuPy, PyTorch, JAX, and others."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any:
        """Export the array."""


Array = TypeVar("Array", bound=DLPackArray)


class ArrayFunction(Protocol[P]):
    """A function whose result is of the kind of its first argument, ``x``."""

    @overload
    def __call__(self, x: NDArray[Any], /, *args: P.args, **options: P.kwargs) -> NDArray[Any]: ...
    @overload
    def __call__(self, x: Array, /, *args: P.args, **options: P.kwargs) -> Array: ...
    @overload
    def __call__(
        self, x: tuple[NDArray[Any], ...], /, *args: P.args, **options: P.kwargs
    ) -> tuple[NDArray[Any], ...]: ...
    @overload
    def __call__(
        self, x: tuple[Array, ...], /, *args: P.args, **options: P.kwargs
    ) -> tuple[Array, ...]: ...
    @overload
    def __call__(self, x: Numbers, /, *args: P.args, **options: P.kwargs) -> NDArray[Any]: ...
    @overload
    def __call__(self, **named: Any) -> Any: ...  # x by its name


class Selection(Protocol[P]):
    """A function that returns elements of the kind of its first argument, ``x``, and a number."""

    @overload
    def __call__(
        self, x: NDArray[Any], /, *args: P.args, **options: P.kwargs
    ) -> tuple[NDArray[Any], int]: ...
    @overload
    def __call__(self, x: Array, /, *args: P.args, **options: P.kwargs) -> tuple[Array, int]: ...
    @overload
    def __call__(
        self, x: tuple[NDArray[Any], ...], /, *args: P.args, **options: P.kwargs
    ) -> tuple[tuple[NDArray[Any], ...], int]: ...
    @overload
    def __call__(
        self, x: tuple[Array, ...], /, *args: P.args, **options: P.kwargs
    ) -> tuple[tuple[Array, ...], int]: ...
    @overload
    def __call__(
        self, x: Numbers, /, *args: P.args, **options: P.kwargs
    ) -> tuple[NDArray[Any], int]: ...
    @overload
    def __call__(self, **named: Any) -> tuple[Any, int]: ...  # x by its name


def like_x(function: Callable[Concatenate[Any, P], Any]) -> ArrayFunction[P]:
    """Tell type checkers that the result is of the kind of the first argument."""
    return function  # type: ignore[return-value] # the function returns the kind of x


def selected_like_x(function: Callable[Concatenate[Any, P], Any]) -> Selection[P]:
    """Tell type checkers that the elements of the result are of the kind of the first argument."""
    return function  # type: ignore[return-value] # the function returns the kind of x
