"""``--uses``: what people use scans for, each use beside a copy and what they would take instead.

All functions with ``comm`` are collective: every rank takes the same decisions. A result that
depends on the one before it is compared with one step from that result. So the check takes other
code than the measured call, and any size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import distscan

from .. import binding
from ..core.errors import CheckError
from ..core.operators import Operator
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import suite
from .case import first_difference, pieces
from .contenders import copies
from .suite import Row, Timed, failed
from .timing import Call, Host, Stats

MOST = {"cuda": 28, "cpu": 20}  # the power of two that no use exceeds, by default
OURS = "distscan"
_POISON = 0xA5  # the value of every byte of a result that is not yet there
_SPARE = 8  # times the bytes of a use that its draw and its check may take
_TITLE = 43  # characters
PARTS = 8  # of a partition
_RUN = 64  # elements with one key
_CLOSE = 1e-3  # the most error of logcumsumexp, whose results are about 10


class Place(NamedTuple):
    """Where a use runs: on a rank and a chip."""

    comm: Comm
    machine: Host
    random: Any  # a generator of random numbers, another on each rank

    def integers(self, low: int, high: int, shape: Any) -> Any:
        """Draw integers from ``low`` to below ``high``, as float32."""
        values = self.machine.xp.empty(shape, np.float32)
        flat = values.reshape(-1)
        for a, b in pieces(flat.size):
            flat[a:b] = self.random.randint(low, high, b - a)
        return values


class UseData(NamedTuple):
    """The data of a use on one rank. Results are what ``call`` and the peers return."""

    inputs: tuple[Any, ...]  # the input arrays
    out: tuple[Any, ...]  # arrays like those of the result, if calls take them
    call: Callable[..., Any]  # distscan's way, of the inputs and the results' arrays
    fault: Callable[[Any, list[Any]], str]  # of a result and each rank's ``show``; "" if right
    show: Callable[[Any], Any] = lambda result: None  # what the check of other ranks needs


@dataclass(frozen=True)
class Use:
    """One use at one size."""

    kind: str  # for which there are peers
    title: str
    n: int  # elements per rank
    bytes: int  # that a perfect way reads and writes on one rank
    draw: Callable[[Place], UseData]
    waits: bool = False  # whether the host waits for the result: its clock counts then
    loops: int = 1  # calls in a row that are one sample


def following(
    place: Place,
    x: tuple[Any, ...],
    first: Sequence[Any],
    step: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]],
) -> tuple[Callable[[Any, list[Any]], str], Callable[[Any], Any]]:
    """Return ``fault`` and ``show`` of results that are ``step(the result before, elements of x)``.

    ``first`` comes before the first element of rank 0.
    """
    comm, xp = place.comm, place.machine.xp

    def show(result: Any) -> list[Any]:
        return [on_host(array[-1]) for array in _arrays(result)]

    def fault(result: Any, gathered: list[Any]) -> str:
        results = _arrays(result)
        starts = gathered[comm.rank - 1] if comm.rank > 0 else first
        before = tuple(
            xp.concatenate([xp.asarray(start, array.dtype)[None], array[:-1]])
            for start, array in zip(starts, results, strict=True)
        )
        faults = (
            first_difference(array.reshape(-1), want.reshape(-1))
            for array, want in zip(results, step(before, x), strict=True)
        )
        return next(filter(None, faults), "")

    return fault, show


def _arrays(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def on_host(array: Any) -> Any:
    """Return an array or element of NumPy or CuPy in host memory."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


@dataclass(frozen=True)
class Peer:
    """One way of one kind of use. ``prepare`` returns the call for one set of arrays."""

    name: str
    kind: str
    prepare: Callable[..., Call]  # of the place, the inputs and the results' arrays
    version: Callable[[], str]  # raises ImportError if the peer cannot be used
    backends: tuple[str, ...] = ("cpu", "cuda")
    any_ranks: bool = False  # else one rank alone


# ---- the run --------------------------------------------------------------------------------


