"""The signatures of ``distscan.torch`` for type checkers: one result, or two if they are asked for.

A decorator here changes nothing when a program runs: see ``core/signatures.py``. ``distscan.jax``
has its like, with other names of arguments: change both.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, overload

from torch import Tensor

from ..mpi.communicators import Comm

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Options(TypedDict, total=False):
    """The arguments of all functions."""

    comm: Comm | None
    reverse: bool


class SumOptions(Options, total=False):
    """Those of ``cumsum``, ``cumprod`` and ``logcumsumexp``."""

    exclusive: bool
    dtype: Any


class StateOptions(Options, total=False):
    """Those of ``linear_recurrence``."""

    initial: Tensor | None
    segments: Tensor | None
    cu_seqlens: Tensor | None


class WithTotal(Protocol):
    """A function that may return the total, too."""

    @overload
    def __call__(
        self,
        x: Tensor,
        dim: int,
        *,
        return_total: Literal[False] = False,
        **options: "Unpack[SumOptions]",
    ) -> Tensor: ...
    @overload
    def __call__(
        self, x: Tensor, dim: int, *, return_total: Literal[True], **options: "Unpack[SumOptions]"
    ) -> tuple[Tensor, Tensor]: ...


class WithIndices(Protocol):
    """A function that may return indices, too."""

    @overload
    def __call__(
        self,
        x: Tensor,
        dim: int,
        *,
        return_indices: Literal[False] = False,
        **options: "Unpack[Options]",
    ) -> Tensor: ...
    @overload
    def __call__(
        self, x: Tensor, dim: int, *, return_indices: Literal[True], **options: "Unpack[Options]"
    ) -> tuple[Tensor, Tensor]: ...


class WithLast(Protocol):
    """A function that may return the last state, too."""

    @overload
    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        dim: int = 0,
        *,
        return_last: Literal[False] = False,
        **options: "Unpack[StateOptions]",
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        dim: int = 0,
        *,
        return_last: Literal[True],
        **options: "Unpack[StateOptions]",
    ) -> tuple[Tensor, Tensor]: ...


def with_total(function: Callable[..., Any]) -> WithTotal:
    """Tell type checkers what ``return_total`` adds."""
    return function


def with_indices(function: Callable[..., Any]) -> WithIndices:
    """Tell type checkers what ``return_indices`` adds."""
    return function


def with_last(function: Callable[..., Any]) -> WithLast:
    """Tell type checkers what ``return_last`` adds."""
    return function
