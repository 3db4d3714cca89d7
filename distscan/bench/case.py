"""One type and size: its data, its buffers, and the check of a result."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.operators import Operator
from ..mpi.communicators import Comm
from .machine import Host

HOST_CHECK = 1 << 22  # the most elements for which NumPy recomputes the whole result
_PIECE = 1 << 24  # elements that are made or checked at once
_POISON = 0xA5  # the value of every byte: no sum of small integers looks like that


@dataclass(frozen=True)
class Case:
    """A scan of ``n`` elements on each of ``ranks`` ranks, from type ``x`` to type ``out``."""

    op: Operator
    x: np.dtype[Any]
    out: np.dtype[Any]
    n: int
    ranks: int

    @property
    def type(self) -> str:
        """The types as they are written on the command line."""
        return self.x.name if self.x == self.out else f"{self.x.name}:{self.out.name}"

    @property
    def bytes(self) -> int:
        """Bytes that a perfect scan moves on one rank: each element is read and written once."""
        return self.n * (self.x.itemsize + self.out.itemsize)


class Data:
    """The buffers of a case on one rank: pairs (x [n], out [n]). The calls rotate among the pairs.

    All x hold the same random integers. They are so small that floats hold their sums exactly. So
    every order of additions has the same result, and results can be compared by equality.
    """

    def __init__(self, machine: Host, case: Case, rank: int) -> None:
        """Allocate the buffers, and draw this rank's shard."""
        self.machine, self.case, self._rank, xp = machine, case, rank, machine.xp
        self.pairs = [
            (xp.empty(case.n, case.x), xp.empty(case.n, case.out))
            for _ in range(machine.pairs(case.bytes))
        ]
        self.draw()
        self._total = self._reduce()
        self.offset: Any = None  # the total of all earlier ranks

    def draw(self) -> None:
        """Fill every x with the numbers of this rank, the same in each call."""
        xp, first = self.machine.xp, self._rank * self.case.n
        random = xp.random.RandomState(20260101 + self._rank)
        x = self.pairs[0][0]
        for a, b in _pieces(self.case.n):
            x[a:b] = _draw(xp, random, self.case, first + a, b - a)
        for other, _ in self.pairs[1:]:
            other[...] = x

    def exchange(self, comm: Comm) -> None:
        """Find the offset, by other code than the measured one; collective."""
        totals = comm.allgather(self._total)
        for total in totals[: comm.rank]:
            self.offset = total if self.offset is None else self.case.op.combine(self.offset, total)

    def poison(self) -> None:
        """Overwrite every result, so that no result of an earlier contender is left."""
        for _, out in self.pairs:
            out.view(np.uint8)[...] = _POISON

    def fault(self, *, scans: bool) -> str:
        """Return the fault of the first pair's result as text; empty if the result is right.

        ``scans`` is False for the copy, whose result is its input.
        """
        x, out = self.pairs[0]
        if not scans:
            size = min(x.nbytes, out.nbytes)
            a, b = x.view(np.uint8)[:size], out.view(np.uint8)[:size]
            same = all(bool((a[i:j] == b[i:j]).all()) for i, j in _pieces(size))
            return "" if same else "the copy differs"
        if self._reduce() != self._total:
            return "the input was changed"
        return self._against_numpy() if self.case.n <= HOST_CHECK else self._against_neighbours()

    def _against_numpy(self) -> str:
        x, out = (a.get() if hasattr(a, "get") else a for a in self.pairs[0])
        combine: Any = self.case.op.numpy
        want = combine.accumulate(x, dtype=self.case.out)
        if self.offset is not None:
            want = self.case.op.combine(self.offset, want)
        return _first_difference(out, want, 0)

    def _against_neighbours(self) -> str:
        """Compare y[i] with combine(y[i-1], x[i]) for every i, on the device."""
        x, out = self.pairs[0]
        combine = getattr(self.machine.xp, self.case.op.numpy.__name__)
        first = x[:1].astype(self.case.out)
        if self.offset is not None:
            first = combine(first.dtype.type(self.offset), first)
        wrong = _first_difference(out[:1], first, 0)
        for a, b in _pieces(self.case.n - 1):
            if wrong:
                break
            want = combine(out[a:b], x[a + 1 : b + 1], dtype=self.case.out)
            wrong = _first_difference(out[a + 1 : b + 1], want, a + 1)
        return wrong

    def _reduce(self) -> Any:
        """Return the total of this rank's shard: a NumPy scalar of the result's type."""
        x, name = self.pairs[0][0], self.case.op.name
        kind = {"dtype": self.case.out} if name in ("sum", "prod") else {}
        return self.case.out.type(getattr(x, name)(**kind).item())


class Task(NamedTuple):
    """The task of a contender: the ranks, the chip, the case and its buffers."""

    comm: Comm
    machine: Host
    case: Case
    pairs: list[tuple[Any, Any]]  # (x [n], out [n]), NumPy or CuPy


def need(machine: Host, case: Case) -> int:
    """Return the bytes of memory of a case on one rank, with those that contenders may keep."""
    return machine.pairs(case.bytes) * case.bytes + case.n * case.out.itemsize + 4 * machine.cache


def _draw(xp: Any, random: Any, case: Case, first: int, size: int) -> Any:
    """Draw ``size`` elements of the global array [n * ranks] from ``first`` on.

    The caller casts them to the type of x. Results must change all along the array: sums walk at
    random, products change sign (or wrap), and maxima and minima follow a slope.
    """
    signed = case.x.kind != "u"
    if case.op.name == "sum":
        return random.randint(-3, 4, size) if signed else random.randint(0, 7, size)
    if case.op.name == "prod":
        return 2 * random.randint(0, 2, size) - 1 if signed else 2 * random.randint(0, 3, size) + 1
    slope = (xp.arange(first, first + size) * 100) // (case.n * case.ranks)
    values = slope + random.randint(0, 20, size)
    return values if case.op.name == "max" else 120 - values


def _pieces(n: int) -> list[tuple[int, int]]:
    return [(a, min(a + _PIECE, n)) for a in range(0, n, _PIECE)]


def _first_difference(got: Any, want: Any, begin: int) -> str:
    different = got != want
    if not bool(different.any()):
        return ""
    i = int(different.argmax())
    return f"element {begin + i} is {got[i].item()}, not {want[i].item()}"
