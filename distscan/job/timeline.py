"""The seconds and the bytes of each phase of a rank. Phases overlap, and run in several threads."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

#: The phases of a job, in the order of a report. "start" is all that comes before the first chunk
#: is read: Python, MPI, the GPU, kernels. "write" includes the wait for the disk.
PHASES = (
    *("start", "read", "copy_in", "reduce", "exscan", "scan", "copy_out", "write", "check"),
    "all",
)


class Span(NamedTuple):
    """The work of one thread on one chunk."""

    phase: str
    thread: str
    begin: float  # seconds since 1970
    end: float
    bytes: int


class Timeline:
    """When at least one thread of this rank was busy with a phase, and the bytes that it moved.

    ``spans`` are kept only with ``trace``, because a long job has millions.
    """

    def __init__(self, *, trace: bool = False, of_process: bool = False) -> None:
        """Begin now, or, ``of_process``, when this process began."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.bytes = dict.fromkeys(PHASES, 0)
        self.spans: list[Span] | None = [] if trace else None
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
        if self.spans is not None:
            thread, epoch = threading.current_thread().name, self._epoch
            self.spans.append(Span(phase, thread, epoch + begin, epoch + end, nbytes))

    def from_the_beginning(self, phase: str) -> None:
        """Set a phase to the time since this timeline began."""
        begin, self.seconds[phase] = self._begun, time.perf_counter() - self._begun
        if self.spans is not None:
            now = begin + self.seconds[phase]
            self.spans.append(Span(phase, "start", self._epoch + begin, self._epoch + now, 0))


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
