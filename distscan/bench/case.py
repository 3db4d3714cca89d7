"""One type and size: its data, its buffers, and the check of a result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..core.operators import BUILTIN, Operator
from ..mpi.communicators import Comm
from .timing import Host

_PIECE = 1 << 24  # elements that are made or checked at once
_SEGMENT = 64  # elements of a segment on average
_KEYS = 1 << 30  # different keys on a rank, at most
_POISON = 0xA5  # the value of every byte: no sum of small integers looks like that


@dataclass(frozen=True)
class Case:
    """A scan of ``n`` elements on each of ``ranks`` ranks, from type ``x`` to type ``out``.

    The fields with defaults are for forms: see ``form_cases`` and ``sized_cases``.
    """

    op: Operator
    x: np.dtype[Any]
    out: np.dtype[Any]
    n: int
    ranks: int
    title: str = ""
    idiom: str = ""  # the scan in NumPy: statements on the arrays x, out and heads
    options: Mapping[str, Any] = field(default_factory=dict)  # of the plan, beside op and types
    shape: tuple[int, ...] = (-1,)
    threads: int = 0  # of each rank; 0 is the default
    in_place: bool = False
    new: bool = False  # whether each call makes a new result

    @property
    def type(self) -> str:
        """The title of a form; else the types as they are written on the command line."""
        if self.title:
            return self.title
        return self.x.name if self.x == self.out else f"{self.x.name}:{self.out.name}"

    @property
    def plain(self) -> bool:
        """Whether this is a sum, product, ... of all elements, from one array to another."""
        return not (self.options or self.in_place or self.new)

    @property
    def exclusive(self) -> bool:
        """Whether a result is without its own element."""
        return bool(self.options.get("exclusive"))

    @property
    def segments(self) -> np.dtype[Any] | None:
        """The type of head flags, or of keys; None without segments."""
        return np.dtype(self.options["segments"]) if "segments" in self.options else None

    @property
    def row(self) -> int:
        """The length of the rows along which the scan goes; 0 if there are none."""
        return self.shape[1] if self.options.get("axis") == 1 else 0

    @property
    def bytes(self) -> int:
        """Bytes that a perfect scan moves on one rank: each element is read and written once.

        Head flags or keys are read, too.
        """
        segments = 0 if self.segments is None else self.segments.itemsize
        return self.n * (self.x.itemsize + self.out.itemsize + segments)

    @property
    def copies_pairs(self) -> bool:
        """Whether a copy of x to out moves as many bytes as a perfect scan."""
        same = self.x.itemsize == self.out.itemsize
        return same and not self.in_place and self.segments is None

    def scan_in_numpy(self) -> Callable[..., Any]:
        """Return the function of (x, out, heads) that runs ``idiom``."""
        names: dict[str, Any] = {}
        exec(f"def idiom(x, out, heads): {self.idiom}", {"np": np}, names)  # nosec B102 # no input
        return names["idiom"]  # type: ignore[no-any-return]


class Data:
    """The buffers of a case on one rank: pairs (x [n], out [n]). The calls rotate among the pairs.

    All x hold the same random integers. They are so small that floats hold their sums exactly. So
    every order of additions has the same result, and results can be compared by equality.

    ``copies`` are pairs of byte arrays: copying one moves as many bytes as a perfect scan.
    """

    def __init__(self, machine: Host, case: Case, rank: int) -> None:
        """Allocate the buffers, and draw this rank's shard."""
        self.machine, self.case, self._rank, xp = machine, case, rank, machine.xp
        pairs, size = range(machine.pairs(case.bytes)), case.bytes // 2
        self.pairs = [(xp.empty(case.n, case.x), xp.empty(case.n, case.out)) for _ in pairs]
        if case.in_place:
            self.pairs = [(x, x) for x, _ in self.pairs]
        self.copies = [(xp.ones(size, np.uint8), xp.ones(size, np.uint8)) for _ in pairs
                       if not case.copies_pairs]  # fmt: skip
        if case.copies_pairs:
            self.copies = [(x.view(np.uint8), out.view(np.uint8)) for x, out in self.pairs]
        #: Where segments or rows begin; None without any. The first element begins one.
        self._starts: Any = None
        #: What calls get: the head flags or the keys.
        self.segments: Any = None
        if case.segments is not None:
            self._starts = xp.asarray(np.random.RandomState(rank).randint(0, _SEGMENT, case.n) == 0)
            self._starts[0] = True
            self.segments = self._starts
            if case.segments != np.bool_:  # neighbouring ranks have other keys
                keys = xp.cumsum(self._starts) % _KEYS + rank % 2 * _KEYS
                self.segments = keys.astype(case.segments)
        elif case.row:
            self._starts = xp.arange(case.n) % case.row == 0
        self.draw()
        self._total = self._reduce()
        self._want = self._by_idiom() if case.idiom and case.ranks == 1 else None
        self.offset: Any = None  # the total of all earlier ranks

    def draw(self) -> None:
        """Fill every x with the numbers of this rank, the same in each call."""
        xp, first = self.machine.xp, self._rank * self.case.n
        random = xp.random.RandomState(20260101 + self._rank)
        x = self.pairs[0][0]
        for a, b in pieces(self.case.n):
            x[a:b] = _draw(xp, random, self.case, first + a, b - a)
        for other, _ in self.pairs[1:]:
            other[...] = x

    def exchange(self, comm: Comm) -> None:
        """Find the offset, by other code than the measured one; collective."""
        totals = comm.allgather(self._total)
        for total in totals[: comm.rank]:
            self.offset = total if self.offset is None else self.case.op.combine(self.offset, total)

    def task(self, comm: Comm) -> "Task":
        """Return the task of a contender."""
        shape = self.case.shape
        pairs = [(x.reshape(shape), out.reshape(shape)) for x, out in self.pairs]
        if self.case.in_place:
            pairs = [(x, x) for x, _ in pairs]
        return Task(comm, self.machine, self.case, pairs, self.segments, self.copies)

    def poison(self) -> None:
        """Overwrite every result, so that no result of an earlier contender is left."""
        if self.case.in_place:
            self.draw()
            return
        for _, out in self.pairs:
            out.view(np.uint8)[...] = _POISON

    def calm(self) -> None:
        """Fill arrays that are scanned in place with zeros: their sums would grow for ever."""
        if self.case.in_place:
            for x, _ in self.pairs:
                x.fill(0)

    def fault(self, *, scans: bool) -> str:
        """Return the fault of the first pair's result as text; empty if the result is right.

        ``scans`` is False for the copy, whose result is its input.
        """
        if not scans:
            a, b = self.copies[0]
            same = all(bool((a[i:j] == b[i:j]).all()) for i, j in pieces(a.size))
            return "" if same else "the copy differs"
        if not self.case.in_place and self._reduce() != self._total:
            return "the input was changed"
        if self._want is not None:
            return first_difference(self.pairs[0][1], self._want, 0)
        return self._against_neighbours()

    def _against_neighbours(self) -> str:
        """Compare y[i] with combine(y[i-1], x[i]) for every i, on the device.

        An exclusive y[i] is combine(y[i-1], x[i-1]). Where a segment begins, it is the identity.
        """
        (x, out), case, xp = self.pairs[0], self.case, self.machine.xp
        combine = getattr(xp, case.op.numpy.__name__)
        identity = xp.asarray(case.op.identity(case.out), case.out)
        own = 0 if case.exclusive else 1

        def first(a: int, b: int) -> Any:
            """Return the results of elements that begin a segment."""
            return xp.broadcast_to(identity, b - a) if case.exclusive else x[a:b].astype(case.out)

        want = first(0, 1)
        if self.offset is not None and self._starts is None:
            want = combine(case.out.type(self.offset), want)
        wrong = first_difference(out[:1], want, 0)
        for a, b in pieces(case.n - 1):
            if wrong:
                break
            want = combine(out[a:b], x[a + own : b + own], dtype=case.out)
            if self._starts is not None:
                want = xp.where(self._starts[a + 1 : b + 1], first(a + 1, b + 1), want)
            wrong = first_difference(out[a + 1 : b + 1], want, a + 1)
        return wrong

    def _by_idiom(self) -> Any:
        x, shape = self.pairs[0][0], self.case.shape
        want = np.zeros(self.case.n, self.case.out)  # NumPy may cast old elements of out, and warn
        new = self.case.scan_in_numpy()(x.reshape(shape), want.reshape(shape), self.segments)
        return want if new is None else new

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
    pairs: list[tuple[Any, Any]]  # (x, out) of the case's shape, NumPy or CuPy
    segments: Any  # head flags or keys [n], or None
    copies: list[tuple[Any, Any]]  # (source, target), bytes


