"""The run over all types and sizes: the check of each contender's result, then its times.

All functions with ``comm`` are collective: every rank takes the same decisions.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import CheckError
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from .case import Case, Data, need
from .contenders import Contender
from .timing import WARM_UPS, Call, Host, Samples, Stats, of_all_ranks, sample, slowest, stats

ROOM = 0.9  # the share of the free memory that a case may take


@dataclass
class Row:
    """One contender on one case; times in microseconds per call, of the slowest rank."""

    contender: str
    type: str
    n: int  # elements per rank
    status: str = "timed"  # or "wrong", "error", "skipped"
    message: str = ""
    batch: int = 1  # calls between two events
    device_us: Stats | None = None
    wall_us: Stats | None = None
    moved: int | None = None  # bytes per rank, if they are known
    share: float | None = None  # of the copy's speed, for the bytes that a perfect scan moves
    spread: float | None = None  # of the share: its quartiles apart, as a part of it
    times: float | None = None  # NumPy's speed; on several ranks, the speed of by-hand

    def plain(self) -> dict[str, Any]:
        """Return the row as values for JSON."""
        spread = {
            name: None if value is None else value._asdict()
            for name, value in (("device_us", self.device_us), ("wall_us", self.wall_us))
        }
        return asdict(self) | spread


@dataclass(eq=False)
class Timed:
    """One contender while it is timed. Two copies belong to each sample: one before, one after."""

    row: Row
    calls: list[Call]
    samples: Samples = field(default_factory=lambda: Samples([], []))
    copies: Samples = field(default_factory=lambda: Samples([], []))


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> Callable[[], str]: ...


_Peer = TypeVar("_Peer", bound=_Named)


def present(
    comm: Comm, contenders: Sequence[_Peer]
) -> tuple[list[_Peer], dict[str, str], dict[str, str]]:
    """Return the contenders that every rank can use, their versions, and the others' faults."""
    able, versions, missing = [], {}, {}
    for contender in contenders:
        version, fault = "", None
        try:
            version = contender.version()
        except ImportError as error:
            fault = " ".join(str(error).split()) or "not installed"
        faults = [found for found in comm.allgather(fault) if found]
        if faults:
            missing[contender.name] = faults[0]
        else:
            able.append(contender)
            versions[contender.name] = version
    return able, versions, missing


def measure(
    comm: Comm, machine: Host, contenders: Sequence[Contender], case: Case, repeat: int
) -> list[Row]:
    """Check every contender on one case, then time them. They take turns, sample by sample.

    Each sample stands between two copies. So a machine that is slow for seconds is slow in both.
    """
    contenders = [c for c in contenders if case.op.name in c.ops and c.takes(case)]
    batch = machine.pairs(case.bytes) if machine.backend == "cuda" else 1
    rows = [Row(c.name, case.type, case.n, batch=batch) for c in contenders]
    wanted, room = need(machine, case), min(comm.allgather(machine.free()))
    if wanted > ROOM * room:
        return [failed(row, "skipped", no_room(wanted, room)) for row in rows]
    with agreed(comm):
        data = Data(machine, case, comm.rank)
    data.exchange(comm)
    live: list[Timed] = []
    for contender, row in zip(contenders, rows, strict=True):
        calls = _checked(comm, machine, contender, data, row)
        if calls:
            live.append(Timed(row, calls))
            row.moved = contender.moved and contender.moved(case) * case.n
    data.calm()
    take_turns(comm, machine, live, repeat)
    summarize(comm, live)
    if any(timed.row.contender == "copy" for timed in live):
        compare(comm, live, case)
    return rows


def take_turns(comm: Comm, machine: Host, live: list[Timed], repeat: int) -> None:
    """Take ``repeat`` samples of each, in turns; one that fails is removed from ``live``."""
    which = count()  # each sample has other buffers, so that no buffer is still in the cache
    copy = next((timed for timed in live if timed.row.contender == "copy"), None)
    for turn in range(-WARM_UPS, repeat):
        before = Samples([], [])
        if copy is not None:
            sample(comm, machine, copy.calls, next(which), before)
        for timed in [timed for timed in live if timed is not copy]:
            own, after = Samples([], []), Samples([], [])
            try:
                sample(comm, machine, timed.calls, next(which), own)
            except Exception as error:
                failed(timed.row, "error", error)
                live.remove(timed)
                continue
            if copy is not None:
                sample(comm, machine, copy.calls, next(which), after)
            if turn >= 0:
                timed.samples.add(own)
                timed.copies.add(before, after)
            before = after
        if turn >= 0 and copy is not None:
            copy.samples.add(before)
            copy.copies.add(before, before)


