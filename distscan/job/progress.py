"""The progress of a job: its phases, and the share of the whole that is done."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Progress(NamedTuple):
    """The progress of a running job."""

    phase: str = "start"
    done: int = 0  # bytes of the phase
    size: int = 0  # all bytes of the phase; 0 is not known
    share: float = 0.0  # of the whole job, from 0 to 1


class Course:
    """The phases of one job, and the share that is done; it never falls.

    >>> course = Course({"window": 100, "scan": 300, "check": 0}, print)
    >>> course.show("window", 50, 100)
    Progress(phase='window', done=50, size=100, share=0.125)
    >>> course.show("scan", 100, 100)
    Progress(phase='scan', done=100, size=100, share=1.0)
    """

    def __init__(
        self, phases: Mapping[str, int], notify: Callable[[Progress], None], rank: int = 0
    ) -> None:
        """``phases`` are in their order, each with the bytes that it moves. Rank 0 notifies.

        A phase may be left out, or end early. Its bytes are then counted for none: the phases after
        it share what is left.
        """
        self._rest, self._notify, self._rank = dict(phases), notify, rank
        self._phase, self._share = "", 0.0
        self._begin = self._length = 0.0  # of the phase, as shares of the job

    def show(self, phase: str, done: int, size: int) -> None:
        """Notify of ``done`` of ``size`` bytes of a phase."""
        if phase != self._phase:
            self._enter(phase)
        if size > 0:
            share = self._begin + self._length * min(done / size, 1.0)
            self._share = max(self._share, share)
        if self._rank == 0:
            self._notify(Progress(phase, done, size, self._share))

    def _enter(self, phase: str) -> None:
        self._phase, self._begin, self._length = phase, self._share, 0.0
        if phase not in self._rest:
            return
        while next(iter(self._rest)) != phase:
            del self._rest[next(iter(self._rest))]
        left, nbytes = sum(self._rest.values()), self._rest.pop(phase)
        if left > 0:
            self._length = (1 - self._begin) * nbytes / left
