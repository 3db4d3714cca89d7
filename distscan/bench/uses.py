"""``--uses``: uses of scans, each beside a copy and the peers that users would take instead.

All functions with ``comm`` are collective: every rank takes the same decisions. A result that
depends on the one before it is compared with one step from that result. So the check takes other
code than the measured call, and any size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import distscan

from .. import __version__, binding
from ..core.errors import CheckError
from ..core.operators import Operator
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import cub
from .case import first_difference, pieces
from .contenders import copies, import_jax, version
from .timing import Call, Entry, Host, Row, Trial, call_all, set_share, set_times

MOST = {"cuda": 28, "cpu": 20}  # the power of two that no use exceeds, by default
OURS = "distscan"
_POISON = 0xA5  # the value of every byte of a result that is not yet there
_SPARE = 8  # times the bytes of a use that its draw and its check may take
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
    show: Callable[[Any], Any] = lambda result: None  # for the checks of other ranks


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
    at_once: bool = False  # whether one call of ``UseData`` is all of these, and of peers one
    kept: int = 0  # bytes of results that are kept at a time, beside those of one call


def compare_steps(
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


# ---- the trial of a use ---------------------------------------------------------------------


class UseTrial(Trial):
    """The copy, distscan, and the peers of a use. Calls rotate among sets of arrays."""

    def __init__(self, use: Use, peers: Sequence[Peer]) -> None:
        self.use, self.title, self.n = use, use.title, use.n
        self._peers = {peer.name: peer for peer in peers if peer.kind == use.kind}
        self.names = ["copy", OURS, *self._peers] if use.bytes else [OURS, *self._peers]

    def need(self, machine: Host) -> int:
        """Return the bytes of memory of the trial on one rank."""
        self._sets = machine.pairs(self.use.bytes) if self.use.bytes else 1
        return (2 * self._sets + _SPARE) * self.use.bytes + self.use.kept + 4 * machine.cache

    def draw(self, comm: Comm, machine: Host) -> None:
        """Draw the data, and copy the inputs for each set."""
        random = machine.xp.random.RandomState(20260101 + comm.rank)
        self._place = Place(comm, machine, random)
        with agreed(comm):
            data, xp = self.use.draw(self._place), machine.xp
            sets = [
                ([x.copy() for x in data.inputs], [xp.empty_like(y) for y in data.out])
                for _ in range(self._sets)
            ]
            self.data = data, sets

    def calls(self, row: Row) -> list[Call]:
        """Return a call for each set. Raises CheckError if the first result is wrong."""
        comm, machine, _ = self._place
        data, sets = self.data
        row.batch = len(sets) if machine.backend == "cuda" else 1
        if row.contender == "copy":
            row.moved = self.use.bytes
            with agreed(comm):
                halves = [machine.xp.ones((2, row.moved // 2), np.uint8) for _ in sets]
                return self._in_a_row(copies(machine, halves, binding.threads(None)))
        prepare: Callable[..., Call] = partial(partial, data.call)
        if row.contender != OURS:
            prepare = partial(self._peers[row.contender].prepare, self._place)
        with agreed(comm):
            calls = [prepare(*inputs, *out) for inputs, out in sets]
            for out in sets[0][1]:
                out.view(np.uint8)[...] = _POISON
        with agreed(comm):
            result = calls[0]()
            machine.synchronize()
            summary = data.show(result)
        gathered = comm.allgather(summary)
        with agreed(comm):
            fault = data.fault(result, gathered)
            if fault:
                raise CheckError(fault)
        return calls if self.use.at_once else self._in_a_row(calls)

    def _in_a_row(self, calls: Sequence[Call]) -> list[Call]:
        """Return what makes each call as often as one sample does."""
        return [partial(call_all, [call] * self.use.loops) for call in calls]

    def finish(self, entries: Sequence[Entry]) -> None:
        """Set the times of one call, and the shares of the copy's speed."""
        comm, machine, _ = self._place
        by_device = self.clock(machine.backend, comm.size) == "device_us"
        for entry in entries:
            loops = self.use.loops
            is_peer = self.use.at_once and entry.row.contender in self._peers
            for calls, each in ((1 if is_peer else loops, entry.samples), (loops, entry.copies)):
                for samples in each:
                    samples[:] = [us / calls for us in samples]
        set_times(comm, entries)
        for entry in entries if self.use.bytes else ():
            devices = entry.row.device_us is not None
            same_clock = by_device or entry.row.contender == "copy"
            set_share(comm, entry, device=devices and same_clock, device_copy=devices)

    def clock(self, backend: str, ranks: int) -> str:
        """Return the time that counts: the device's on one rank where the host does not wait."""
        on_device = (backend, ranks, self.use.waits) == ("cuda", 1, False)
        return "device_us" if on_device else "wall_us"


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
            *compare_steps(
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
            *compare_steps(
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
            *compare_steps(place, (b,), (0,), lambda before, now: (now[0] - before[0],)),
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
            *compare_steps(place, x, tuple(np.eye(4).flat), MATRICES.numpy),
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
            *compare_steps(place, (numbers,), (0,), lambda before, now: (before[0] + now[0],)),
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


# ---- the peers: torch -----------------------------------------------------------------------


def _torch(place: Place, *arrays: Any) -> tuple[Any, ...]:
    """Return the module, and its tensors over the same memory."""
    import torch  # noqa: PLC0415 - a peer need not be installed

    if place.machine.backend == "cpu":
        torch.set_num_threads(binding.threads(None))
    return torch, *(torch.from_dlpack(array) for array in arrays)


def _torch_select(place: Place, x: Any, mask: Any) -> Call:
    torch, tensor, flags = _torch(place, x, mask.view(np.uint8))
    return partial(torch.masked_select, tensor, flags.view(torch.bool))


def _torch_nancumsum(place: Place, x: Any, out: Any) -> Call:
    torch, tensor, result = _torch(place, x, out)
    numbers, inf = torch.empty_like(tensor), float("inf")

    def call() -> Any:
        torch.nan_to_num(tensor, nan=0.0, posinf=inf, neginf=-inf, out=numbers)
        torch.cumsum(numbers, 0, out=result)
        return out

    return call


def _torch_logcumsumexp(place: Place, x: Any, out: Any) -> Call:
    torch, tensor, result = _torch(place, x, out)

    def call() -> Any:
        torch.logcumsumexp(tensor, 0, out=result)
        return out

    return call


def _torch_partition(place: Place, weights: Any) -> Call:
    """Cut by sums in float64: those in float32 are off by many elements."""
    torch, tensor = _torch(place, weights)
    ends = torch.empty_like(tensor, dtype=torch.float64)
    shares = torch.arange(1, PARTS, dtype=torch.float64, device=tensor.device) / PARTS

    def call() -> Any:
        torch.cumsum(tensor, 0, dtype=torch.float64, out=ends)
        return torch.searchsorted(ends, shares * ends[-1]).cpu().numpy()

    return call


# ---- JAX ------------------------------------------------------------------------------------


@cache
def _associative_scan() -> tuple[Any, Callable[..., Any]]:
    """Return JAX, and its scan of maps h -> a h + b, which all calls share: it is compiled once."""
    jax = import_jax()

    def after(earlier: Any, later: Any) -> Any:
        return later[0] * earlier[0], later[0] * earlier[1] + later[1]

    return jax, jax.jit(lambda *maps: jax.lax.associative_scan(after, maps)[1])


def _jax_recurrence(place: Place, a: Any, b: Any) -> Call:
    """Scan maps, and wait for the result."""
    jax, solve = _associative_scan()
    maps = [jax.dlpack.from_dlpack(array) for array in (a, b)]
    return lambda: place.machine.xp.from_dlpack(solve(*maps).block_until_ready())


# ---- NumPy and CuPy, SciPy -----------------------------------------------------------------


def _numpy_by_key(place: Place, keys: Any, x: Any, out: Any) -> Call:
    """Subtract from a sum over all runs its value before each run."""

    def call() -> Any:
        np.cumsum(x, out=out)
        heads = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
        np.subtract(out, np.repeat(out[heads] - x[heads], np.diff(heads, append=x.size)), out=out)
        return out

    return call


def _recur_by_rows(place: Place, a: Any, b: Any) -> Call:
    """Go down the columns row by row."""
    h = np.empty_like(b)

    def call() -> Any:
        h[0] = b[0]
        for before, after, factor, term in zip(h, h[1:], a[1:], b[1:], strict=False):
            np.multiply(factor, before, out=after)
            np.add(after, term, out=after)
        return h

    return call


def _lfilter(place: Place, b: Any) -> Call:
    from scipy import signal  # noqa: PLC0415 - a peer need not be installed

    numbers = np.ones(1, b.dtype), np.ones(2, b.dtype)  # h[t] + h[t-1] = b[t]
    return partial(signal.lfilter, *numbers, b)


def _matmuls(place: Place, *arrays: Any) -> Call:
    """Multiply one matrix after the other, from an array [n, 4, 4]."""
    x = np.ascontiguousarray(np.stack(arrays[:16], axis=1)).reshape(-1, 4, 4)
    out = np.empty_like(x)

    def call() -> Any:
        out[0] = x[0]
        for before, after, matrix in zip(out, out[1:], x[1:], strict=False):
            np.matmul(before, matrix, out=after)
        return tuple(out.reshape(-1, 16).T)

    return call


def _index_by_mask(place: Place, x: Any, mask: Any) -> Call:
    return lambda: x[mask]


def _xp_nancumsum(place: Place, x: Any, out: Any) -> Call:
    return partial(place.machine.xp.nancumsum, x, out=out)


def _logaddexp(place: Place, x: Any, out: Any) -> Call:
    """Accumulate in float64: float32 has an error of 1e-3 after 2^16 elements.

    Into a result of float32, NumPy would convert buffers that it has not filled, with warnings.
    """

    def call() -> Any:
        out[...] = np.logaddexp.accumulate(x, dtype=np.float64)
        return out

    return call


def _searchsorted(place: Place, weights: Any) -> Call:
    shares = np.arange(1, PARTS) / PARTS

    def call() -> Any:
        ends = np.cumsum(weights, dtype=np.float64)
        return np.searchsorted(ends, shares * ends[-1])

    return call


# ---- MPI -----------------------------------------------------------------------------------


def _two_sums(place: Place, count: Any) -> Call:
    """Exchange a count of 8 bytes by two calls of MPI."""
    comm, n = place.comm, np.array([count], np.int64)
    start, total = np.zeros_like(n), np.zeros_like(n)

    def call() -> Any:
        comm.Exscan(n, start)
        comm.Allreduce(n, total)
        return int(start[0]) if comm.rank > 0 else 0, int(total[0])

    return call


_HOST, _GPU = ("cpu",), ("cuda",)
_TORCH, _NUMPY, _CUPY = version("torch"), version("numpy"), version("cupy")

PEERS = (
    Peer("cub", "keys", cub.sum_by_key, cub.version, _GPU),
    Peer("numpy", "keys", _numpy_by_key, _NUMPY, _HOST),
    Peer("numpy", "columns", _recur_by_rows, _NUMPY, _HOST),
    Peer("jax", "recurrence", _jax_recurrence, version("jax")),
    Peer("jax", "columns", _jax_recurrence, version("jax")),
    Peer("scipy", "filter", _lfilter, version("scipy"), _HOST),
    Peer("numpy", "matrices", _matmuls, _NUMPY, _HOST),
    Peer("cub", "compact", cub.select, cub.version, _GPU),
    Peer("torch", "compact", _torch_select, _TORCH),
    Peer("cupy", "compact", _index_by_mask, _CUPY, _GPU),
    Peer("numpy", "compact", _index_by_mask, _NUMPY, _HOST),
    Peer("torch", "nancumsum", _torch_nancumsum, _TORCH),
    Peer("cupy", "nancumsum", _xp_nancumsum, _CUPY, _GPU),
    Peer("numpy", "nancumsum", _xp_nancumsum, _NUMPY, _HOST),
    Peer("torch", "logcumsumexp", _torch_logcumsumexp, _TORCH),
    Peer("numpy", "logcumsumexp", _logaddexp, _NUMPY, _HOST),
    Peer("torch", "partition", _torch_partition, _TORCH),
    Peer("numpy", "partition", _searchsorted, _NUMPY, _HOST),
    Peer("by-hand", "offsets", _two_sums, lambda: __version__, any_ranks=True),
)