def need(machine: Host, case: Case) -> int:
    """Return the bytes of memory of a case on one rank, with those that contenders may keep."""
    buffers = machine.pairs(case.bytes) * case.bytes * (1 if case.copies_pairs else 2)
    expected = case.n * case.out.itemsize * (2 if case.idiom else 1)
    if case.segments is not None or case.row:
        expected += case.n * 2 * (8 + 1)  # int64 for a while, and where segments begin
    return buffers + expected + 4 * machine.cache


def _draw(xp: Any, random: Any, case: Case, first: int, size: int) -> Any:
    """Draw ``size`` elements of the global array [n * ranks] from ``first`` on.

    The caller casts them to the type of x. Results must change all along the array: sums walk at
    random, products change sign (or wrap), and maxima and minima follow a slope.
    """
    signed = case.x.kind != "u"
    if case.out == np.float16:  # whose sums are exact up to 2048: here they stay below 4 a piece
        return xp.diff(random.randint(0, 4, size), prepend=0)
    if case.op.name == "sum":
        return random.randint(-3, 4, size) if signed else random.randint(0, 7, size)
    if case.op.name == "prod":
        return 2 * random.randint(0, 2, size) - 1 if signed else 2 * random.randint(0, 3, size) + 1
    slope = (xp.arange(first, first + size) * 100) // (case.n * case.ranks)
    values = slope + random.randint(0, 20, size)
    return values if case.op.name == "max" else 120 - values


