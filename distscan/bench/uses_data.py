"""The uses of scans that ``--uses`` times: the data of each, distscan's call, and the check.

Almost all numbers are small integers, so that floats hold every result exactly, and results are
compared by equality.
"""

from typing import Any

import numpy as np

import distscan

from ..core.operators import Operator
from .case import first_difference
from .use import Drawn, Place, Use, following, on_host

PARTS = 8  # of a partition
_RUN = 64  # elements with one key
_CLOSE = 1e-3  # the most error of logcumsumexp, whose results are about 10


def uses(backend: str, most: int) -> list[Use]:
    """Return all uses, of at most 2^``most`` elements on each rank."""
    last = min(26, most)
    made = [_keys(power) for power in dict.fromkeys(min(power, most) for power in (28, 24, 22))]
    made += [
        _recurrence(last - columns, columns)
        for columns in dict.fromkeys(min(columns, last // 2) for columns in (0, 6, 12))
    ]
    if backend == "cpu":
        made.append(_filter(last))
    made += [_matrices(min(20, max(most - 4, 0))), _compact(last), _nancumsum(last)]
    return [*made, _logcumsumexp(last), _partition(last), _offsets(last)]  # fmt: skip


# ---- results that follow one from the other ------------------------------------------------


def _keys(power: int) -> Use:
    """Sum within runs of equal keys, which do not begin at multiples of a vector."""
    n = 1 << power

    def draw(place: Place) -> Drawn:
        xp, first = place.machine.xp, place.comm.rank * n + 17
        index = xp.arange(first, first + n)
        keys, heads, x = index // _RUN, index % _RUN == 0, place.integers(-3, 4, n)
        return Drawn(
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

    def draw(place: Place) -> Drawn:
        a, b = 2 * place.integers(0, 2, shape) - 1, place.integers(-3, 4, shape)
        return Drawn(
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

    def draw(place: Place) -> Drawn:
        b = place.integers(-3, 4, n)
        return Drawn(
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

    def draw(place: Place) -> Drawn:
        random = np.random.RandomState(place.comm.rank)
        orders, made = random.rand(n, 4).argsort(axis=1), np.zeros((16, n), np.float32)
        for i in range(4):
            made[4 * i + orders[:, i], np.arange(n)] = 2 * random.randint(0, 2, n) - 1
        x = tuple(place.machine.xp.asarray(entry) for entry in made)
        return Drawn(
            x, x,
            lambda *arrays: distscan.scan(arrays[:16], MATRICES, out=arrays[16:], comm=place.comm),
            *following(place, x, tuple(np.eye(4).flat), MATRICES.numpy),
        )  # fmt: skip

    return Use("matrices", f"products of 4 x 4 float32, 2^{power}", n, 128 * n, draw)


def _nancumsum(power: int) -> Use:
    n = 1 << power

    def draw(place: Place) -> Drawn:
        xp, x = place.machine.xp, place.integers(-3, 4, n)
        x[place.random.randint(0, 16, n) == 0] = np.nan
        numbers = xp.where(xp.isnan(x), np.float32(0), x)
        return Drawn(
            (x,), (x,), lambda x, out: distscan.nancumsum(x, out=out, comm=place.comm),
            *following(place, (numbers,), (0,), lambda before, now: (before[0] + now[0],)),
        )  # fmt: skip

    return Use("nancumsum", f"nancumsum, 2^{power}", n, 8 * n, draw)


# ---- other results -------------------------------------------------------------------------


def _compact(power: int) -> Use:
    """Keep half of the elements. Peers return these alone; distscan also where they begin."""
    n = 1 << power

    def draw(place: Place) -> Drawn:
        comm, xp, x = place.comm, place.machine.xp, place.integers(-1000, 1001, n)
        mask = place.random.randint(0, 2, n) == 0

        def fault(result: Any, shown: list[int]) -> str:
            kept, start = result if isinstance(result, tuple) else (result, 0)
            kept, want = xp.asarray(kept), x[mask]
            if (kept.shape, start) != (want.shape, sum(shown[: comm.rank])):
                return f"{kept.size} elements from {start} on, not {want.size}"
            return first_difference(kept, want)

        return Drawn(
            (x, mask), (), lambda x, mask: distscan.compact(x, mask, comm=comm), fault,
            lambda result: int(mask.sum()),
        )  # fmt: skip

    return Use("compact", f"compact, half kept, 2^{power}", n, 7 * n, draw, waits=True)


def _logcumsumexp(power: int) -> Use:
    n = 1 << power

    def draw(place: Place) -> Drawn:
        comm, xp = place.comm, place.machine.xp
        x = place.random.uniform(-10, 10, n).astype(np.float32)

        def fault(result: Any, shown: list[float]) -> str:
            want = xp.log(xp.cumsum(xp.exp(x.astype(np.float64))) + sum(shown[: comm.rank]))
            error = abs(result - want)
            if bool((error <= _CLOSE).all()):
                return ""
            i = int((~(error <= _CLOSE)).argmax())
            return f"element {i} is {result[i].item()}, not {want[i].item()}"

        return Drawn(
            (x,), (x,), lambda x, out: distscan.logcumsumexp(x, out=out, comm=comm), fault,
            lambda result: float(xp.exp(x.astype(np.float64)).sum()),
        )  # fmt: skip

    return Use("logcumsumexp", f"logcumsumexp, 2^{power}", n, 8 * n, draw)


def _partition(power: int) -> Use:
    """Cut at shares of the weight. Peers cut behind an element, distscan in its middle.

    So cuts are compared to one element.
    """
    n = 1 << power

    def draw(place: Place) -> Drawn:
        comm, xp, weights = place.comm, place.machine.xp, place.integers(0, 10, n)

        def fault(result: Any, shown: list[tuple[float, list[int]]]) -> str:
            totals = [total for total, _ in shown]
            targets = sum(totals) * np.arange(1, PARTS) / PARTS - sum(totals[: comm.rank])
            ends = xp.cumsum(weights, dtype=np.float64)
            want = on_host(xp.searchsorted(ends - weights / 2, xp.asarray(targets)))
            cuts = np.clip(result - comm.rank * n, 0, n)
            if any(others != shown[0][1] for _, others in shown):
                return "the ranks have not the same cuts"
            return "" if (abs(cuts - want) <= 1).all() else f"cuts {cuts}, not {want}"

        return Drawn(
            (weights,), (), lambda x: distscan.partition(x, PARTS, comm=comm)[1:-1], fault,
            lambda result: (float(weights.sum(dtype=np.float64)), result.tolist()),
        )  # fmt: skip

    title = f"partition into {PARTS}, 2^{power}"
    return Use("partition", title, n, 4 * n, draw, waits=True)


def _offsets(power: int) -> Use:
    n = 1 << power

    def draw(place: Place) -> Drawn:
        comm = place.comm
        want = [rank * n + rank * (rank - 1) // 2 for rank in (comm.rank, comm.size)]

        def fault(result: Any, shown: list[Any]) -> str:
            return "" if list(result) == want else f"{result}, not {want}"

        count = np.int64(n + comm.rank)
        return Drawn((count,), (), lambda count: distscan.offsets(count, comm=comm), fault)

    return Use("offsets", "offsets", n, 0, draw, waits=True, loops=100)
