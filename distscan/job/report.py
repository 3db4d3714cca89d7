"""The seconds and the bytes of each phase of a job: on each rank, in the report, and as a trace."""

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..core import display

#: The phases of a job, in the order of a report. "start" is all that comes before the first chunk
#: is read: Python, MPI, the GPU, kernels. "write" includes the wait for the disk. Rank 0 alone does
#: the "upload".
PHASES = (
    *("start", "read", "copy_in", "reduce", "exscan", "scan", "copy_out", "write", "upload"),
    *("check", "all"),
)


class Span(NamedTuple):
    """The work of one thread on one chunk."""

    phase: str
    thread: str
    begin: float  # seconds since 1970
    end: float
    bytes: int


Interval = tuple[float, float]  # begin and end, in seconds since 1970
_INTERVALS = 64  # of a phase at most, after the shortest gaps are closed


class Timeline:
    """When at least one thread of this rank was busy with a phase, and the bytes that it moved.

    ``spans`` are kept only with ``trace``, because a long job has millions. ``intervals`` are
    always kept: they are few.
    """

    def __init__(self, *, trace: bool = False, of_process: bool = False) -> None:
        """Begin now, or, ``of_process``, when this process began."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.bytes = dict.fromkeys(PHASES, 0)
        self.spans: list[Span] | None = [] if trace else None
        self._intervals = {phase: list[Interval]() for phase in PHASES}
        self._busy = dict.fromkeys(PHASES, 0)  # threads
        self._since = dict.fromkeys(PHASES, 0.0)
        self._lock = threading.Lock()
        self._epoch = time.time() - time.perf_counter()
        self._begun = time.perf_counter() - (_age() if of_process else 0.0)
        self._ranges = _nvtx() if trace or "NSYS_PROFILING_SESSION_ID" in os.environ else None

    @contextmanager
    def __call__(self, phase: str, nbytes: int = 0) -> Iterator[None]:
        """Count the ``with`` block, which moves so many bytes, as work of a phase."""
        if self._ranges is not None:
            self._ranges.push_range(phase, domain="distscan")
        begin = time.perf_counter()
        with self._lock:
            if self._busy[phase] == 0:
                self._since[phase] = begin
            self._busy[phase] += 1
        try:
            yield
        finally:
            self._end(phase, begin, nbytes)
            if self._ranges is not None:
                self._ranges.pop_range(domain="distscan")

    def _end(self, phase: str, begin: float, nbytes: int) -> None:
        end = time.perf_counter()
        with self._lock:
            self._busy[phase] -= 1
            self.bytes[phase] += nbytes
            if self._busy[phase] == 0:
                self.seconds[phase] += end - self._since[phase]
                self._note(phase, self._since[phase], end)
        if self.spans is not None:
            thread, epoch = threading.current_thread().name, self._epoch
            self.spans.append(Span(phase, thread, epoch + begin, epoch + end, nbytes))

    def from_the_beginning(self, phase: str) -> None:
        """Set a phase to the time since this timeline began."""
        begin, self.seconds[phase] = self._begun, time.perf_counter() - self._begun
        with self._lock:
            self._intervals[phase].clear()
            self._note(phase, begin, begin + self.seconds[phase])
        if self.spans is not None:
            now = begin + self.seconds[phase]
            self.spans.append(Span(phase, "start", self._epoch + begin, self._epoch + now, 0))

    def _note(self, phase: str, begin: float, end: float) -> None:
        """Note an interval of a phase; the caller holds the lock."""
        intervals = self._intervals[phase]
        intervals.append((self._epoch + begin, self._epoch + end))
        if len(intervals) >= 2 * _INTERVALS:
            intervals[:] = close_gaps(intervals, _INTERVALS)

    def intervals(self, most: int = _INTERVALS) -> dict[str, list[Interval]]:
        """Return when this rank was busy with each phase that ran: ``most`` intervals of each.

        The shortest gaps between intervals are closed. Phases overlap.
        """
        with self._lock:
            return {
                phase: close_gaps(intervals, most)
                for phase, intervals in self._intervals.items()
                if intervals and phase != "all"
            }


def close_gaps(intervals: Sequence[Interval], most: int) -> list[Interval]:
    """Return at most ``most`` intervals: those in order, the shortest gaps between them closed.

    >>> close_gaps([(0, 1), (1.5, 2), (5, 6)], 2)
    [(0, 2), (5, 6)]
    """
    if len(intervals) <= most:
        return list(intervals)
    gaps = sorted(later[0] - earlier[1] for earlier, later in pairwise(intervals))
    longest = gaps[len(intervals) - most - 1]  # that is closed
    result = [intervals[0]]
    for begin, end in intervals[1:]:
        if begin - result[-1][1] <= longest:
            result[-1] = result[-1][0], end
        else:
            result.append((begin, end))
    return result


def _age() -> float:
    """Return the seconds since this process began, as Linux counts them; else 0."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _nvtx() -> Any:
    """Return the module ``nvtx``, whose ranges Nsight shows; None if it is not installed."""
    try:
        import nvtx  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError:
        return None
    return nvtx


# ---- the report of all ranks ----------------------------------------------------------------