def pieces(n: int) -> list[tuple[int, int]]:
    """Return the ends of pieces of ``n`` elements, which are made or checked one by one."""
    return [(a, min(a + _PIECE, n)) for a in range(0, n, _PIECE)]


def first_difference(got: Any, want: Any, begin: int = 0) -> str:
    """Return the first difference of two arrays [n] as text, in which the first has index begin.

    >>> first_difference(np.array([3, 5]), np.array([3, 4]))
    'element 1 is 5, not 4'
    """
    different = got != want
    if not bool(different.any()):
        return ""
    i = int(different.argmax())
    return f"element {begin + i} is {got[i].item()}, not {want[i].item()}"


# ---- one form at many sizes ------------------------------------------------------------------


def sized_cases(
    op: Operator,
    types: Sequence[tuple[np.dtype[Any], np.dtype[Any]]],
    sizes: Sequence[int],
    ranks: int,
    *,
    exclusive: bool = False,
    segments: np.dtype[Any] | None = None,
    row: int = 0,
) -> list[Case]:
    """Return the cases of a form for all pairs of types, and for all powers of two in ``sizes``.

    ``segments`` is the type of head flags or keys. With ``row``, scans go along rows of so many
    elements, of which there are as many whole ones as fit, and one at least.
    """
    options: dict[str, Any] = {"exclusive": True} if exclusive else {}
    options |= {} if segments is None else {"segments": segments}
    options |= {"axis": 1} if row else {}
    return [
        Case(
            op, x, out, max(row, (1 << power) - (1 << power) % (row or 1)), ranks,
            options=options, shape=(-1, row) if row else (-1,),
        )
        for x, out in types
        for power in sizes
    ]  # fmt: skip


# ---- what distscan scans on CPUs, each form at one size -------------------------------------
# The form of most cases is a sum or a maximum on one core. The last ones have more threads. On
# several ranks, the sum of float64 alone is timed, by both strategies.

_ROW, _COLUMNS = 1000, 1 << 11  # elements

_SUM = "np.cumsum(x, dtype=out.dtype, out=out)"
_MAX = "np.maximum.accumulate(x, out=out)"
_MIN = "np.minimum.accumulate(x, out=out)"
_SEGMENTS = (
    "np.cumsum(x, out=out); i = np.flatnonzero(heads); "
    "out -= np.repeat(out[i] - x[i], np.diff(i, append=x.size))"
)
_BY_ROWS = "out[0] = x[0]; [np.add(*rows) for rows in zip(out, x[1:], out[1:])]"

