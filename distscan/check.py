"""``--check``: recompute a scan with NumPy, in chunks, and find the first difference."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import files
from .agree import agreed, everywhere
from .backends.chunked import CHUNK
from .errors import CheckError
from .exchange import Comm
from .files import File
from .local import LocalPlan
from .shards import chunks

_ROUNDING = (np.add, np.multiply, np.logaddexp)
PIECE = 1 << 18  # bytes: the temporaries of a piece stay in cache


def check(comm: Comm, plan: LocalPlan, start: int, source: File, result: File) -> None:
    """Compare a file's scan with NumPy's, each rank its own part; collective.

    ``start`` is this rank's first element in the file. What does not round must be equal. Sums,
    products and logaddexp of floats are recomputed in the next wider type and may differ by the
    rounding that a chain as long as the scan's can gather: its length times the unit roundoff times
    the sum of magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
    4.2). Where a product has left the type's range, or the magnitudes of a sum have, the order of
    association decides from there on: no more is checked.

    Raises ``CheckError`` on every rank, with the first element in scan order that differs.
    """
    _, n, inner = plan.seen
    longest = max(comm.allgather(n))
    before: list[_State] = []
    with agreed(comm):
        reference = _Reference(plan, longest, comm.size)
        # The same number of elements to a piece on both sides, and no part of a row.
        step = max(PIECE // max(source.dtype.itemsize, result.dtype.itemsize), inner)
        pieces = list(_pieces(plan, step))
        ins, outs = (np.empty(step * f.dtype.itemsize, np.uint8) for f in (source, result))
        if plan.across:
            reference.rewind(inner)
            for low, high, outer, _ in pieces:
                reference.skip(_read(source, start + low, start + high, ins), outer)
    if plan.across:
        everyone = comm.allgather(reference.state if n > 0 else None)
        order = everyone[: comm.rank : -1] if plan.form.reverse else everyone[: comm.rank]
        before = [state for state in order if state is not None]
    found: tuple[int, str] | None = None
    with agreed(comm):
        for low, high, outer, fresh in pieces:
            if fresh:
                reference.rewind(outer * inner, plan.form.first, before)
            expected, bound = reference.advance(
                _read(source, start + low, start + high, ins), outer
            )
            scanned = _read(result, start + low, start + high, outs)
            at = _first_difference(reference.lines(scanned, outer), expected, bound)
            if at is not None:
                i = reference.place(*at, n=len(expected))
                wanted = expected[at[0]].reshape(-1, reference.parts)[at[1] // reference.parts]
                found = (start + low + i, f"{scanned[i]!s}, NumPy gives {wanted.squeeze()!s}")
                break
    differences = [f for f in comm.allgather(found) if f is not None]
    if differences:
        element, text = differences[-1 if plan.form.reverse else 0]
        raise everywhere(CheckError(f"element {element} of the result is {text}"))


def _pieces(plan: LocalPlan, step: int) -> Iterator[tuple[int, int, int, bool]]:
    """Cut a shard into pieces of about ``step`` elements, in scan order.

    Yields (low, high, how many of ``outer`` it holds, whether scans begin with it).
    """
    outer, n, inner = plan.seen
    length = max(1, min(n, step // inner))
    height = max(1, step // (n * inner)) if length == n else 1
    for top, bottom in chunks(0, outer, height):
        cuts = list(chunks(0, n, length))
        for a, b in reversed(cuts) if plan.form.reverse else cuts:
            low, fresh = (top * n + a) * inner, b == n if plan.form.reverse else a == 0
            yield low, low + (bottom - top) * (b - a) * inner, bottom - top, fresh


def _read(file: File, start: int, stop: int, buffer: NDArray[np.uint8]) -> NDArray[Any]:
    ((_, piece),) = files.read(file, start, stop, buffer)
    return piece


class _State(NamedTuple):
    """Where the reference stands in each column."""

    value: Any  # [columns]; None: nothing came yet
    magnitude: NDArray[Any]
    lost: NDArray[Any]  # bool: nothing more is known


class _Reference:
    """NumPy's scan of one shard, piece by piece, in a type wider than the one under test.

    Pieces are [n, columns], in scan order. A sum of complex numbers is two sums of real ones:
    ``parts`` is 2 there, else 1, and each element has as many columns.
    """

    def __init__(self, plan: LocalPlan, longest: int, ranks: int) -> None:
        self.op, self.acc, self.out = plan.op, plan.types.acc, plan.types.out
        self.form = plan.form
        self.exact = self.acc.kind in "biu" or self.op.numpy not in _ROUNDING
        self.sums = self.op.numpy is np.add
        self.parts = 2 if self.sums and self.acc.kind == "c" else 1
        real = np.finfo(self.acc) if not self.exact else None
        held = real.dtype if self.parts == 2 and real is not None else self.acc
        self.wide = held if self.exact else np.result_type(held, np.float64)
        if self.wide == held and not self.exact:
            self.wide = np.result_type(held, np.longdouble)
        # The longest chain of roundings: inside a chunk, chunk after chunk, rank after rank.
        chain = longest if self.form.inner > 1 else CHUNK + longest // CHUNK
        chain += ranks + 1
        # A complex product rounds four times where a real one rounds once, and so does logaddexp.
        self.logs = self.op.numpy is np.logaddexp
        rounds = chain * (4 if self.wide.kind == "c" or self.logs else 1)
        self.factor = 0.0 if real is None else rounds * float(real.eps) / 2
        self.limit = 0.0 if real is None else float(real.max)

    def rewind(
        self, columns: int, first: NDArray[Any] | None = None, before: Sequence[_State] = ()
    ) -> None:
        """Start again in so many columns of elements, behind ``first`` and what comes before."""
        width = columns * self.parts
        self.state = _State(None, np.zeros(width), np.zeros(width, np.bool_))
        if first is not None:
            parts = self._split(first.reshape(1)).astype(self.wide)
            value = np.tile(parts, columns).reshape(-1)
            self.state = _State(value, np.abs(_finite(value)), self.state.lost)
        for state in before:
            value = self._then(state.value)
            magnitude = self.state.magnitude + state.magnitude
            self.state = _State(value, magnitude, self.state.lost | state.lost)

    def lines(self, piece: NDArray[Any], outer: int) -> NDArray[Any]:
        """See elements as [n, columns], in scan order."""
        seen = self._split(piece).reshape(outer, -1, self.form.inner, self.parts)
        seen = seen[:, ::-1] if self.form.reverse else seen
        return seen.swapaxes(0, 1).reshape(seen.shape[1], -1)

    def place(self, row: int, column: int, n: int) -> int:
        """Return the index in memory of an element of ``lines`` [n, columns]."""
        i, rest = divmod(column // self.parts, self.form.inner)
        return (i * n + (n - 1 - row if self.form.reverse else row)) * self.form.inner + rest

    def skip(self, piece: NDArray[Any], outer: int) -> None:
        """Go on behind a piece whose scan is not asked for."""
        if self.sums and not self.exact:
            x = self.lines(piece.astype(self.acc), outer)
            with np.errstate(all="ignore"):
                total = np.add.reduce(x, axis=0, dtype=self.wide)
                size = np.abs(_finite(x)).sum(axis=0, dtype=np.float64)
                magnitude = self.state.magnitude + size
                self.state = _State(self._then(total), magnitude, self.state.lost)
        else:
            self.advance(piece, outer)

    def advance(self, piece: NDArray[Any], outer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scan the next piece: the expected values, and how far from them is right.

        A bound of infinity says that nothing is known.
        """
        before = self.state
        with np.errstate(all="ignore"):
            x = self.lines(piece.astype(self.acc), outer).astype(self.wide)
            value: Any = self._then(self.op.numpy.accumulate(x, 0, self.wide))  # type: ignore[attr-defined]
            magnitude, lost = np.zeros(value.shape), np.zeros(value.shape, np.bool_)
            if self.sums and not self.exact:
                size = np.abs(_finite(x)).astype(np.float64)
                magnitude = before.magnitude + np.add.accumulate(size, axis=0)
            elif self.logs:
                # Errors do not add up beyond the largest; 1 stands for the logarithm itself.
                size = 1 + np.maximum(np.abs(_finite(x)), np.abs(_finite(value)))
                magnitude = np.maximum(before.magnitude, np.maximum.accumulate(size, axis=0))
            elif not self.exact:
                magnitude = np.abs(value)
            if not self.exact:
                lost = np.logical_or.accumulate(~(magnitude <= self.limit)) | before.lost
            self.state = _State(value[-1], magnitude[-1], lost[-1])
            if self.form.exclusive and before.value is not None:
                value, magnitude, lost = (
                    np.concatenate([one[None], many[:-1]])
                    for one, many in zip(before, (value, magnitude, lost), strict=True)
                )
            if self.exact:
                return value.astype(self.out), magnitude
            bound = self.factor * magnitude
            if self.out.kind in "fc":
                limits = np.finfo(self.out)
                bound = bound + limits.eps * np.abs(_finite(value)) + limits.smallest_subnormal
            else:
                bound = bound + 1
            return value, np.where(lost, np.inf, bound)

    def _then(self, later: Any) -> Any:
        """Combine what the reference has with what comes behind it."""
        return later if self.state.value is None else self.op.combine(self.state.value, later)

    def _split(self, array: NDArray[Any]) -> NDArray[Any]:
        """View [n] as [n, parts]."""
        if self.parts == 2 and array.dtype.kind == "c":
            return array.view(array.real.dtype).reshape(-1, 2)
        return array.reshape(-1, 1)


def _finite(x: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.isfinite(x), x, 0)


def _first_difference(
    scanned: NDArray[Any], expected: NDArray[Any], bound: NDArray[Any]
) -> tuple[int, int] | None:
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
    wrong = np.flatnonzero(~right)
    return divmod(int(wrong[0]), right.shape[1]) if wrong.size else None
