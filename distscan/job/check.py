"""``--check``: recompute a scan with NumPy, in pieces, and find the first difference."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import CheckError
from ..core.form import chunks
from ..cpu.chunked import CHUNK
from ..mpi.agree import agreed, mark_collective
from ..mpi.communicators import Comm
from ..mpi.signals import interruptible
from .chunks import Block
from .formats.interface import Box, Fill, Show, Source, Target, fill_box, whole_of
from .plan import JobPlan
from .restart import State
from .rounds import Note, watched
from .shard import Shard

Array = NDArray[Any]

_ROUNDING = (np.add, np.multiply, np.logaddexp)
PIECE = 1 << 18  # bytes: the temporaries of a piece stay in cache


def check(
    comm: Comm,
    shard: Shard,
    source: Source,
    result: Target,
    *,
    state: State,
    show: Show,
    ahead: int = 0,
) -> None:
    """Compare a file's scan with NumPy's; each rank compares its own part; collective.

    ``state`` is that before the first element. With ``ahead``, the input is read in runs of
    so many elements.

    Sums, products and logaddexp of floats are recomputed in the next wider type, and may differ by
    the bounds below. All other results must be equal.

    Raises ``CheckError`` on every rank, with an element that differs, the first one of a rank.
    """
    plan, n = shard.plan, shard.plan.form.extents.length
    longest = max(comm.allgather(n))
    before: list[_State] = []
    done = 0  # bytes of the input, on all ranks; rank 0 knows

    def watch() -> AbstractContextManager[Note]:
        """Return a context that shows the progress of one step of all ranks."""
        earlier = done

        def note(phase: str, current: int, size: int) -> None:
            nonlocal done
            done = current
            show(phase, done, size)

        return watched(comm, shard, "check", earlier, note)

    with agreed(comm):
        reference = _Reference(plan, longest, comm.size, shard.links)
        sections = [*_sections(shard, source.dtype.itemsize, result.dtype.itemsize)]
        step = max((piece.size for section in sections for piece in section.pieces), default=0)
        files = _Files(shard, source, result, step=step, ahead=ahead)
    if not plan.across:
        differences = []
        # The watch comes first: a rank that cannot open a file then tells those that wait in it.
        with agreed(comm), watch() as note, files.both() as fills:
            for section in sections:
                before = section.states(reference, state)
                differences.append(files.compare(reference, section, before, fills, note))
        _raise_first(comm, plan, result, differences)
        return
    with ExitStack() as opened:
        with agreed(comm):
            fills = opened.enter_context(files.both())
        for section in sections:  # as many as on all ranks
            with agreed(comm), watch() as note:
                before = section.states(reference, state)
                files.skip(reference, section, fills, note)
            states = comm.allgather(reference.state if n > 0 else None)
            order = states[: comm.rank : -1] if plan.form.reverse else states[: comm.rank]
            before += [each for each in order if each is not None]
            with agreed(comm), watch() as note:
                difference = files.compare(reference, section, before, fills, note)
            _raise_first(comm, plan, result, [difference])
        with agreed(comm):
            opened.close()


_Difference = tuple[int, str]  # the index of an element in the file, and what is wrong


def _raise_first(
    comm: Comm, plan: JobPlan, result: Target, local: Sequence[_Difference | None]
) -> None:
    """Raise ``CheckError`` for the first difference of all ranks, if there is one; collective."""
    differences = [each for ranks in comm.allgather(list(local)) for each in ranks if each]
    if differences:
        element, text = differences[-1 if plan.form.reverse else 0]
        whole = whole_of(result.path)
        place = whole if whole.exists() else result.path
        raise mark_collective(
            CheckError(f"element {element} of the result is {text}; it is in {place}")
        )


class _Piece(NamedTuple):
    """Some elements, as [outer, n, inner] in memory."""

    start: int  # the index of the first one in the file
    size: int
    outer: int
    fresh: bool  # whether scans begin with it
    box: Box | None = None  # its place in the file, if it is a box


class _Section(NamedTuple):
    """Pieces of the same columns, in scan order."""

    pieces: list[_Piece]
    inner: int
    block: Block | None = None  # whose columns these are; None: all

    def states(self, reference: "_Reference", state: State) -> list["_State"]:
        """Begin with this section; return the state before its first element, if there is one."""
        reference.inner = self.inner
        if state.value is None:
            return []
        row = state.value
        return [reference.state_of(row if self.block is None else self.block.of_row(row).ravel())]


def _sections(shard: Shard, *itemsizes: int) -> Iterator[_Section]:
    """Yield the sections of a shard: one, or one for each block of boxes."""
    plan, extents = shard.plan, shard.plan.form.extents
    if plan.tiles is None:
        # Pieces of both files have the same number of elements, and whole rows.
        step = max(PIECE // max(itemsizes), extents.inner)
        yield _Section([*_pieces(plan, step)], extents.inner)
        return
    for block in plan.blocks_of_shard(shard.budget.chunk):
        pieces = [_Piece(0, chunk.size, 1, chunk.begins, chunk.box) for chunk in block]
        yield _Section(pieces, block.width, block)


def _pieces(plan: JobPlan, step: int) -> Iterator[_Piece]:
    """Yield the pieces of a shard, of about ``step`` elements, in scan order."""
    extents = plan.form.extents
    outer, n, inner = extents.outer, extents.length, extents.inner
    length = max(1, min(n, step // inner))
    height = max(1, step // (n * inner)) if length == n else 1
    for top, bottom in chunks(0, outer, height):
        cuts = list(chunks(0, n, length))
        for a, b in reversed(cuts) if plan.form.reverse else cuts:
            low, fresh = (top * n + a) * inner, b == n if plan.form.reverse else a == 0
            yield _Piece(plan.start + low, (bottom - top) * (b - a) * inner, bottom - top, fresh)


class _Files:
    """The input and the result, with memory for a piece of each."""

    def __init__(
        self,
        shard: Shard,
        source: Source,
        result: Target,
        *,
        step: int,
        ahead: int,
    ) -> None:
        self._plan, self._window, self._ahead = shard.plan, shard.budget.window, ahead
        self._source, self._result = source, result
        self._x, self._y = (np.empty(step, f.dtype.newbyteorder("=")) for f in (source, result))

    @contextmanager
    def input(self) -> Iterator[Fill]:
        """Open the input."""
        flat = self._plan.form.extents.axis is None
        with self._source.reading(flattened=flat, window=self._window) as fill:
            yield _ahead(fill, self._plan, self._source, self._ahead)

    @contextmanager
    def both(self) -> Iterator[tuple[Fill, Fill]]:
        """Open both files."""
        with self.input() as fill, self._result.reading() as fill_result:
            yield fill, fill_result

    def skip(
        self, reference: "_Reference", section: _Section, fills: tuple[Fill, Fill], note: Note
    ) -> None:
        """Find the state of the reference after a section."""
        reference.rewind(section.inner)
        for piece in section.pieces:
            x = self._read(fills[0], piece, self._x)
            for rows in self._rows(piece, section.inner):
                reference.skip(x[rows], piece.outer)
            note(x.nbytes // 2)

    def compare(
        self,
        reference: "_Reference",
        section: _Section,
        before: Sequence["_State"],
        fills: tuple[Fill, Fill],
        note: Note,
    ) -> _Difference | None:
        """Return the first difference in a section, which is scanned after the states before."""
        for piece in section.pieces:
            if piece.fresh:
                reference.rewind(piece.outer * section.inner, self._plan.form.seed, before)
            x = self._read(fills[0], piece, self._x)
            y = self._read(fills[1], piece, self._y)
            # What ``skip`` has read, too, counts half.
            note(x.nbytes - x.nbytes // 2 if self._plan.across else x.nbytes)
            for rows in self._rows(piece, section.inner):
                expected, bound = reference.advance(x[rows], piece.outer)
                scanned = reference.in_scan_order(y[rows], piece.outer)
                at = _first_difference(scanned, expected, bound)
                if at is not None:
                    i = rows.start + reference.index_in_memory(*at, n=len(expected))
                    value = expected[at[0]].reshape(-1, reference.parts)[at[1] // reference.parts]
                    box = piece.box
                    index = piece.start + i if box is None else box.element(i, self._plan.shape)
                    return index, f"{y[i]!s}, NumPy gives {value.squeeze()!s}"
        return None

    def _rows(self, piece: _Piece, inner: int) -> Iterator[slice]:
        """Yield the parts of a piece that are compared at a time: of a box, some rows."""
        step = piece.size
        if piece.box is not None:
            step = max(1, PIECE // self._x.itemsize // inner) * inner
        cuts = [slice(low, high) for low, high in chunks(0, piece.size, step)]
        return reversed(cuts) if self._plan.form.reverse else iter(cuts)

    @interruptible
    def _read(self, fill: Fill, piece: _Piece, buffer: Array) -> Array:
        elements = buffer[: piece.size]
        if piece.box is None:
            fill(elements, piece.start)
        else:
            fill_box(fill, self._plan.shape, elements, piece.box)
        return elements


def _ahead(fill: Fill, plan: JobPlan, source: Source, length: int) -> Fill:
    """Return ``fill`` for pieces of this rank's shard, read in runs of ``length`` elements."""
    if length == 0 or plan.tiles is not None:
        return fill
    first, last = plan.start, plan.start + plan.form.extents.size
    run, begin, end = np.empty(0, source.dtype.newbyteorder("=")), 0, 0

    def fill_ahead(elements: NDArray[Any], low: int) -> None:
        nonlocal run, begin, end
        high = low + elements.size
        if not begin <= low <= high <= end:
            size = max(length, elements.size)
            begin, end = low, min(low + size, last)
            if plan.form.reverse:
                begin, end = max(high - size, first), high
            run = np.empty(end - begin, run.dtype)
            fill(run, begin)
        elements[...] = run[low - begin : high - begin]

    return fill_ahead


