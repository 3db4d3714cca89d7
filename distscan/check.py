"""``--check``: recompute a scan with NumPy, in chunks, and find the first difference."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .backends.cpu import CHUNK
from .errors import CheckError
from .exchange import Comm, agreed, everywhere
from .files import File
from .plan import Plan
from .shards import bounds

PIECE = 1 << 18  # bytes: the temporaries of a piece stay in cache


def check(comm: Comm, plan: Plan, source: File, result: File) -> None:
    """Compare a file's scan with NumPy's, each rank its own part; collective.

    Integers, bool, max and min must be equal. Sums and products of floats are recomputed in the
    next wider type and may differ by the rounding that a chain as long as the scan's can gather:
    its length times the unit roundoff times the sum of magnitudes (Higham, Accuracy and Stability
    of Numerical Algorithms, 2002, section 4.2). A product whose value leaves the type's range and
    comes back is not covered: there the order of association decides.

    Raises ``CheckError`` on every rank, with the first element that differs.
    """
    start, stop = bounds(source.n, comm.size, comm.rank)
    with agreed(comm):
        reference = _Reference(plan, -(-source.n // comm.size), comm.size)
        buffer = np.empty(PIECE, np.uint8)
        for _, piece in files.read(source, start, stop, buffer):
            reference.skip(piece)
    state = reference.value, reference.magnitude
    earlier = comm.allgather(state if stop > start else None)[: comm.rank]
    found: tuple[int, str] | None = None
    with agreed(comm):
        reference.rewind([before for before in earlier if before is not None])
        # The same number of elements to a piece on both sides.
        step = PIECE // max(source.dtype.itemsize, result.dtype.itemsize)
        ins, outs = (np.empty(step * f.dtype.itemsize, np.uint8) for f in (source, result))
        pairs = zip(
            files.read(source, start, stop, ins),
            files.read(result, start, stop, outs),
            strict=True,
        )
        for (at, piece), (_, scanned) in pairs:
            expected, bound = reference.advance(piece)
            i = _first_difference(scanned, expected, bound)
            if i is not None:
                found = (start + at + i, f"{scanned[i]!s}, NumPy gives {expected[i]!s}")
                break
    first = min((f for f in comm.allgather(found) if f is not None), default=None)
    if first is not None:
        raise everywhere(CheckError(f"element {first[0]} of the result is {first[1]}"))


class _Reference:
    """NumPy's scan of one shard, piece by piece, in a type wider than the one under test."""

    def __init__(self, plan: Plan, longest: int, ranks: int) -> None:
        self.op, self.types = plan.op, plan.types
        self.exact = self.types.acc.kind in "biu" or not self.op.promotes
        self.wide = self.types.acc if self.exact else np.result_type(self.types.acc, np.float64)
        if self.wide == self.types.acc and not self.exact:
            self.wide = np.result_type(self.types.acc, np.longdouble)
        # The longest chain of roundings: inside a chunk, chunk after chunk, rank after rank.
        chain = min(longest, CHUNK) + longest // CHUNK + ranks
        # A complex product rounds four times where a real one rounds once.
        self.factor = 4 * chain * (0 if self.exact else float(np.finfo(self.types.acc).eps) / 2)
        self.rewind([])

    def rewind(self, earlier: list[tuple[Any, Any]]) -> None:
        """Start again, behind the (value, magnitude) of what comes earlier."""
        self.value, self.magnitude = None, np.float64(0)
        for value, magnitude in earlier:
            self.value = value if self.value is None else self.op.combine(self.value, value)
            self.magnitude = self.magnitude + magnitude

    def skip(self, piece: NDArray[Any]) -> None:
        """Go on behind a piece without scanning it."""
        with np.errstate(all="ignore"):
            x = piece.astype(self.types.acc)
            total = self.op.numpy.reduce(x, dtype=self.wide)  # type: ignore[attr-defined]
            self.value = total if self.value is None else self.op.numpy(self.value, total)
            if self.op.numpy is np.add and not self.exact:
                self.magnitude = self.magnitude + np.abs(x).sum(dtype=np.float64)

    def advance(self, piece: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scan the next piece; return the expected values and how far from them is still right."""
        with np.errstate(all="ignore"):
            x = piece.astype(self.types.acc).astype(self.wide)
            expected = self.op.numpy.accumulate(x, dtype=self.wide)  # type: ignore[attr-defined]
            if self.value is not None:
                expected = self.op.numpy(self.value, expected)
            self.value = expected[-1]
            if self.exact:
                return expected.astype(self.types.out), np.zeros(1)
            if self.op.numpy is np.add:
                size = np.abs(x).astype(np.float64)
                magnitude = self.magnitude + np.add.accumulate(size)
                self.magnitude = magnitude[-1]
            else:
                magnitude = np.abs(expected)
            bound = self.factor * magnitude
            if self.types.out.kind in "fc":
                limits = np.finfo(self.types.out)
                bound = bound + limits.eps * np.abs(expected) + limits.smallest_normal
            else:
                bound = bound + 1
            return expected, bound


def _first_difference(
    scanned: NDArray[Any], expected: NDArray[Any], bound: NDArray[Any]
) -> int | None:
    """Find the first result that is neither within its bound nor the same NaN or infinity."""
    with np.errstate(all="ignore"):
        if scanned.dtype.kind in "biu" and expected.dtype.kind in "biu":
            right = scanned == expected
        else:
            right = np.abs(scanned - expected) <= bound
        if right.all():
            return None
        right |= (scanned == expected) | (np.isnan(scanned) & np.isnan(expected))
        if scanned.dtype.kind == "f":
            # Rounded past the largest finite number.
            edge = np.abs(expected) + bound >= np.finfo(scanned.dtype).max
            right |= np.isinf(scanned) & (np.sign(scanned) == np.sign(expected)) & edge
    wrong = np.flatnonzero(~right)
    return int(wrong[0]) if wrong.size else None
