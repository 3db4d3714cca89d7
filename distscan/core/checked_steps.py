"""Steps of exact sums whose elements must be in a window that the caller has named."""

from collections.abc import Callable
from typing import Any

from . import arrays
from .fixed_sum import Check
from .steps import Pending


class CheckedSteps:
    """The steps of ``steps``, which raise ValueError if an element is outside of the window.

    Kernels that can do so look at elements while they add them. Only if one has seen an element
    outside, ``check`` reads the elements again, and raises the error. Other elements are checked
    before the scan. So are those of a scan in place that finds no total first: it overwrites them
    while it looks at them.
    """

    def __init__(self, steps: Any, check: Check) -> None:
        """Wrap ``steps``, which have four attributes more than others.

        ``sees_outside`` says whether kernels look at elements. ``in_doubt`` says whether a kernel
        has seen one outside. ``waits`` says whether totals are long rows, which the exchange asks
        for piece by piece. ``finds_totals`` says whether ``begin`` finds the total. It then reads
        all elements, and no result is written yet: exact sums have no strategy "scan-add".
        """
        self._steps, self._check = steps, check

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return int(self._steps.nbytes)

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""
        return self._steps.empty()

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``."""
        self._steps.refuse_capture("the host waits for the check of window=")
        sees = self._sees(x, out)
        if not sees:
            self._check(x)
        found: Pending = self._steps.begin(x, out, segments, overlap=overlap)
        if not sees or found.empty:
            return found
        checked = _CheckedCall(found, self._steps, lambda: self._check(x))
        if self._steps.waits:
            return checked
        checked.total()
        return found

    def finish(self, pending: Any, offset: Any) -> None:
        """Scan the shard; without a total before, wait for what the scan has seen of elements."""
        if isinstance(pending, _CheckedCall):
            if not pending.asked:  # there was no exchange
                self._check(pending.x)
            pending = pending.call
        self._steps.finish(pending, offset)
        if pending.empty and self._steps.in_doubt(pending) and self._sees(pending.x, pending.out):
            self._check(pending.x)

    def _sees(self, x: Any, out: Any) -> bool:
        """Return whether kernels look at the elements, and leave them to be read again."""
        kept = self._steps.finds_totals or not arrays.overlap(x, out, in_place=False)
        return self._steps.sees_outside and kept

    def refuse_capture(self, reason: str) -> None:
        """Raise RuntimeError, with ``reason``, if the stream is captured in a CUDA graph."""
        self._steps.refuse_capture(reason)

    def close(self) -> None:
        """Free the memory."""
        self._steps.close()


class _CheckedCall:
    """A call whose totals are checked before another rank gets them."""

    def __init__(self, call: Any, steps: Any, check: Callable[[], None]) -> None:
        self.call, self.asked = call, False
        self._steps, self._check = steps, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)

    def total(self, piece: slice | None = None) -> Any:
        """Return the total, or a piece of it, as ``Pending`` does; raise ValueError."""
        self.asked = True
        found = self.call.total(piece)
        if self._steps.in_doubt(self.call):
            self._check()
        return found
