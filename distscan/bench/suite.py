"""The run over all types and sizes: the check of each contender's result, then its times.

All functions with ``comm`` are collective: every rank takes the same decisions.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from ..core.errors import CheckError
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from .case import Case, Data, Task, need
from .contenders import Contender
from .machine import Host
from .timing import WARM_UPS, Call, Samples, Stats, of_all_ranks, sample

_ROOM = 0.9  # the share of the free memory that a case may take


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

    def plain(self) -> dict[str, Any]:
        """Return the row as values for JSON."""
        spread = {
            name: None if value is None else value._asdict()
            for name, value in (("device_us", self.device_us), ("wall_us", self.wall_us))
        }
        return asdict(self) | spread


def present(
    comm: Comm, contenders: Sequence[Contender]
) -> tuple[list[Contender], dict[str, str], dict[str, str]]:
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
    """Check every contender on one case, then time them. They take turns, sample by sample."""
    batch = machine.pairs(case.bytes) if machine.backend == "cuda" else 1
    rows = [Row(c.name, case.type, case.n, batch=batch) for c in contenders]
    wanted, room = need(machine, case), min(comm.allgather(machine.free()))
    if wanted > _ROOM * room:
        reason = f"takes {wanted / 2**30:.1f} GiB a rank, {room / 2**30:.1f} are free"
        return [_failed(row, "skipped", reason) for row in rows]
    with agreed(comm):
        data = Data(machine, case, comm.rank)
    data.exchange(comm)
    live: list[tuple[Row, list[Call], Samples]] = []
    for contender, row in zip(contenders, rows, strict=True):
        calls = _checked(comm, machine, contender, data, row)
        if calls:
            live.append((row, calls, Samples([], [])))
            row.moved = contender.moved and contender.moved(case) * case.n
    which = count()  # each sample has other buffers, so that no buffer is still in the cache
    for turn in range(-WARM_UPS, repeat):
        for entry in tuple(live):
            row, calls, samples = entry
            into = samples if turn >= 0 else Samples([], [])
            try:
                sample(comm, machine, calls, next(which), into)
            except Exception as error:
                _failed(row, "error", _line(error))
                live.remove(entry)
    for row, _, samples in live:
        row.device_us = of_all_ranks(comm, samples.device)
        row.wall_us = of_all_ranks(comm, samples.wall)
    compare(rows, case)
    return rows


def _checked(comm: Comm, machine: Host, contender: Contender, data: Data, row: Row) -> list[Call]:
    """Return the calls of a contender; none if it fails or its result is wrong: see ``row``."""
    try:
        if contender.rehearse is not None:
            with agreed(comm):
                contender.rehearse(Task(comm, machine, data.case, data.pairs))
        with agreed(comm):
            calls = contender.prepare(Task(comm, machine, data.case, data.pairs))
            data.poison()
        with agreed(comm):
            for call in calls:  # all of them, because a first call may do more
                call()
            machine.synchronize()
        with agreed(comm):
            fault = data.fault(scans=contender.scans)
            if fault:
                raise CheckError(fault)
        return calls
    except Exception as error:
        _failed(row, "wrong" if isinstance(error, CheckError) else "error", _line(error))
    with agreed(comm):
        data.draw()  # the contender may have changed its input
    return []


def compare(rows: Sequence[Row], case: Case) -> None:
    """Set the share of the copy's speed in every row, by the time that ``clock`` chooses."""
    which = clock(rows, case.ranks)
    times = {row.contender: getattr(row, which) for row in rows}
    copied = next((row.moved for row in rows if row.contender == "copy"), None)
    if times.get("copy") is None or not copied:
        return
    rate = copied / times["copy"].median
    for row in rows:
        time = times[row.contender]
        if time is not None:
            row.share = (copied if row.contender == "copy" else case.bytes) / time.median / rate


def clock(rows: Sequence[Row], ranks: int) -> str:
    """Return the time that counts: one rank's device time if there is one, else the wall clock."""
    return "device_us" if ranks == 1 and any(row.device_us for row in rows) else "wall_us"


def _failed(row: Row, status: str, message: str) -> Row:
    row.status, row.message = status, message
    return row


def _line(error: Exception) -> str:
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
            rows += [
                _failed(Row(c.name, case.type, case.n), "skipped", _line(error)) for c in contenders
            ]
        machine.release()
    return rows