def summarize(comm: Comm, live: Sequence[Timed]) -> None:
    """Set the times of all rows from their samples; collective."""
    for timed in live:
        timed.row.device_us = of_all_ranks(comm, timed.samples.device)
        timed.row.wall_us = of_all_ranks(comm, timed.samples.wall)


def _checked(comm: Comm, machine: Host, contender: Contender, data: Data, row: Row) -> list[Call]:
    """Return the calls of a contender; none if it fails or its result is wrong: see ``row``."""
    try:
        if contender.rehearse is not None:
            with agreed(comm):
                contender.rehearse(data.task(comm))
        with agreed(comm):
            calls = contender.prepare(data.task(comm))
            data.poison()
        with agreed(comm):
            for call, (_, out) in zip(calls, data.pairs, strict=False):
                result = call()  # of all of them, because a first call may do more
                if data.case.new and result is not None:
                    out[...] = result
            machine.synchronize()
        with agreed(comm):
            fault = data.fault(scans=contender.scans)
            if fault:
                raise CheckError(fault)
        return calls
    except Exception as error:
        failed(row, "wrong" if isinstance(error, CheckError) else "error", error)
    with agreed(comm):
        data.draw()  # the contender may have changed its input
    return []


def compare(comm: Comm, live: Sequence[Timed], case: Case) -> None:
    """Set the shares of the copy's speed, by the time that ``clock`` chooses; collective.

    A share is the median over the samples. The copy moves as many bytes as a perfect scan, and its
    time is the mean of the copies before and after the sample.
    """
    device = clock([timed.row for timed in live], case.ranks) == "device_us"
    shares = {
        timed.row.contender: set_share(comm, timed, device=device, device_copy=device)
        for timed in live
    }
    numpy = shares.get("numpy" if case.ranks == 1 else "by-hand")
    for timed in live:
        share = shares[timed.row.contender]
        timed.row.times = None if numpy is None else stats(share / numpy).median


def set_share(comm: Comm, timed: Timed, *, device: bool, device_copy: bool) -> NDArray[np.float64]:
    """Set a row's share of the copy's speed, and return that of each sample; collective.

    Both times are on the device's clock or on the wall's.
    """
    own = slowest(comm, timed.samples.device if device else timed.samples.wall)
    copies = slowest(comm, timed.copies.device if device_copy else timed.copies.wall)
    share: NDArray[np.float64] = copies.reshape(-1, 2).mean(axis=1) / own
    median, q1, q3, _ = stats(share)
    timed.row.share, timed.row.spread = median, (q3 - q1) / median
    return share


def clock(rows: Sequence[Row], ranks: int) -> str:
    """Return the time that counts: one rank's device time if there is one, else the wall clock."""
    return "device_us" if ranks == 1 and any(row.device_us for row in rows) else "wall_us"


def failed(row: Row, status: str, fault: Exception | str) -> Row:
    """Note in a row why it is not timed, and return it."""
    row.status, row.message = status, _line(fault)
    return row


def no_room(wanted: float, room: int) -> str:
    """Return why a case is skipped that takes ``wanted`` bytes."""
    return f"takes {wanted / 2**30:.1f} GiB a rank, {room / 2**30:.1f} are free"


def _line(error: Exception | str) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def run(
    comm: Comm,
    machine: Host,
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    *,
    repeat: int,
    progress: Callable[[str, int, int], None],
) -> list[Row]:
    """Measure every case. Unused memory is given back after each case."""
    rows = []
    for i, case in enumerate(cases):
        progress(f"{case.type} 2^{case.n.bit_length() - 1}", i, len(cases))
        try:
            rows += measure(comm, machine, contenders, case, repeat)
        except MemoryError as error:  # on all ranks: another program has taken the memory
            rows += [failed(Row(c.name, case.type, case.n), "skipped", error) for c in contenders]
        machine.release()
    return rows
