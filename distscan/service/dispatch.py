"""Rank 0's part of a service: one job at a time on all ranks, first in, first out."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic, time
from typing import Any, NamedTuple

from ..job.report import Report, plain
from ..mpi import faults
from ..mpi.communicators import Comm
from . import again, errors, work
from .arrays import Scanner, Task
from .errors import (
    BusyError,
    CancelledJobError,
    JobEndedError,
    NotFoundError,
    ServiceError,
    StoreError,
)
from .lines import Lines
from .store import Record, Store

_DAY = 86400.0  # seconds
_ATTEMPTS = 3  # a job that was running at so many crashes is not begun again
_log = logging.getLogger("distscan.service")


class Progress(NamedTuple):
    """How far a running job is: its phase, the bytes that are done, and all bytes."""

    phase: str = "start"
    done: int = 0
    size: int = 0


class Dispatcher:
    """The jobs of a service; all methods but ``run`` may be called by any thread."""

    def __init__(
        self,
        comm: Comm,
        lines: Lines,
        store: Store,
        scanner: Scanner,
        *,
        most: int,
        keep: float = float("inf"),
        backend: str = "auto",
    ) -> None:
        """``most`` jobs may wait; they run on ``backend``, unless they name one.

        Jobs that ended ``keep`` seconds ago are forgotten.
        """
        self._comm, self._lines, self._store, self._most = comm, lines, store, most
        self._scanner = scanner
        self._arrays: deque[tuple[Task, Future[None]]] = deque()
        self._changed = threading.Condition()
        self._running: int | None = None  # the number of a file job
        self._progress = Progress()
        self._cancelled = self._stopping = self._ended_early = False
        self._backend, self._end = backend, float("inf")
        self._keep, self._tidied = keep, float("-inf")
        self._disk = ""  # what the log has said of it last
        #: Called when a job is queued, has begun, goes on, or has ended; by any thread.
        self.listeners: list[Callable[[], None]] = []
        for record in store.interrupted():
            self._interrupted(record)

    # ---- what clients ask for --------------------------------------------------------------------

    def submit(self, job: dict[str, Any], key: str | None) -> Record:
        """Queue a file job, and return it. It is on the disk."""
        self._check_open(self._store.queued())
        record = self._store.add(job, key)
        self._wake()
        return record

    def scan(self, task: Task) -> "Future[None] | None":
        """Queue an array for all ranks; it comes before file jobs that wait.

        None if a file job runs: the array would wait for its end.
        """
        with self._changed:
            self._check_open(len(self._arrays))
            if self._running is not None:
                return None
            done: Future[None] = Future()
            self._arrays.append((task, done))
            self._changed.notify_all()
        return done

    def get(self, number: int) -> tuple[Record, Progress | None]:
        """Return a job, and its progress while it runs."""
        record = self._store.get(number)
        if record is None:
            raise NotFoundError(f"there is no job {number}")
        return record, self._progress if number == self._running else None

    @property
    def store(self) -> Store:
        """All jobs, for those who read them."""
        return self._store

    @property
    def running(self) -> tuple[int, Progress] | None:
        """The number of the file job that runs, and its progress; None if none does."""
        with self._changed:
            return None if self._running is None else (self._running, self._progress)

    def newest(self, most: int, before: int | None) -> list[Record]:
        """Return jobs, the newest first."""
        return self._store.newest(most, before)

    def cancel(self, number: int) -> Record:
        """Cancel a job: one that waits at once, one that runs at its next chunk.

        Raises ``JobEndedError`` if it had ended.
        """
        with self._changed:  # a job begins and ends under this lock, too
            waited = self._store.cancel(number)
            record = self.get(number)[0]
            if self._running == number:
                self._cancelled = True
            elif record.state == "running":  # the next service goes on with it
                raise BusyError("the service ends; cancel the job again when it is back")
            elif not waited:
                raise JobEndedError(f"job {number} had ended: {record.state}")
        self._wake()
        return record

    def stop(self, grace: float) -> None:
        """Refuse new jobs, and end after the one that runs, or after so many seconds.

        Jobs that wait stay in the store.
        """
        self._stopping, self._end = True, min(self._end, monotonic() + grace)
        self._wake()

    @property
    def stopping(self) -> bool:
        """Whether new jobs are refused, since the service ends."""
        return self._stopping

    def _check_open(self, waiting: int) -> None:
        if self._stopping:
            raise BusyError("the service ends; submit the job again when it is back")
        if waiting >= self._most:
            raise BusyError(f"{waiting} jobs wait already; try again later")

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        for each in self.listeners:
            each()

    # ---- the main thread -------------------------------------------------------------------------

    def run(self) -> None:
        """Run jobs until the service stops."""
        while True:
            with self._changed:
                record = None
                while not self._stopping and not self._arrays:
                    try:
                        self._forget_old()
                        if record := self._store.start():
                            self._running, self._progress = record.number, Progress()
                            self._cancelled, self._disk = False, ""
                            break
                        self._changed.wait()
                    except StoreError as error:
                        self._wait_for_the_disk(error)
                array = None
                if record is None:
                    if self._stopping:
                        break
                    array = self._arrays.popleft()
            if record is not None:
                self._run(record)
            elif array is not None and array[1].set_running_or_notify_cancel():
                self._scan(*array)
        for _, done in self._arrays:
            done.set_exception(BusyError("the service ends; send the array again when it is back"))

    def _forget_old(self) -> None:
        """Remove jobs that ended long ago, once a day."""
        if monotonic() - self._tidied > _DAY:
            self._store.forget(time() - self._keep)
            self._tidied = monotonic()

    def _scan(self, task: Task, done: "Future[None]") -> None:
        try:
            work.lead_array(self._lines, self._scanner, task)
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)
            self._check_agreed(error)

    def _lead(self, job: dict[str, Any]) -> Report:
        given = job if job["backend"] != "auto" else job | {"backend": self._backend}
        return work.lead(self._comm, self._lines, given, self._show)

    def _run(self, record: Record) -> None:
        self._tell()
        ended: tuple[str, dict[str, Any]]
        try:
            ended = "done", {"report": plain(self._attempt(record))}
        except Exception as error:
            self._check_agreed(error)
            failed = "failed", {"error": errors.to_json(error)}
            if errors.status(error) == 500 and not self._cancelled and not self._ended_early:
                _log.error("job %s met a fault", record.number, exc_info=error,
                           extra={"job": record.number, "op": record.request["op"]})  # fmt: skip
            ended = ("cancelled", {}) if self._cancelled else failed
            if not self._ended_early:
                again.discard(record.request)
        with self._changed:
            while True:
                try:
                    self._note(record, *ended)
                    break
                except StoreError as error:
                    self._wait_for_the_disk(error)
                    if self._stopping:  # the next service finds it running
                        break
            self._running = None
        self._tell()

    def _attempt(self, record: Record) -> Report:
        """Run a job; go on where an earlier service has left it."""
        job = again.resumable(record.request)
        try:
            return self._lead(job)
        except Exception as error:
            self._check_agreed(error)
            if record.attempts == 1 or self._cancelled or self._ended_early:
                raise
        again.discard(record.request)  # that service may have had other ranks
        return self._lead(job)

    def _note(self, record: Record, state: str, facts: dict[str, Any]) -> None:
        """Note the end of a job."""
        if self._ended_early and state == "failed":
            self._interrupted(record)
        else:
            self._store.end(record.number, state, **facts)

    def _interrupted(self, record: Record) -> None:
        """Queue a job that a service could not end, if it can be run again; else it has failed."""
        crashed = not self._ended_early
        if again.may_run(record.request) and not (crashed and record.attempts >= _ATTEMPTS):
            _log.warning("job %s was interrupted; it is queued again", record.number,
                         extra={"job": record.number})  # fmt: skip
            self._store.queue_again(record.number, counts=crashed)
            return
        lost = ServiceError(
            "the service ended while the job ran; the output is whole if it is there: submit it "
            "again, if not"
        )
        self._store.end(record.number, "failed", error=errors.to_json(lost))

    def _wait_for_the_disk(self, error: StoreError) -> None:
        if str(error) != self._disk:
            self._disk = str(error)
            _log.error("%s; trying again", error)
        self._changed.wait(1)

    def _show(self, phase: str, done: int, size: int) -> None:
        self._progress = Progress(phase, done, size)
        self._tell()
        if self._cancelled:
            raise CancelledJobError("the job was cancelled")
        if monotonic() > self._end:
            self._ended_early = True
            raise ServiceError("the service ended before the job did")

    def _check_agreed(self, error: Exception) -> None:
        """Raise a fault that only this rank has: the others wait for it, and must not."""
        if self._comm.size > 1 and not faults.is_agreed(error):
            raise error