class _State(NamedTuple):
    """The state of the reference in each column, after the elements so far."""

    value: Any  # [columns], the running value; None before the first element
    rounding: NDArray[Any]  # [fields, columns], the state of the bound


class _Reference:
    """NumPy's scan of one shard, piece by piece, in a wider type than that of the scan.

    Pieces are [n, columns], in scan order. Each element has ``parts`` columns: 2 for sums of
    complex numbers, which are two sums of real numbers; else 1.
    """

    def __init__(self, plan: JobPlan, longest: int, ranks: int, links: int) -> None:
        self.op, self.acc, self.out = plan.op, plan.types.acc, plan.types.out
        self.form, self.inner = plan.form, plan.form.extents.inner
        self.exact = self.acc.kind in "biu" or self.op.numpy not in _ROUNDING
        self.sums = self.op.numpy is np.add and not self.exact
        self.parts = 2 if self.sums and self.acc.kind == "c" else 1
        self.wide = self.acc
        self.bounds: Exact | Sums | Products = Exact()
        if not self.exact:
            real = np.finfo(self.acc).dtype if self.parts == 2 else self.acc
            self.wide = np.result_type(real, np.float64)
            if self.wide == real:
                self.wide = np.result_type(real, np.longdouble)
            self.bounds = self._bounds(longest, ranks, links)

    def _bounds(self, longest: int, ranks: int, links: int) -> "Sums | Products":
        """Return the bounds of the roundings, those of the scan and of the reference together."""
        real = np.finfo(self.acc)
        u, u_wide = float(real.eps) / 2, float(np.finfo(self.wide).eps) / 2
        # A real product rounds once; a complex product and logaddexp round four times.
        times = 1 if self.sums or self.wide.kind != "c" else 4
        if self.op.numpy is np.multiply:
            return Products(times * (u + u_wide), real)
        # The longest chain of roundings: in NumPy's chunks, from one to the next, and so on for the
        # file's chunks and for ranks.
        chain = longest if self.form.extents.inner > 1 else CHUNK + longest // CHUNK
        factor = (chain + links + ranks + 1) * u + longest * ranks * u_wide
        limit = float(real.max) / 4
        return Sums(factor, limit) if self.sums else Logs(4 * factor, limit)

    def rewind(
        self, columns: int, first: NDArray[Any] | None = None, before: Sequence[_State] = ()
    ) -> None:
        """Start scans of ``columns`` columns with ``first``, then the states ``before``."""
        width = columns * self.parts
        self.state = _State(None, self.bounds.start(width))
        if first is not None:
            self.state = self.state_of(np.tile(first, columns))
        for state in before:
            rounding = self.bounds.join(self.state.rounding, state.rounding)
            self.state = _State(self._then(state.value), rounding)

    def state_of(self, row: NDArray[Any]) -> _State:
        """Return the state after one row, which is known without a rounding."""
        value = self._split(row.reshape(-1)).astype(self.wide).reshape(1, -1)
        start = self.bounds.start(value.size)
        return _State(value[0], self.bounds.advance(start, value, value)[:, -1])

    def in_scan_order(self, piece: NDArray[Any], outer: int) -> NDArray[Any]:
        """View a piece as [n, columns], in scan order."""
        view = self._split(piece).reshape(outer, -1, self.inner, self.parts)
        view = view[:, ::-1] if self.form.reverse else view
        return view.swapaxes(0, 1).reshape(view.shape[1], -1)

    def index_in_memory(self, row: int, column: int, n: int) -> int:
        """Return the index in memory of an element of ``in_scan_order`` [n, columns]."""
        i, rest = divmod(column // self.parts, self.inner)
        return (i * n + (n - 1 - row if self.form.reverse else row)) * self.inner + rest

    def skip(self, piece: NDArray[Any], outer: int) -> None:
        """Advance over a piece without returning its scan."""
        x = self.in_scan_order(piece.astype(self.acc), outer)
        with np.errstate(all="ignore"):
            if self.sums:
                value = self._then(np.add.reduce(x, axis=0, dtype=self.wide))
                size = finite_size(x).sum(axis=0, dtype=np.float64, keepdims=True)
                self.state = _State(value, self.bounds.join(self.state.rounding, size))
            else:
                self._scan(x.astype(self.wide))

    def advance(self, piece: NDArray[Any], outer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scan the next piece; return the expected values and their bounds, both [n, columns].

        A result may differ from the expected value by the bound. If the bound is infinite, any
        result is accepted.
        """
        before = self.state
        with np.errstate(all="ignore"):
            value, rounding = self._scan(
                self.in_scan_order(piece.astype(self.acc), outer).astype(self.wide)
            )
            if self.form.exclusive and before.value is not None:
                value = np.concatenate([before.value[None], value[:-1]])
                rounding = np.concatenate([before.rounding[:, None], rounding[:, :-1]], axis=1)
            bound = self.bounds.bound(rounding, value)
            if self.exact:
                return value.astype(self.out), bound
            limits = np.finfo(self.out)
            stored = limits.eps * finite_size(value) + limits.smallest_subnormal
            return value, bound + stored

    def _scan(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scan the elements ``x`` after those so far; return values and states of the bounds."""
        value = self._then(self.op.numpy.accumulate(x, 0, self.wide))  # type: ignore[attr-defined]
        rounding = self._round(x, value)
        self.state = _State(value[-1], rounding[:, -1])
        return value, rounding

    def _round(self, x: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        return self.bounds.advance(self.state.rounding, x, value)

    def _then(self, later: Any) -> Any:
        """Return the running value combined with ``later``."""
        return later if self.state.value is None else self.op.combine(self.state.value, later)

    def _split(self, array: NDArray[Any]) -> NDArray[Any]:
        """View [n] as [n, parts]."""
        if self.parts == 2 and array.dtype.kind == "c":
            return array.view(array.real.dtype).reshape(-1, 2)
        return array.reshape(-1, 1)


def _first_difference(
    scanned: NDArray[Any], expected: NDArray[Any], bound: NDArray[Any]
) -> tuple[int, int] | None:
    """Return (row, column) of the first wrong result; None if all are right.

    A result is right within its bound, or if it is the same NaN or infinity.
    """
    with np.errstate(all="ignore"):
        if scanned.dtype.kind in "biu" and expected.dtype.kind in "biu":
            right = scanned == expected
        else:
            right = np.abs(scanned - expected) <= bound
        if right.all():
            return None
        right |= (scanned == expected) | (np.isnan(scanned) & np.isnan(expected)) | np.isinf(bound)
        if scanned.dtype.kind == "f":
            # A result may be rounded to infinity near the largest finite number.
            edge = np.abs(expected) + bound >= np.finfo(scanned.dtype).max
            right |= np.isinf(scanned) & (np.sign(scanned) == np.sign(expected)) & edge
    wrong = np.flatnonzero(~right)
    return divmod(int(wrong[0]), right.shape[1]) if wrong.size else None


# ---- bounds on rounding errors --------------------------------------------------------------

# Bounds on the rounding errors of a correct scan of floats, for every order of association. Each
# class bounds one kind of operator. Its state after each element is [fields, columns]; the states
# of many elements are [fields, n, columns]. ``u`` is the unit roundoff. The bounds are those of
# Higham, Accuracy and Stability of Numerical Algorithms, 2002.
#
# If a part of the elements so far could have left the type's range, the later results depend on
# the order of association. The bound is infinite from there on.

_FAR = 1e5  # stands for log(infinity), and -_FAR for log(0): larger than all finite logarithms


class Exact:
    """Operators that do not round."""

    def start(self, columns: int) -> Array:
        """Return the state before the first element."""
        return np.zeros((0, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the states after each element of ``x`` [n, columns]; ``values`` is its scan."""
        return np.zeros((0, *values.shape))

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the state after the elements of both states."""
        return earlier

    def bound(self, states: Array, values: Array) -> Array:
        """Return the largest error of a correct scan, of the shape of ``values``."""
        return np.zeros(values.shape)


class Sums:
    """Sums: the roundings of the longest chain, times u, times the sum of magnitudes (4.2)."""

    def __init__(self, factor: float, limit: float) -> None:
        self.factor, self.limit = factor, limit

    def start(self, columns: int) -> Array:
        """Return the state before the first element: sums of magnitudes, 0."""
        return np.zeros((1, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the sums of magnitudes up to each of the elements ``x`` [n, columns]."""
        size = np.add.accumulate(finite_size(x), axis=0, dtype=np.float64)
        return np.asarray(state[0] + size)[None]

    def join(self, earlier: Array, later: Array) -> Array:
        """Add the sums of two states."""
        return np.asarray(earlier + later)

    def bound(self, states: Array, values: Array) -> Array:
        """Return the largest error of a correct scan; infinity if a sum exceeds the limit."""
        return np.where(states[0] <= self.limit, self.factor * states[0], np.inf)


class Logs(Sums):
    """logaddexp: the error depends on the largest magnitude, plus 1 for the logarithm itself."""

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the largest magnitudes up to each of the elements ``x`` [n, columns]."""
        size = 1 + np.maximum(finite_size(x), finite_size(values)).astype(np.float64)
        return np.asarray(np.maximum(np.maximum.accumulate(size, axis=0), state[0]))[None]

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the larger magnitudes of two states."""
        return np.maximum(earlier, later)


class Products:
    """Products: the error of k factors is k u / (1 - k u) of the result (3.1), plus underflow.

    A factor that underflows has an error below the smallest subnormal (2.2), times all factors
    before it and after it. The logarithm of the running product is a walk:

    - its highest point bounds the product of the factors before;
    - its rise from its lowest point bounds the product of the factors after;
    - its greatest rise and fall tell whether any part can have left the range, above or below.
    """

    def __init__(self, u: float, real: "np.finfo[Any]") -> None:
        self.u, self.subnormal = u, real.smallest_subnormal
        self.real = np.result_type(real.dtype, np.float64)  # holds every factor
        # A product of complex numbers is a sum of products; each of them may overflow.
        self.high = float(np.log(real.max / 4))
        self.deep = float(np.log(real.eps) - np.log(real.tiny))

    def start(self, columns: int) -> Array:
        """Return the state before the first element: a walk that stands at 0."""
        return np.zeros((7, columns))

    def advance(self, state: Array, x: Array, values: Array) -> Array:
        """Return the states of the walk after each element of ``x`` [n, columns]."""
        count, position, low, high, rise, fall, zero = state
        logs = np.log(np.abs(x).astype(self.real)).astype(np.float64)
        walk = np.add.accumulate(np.nan_to_num(logs, nan=_FAR, posinf=_FAR, neginf=-_FAR), axis=0)
        lows = np.minimum(np.minimum.accumulate(walk, axis=0), low)
        highs = np.maximum(np.maximum.accumulate(walk, axis=0), high)
        return np.stack(
            [
                np.broadcast_to(count + np.arange(1.0, len(x) + 1)[:, None], walk.shape),
                position + walk,
                lows - walk,  # the lowest and the highest point so far, relative to this point
                highs - walk,
                np.maximum(np.maximum.accumulate(walk - lows, axis=0), rise),
                np.maximum(np.maximum.accumulate(highs - walk, axis=0), fall),
                np.logical_or.accumulate(x == 0, axis=0) | (zero > 0),
            ]
        )

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the state after two walks; the later one starts where the earlier one ends."""
        count, position, low, high, rise, fall, zero = earlier
        _, walk, lows, highs, rises, falls, _ = later
        return np.stack(
            [
                count + later[0],
                position + walk,
                np.minimum(lows, low - walk),
                np.maximum(highs, high - walk),
                np.maximum(np.maximum(rise, rises), highs + walk - low),
                np.maximum(np.maximum(fall, falls), high - lows - walk),
                np.maximum(zero, later[6]),
            ]
        )

    def bound(self, states: Array, values: Array) -> Array:
        """Return the largest error of a correct scan; infinity if a part may overflow."""
        count, position, low, high, rise, fall, zero = states
        ku = count * self.u
        bound = np.where(ku < 1, ku / (1 - ku) * np.abs(values), np.inf)
        underflows = fall > self.deep
        if underflows.any():
            others = np.exp((position + high - low).astype(bound.dtype))
            bound += np.where(underflows, count * self.subnormal * others, 0)
        # After a factor 0, all products are 0.
        return np.where(rise > self.high, np.inf, np.where(zero > 0, 0, bound))


def finite_size(x: Array) -> Array:
    """Return the magnitudes of the finite elements, and 0 for all others."""
    return np.abs(np.where(np.isfinite(x), x, 0))
