"""The signatures of ``distscan.jax`` for type checkers: one result, or two if they are asked for.

A decorator here changes nothing when a program runs: see ``core/signatures.py``. ``distscan.torch``
has its like, with other names of arguments: change both.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, overload

from jax import Array

from ..mpi.communicators import Comm

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Options(TypedDict, total=False):
    """The arguments of all functions."""

    comm: Comm | None
    axis_name: str | None
    reverse: bool


class SumOptions(Options, total=False):
    """Those of ``cumsum``, ``cumprod`` and ``cumlogsumexp``."""

    exclusive: bool


class StateOptions(Options, total=False):
    """Those of ``linear_recurrence``."""

    initial: Array | None
    segments: Array | None


class WithTotal(Protocol):
    """A function that may return the total, too."""

    @overload
    def __call__(
        self,
        x: Array,
        axis: int,
        *,
        return_total: Literal[False] = False,
        **options: "Unpack[SumOptions]",
    ) -> Array: ...
    @overload
    def __call__(
        self, x: Array, axis: int, *, return_total: Literal[True], **options: "Unpack[SumOptions]"
    ) -> tuple[Array, Array]: ...


class WithIndices(Protocol):
    """A function that may return indices, too."""

    @overload
    def __call__(
        self,
        x: Array,
        axis: int,
        *,
        return_indices: Literal[False] = False,
        **options: "Unpack[Options]",
    ) -> Array: ...
    @overload
    def __call__(
        self, x: Array, axis: int, *, return_indices: Literal[True], **options: "Unpack[Options]"
    ) -> tuple[Array, Array]: ...


class WithLast(Protocol):
    """A function that may return the last state, too."""

    @overload
    def __call__(
        self,
        a: Array,
        b: Array,
        axis: int = 0,
        *,
        return_last: Literal[False] = False,
        **options: "Unpack[StateOptions]",
    ) -> Array: ...
    @overload
    def __call__(
        self,
        a: Array,
        b: Array,
        axis: int = 0,
        *,
        return_last: Literal[True],
        **options: "Unpack[StateOptions]",
    ) -> tuple[Array, Array]: ...


def with_total(function: Callable[..., Any]) -> WithTotal:
    """Tell type checkers what ``return_total`` adds."""
    return function


def with_indices(function: Callable[..., Any]) -> WithIndices:
    """Tell type checkers what ``return_indices`` adds."""
    return function


def with_last(function: Callable[..., Any]) -> WithLast:
    """Tell type checkers what ``return_last`` adds."""
    return function
