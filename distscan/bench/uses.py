"""``--uses``: what people use scans for, each use beside a copy and what they would take instead.

All functions with ``comm`` are collective: every rank takes the same decisions.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import binding
from ..core.errors import CheckError
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import suite
from .copies import copies
from .machine import Host
from .suite import Row, Timed, failed
from .timing import Call, Stats
from .use import Drawn, Place, Use
from .uses_peers import Peer

MOST = {"cuda": 28, "cpu": 20}  # the power of two that no use exceeds, by default
OURS = "distscan"
_POISON = 0xA5  # the value of every byte of a result that is not yet there
_SPARE = 8  # times the bytes of a use that its draw and its check may take
_TITLE = 43  # characters


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
        own = [peer for peer in peers if peer.kind == use.kind]
        made = [Row(name, use.title, use.n) for name in (OURS, *(peer.name for peer in own))]
        if use.bytes:
            made.insert(0, Row("copy", use.title, use.n, moved=use.bytes))
        rows += made
        try:
            _measure(place, use, own, made, repeat)
        except MemoryError as error:  # on all ranks: another program has taken the memory
            for row in made:
                failed(row, "skipped", error)
        machine.release()
    return rows


def _measure(
    place: Place, use: Use, peers: Sequence[Peer], rows: Sequence[Row], repeat: int
) -> None:
    """Fill the rows of one use. Its calls rotate among sets of arrays, as in ``case.py``."""
    comm, machine = place.comm, place.machine
    count = machine.pairs(use.bytes) if use.bytes else 1
    wanted = (2 * count + _SPARE) * use.bytes + 4 * machine.cache
    room = min(comm.allgather(machine.free()))
    if wanted > suite.ROOM * room:
        for row in rows:
            failed(row, "skipped", suite.no_room(wanted, room))
        return
    with agreed(comm):
        drawn = use.draw(place)
        sets = [_copied(drawn, machine.xp) for _ in range(count)]
    ways: dict[str, Callable[..., Call]] = {OURS: partial(partial, drawn.call)}
    ways |= {peer.name: partial(peer.prepare, place) for peer in peers}
    live = []
    for row in rows:
        row.batch = count if machine.backend == "cuda" else 1
        if row.contender == "copy":
            calls = _copies(machine, use.bytes // 2, count)
        else:
            calls = _checked(place, drawn, ways[row.contender], sets, row)
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
        own = by_device or timed.row.contender == "copy"
        suite.set_share(comm, timed, device=devices and own, device_copy=devices)


def _copied(drawn: Drawn, xp: Any) -> tuple[list[Any], list[Any]]:
    """Return copies of the inputs, and new arrays for the results."""
    return [x.copy() for x in drawn.given], [xp.empty_like(y) for y in drawn.out]


def _copies(machine: Host, size: int, count: int) -> list[Call]:
    pairs = [[machine.xp.ones(size, np.uint8) for _ in range(2)] for _ in range(count)]
    return copies(machine, [(x, out) for x, out in pairs], binding.threads(None))


def _repeated(call: Call, loops: int) -> None:
    for _ in range(loops):
        call()


def _checked(
    place: Place,
    drawn: Drawn,
    prepare: Callable[..., Call],
    sets: Sequence[tuple[list[Any], list[Any]]],
    row: Row,
) -> list[Call]:
    """Return a call for each set; none if one fails or its result is wrong: see ``row``."""
    comm = place.comm
    try:
        with agreed(comm):
            calls = [prepare(*given, *out) for given, out in sets]
            for out in sets[0][1]:
                out.view(np.uint8)[...] = _POISON
        with agreed(comm):
            result = calls[0]()
            place.machine.synchronize()
            shows = drawn.show(result)
        shown = comm.allgather(shows)
        with agreed(comm):
            fault = drawn.fault(result, shown)
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


# ---- the table -----------------------------------------------------------------------------


def lines(rows: Sequence[Row], clocks: dict[str, str]) -> list[str]:
    """Return the table: a line for each use, then what went wrong. ``clocks`` are those of uses."""
    made = [
        "",
        "copy: of the bytes that the use must read and write; share: the copy's time by distscan's",
        f"{'us of a call':{_TITLE}}{'copy':>8}{'best peer':>17}{'distscan':>10}{'share':>7}"
        f"{'clock':>8}  other peers",
    ]
    for title, which in clocks.items():
        own = {row.contender: row for row in rows if row.type == title}
        ours, copy = own.pop(OURS), own.pop("copy", None)
        times = {name: _us(row, which) for name, row in own.items() if row.status == "timed"}
        peers = [f"{name} {_text(us)}" for name, us in sorted(times.items(), key=lambda i: i[1])]
        share = "" if ours.share is None else f"{ours.share:.2f}"
        copied = _text(_us(copy, "device_us")) if copy and copy.status == "timed" else ""
        time = _text(_us(ours, which)) if ours.status == "timed" else ours.status
        made.append(
            f"{title:{_TITLE}}{copied:>8}{peers[0] if peers else '-':>17}{time:>10}{share:>7}"
            f"{which.removesuffix('_us'):>8}  {', '.join(peers[1:])}".rstrip()
        )
    return made + [f"{row.contender}, {row.type}: {row.status}: {row.message}"
                   for row in rows if row.status != "timed"]  # fmt: skip


def _us(row: Row, which: str) -> float:
    """Return the time of a row on a clock; on the wall's where there is no device's."""
    time: Stats | None = getattr(row, which) or row.wall_us
    return time.median if time else np.nan


def _text(us: float) -> str:
    return f"{us:.1f}" if us < 9999.95 else f"{us:.0f}"