_F8, _I1 = ("sum", "float64"), ("max", "int8")
_FORMS: list[tuple[str, tuple[str, str], str, dict[str, Any]]] = [
    ("sum float64", _F8, _SUM, {}),
    ("sum int32", ("sum", "int32"), _SUM, {}),
    ("sum int64", ("sum", "int64"), _SUM, {}),
    ("sum complex128", ("sum", "complex128"), _SUM, {}),
    ("sum float32, in float64", ("sum", "float32"), "np.cumsum(x, dtype=np.float64, out=out)", {}),
    ("sum float32, NumPy in float32", ("sum", "float32"), _SUM, {}),
    ("sum int32 to int64", ("sum", "int32:int64"), _SUM, {}),
    ("sum int8 to int64", ("sum", "int8:int64"), _SUM, {}),
    ("max int8", _I1, _MAX, {}),
    ("max float32", ("max", "float32"), _MAX, {}),
    ("max float64", ("max", "float64"), _MAX, {}),
    ("min int8", ("min", "int8"), _MIN, {}),
    ("min float32", ("min", "float32"), _MIN, {}),
    ("min float64", ("min", "float64"), _MIN, {}),
    ("sum float16", ("sum", "float16"), _SUM, {}),
    ("rows of 1000 float64", _F8, "np.cumsum(x, axis=1, out=out)",
     {"options": {"axis": 1}, "shape": (-1, _ROW)}),
    ("columns of 2048 float64", _F8, "np.cumsum(x, axis=0, out=out)",
     {"options": {"axis": 0}, "shape": (-1, _COLUMNS)}),
    ("columns, NumPy row by row", _F8, _BY_ROWS,
     {"options": {"axis": 0}, "shape": (-1, _COLUMNS)}),
    ("segments of 64 float64", _F8, _SEGMENTS, {"options": {"segments": np.bool_}}),
    ("exclusive sum float64", _F8, "out[0] = 0; np.cumsum(x[:-1], out=out[1:])",
     {"options": {"exclusive": True}}),
    ("exclusive max int8", _I1, "out[0] = -128; np.maximum.accumulate(x[:-1], out=out[1:])",
     {"options": {"exclusive": True}}),
    ("reverse sum float64", _F8, "np.cumsum(x[::-1], out=out[::-1])",
     {"options": {"reverse": True}}),
    ("reverse max int8", _I1, "np.maximum.accumulate(x[::-1], out=out[::-1])",
     {"options": {"reverse": True}}),
    ("initial sum float64", _F8, "np.cumsum(x, out=out); out += 9", {"options": {"initial": 9}}),
    ("initial max int8", _I1, "np.maximum.accumulate(x, out=out); np.maximum(out, 9, out=out)",
     {"options": {"initial": 9}}),
    ("in place, sum float64", _F8, _SUM, {"in_place": True}),
    ("in place, max int8", _I1, _MAX, {"in_place": True}),
    ("new result, sum float64", _F8, "return np.cumsum(x)", {"new": True}),
]  # fmt: skip


def form_cases(mib: int, ranks: int, usable: int) -> list[Case]:
    """Return the cases for arrays of ``mib`` MiB, whose ranks may use ``usable`` threads each."""
    cases = [_form_case(mib, ranks, form) for form in (_FORMS if ranks == 1 else _FORMS[:1])]
    counts = [1 << i for i in range(1, usable.bit_length())]
    return cases + [
        replace(cases[0], title=f"{cases[0].title}, {count} threads", threads=count)
        for count in counts
    ]


def _form_case(
    mib: int, ranks: int, form: tuple[str, tuple[str, str], str, dict[str, Any]]
) -> Case:
    title, (op, types), idiom, more = form
    x, out = (np.dtype(name) for name in (types.split(":") * 2)[:2])
    n = (mib << 20) // max(x.itemsize, out.itemsize)
    n -= n % abs(int(np.prod(more.get("shape", 1))))
    return Case(BUILTIN[op], x, out, n, ranks, title, idiom, threads=1, **more)
