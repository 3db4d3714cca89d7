"""The window of arrays: the bits that their elements need; local."""

from typing import Any

from .core.extents import Extents
from .core.fixed import Window
from .core.special import NOT_FINITE
from .exact_check import check_window
from .exact_shard import Shard


def window_of(x: Any) -> tuple[Window, int]:
    """Return the window of the elements of an array, and what is special among them."""
    found, special = Window(0, 0, 0), 0
    for part in (x.real, x.imag) if x.dtype.kind == "c" else (x,):
        given = {"exclusive": False, "reverse": False}
        window, bits = Shard(part, part, None, Extents.of(part.shape, None), **given).window()
        found, special = found.joined(window), special | bits
    return found, special


def checked_window(name: str, x: Any, limits: tuple[int, int] | None) -> Window:
    """Return the window of an array; raise ValueError if it is beyond that of the caller."""
    window, special = window_of(x)
    if limits is not None:
        check_window(name, window, limits, finite=not special & NOT_FINITE)
    return window