def run(
    comm: Comm,
    machine: Host,
    peers: Sequence[Peer],
    uses: Sequence[Use],
    *,
    repeat: int,
    progress: Callable[[str, int, int], None],
) -> list[Row]:
    """Check and time every use: the copy, distscan, and those peers that are for it."""
    rows = []
    random = machine.xp.random.RandomState(20260101 + comm.rank)
    place = Place(comm, machine, random)
    for i, use in enumerate(uses):
        progress(use.title, i, len(uses))
        rivals = [peer for peer in peers if peer.kind == use.kind]
        use_rows = [Row(name, use.title, use.n) for name in (OURS, *(peer.name for peer in rivals))]
        if use.bytes:
            use_rows.insert(0, Row("copy", use.title, use.n, moved=use.bytes))
        rows += use_rows
        try:
            _measure(place, use, rivals, use_rows, repeat)
        except MemoryError as error:  # on all ranks: another program has taken the memory
            for row in use_rows:
                failed(row, "skipped", error)
        machine.release()
    return rows


def _measure(
    place: Place, use: Use, peers: Sequence[Peer], rows: Sequence[Row], repeat: int
) -> None:
    """Fill the rows of one use. Its calls rotate among sets of arrays, as in ``case.py``."""
    comm, machine = place.comm, place.machine
    count = machine.pairs(use.bytes) if use.bytes else 1
    needed_bytes = (2 * count + _SPARE) * use.bytes + 4 * machine.cache
    room = min(comm.allgather(machine.free()))
    if needed_bytes > suite.ROOM * room:
        for row in rows:
            failed(row, "skipped", suite.no_room(needed_bytes, room))
        return
    with agreed(comm):
        data = use.draw(place)
        sets = [_copied(data, machine.xp) for _ in range(count)]
    ways: dict[str, Callable[..., Call]] = {OURS: partial(partial, data.call)}
    ways |= {peer.name: partial(peer.prepare, place) for peer in peers}
    live = []
    for row in rows:
        row.batch = count if machine.backend == "cuda" else 1
        if row.contender == "copy":
            calls = _copies(machine, use.bytes // 2, count)
        else:
            calls = _checked(place, data, ways[row.contender], sets, row)
        if calls:
            live.append(Timed(row, [partial(_repeated, call, use.loops) for call in calls]))
    suite.take_turns(comm, machine, live, repeat)
    for timed in live:
        for samples in timed.samples:
            samples[:] = [us / use.loops for us in samples]
    suite.summarize(comm, live)
    for timed in live if use.bytes else ():
        devices = timed.row.device_us is not None
        by_device = clock(use, machine.backend, comm.size) == "device_us"
        same_clock = by_device or timed.row.contender == "copy"
        suite.set_share(comm, timed, device=devices and same_clock, device_copy=devices)


def _copied(data: UseData, xp: Any) -> tuple[list[Any], list[Any]]:
    """Return copies of the inputs, and new arrays for the results."""
    return [x.copy() for x in data.inputs], [xp.empty_like(y) for y in data.out]


def _copies(machine: Host, size: int, count: int) -> list[Call]:
    pairs = [[machine.xp.ones(size, np.uint8) for _ in range(2)] for _ in range(count)]
    return copies(machine, [(x, out) for x, out in pairs], binding.threads(None))


def _repeated(call: Call, loops: int) -> None:
    for _ in range(loops):
        call()


def _checked(
    place: Place,
    data: UseData,
    prepare: Callable[..., Call],
    sets: Sequence[tuple[list[Any], list[Any]]],
    row: Row,
) -> list[Call]:
    """Return a call for each set; none if one fails or its result is wrong: see ``row``."""
    comm = place.comm
    try:
        with agreed(comm):
            calls = [prepare(*inputs, *out) for inputs, out in sets]
            for out in sets[0][1]:
                out.view(np.uint8)[...] = _POISON
        with agreed(comm):
            result = calls[0]()
            place.machine.synchronize()
            local = data.show(result)
        gathered = comm.allgather(local)
        with agreed(comm):
            fault = data.fault(result, gathered)
            if fault:
                raise CheckError(fault)
    except Exception as error:
        failed(row, "wrong" if isinstance(error, CheckError) else "error", error)
        return []
    return calls


def clock(use: Use, backend: str, ranks: int) -> str:
    """Return the time that counts: the device's on one rank, if the host does not wait for it."""
    return "device_us" if (backend, ranks, use.waits) == ("cuda", 1, False) else "wall_us"


def clocks(uses: Sequence[Use], backend: str, ranks: int) -> dict[str, str]:
    """Return the clock of each use, by its title."""
    return {use.title: clock(use, backend, ranks) for use in uses}


# ---- the table ------------------------------------------------------------------------------


def lines(rows: Sequence[Row], clocks: dict[str, str]) -> list[str]:
    """Return the table: a line for each use, then for each row without a time."""
    table = [
        "",
        "copy: of the bytes that the use must read and write; share: the copy's time by distscan's",
        f"{'us of a call':{_TITLE}}{'copy':>8}{'best peer':>17}{'distscan':>10}{'share':>7}"
        f"{'clock':>8}  other peers",
    ]
    for title, which in clocks.items():
        by_name = {row.contender: row for row in rows if row.type == title}
        ours, copy = by_name.pop(OURS), by_name.pop("copy", None)
        times = {name: _us(row, which) for name, row in by_name.items() if row.status == "timed"}
        peers = [f"{name} {_text(us)}" for name, us in sorted(times.items(), key=lambda i: i[1])]
        share = "" if ours.share is None else f"{ours.share:.2f}"
        copied = _text(_us(copy, "device_us")) if copy and copy.status == "timed" else ""
        time = _text(_us(ours, which)) if ours.status == "timed" else ours.status
        table.append(
            f"{title:{_TITLE}}{copied:>8}{peers[0] if peers else '-':>17}{time:>10}{share:>7}"
            f"{which.removesuffix('_us'):>8}  {', '.join(peers[1:])}".rstrip()
        )
    return table + [f"{row.contender}, {row.type}: {row.status}: {row.message}"
                   for row in rows if row.status != "timed"]  # fmt: skip


def _us(row: Row, which: str) -> float:
    """Return the time of a row on a clock; on the wall's where there is no device's."""
    time: Stats | None = getattr(row, which) or row.wall_us
    return time.median if time else np.nan


def _text(us: float) -> str:
    return f"{us:.1f}" if us < 9999.95 else f"{us:.0f}"


# ---- the uses: the data of each, distscan's call, and the check -----------------------------
# Almost all numbers are small integers, so that floats hold every result exactly, and results are
# compared by equality.


def all_uses(backend: str, most: int) -> list[Use]:
    """Return all uses, of at most 2^``most`` elements on each rank."""
    last = min(26, most)
    uses = [_keys(power) for power in dict.fromkeys(min(power, most) for power in (28, 24, 22))]
    uses += [
        _recurrence(last - columns, columns)
        for columns in dict.fromkeys(min(columns, last // 2) for columns in (0, 6, 12))
    ]
    if backend == "cpu":
        uses.append(_filter(last))
    uses += [_matrices(min(20, max(most - 4, 0))), _compact(last), _nancumsum(last)]
    return [*uses, _logcumsumexp(last), _partition(last), _offsets(last)]  # fmt: skip


# ---- results that follow one from the other ----


def _keys(power: int) -> Use:
    """Sum within runs of equal keys, which do not begin at multiples of a vector."""
    n = 1 << power

    def draw(place: Place) -> UseData:
        xp, first = place.machine.xp, place.comm.rank * n + 17
        index = xp.arange(first, first + n)
        keys, heads, x = index // _RUN, index % _RUN == 0, place.integers(-3, 4, n)
        return UseData(
            (keys.astype(np.int32), x), (x,),
            lambda keys, x, out: distscan.scan(x, segments=keys, out=out, comm=place.comm),
            *following(
                place, (heads, x), (0,),
                lambda before, now: (xp.where(now[0], now[1], before[0] + now[1]),),
            ),
        )  # fmt: skip

    return Use("keys", f"segments by int32 keys, runs of {_RUN}, 2^{power}", n, 12 * n, draw)


def _recurrence(power: int, columns: int) -> Use:
    """Run down the columns of [2^power, 2^columns], with a factor for each element."""
    n = 1 << power + columns
    shape = (1 << power, 1 << columns) if columns else (n,)

    def draw(place: Place) -> UseData:
        a, b = 2 * place.integers(0, 2, shape) - 1, place.integers(-3, 4, shape)
        return UseData(
            (a, b), (), lambda a, b: distscan.linear_recurrence(a, b, comm=place.comm),
            *following(
                place, (a, b), (np.zeros(shape[1:], np.float32),),
                lambda before, now: (now[0] * before[0] + now[1],),
            ),
        )  # fmt: skip

    size = f"[2^{power}, {f'2^{columns}' if columns > 9 else 1 << columns}]"
    title = f"linear_recurrence, {size if columns else f'2^{power}'}"
    return Use("columns" if columns else "recurrence", title, n, 12 * n, draw)


def _filter(power: int) -> Use:
    """Filter by one factor for all elements."""
    n = 1 << power

    def draw(place: Place) -> UseData:
        b = place.integers(-3, 4, n)
        return UseData(
            (b,), (), lambda b: distscan.linear_recurrence(-1.0, b, comm=place.comm),
            *following(place, (b,), (0,), lambda before, now: (now[0] - before[0],)),
        )  # fmt: skip

    return Use("filter", f"linear_recurrence, one factor, 2^{power}", n, 8 * n, draw)


def _product(a: Any, b: Any) -> tuple[Any, ...]:
    """Multiply matrices of 4 x 4, given as 16 arrays by rows."""
    return tuple(
        sum(a[4 * i + k] * b[4 * k + j] for k in range(4)) for i in range(4) for j in range(4)
    )


_ENTRIES = (
    " + ".join(f"a.x{4 * i + k} * b.x{4 * k + j}" for k in range(4))
    for i in range(4)
    for j in range(4)
)
MATRICES = Operator("matrices", _product, "{" + ", ".join(_ENTRIES) + "}", arity=16)


def _matrices(power: int) -> Use:
    """Multiply permutations with signs, whose products are exact."""
    n = 1 << power

    def draw(place: Place) -> UseData:
        random = np.random.RandomState(place.comm.rank)
        orders, entries = random.rand(n, 4).argsort(axis=1), np.zeros((16, n), np.float32)
        for i in range(4):
            entries[4 * i + orders[:, i], np.arange(n)] = 2 * random.randint(0, 2, n) - 1
        x = tuple(place.machine.xp.asarray(entry) for entry in entries)
        return UseData(
            x, x,
            lambda *arrays: distscan.scan(arrays[:16], MATRICES, out=arrays[16:], comm=place.comm),
            *following(place, x, tuple(np.eye(4).flat), MATRICES.numpy),
        )  # fmt: skip

    return Use("matrices", f"products of 4 x 4 float32, 2^{power}", n, 128 * n, draw)


def _nancumsum(power: int) -> Use:
    n = 1 << power

    def draw(place: Place) -> UseData:
        xp, x = place.machine.xp, place.integers(-3, 4, n)
        x[place.random.randint(0, 16, n) == 0] = np.nan
        numbers = xp.where(xp.isnan(x), np.float32(0), x)
        return UseData(
            (x,), (x,), lambda x, out: distscan.nancumsum(x, out=out, comm=place.comm),
            *following(place, (numbers,), (0,), lambda before, now: (before[0] + now[0],)),
        )  # fmt: skip

    return Use("nancumsum", f"nancumsum, 2^{power}", n, 8 * n, draw)


# ---- other results ----


def _compact(power: int) -> Use:
    """Keep half of the elements. Peers return these alone; distscan also where they begin."""
    n = 1 << power

    def draw(place: Place) -> UseData:
        comm, xp, x = place.comm, place.machine.xp, place.integers(-1000, 1001, n)
        mask = place.random.randint(0, 2, n) == 0

        def fault(result: Any, gathered: list[int]) -> str:
            elements, start = result if isinstance(result, tuple) else (result, 0)
            elements, want = xp.asarray(elements), x[mask]
            if (elements.shape, start) != (want.shape, sum(gathered[: comm.rank])):
                return f"{elements.size} elements from {start} on, not {want.size}"
            return first_difference(elements, want)

        return UseData(
            (x, mask), (), lambda x, mask: distscan.compact(x, mask, comm=comm), fault,
            lambda result: int(mask.sum()),
        )  # fmt: skip

    return Use("compact", f"compact, half kept, 2^{power}", n, 7 * n, draw, waits=True)


def _logcumsumexp(power: int) -> Use:
    n = 1 << power

    def draw(place: Place) -> UseData:
        comm, xp = place.comm, place.machine.xp
        x = place.random.uniform(-10, 10, n).astype(np.float32)

        def fault(result: Any, gathered: list[float]) -> str:
            want = xp.log(xp.cumsum(xp.exp(x.astype(np.float64))) + sum(gathered[: comm.rank]))
            error = abs(result - want)
            if bool((error <= _CLOSE).all()):
                return ""
            i = int((~(error <= _CLOSE)).argmax())
            return f"element {i} is {result[i].item()}, not {want[i].item()}"

        return UseData(
            (x,), (x,), lambda x, out: distscan.logcumsumexp(x, out=out, comm=comm), fault,
            lambda result: float(xp.exp(x.astype(np.float64)).sum()),
        )  # fmt: skip

    return Use("logcumsumexp", f"logcumsumexp, 2^{power}", n, 8 * n, draw)


def _partition(power: int) -> Use:
    """Cut at shares of the weight. Peers cut after an element, distscan in its middle.

    So cuts are compared to one element.
    """
    n = 1 << power

    def draw(place: Place) -> UseData:
        comm, xp, weights = place.comm, place.machine.xp, place.integers(0, 10, n)

        def fault(result: Any, gathered: list[tuple[float, list[int]]]) -> str:
            totals = [total for total, _ in gathered]
            targets = sum(totals) * np.arange(1, PARTS) / PARTS - sum(totals[: comm.rank])
            ends = xp.cumsum(weights, dtype=np.float64)
            want = on_host(xp.searchsorted(ends - weights / 2, xp.asarray(targets)))
            cuts = np.clip(result - comm.rank * n, 0, n)
            if any(others != gathered[0][1] for _, others in gathered):
                return "the ranks have not the same cuts"
            return "" if (abs(cuts - want) <= 1).all() else f"cuts {cuts}, not {want}"

        return UseData(
            (weights,), (), lambda x: distscan.partition(x, PARTS, comm=comm)[1:-1], fault,
            lambda result: (float(weights.sum(dtype=np.float64)), result.tolist()),
        )  # fmt: skip

    title = f"partition into {PARTS}, 2^{power}"
    return Use("partition", title, n, 4 * n, draw, waits=True)


def _offsets(power: int) -> Use:
    n = 1 << power

    def draw(place: Place) -> UseData:
        comm = place.comm
        want = [rank * n + rank * (rank - 1) // 2 for rank in (comm.rank, comm.size)]

        def fault(result: Any, gathered: list[Any]) -> str:
            return "" if list(result) == want else f"{result}, not {want}"

        count = np.int64(n + comm.rank)
        return UseData((count,), (), lambda count: distscan.offsets(count, comm=comm), fault)

    return Use("offsets", "offsets", n, 0, draw, waits=True, loops=100)
