"""The scans under the names that people look for; each is a call of ``scan``."""

from typing import TYPE_CHECKING, Any

from numpy.typing import DTypeLike

from .exchange import Comm
from .local import Strategy
from .scan import scan

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class Options(TypedDict, total=False):
        """What ``cumsum`` and its like pass on to ``scan``."""

        comm: Comm | None
        exclusive: bool
        initial: Any
        reverse: bool
        segments: Any
        strategy: Strategy


def cumsum(
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative sum over all ranks: ``scan(x, "sum", ...)`` with ``numpy.cumsum``'s signature.

    >>> import distscan
    >>> distscan.cumsum([1, 2, 3])
    array([1, 3, 6])
    """
    return scan(x, "sum", axis=axis, dtype=dtype, out=out, **options)


def cumprod(
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Cumulative product over all ranks, with ``numpy.cumprod``'s signature; see ``scan``.

    >>> import distscan
    >>> distscan.cumprod([1, 2, 3])
    array([1, 2, 6])
    """
    return scan(x, "prod", axis=axis, dtype=dtype, out=out, **options)


def cummax(
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Running maximum over all ranks; NaN propagates, as in ``numpy.maximum.accumulate``.

    >>> import distscan
    >>> distscan.cummax([1, 3, 2])
    array([1, 3, 3])
    """
    return scan(x, "max", axis=axis, dtype=dtype, out=out, **options)


def cummin(
    x: Any,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    **options: "Unpack[Options]",
) -> Any:
    """Running minimum over all ranks; NaN propagates, as in ``numpy.minimum.accumulate``.

    >>> import distscan
    >>> distscan.cummin([3, 1, 2])
    array([3, 1, 1])
    """
    return scan(x, "min", axis=axis, dtype=dtype, out=out, **options)
