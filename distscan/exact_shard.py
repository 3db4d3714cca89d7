"""One rank's shard of an exact scan: its window, its total, and its sums; local."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .core import arrays
from .core import segments as segmented
from .core.extents import Extents
from .core.fixed import Window, magnitudes
from .core.special import codes, found_special, store_special
from .core.steps import Edges
from .cpu.chunked import Part, parts

_CHUNK = 1 << 18  # digits at a time on the host: they stay in the caches
_GPU_CHUNK = 1 << 23  # on a GPU: enough to fill it


class Total(NamedTuple):
    """What a rank's shard adds to the sums of later ranks."""

    digits: NDArray[np.int64]  # [digits, inner]; of segments, from the last head on
    head: bool  # whether a segment begins in the shard
    edges: Edges | None  # of the segments; None without, and of an empty shard


class Shard:
    """A shard of real numbers, as [outer, n, inner], the first in scan order first."""

    def __init__(
        self,
        x: Any,
        out: Any,
        segments: Any,
        extents: Extents,
        *,
        exclusive: bool,
        reverse: bool,
    ) -> None:
        """``segments`` are flags or keys [n]. Sums are stored in ``out``, which may be ``x``."""
        self._xp, self._extents = arrays.namespace(out), extents
        self._exclusive, self._reverse = exclusive, reverse
        self._x, self._out = self._ordered(x), self._ordered(out)
        self._segments, self._heads = segments, None
        if segments is not None:
            heads = self._xp.empty(extents.n, np.bool_)
            segmented.find_heads(segments, heads, reverse=reverse)
            self._heads = heads[::-1] if reverse else heads

    def _ordered(self, array: Any) -> Any:
        array = array.reshape(self._extents.outer, self._extents.n, self._extents.inner)
        return array[:, ::-1] if self._reverse else array

    def _strips(self, digits: int = 1) -> Iterator[Iterator[Part]]:
        """Yield strips of chunks in scan order, as ``parts`` does."""
        chunk = _CHUNK if self._xp is np else _GPU_CHUNK
        return parts(self._x.shape, max(1, chunk // digits))

    def _chunks(self, digits: int = 1) -> Iterator[Part]:
        for strip in self._strips(digits):
            yield from strip

    def window(self) -> tuple[Window, int]:
        """Return the window of the elements, and what is special among them."""
        xp, window, special = self._xp, Window(0, 0, 0), 0
        for part in self._chunks():
            window = window.joined(Window.of(xp, magnitudes(xp, self._x[part])))
            special |= found_special(xp, codes(xp, self._x[part]))
        return window, special

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the results."""
        found: np.dtype[Any] = self._out.dtype
        return found

    @property
    def is_one_scan(self) -> bool:
        """Whether all elements belong to one scan."""
        return self._extents.outer == self._extents.inner == 1 and self._segments is None

    def first_code(self) -> int:
        """Return the code of the first element in scan order."""
        first = self._x[:1, :1, :1]
        if first.size == 0:
            return 0
        return int(codes(np, first if self._xp is np else first.get())[0, 0, 0])

    def codes(self) -> Any:
        """Return the codes of the elements, in their shape and order."""
        found = self._xp.empty(self._extents.size, np.uint8)
        ordered = self._ordered(found)
        for part in self._chunks():
            ordered[part] = codes(self._xp, self._x[part])
        shape = self._extents.shape if self._segments is None else self._extents.result_shape
        return found.reshape(shape)

    def total(self, window: Window) -> Total:
        """Return the sum of the elements; of segments, from the last head on."""
        xp, begin, head = self._xp, 0, False
        if self._heads is not None and (starts := xp.flatnonzero(self._heads)).size:
            begin, head = int(starts[-1]), True
        found = np.zeros((window.digits, self._extents.inner), np.int64)
        for part in self._chunks(window.digits):
            rows = slice(max(part[1].start, begin), part[1].stop)
            x = self._x[part[0], rows, part[2]]
            if x.shape[1] > 0:
                sums = window.split(xp, magnitudes(xp, x)).sum(axis=(1, 2))
                found[:, part[2]] += sums if xp is np else sums.get()
        edges = None
        if self._segments is not None:
            edges = segmented.edges(self._segments, reverse=self._reverse)
        return Total(found, head, edges)

    def scan(self, window: Window, first: Any, before: Any) -> None:
        """Store the sums.

        The digits ``before`` [digits, inner or 1] come before the shard, and ``first`` [digits, 1]
        before each segment.
        """
        xp, dtype = self._xp, self._out.dtype
        first, before = xp.asarray(first), xp.asarray(before)
        before = xp.broadcast_to(before, (window.digits, self._extents.inner))
        for strip in self._strips(window.digits):
            carry: Any = None
            for part in strip:
                if carry is None:
                    carry = before[:, None, None, part[2]]
                digits = window.split(xp, magnitudes(xp, self._x[part]))
                sums = digits.cumsum(axis=2)
                heads = None if self._heads is None else self._heads[part[1]]
                if heads is not None and (starts := xp.flatnonzero(heads)).size:
                    # What is added to all sums of a segment in this chunk.
                    earlier = (sums - digits)[:, 0, starts, 0]
                    added = xp.concatenate([carry[:, 0, 0], first - earlier], axis=1)
                    sums += added[:, xp.cumsum(heads)][:, None, :, None]
                else:
                    sums += carry
                carry = sums[:, :, -1:].copy()
                if self._exclusive:
                    sums -= digits
                self._out[part] = window.rounded(xp, sums, dtype)

    def store_special(self, found: Any) -> None:
        """Store infinities, NaN and -0.0 where scanned codes say so."""
        ordered = self._ordered(found)
        for part in self._chunks():
            sums = self._out[part]
            store_special(ordered[part], sums)
            self._out[part] = sums