class Report(NamedTuple):
    """The result of a job.

    ``seconds`` are the slowest rank's, 0 for a phase that did not run. Phases overlap. ``bytes``
    are those of all ranks. ``bounds`` names what a phase is bound by.
    """

    elements: int
    dtype_in: str
    dtype_out: str
    op: str
    ranks: int
    nodes: int
    backend: str
    device: str
    strategy: str
    total: Any
    output: str
    seconds: dict[str, float]
    bytes: dict[str, int]
    bounds: dict[str, str]

    def __repr__(self) -> str:
        return f"<Report: {_summary(self)}, {self.seconds['all']:.4f} s, {self.output}>"

    def _repr_html_(self) -> str:
        """Return the report as two tables, for notebooks: the job, and its phases."""
        facts = [
            ("ranks", f"{self.ranks} on {_count(self.nodes, 'node')}"),
            ("strategy", self.strategy),
            ("backend", f"{self.backend} ({self.device})"),
            ("total", self.total),
            ("output", self.output),
        ]
        return display.table(_summary(self), facts) + display.table("phases", _phases(self))


def report(
    measured: Sequence[tuple[dict[str, float], dict[str, int]]],
    *,
    places: tuple[str, str, str],
    **facts: Any,
) -> Report:
    """Return the report of a job, from the seconds and the bytes of each rank.

    ``places`` says where the input and the output are, such as "disk, ext4", and where the output
    is uploaded to, "" without an upload.
    """
    device = "GPU memory" if facts["backend"] == "cuda" else "memory"
    bounds = {
        "read": places[0],
        "copy_in": "bus",
        "reduce": device,
        "exscan": "network" if facts["nodes"] > 1 else "the slowest rank",
        "scan": device,
        "copy_out": "bus",
        "write": places[1],
        "upload": places[2],
    }
    seconds = {phase: max(each[phase] for each, _ in measured) for phase in PHASES}
    moved = {phase: sum(each[phase] for _, each in measured) for phase in PHASES}
    moved["all"] = measured[0][1]["all"]
    return Report(**facts, seconds=seconds, bytes=moved, bounds=bounds)


def plain(report: Report) -> dict[str, Any]:
    """Return a report in a form that JSON has."""
    return report._asdict() | {"total": _plain(report.total)}


def _plain(value: Any) -> Any:
    """Return a number in a form that JSON has: complex as a pair, NaN and infinities as text."""
    if isinstance(value, tuple | list | np.ndarray):  # a structure, or a field of several values
        return [_plain(each) for each in value]
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, np.generic):  # long double: Python has no such number
        return _plain(complex(value) if value.dtype.kind == "c" else float(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def text(report: Report, *, checked: bool) -> str:
    """Return the report as text, several lines."""
    lines = [
        _summary(report),
        f"{_count(report.ranks, 'rank')} on {_count(report.nodes, 'node')}, strategy "
        f"{report.strategy}, backend {report.backend} ({report.device})",
    ]
    for name, seconds, moved, rate, remark in _phases(report):
        line = f"  {name:8}{seconds:>11}{moved:>12}{rate:>13}"
        lines.append(f"{line}  {remark}".rstrip())
    if report.total is not None:  # rows have several totals; an empty input may have none
        lines.append(f"total {report.total}")
    lines.append(f"{report.output}{' (checked)' if checked else ''}")
    return "\n".join(lines)


def _summary(report: Report) -> str:
    types = f"{report.dtype_in} to {report.dtype_out}"
    return f"{report.op} of {_count(report.elements, 'element')}, {types}"


def _phases(report: Report) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield each phase that ran: its name, seconds, bytes, rate, and what bounds it."""
    for phase in PHASES:
        seconds, moved = report.seconds[phase], report.bytes[phase]
        if seconds == 0 and phase != "all":
            continue
        size = rate = remark = ""
        if phase == "start":
            remark = f"{seconds / report.seconds['all']:.0%} of all"
        else:
            if seconds and moved:
                size, rate = f"{moved / 1e9:.2f} GB", f"{moved / seconds / 1e9:.2f} GB/s"
            remark = f"({report.bounds[phase]})" if phase in report.bounds else ""
        yield phase.replace("_", " "), f"{seconds:.4f} s", size, rate, remark


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


# ---- --trace: the work of all ranks on every chunk ------------------------------------------


def trace(everyone: Sequence[Sequence[Span]]) -> str:
    """Return the spans of all ranks as a file for Perfetto or chrome://tracing.

    A rank is shown as a process, its threads as threads. The format is Google's "Trace Event
    Format" (2016): complete events, with times in microseconds.
    """
    import json  # noqa: PLC0415 - few jobs are traced

    events = ",\n".join(map(json.dumps, _events(everyone)))
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{events}\n]}}\n'


def _events(everyone: Sequence[Sequence[Span]]) -> Iterator[dict[str, Any]]:
    first = min((span.begin for spans in everyone for span in spans), default=0.0)
    for rank, spans in enumerate(everyone):
        yield _name("process_name", rank, 0, f"rank {rank}")
        threads = {name: i for i, name in enumerate(sorted({span.thread for span in spans}))}
        for name, i in threads.items():
            yield _name("thread_name", rank, i, name)
        for span in spans:
            yield {
                "name": span.phase,
                "ph": "X",
                "pid": rank,
                "tid": threads[span.thread],
                "ts": round((span.begin - first) * 1e6, 1),
                "dur": round((span.end - span.begin) * 1e6, 1),
                "args": {"bytes": span.bytes},
            }


def _name(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
