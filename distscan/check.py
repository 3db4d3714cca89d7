"""``--check``: recompute a scan with NumPy, in chunks, and find the first difference."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .agree import agreed, everywhere
from .backends.chunked import CHUNK
from .errors import CheckError
from .exchange import Comm
from .files import File
from .local import LocalPlan
from .shards import bounds

_ROUNDING = (np.add, np.multiply, np.logaddexp)
PIECE = 1 << 18  # bytes: the temporaries of a piece stay in cache


def check(comm: Comm, plan: LocalPlan, source: File, result: File) -> None:
    """Compare a file's scan with NumPy's, each rank its own part; collective.

    What does not round must be equal. Sums, products and logaddexp of floats are recomputed in the
    next wider type and may differ by the rounding that a chain as long as the scan's can gather:
    its length times the unit roundoff times the sum of magnitudes (Higham, Accuracy and Stability
    of Numerical Algorithms, 2002, section 4.2). Where a product has left the type's range, or the
    magnitudes of a sum have, the order of association decides from there on: no more is checked.

    Raises ``CheckError`` on every rank, with the first element that differs.
    """
    start, stop = bounds(source.n, comm.size, comm.rank)
    with agreed(comm):
        reference = _Reference(plan, -(-source.n // comm.size), comm.size)
        buffer = np.empty(PIECE, np.uint8)
        for _, piece in files.read(source, start, stop, buffer):
            reference.skip(piece)
    state = reference.value, reference.magnitude, reference.lost
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
            i = _first_difference(reference.parts(scanned), expected, bound)
            if i is not None:
                found = (start + at + i, f"{scanned[i]!s}, NumPy gives {expected[i].squeeze()!s}")
                break
    first = min((f for f in comm.allgather(found) if f is not None), default=None)
    if first is not None:
        raise everywhere(CheckError(f"element {first[0]} of the result is {first[1]}"))


class _Reference:
    """NumPy's scan of one shard, piece by piece, in a type wider than the one under test.

    A sum of complex numbers is two sums of real ones: arrays are [n, 2] there, else [n, 1].
    """

    def __init__(self, plan: LocalPlan, longest: int, ranks: int) -> None:
        self.op, self.acc, self.out = plan.op, plan.types.acc, plan.types.out
        self.exact = self.acc.kind in "biu" or self.op.numpy not in _ROUNDING
        self.sums = self.op.numpy is np.add
        self.halves = self.sums and self.acc.kind == "c"
        real = np.finfo(self.acc) if not self.exact else None
        held = real.dtype if self.halves and real is not None else self.acc
        self.wide = held if self.exact else np.result_type(held, np.float64)
        if self.wide == held and not self.exact:
            self.wide = np.result_type(held, np.longdouble)
        # The longest chain of roundings: inside a chunk, chunk after chunk, rank after rank.
        chain = CHUNK + longest // CHUNK + ranks
        # A complex product rounds four times where a real one rounds once, and so does logaddexp.
        self.logs = self.op.numpy is np.logaddexp
        rounds = chain * (4 if self.wide.kind == "c" or self.logs else 1)
        self.factor = 0.0 if real is None else rounds * float(real.eps) / 2
        self.limit = 0.0 if real is None else float(real.max)
        self.rewind([])

    def rewind(self, earlier: list[tuple[Any, Any, bool]]) -> None:
        """Start again, behind the (value, magnitude, lost) of what comes earlier."""
        self.value, self.magnitude, self.lost = None, np.zeros(1), False
        for value, magnitude, lost in earlier:
            self.value = value if self.value is None else self.op.combine(self.value, value)
            self.magnitude = self.magnitude + magnitude
            self.lost |= lost

    def parts(self, array: NDArray[Any]) -> NDArray[Any]:
        """View [n] as [n, 2] real and imaginary parts where these are summed apart, else [n, 1]."""
        if self.halves and array.dtype.kind == "c":
            array = array.view(array.real.dtype).reshape(-1, 2)
        return array.reshape(len(array), -1)

    def skip(self, piece: NDArray[Any]) -> None:
        """Go on behind a piece whose scan is not asked for."""
        if self.sums and not self.exact:
            x = self.parts(piece.astype(self.acc))
            with np.errstate(all="ignore"):
                total = np.add.reduce(x, axis=0, dtype=self.wide)
                self.value = total if self.value is None else self.value + total
                self.magnitude = self.magnitude + np.abs(_finite(x)).sum(axis=0, dtype=np.float64)
        else:
            self.advance(piece)

    def advance(self, piece: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scan the next piece: the expected values, and how far from them is right.

        A bound of infinity says that nothing is known.
        """
        with np.errstate(all="ignore"):
            x = self.parts(piece.astype(self.acc)).astype(self.wide)
            expected = self.op.numpy.accumulate(x, 0, self.wide)  # type: ignore[attr-defined]
            if self.value is not None:
                expected = self.op.numpy(self.value, expected)
            self.value = expected[-1]
            if self.exact:
                return expected.astype(self.out), np.zeros(1)
            if self.sums:
                size = np.abs(_finite(x)).astype(np.float64)
                magnitude = self.magnitude + np.add.accumulate(size, axis=0)
                self.magnitude = magnitude[-1]
            elif self.logs:
                # Errors do not add up beyond the largest; 1 stands for the logarithm itself.
                size = 1 + np.maximum(np.abs(_finite(x)), np.abs(_finite(expected)))
                magnitude = np.maximum(self.magnitude, np.maximum.accumulate(size, axis=0))
                self.magnitude = magnitude[-1]
            else:
                magnitude = np.abs(expected)
            lost = np.logical_or.accumulate(~(magnitude <= self.limit).all(axis=1)) | self.lost
            self.lost = bool(lost[-1])
            bound = self.factor * magnitude
            if self.out.kind in "fc":
                limits = np.finfo(self.out)
                bound = bound + limits.eps * np.abs(_finite(expected)) + limits.smallest_subnormal
            else:
                bound = bound + 1
            return expected, np.where(lost[:, None], np.inf, bound)


def _finite(x: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.isfinite(x), x, 0)


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
        right |= (scanned == expected) | (np.isnan(scanned) & np.isnan(expected)) | np.isinf(bound)
        if scanned.dtype.kind == "f":
            # Rounded past the largest finite number.
            edge = np.abs(expected) + bound >= np.finfo(scanned.dtype).max
            right |= np.isinf(scanned) & (np.sign(scanned) == np.sign(expected)) & edge
    wrong = np.flatnonzero(~right.all(axis=1))
    return int(wrong[0]) if wrong.size else None
