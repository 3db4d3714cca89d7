"""The recent work of a service: jobs on each rank, scans of arrays, samples of its load.

All of it is in the memory of rank 0. It is bounded, and gone when the service ends.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, time
from typing import Any, Literal, NamedTuple

from ..job.report import Interval, Timeline

_SCANS = 200  # the newest
_JOBS = 200  # the newest
_INTERVALS = 50_000  # of all jobs together
_INTERVALS_OF_JOB = 4096  # about the most of one job, over all ranks and phases
_SAMPLES = 1800  # one hour
_PERIOD = 2.0  # seconds between two samples
_PHASES = 8  # of a job, about
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")

#: When one rank was busy with each phase.
RankTimes = dict[str, list[Interval]]


class ArrayScan(NamedTuple):
    """A scan of an array that has ended. Elements and type are None if they were not known."""

    begin: float  # seconds since 1970
    seconds: float
    op: str
    way: Literal["body", "shared"]
    elements: int | None
    dtype: str | None
    error: str | None  # the type of its exception


class Sample(NamedTuple):
    """The load of a service at a time: bytes a second since the last sample, and bytes in use."""

    time: float
    jobs: float  # bytes of input that file jobs have passed, in each of their phases
    arrays: float  # bytes of arrays
    memory: int  # of the ranks on the host of rank 0, and of all buffers for arrays
    gpu: int | None  # of the GPU of rank 0, by any process; None without a GPU


class Activity:
    """The newest jobs, scans and samples. All methods may be called by any thread.

    Each entry has a number, which grows. A reader names the last number that it knows.
    """

    def __init__(self) -> None:
        self._lock, self._last = threading.Lock(), 0
        self._jobs = deque[tuple[int, dict[str, Any]]]()
        self._sizes = deque[int]()  # the intervals of each job
        self._scans = deque[tuple[int, ArrayScan]](maxlen=_SCANS)
        self._samples = deque[tuple[int, Sample]](maxlen=_SAMPLES)
        self._running: tuple[int, Timeline] | None = None
        self._bytes = {"jobs": 0, "arrays": 0}  # since the last sample
        self._sampled = monotonic()

    def after(self, last: int) -> dict[str, Any]:
        """Return the entries after a number in a form that JSON has, and the last number."""
        with self._lock:
            running = self._running
            answer = {
                "last": self._last,
                "jobs": [job for number, job in self._jobs if number > last],
                "scans": [scan._asdict() for number, scan in self._scans if number > last],
                "samples": [load._asdict() for number, load in self._samples if number > last],
            }
        rank_0 = None if running is None else _times(running[0], [running[1].intervals()])
        return answer | {"running": rank_0}

    # ---- what happens ----------------------------------------------------------------------------

    @contextmanager
    def running(self, number: int, clock: Timeline) -> Iterator[None]:
        """Show the times of rank 0 while a job runs."""
        self._running = number, clock
        try:
            yield
        finally:
            self._running = None

    def add_job(self, number: int, ranks: Sequence[RankTimes]) -> None:
        """Note the times of all ranks in a job that has ended."""
        with self._lock:
            self._jobs.append((self._next(), _times(number, ranks)))
            self._sizes.append(sum(len(times) for rank in ranks for times in rank.values()))
            while len(self._sizes) > 1 and (
                len(self._sizes) > _JOBS or sum(self._sizes) > _INTERVALS
            ):
                self._jobs.popleft()
                self._sizes.popleft()

    def add_scan(self, scan: ArrayScan) -> None:
        """Note a scan of an array that has ended."""
        with self._lock:
            self._scans.append((self._next(), scan))

    def count(self, kind: Literal["jobs", "arrays"], nbytes: int) -> None:
        """Count bytes of file jobs, or of arrays, for the next sample."""
        with self._lock:
            self._bytes[kind] += nbytes

    def sample(self, memory: int, gpu: int | None) -> None:
        """Note the load since the last sample."""
        with self._lock:
            now = monotonic()
            seconds, self._sampled = max(now - self._sampled, 1e-3), now
            jobs, arrays = (round(self._bytes[kind] / seconds) for kind in ("jobs", "arrays"))
            self._bytes = {"jobs": 0, "arrays": 0}
            self._samples.append((self._next(), Sample(time(), jobs, arrays, memory, gpu)))

    @contextmanager
    def sampling(self, memory: Callable[[], int], gpu: Callable[[], int | None]) -> Iterator[None]:
        """Note the load every two seconds, by a thread, during the ``with`` block."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(_PERIOD):
                with suppress(RuntimeError, OSError):  # CUDARuntimeError
                    self.sample(memory(), gpu())

        thread = threading.Thread(target=work, name="samples", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _next(self) -> int:
        self._last += 1
        return self._last


def most_intervals(ranks: int) -> int:
    """Return how many intervals of a phase each of so many ranks keeps.

    >>> most_intervals(2), most_intervals(1000)
    (64, 2)
    """
    return min(64, max(2, _INTERVALS_OF_JOB // (ranks * _PHASES)))


def _times(number: int, ranks: Sequence[RankTimes]) -> dict[str, Any]:
    """Return the times of a job in a form that JSON has, in seconds since its first phase began."""
    begin = min((times[0][0] for rank in ranks for times in rank.values()), default=time())

    def since(moment: float) -> float:
        return round(moment - begin, 4)

    return {
        "number": number,
        "begin": begin,
        "ranks": [
            {
                phase: [[since(low), since(high)] for low, high in times]
                for phase, times in rank.items()
            }
            for rank in ranks
        ],
    }


def private_memory(processes: Sequence[int]) -> int:
    """Return the bytes of memory that processes of this host share with no file or buffer.

    A process that cannot be read counts as 0.
    """
    pages = 0
    for process in processes:
        with suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
            pages += int(resident) - int(shared)
    return pages * _PAGE_SIZE
