"""Plans of ``fsum``: by the operator of a known window, or of the window that each call finds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .build import CompiledScan, adds_exactly
from .fsum.request import FsumRequest, is_fsum, part_of
from .fsum.window import Window
from .fsum_scan import check_of
from .mpi.agree import Agreement, Votes, agreed, body
from .mpi.communicators import Comm
from .plan_calls import Calls, Check
from .plan_check import Expected
from .scan import scan

Make = Callable[..., CompiledScan]  # ``build.make`` for the shard and the options of a plan


class WindowCalls:
    """The calls of a plan that first look at their elements, as ``scan``; each is collective."""

    def __init__(
        self, comm: Comm, expected: Expected, options: dict[str, Any], sums: FsumRequest
    ) -> None:
        """``options`` are those of ``scan`` without segments and ``axis``."""
        self._comm, self._expected = comm, expected
        form: Any = {"axis": expected.plan.form.extents.axis, "dtype": sums.result}
        self._options = options | form | {"window": sums.limits}

    def run(self, x: Any, out: Any, segments: Any) -> Any:
        """Scan ``x`` into ``out``, and return the result; collective."""
        expected = self._expected
        with Agreement(Votes.of(self._comm)) as call:
            shard, target, flags, out = expected.check(x, out, segments)
            options = {"segments": flags, **self._options}
            result = target.reshape(expected.out_shape)
            body(scan)(call, shard.reshape(expected.shape), "fsum", out=result, **options)
        return out

    def start(self, x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any]:
        """Keep the arrays for ``wait``, which does the work."""
        return x, out, segments

    def wait(self, started: tuple[Any, Any, Any]) -> Any:
        """Scan the arrays that ``start`` was given; collective."""
        return self.run(*started)

    def close(self, call: Agreement) -> None:
        """Do nothing: no memory is kept."""


class Exact(NamedTuple):
    """What a plan of ``fsum`` is asked for, and the window of all elements that there may be."""

    sums: FsumRequest
    x: np.dtype[Any]  # of the elements
    window: Window | None  # None: each call finds it

    def make(
        self, made: Make, options: dict[str, Any], most: int = 0, **words: bool
    ) -> CompiledScan:
        """Make the scan of at most so many elements; local. For ``words`` see ``operator``."""
        window = Window(0, 0, most) if self.window is None else self.window._replace(most=most)
        check = None if self.sums.limits is None else check_of(self.sums.limits)
        op, initial = self.sums.operator(window, self.x, check=check, **words)
        return made(op, **options | {"initial": initial, "dtype": self.sums.result})

    def calls(
        self, comm: Comm, made: Make, options: dict[str, Any], expected: Expected, **told: Any
    ) -> tuple[CompiledScan, Calls | WindowCalls]:
        """Return the scan and the calls of a plan; collective."""
        if self.window is None:
            return expected.plan, WindowCalls(comm, expected, options, self.sums)
        sums, x, limits = self.sums, self.x, self.sums.limits
        compiled = adds_exactly(part_of(x), part_of(sums.result), expected.gpu)
        sizes, words = zip(*comm.allgather((expected.size, compiled)), strict=True)
        window = self.window._replace(most=sum(sizes))
        by_words = limits is not None and all(words) and sums.narrow(window, x) is not None
        # Without ``initial``, a sum may be -0.0. Only ``scan`` looks for such sums.
        plain = sums.initial is not None and sums.is_plain and x.kind != "c"
        if by_words and not plain:
            return expected.plan, WindowCalls(comm, expected, options, sums)
        with agreed(comm):
            scan = self.make(made, options, sum(sizes), words=by_words)
        check: Check = expected._replace(plan=scan).check
        if limits is not None and not by_words:
            check = _checking(check, limits)
        return scan, Calls(scan, comm, check, **told)


def asked(
    op: Any, x: np.dtype[Any], options: dict[str, Any], window: Any, ranks: int
) -> Exact | None:
    """Check what a plan asks for; None if it is not ``fsum``. Raises TypeError and ValueError."""
    if not is_fsum(op, window):
        return None
    given = {name: options[name] for name in ("dtype", "initial", "strategy")}
    sums = FsumRequest.of(x, window=window, ranks=ranks, **given)
    return Exact(sums, x, known_window(sums, x))


def known_window(sums: FsumRequest, x: np.dtype[Any]) -> Window | None:
    """Return the window of all elements that there may be, if it is named, or that of a type.

    >>> sums = FsumRequest(np.dtype("f2"), None, None)
    >>> known_window(sums, np.dtype("f2")), known_window(sums, np.dtype("f8"))
    (Window(low=-24, high=16, most=0), None)
    """
    if sums.limits is not None:
        return Window(*sums.limits, 0)
    if x.kind in "biu":
        return Window(0, 64, 0)
    return Window(-24, 16, 0) if x == np.float16 else None


def _checking(check: Check, limits: tuple[int, int]) -> Check:
    """Return a check of arrays that also checks elements: they must be in the caller's window."""

    def both(x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any, Any]:
        found = check(x, out, segments)
        check_of(limits)(found[0])
        return found

    return both
