"""The jobs of a service, one at a time on all ranks: the queue of rank 0, and the other ranks.

::

    rank 0   Dispatcher: its queue  --+--> rank 1   follow
                                      +--> rank 2   follow
                                      +--> rank 3   follow

Rank 0 sends tasks as JSON over sockets; the ranks run them by MPI.
"""

import hmac
import json
import logging
import os
import platform
import secrets
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any, BinaryIO

from ..core import dtypes
from ..core.errors import RankError
from ..job import output
from ..job.formats.interface import Location
from ..job.job import FileJob, perform
from ..job.progress import Progress
from ..job.report import Report, Timeline, plain
from ..mpi import agree, communicators
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import errors
from .activity import Activity, RankTimes, most_intervals
from .arrays import Place, Scanner, Task
from .errors import (
    BusyError,
    CancelledJobError,
    JobEndedError,
    NotFoundError,
    ServiceError,
    StoreError,
)
from .store import Record, Store

_DAY = 86400.0  # seconds
_ATTEMPTS = 3  # crashes during a job after which it is not begun again
_log = logging.getLogger("distscan.service")


class Dispatcher:
    """The jobs of a service; all methods but ``run`` may be called by any thread."""

    def __init__(
        self,
        comm: Comm,
        wakeup: "Wakeup",
        store: Store,
        scanner: Scanner,
        *,
        limit: int,
        keep: float = float("inf"),
        backend: str = "auto",
    ) -> None:
        """``limit`` jobs may wait; they run on ``backend``, unless they name one.

        Jobs that ended ``keep`` seconds ago are forgotten.
        """
        self._comm, self._wakeup, self._scanner, self._limit = comm, wakeup, scanner, limit
        self.store = store  # all jobs, for their readers
        self._arrays: deque[tuple[Task, Future[None]]] = deque()
        self._changed = threading.Condition()
        self._current: int | None = None  # the number of a file job
        self._progress = Progress()
        self._cancelled = self._grace_over = False
        self.stopping = False  # new jobs are refused, since the service ends
        self._backend, self._deadline = backend, float("inf")
        self.activity = Activity()
        self._keep, self._last_cleanup = keep, float("-inf")
        self._disk_error = ""  # the error of the disk that was logged last
        #: Called when a job is queued, has begun, goes on, or has ended; by any thread.
        self.listeners: list[Callable[[], None]] = []
        for record in store.running_jobs():
            self._requeue(record)

    # ---- requests of clients ---------------------------------------------------------------------

    def submit(self, job: dict[str, Any], key: str | None) -> Record:
        """Store a file job on the disk, queue it, and return it."""
        self._check_open(self.store.count_queued())
        record = self.store.add(job, key)
        self._wake()
        return record

    def scan(self, task: Task) -> "Future[None] | None":
        """Queue an array for all ranks; it comes before file jobs that wait.

        None if a file job runs: the array would wait for its end.
        """
        with self._changed:
            self._check_open(len(self._arrays))
            if self._current is not None:
                return None
            future: Future[None] = Future()
            self._arrays.append((task, future))
            self._changed.notify_all()
        return future

    def get(self, number: int) -> tuple[Record, Progress | None]:
        """Return a job, and its progress while it runs."""
        record = self.store.get(number)
        if record is None:
            raise NotFoundError(f"there is no job {number}")
        return record, self._progress if number == self._current else None

    @property
    def current_job(self) -> tuple[int, Progress] | None:
        """The number of the file job that runs, and its progress; None if none does."""
        with self._changed:
            return None if self._current is None else (self._current, self._progress)

    def cancel(self, number: int) -> Record:
        """Cancel a job: one that waits at once, one that runs at its next chunk.

        Raises ``JobEndedError`` if it had ended.
        """
        with self._changed:  # a job begins and ends under this lock, too
            was_queued = self.store.cancel(number)
            record = self.get(number)[0]
            if self._current == number:
                self._cancelled = True
            elif record.state == "running":  # the next service goes on with it
                raise BusyError("the service ends; cancel the job again when it is back")
            elif not was_queued:
                raise JobEndedError(f"job {number} had ended: {record.state}")
        self._wake()
        return record

    def stop(self, grace: float) -> None:
        """Refuse new jobs, and end after the one that runs, or after ``grace`` seconds.

        Jobs that wait stay in the store.
        """
        self.stopping, self._deadline = True, min(self._deadline, monotonic() + grace)
        self._wake()

    def _check_open(self, waiting: int) -> None:
        if self.stopping:
            raise BusyError("the service ends; submit the job again when it is back")
        if waiting >= self._limit:
            raise BusyError(f"{waiting} jobs wait already; try again later")

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    # ---- the main thread -------------------------------------------------------------------------

    def run(self) -> None:
        """Run jobs until the service stops."""
        while True:
            with self._changed:
                record = None
                while not self.stopping and not self._arrays:
                    try:
                        self._forget_old()
                        if record := self.store.start():
                            self._current, self._progress = record.number, Progress()
                            self._cancelled, self._disk_error = False, ""
                            break
                        self._changed.wait()
                    except StoreError as error:
                        self._wait_for_the_disk(error)
                array = None
                if record is None:
                    if self.stopping:
                        break
                    array = self._arrays.popleft()
            if record is not None:
                self._run(record)
            elif array is not None and array[1].set_running_or_notify_cancel():
                self._scan(*array)
        fault = BusyError("the service ends; send the array again when it is back")
        for _, future in self._arrays:
            future.set_exception(fault)

    def _forget_old(self) -> None:
        """Remove jobs that ended long ago, once a day."""
        if monotonic() - self._last_cleanup > _DAY:
            self.store.forget(time() - self._keep)
            self._last_cleanup = monotonic()

    def _scan(self, task: Task, future: "Future[None]") -> None:
        try:
            self._wakeup.send({"kind": "array", "task": task})
            self._scanner.scan_by_all(task)
            future.set_result(None)
        except Exception as error:
            future.set_exception(error)
            self._check_agreed(error)

    def _lead(self, number: int, job: dict[str, Any]) -> Report:
        """Run a job on all ranks, and return its report."""
        request = job if job["backend"] != "auto" else job | {"backend": self._backend}
        clock, note = _clock(request), partial(self.activity.add_job, number)
        self._wakeup.send({"kind": "job", "job": request})
        with self.activity.running(number, clock):
            return _perform(self._comm, request, self._show, clock, note)

    def _run(self, record: Record) -> None:
        self._tell()
        end: tuple[str, dict[str, Any]]
        try:
            end = "done", {"report": plain(self._attempt(record))}
        except Exception as error:
            self._check_agreed(error)
            failure = "failed", {"error": errors.to_json(error)}
            if errors.status(error) == 500 and not self._cancelled and not self._grace_over:
                _log.error("job %s met a fault", record.number, exc_info=error,
                           extra={"job": record.number, "op": record.request["op"]})  # fmt: skip
            end = ("cancelled", {}) if self._cancelled else failure
            if not self._grace_over:
                discard(record.request)
        with self._changed:
            while True:
                try:
                    self._note(record, *end)
                    break
                except StoreError as error:
                    self._wait_for_the_disk(error)
                    if self.stopping:  # the next service finds it running
                        break
            self._current = None
        self._tell()

    def _attempt(self, record: Record) -> Report:
        """Run a job; go on where an earlier service has left it."""
        job = resumable(record.request)
        try:
            return self._lead(record.number, job)
        except Exception as error:
            self._check_agreed(error)
            if record.attempts == 1 or self._cancelled or self._grace_over:
                raise
        discard(record.request)  # that service may have had other ranks
        return self._lead(record.number, job)

    def _note(self, record: Record, state: str, facts: dict[str, Any]) -> None:
        """Note the end of a job."""
        if self._grace_over and state == "failed":
            self._requeue(record)
        else:
            self.store.end(record.number, state, **facts)

    def _requeue(self, record: Record) -> None:
        """Queue a job that a service could not end, if it can be run again; else it has failed."""
        crashed = not self._grace_over
        if may_run(record.request) and not (crashed and record.attempts >= _ATTEMPTS):
            _log.warning("job %s was interrupted; it is queued again", record.number,
                         extra={"job": record.number})  # fmt: skip
            self.store.queue_again(record.number, counts=crashed)
            return
        lost = ServiceError(
            "the service ended while the job ran; the output is whole if it is there: submit it "
            "again, if not"
        )
        self.store.end(record.number, "failed", error=errors.to_json(lost))

    def _wait_for_the_disk(self, error: StoreError) -> None:
        if str(error) != self._disk_error:
            self._disk_error = str(error)
            _log.error("%s; trying again", error)
        self._changed.wait(1)

    def _show(self, progress: Progress) -> None:
        before, self._progress = self._progress, progress
        if before.phase != progress.phase:
            # A small scan may end before its progress was shown.
            rest = max(0, before.size - before.done) if before.phase == "scan" else 0
            self.activity.count("jobs", rest + progress.done)
        else:
            self.activity.count("jobs", max(0, progress.done - before.done))
        self._tell()
        if self._cancelled:
            raise CancelledJobError("the job was cancelled")
        if monotonic() > self._deadline:
            self._grace_over = True
            raise ServiceError("the service ended before the job did")

    def _check_agreed(self, error: Exception) -> None:
        """Raise a fault of this rank alone: the other ranks would wait for it forever."""
        if self._comm.size > 1 and not agree.is_agreed(error):
            raise error


# ---- recovery: jobs that were running when a service ended ---------------------------------------

_RESUMED = 1 << 28  # bytes of input: the chunks of a smaller job are not noted, it begins anew


def may_run(job: dict[str, Any]) -> bool:
    """Return whether a job that was interrupted makes the same file if it is run again.

    It does not if it changes its input, nor if the output exists and must not be replaced: the job
    may have ended, or another program may have written the file.
    """
    files = {_file(text) for text in (*job["inputs"], job["segments"]) if text is not None}
    changes_input = job["state"] is not None or _file(job["output"]) in files
    output_exists = not job["force"] and _file(job["output"]).exists()
    return not changes_input and not output_exists


def resumable(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job; a large one keeps a journal, so that it can go on after its last chunk."""
    size = 0
    with suppress(OSError):  # the job will raise it
        size = sum(_file(text).stat().st_size for text in job["inputs"])
    return job | {"resume": True} if size >= _RESUMED and job["state"] is None else job


def discard(job: dict[str, Any]) -> None:
    """Remove the journal that ``resumable`` asked for, unless the client asked for it, too."""
    if not job["resume"]:
        output.discard(_file(job["output"]))


def _file(text: str) -> Path:
    """Return the file of a location."""
    return Location.parse(text).file("a path of a service")


# ---- tasks of all ranks; collective --------------------------------------------------------------

#     {"kind": "job", "job": {"inputs": ["/data/x.npy"], "output": "/data/y.npy", "op": "sum", ...}}
#     {"kind": "array", "task": [["/dev/shm/...", 0, "<f4", [1000]], [...], null, {"op": "sum"}]}
#     {"kind": "end"}

_PATHS = ("output", "segments", "state", "trace")
_ARRAYS = ("output", "segments")


def job_to_json(job: FileJob) -> dict[str, Any]:
    """Return the options of a job in a form that JSON has."""
    request = job.scan.to_json() | job.run.to_json()
    request["inputs"] = [str(path) for path in job.inputs]
    for name in _PATHS:
        path = getattr(job, name)
        request[name] = None if path is None else str(path)
    return request


def job_from_json(request: dict[str, Any]) -> FileJob:
    """Return the job that ``job_to_json`` has described."""
    options = request | {"inputs": tuple(map(Location.parse, request["inputs"]))}
    for name in _PATHS:
        kind = Location.parse if name in _ARRAYS else Path
        options[name] = None if options.get(name) is None else kind(options[name])
    for name in ("dtype", "raw"):
        if isinstance(options.get(name), list):  # a structure
            options[name] = dtypes.of_json(options[name])
    return FileJob.parse(**options)


def follow(comm: Comm, wakeup: "Wakeup", scanner: Scanner) -> None:
    """Take part in all jobs until the last task; the other ranks call this."""
    while (task := wakeup.receive()) is not None and task["kind"] != "end":
        try:
            if task["kind"] == "array":
                scanner.scan_by_all(_task_from_json(task["task"]))
            else:
                _perform(comm, task["job"], lambda *_: None, _clock(task["job"]), lambda _: None)
        except Exception as error:
            if not agree.is_agreed(error):  # a bug; rank 0 may wait for this rank
                raise


def _perform(
    comm: Comm,
    request: dict[str, Any],
    notify: Callable[[Progress], None],
    clock: Timeline,
    note: Callable[[list[RankTimes]], None],
) -> Report:
    """Run the job that ``job_to_json`` has described; collective.

    ``notify`` may raise an exception, which then ends the job on all ranks. Rank 0 calls ``note``
    with the times of all ranks, also after a fault.
    """
    with agreed(comm):
        job = job_from_json(request)
    fault = None
    try:
        report = perform(comm, job, notify, lambda message: None, clock=clock)
    except Exception as error:
        if comm.size > 1 and not agree.is_agreed(error):
            raise
        fault = error
    ranks = comm.gather(clock.intervals(most_intervals(comm.size)))
    if ranks is not None:
        note(ranks)
    if fault is not None:
        raise fault
    return report


def _clock(request: dict[str, Any]) -> Timeline:
    """Return the clock of a rank in a job."""
    return Timeline(trace=request["trace"] is not None)


def _task_from_json(fields: list[Any]) -> Task:
    """Return the task that ``Task`` has become in JSON."""
    x, out, segments, options = fields
    return Task(_place(x), _place(out), segments and _place(segments), options)


def _place(fields: list[Any]) -> Place:
    path, offset, dtype, shape = fields
    return Place(path, offset, dtype, tuple(shape))


def end_ranks(wakeup: "Wakeup") -> None:
    """Let the other ranks end; rank 0 calls this."""
    with suppress(RuntimeError):
        wakeup.send({"kind": "end"})
    wakeup.close()


# ---- wakeup: rank 0 wakes the others by sockets: a wait of MPI would spin on the cores -----------

_CONNECT_SECONDS = 60.0  # seconds until all ranks are connected
_GREETING = 100  # bytes of a rank's first line at most: the secret, and its number


class Wakeup:
    """The connections from rank 0 to the other ranks; the constructor is collective.

    A task is a line of JSON.
    """

    def __init__(self, comm: Comm) -> None:
        self._connections = list[Any]()  # rank 0 has sockets, another rank a file of its socket
        one_node = communicators.node(comm).nodes == 1
        with ExitStack() as stack:
            address: Any = None
            with agreed(comm):
                if comm.rank == 0:
                    server, address = _listen(one_node, stack)
            address, secret = comm.bcast((address, secrets.token_hex().encode()))
            with agreed(comm):
                if comm.rank == 0:
                    self._connections = _accept(server, comm.size - 1, secret)
                else:
                    self._connections = [_connect(address, comm.rank, secret)]

    def send(self, task: dict[str, Any]) -> None:
        """Send a task to all other ranks; rank 0 calls this.

        Raises ``RankError`` if one of them is gone.
        """
        line = f"{json.dumps(task)}\n".encode()
        for connection in self._connections:
            try:
                connection.sendall(line)
            except OSError as error:
                raise RankError(f"a rank has ended: {error.strerror}") from error

    def receive(self) -> dict[str, Any] | None:
        """Sleep until rank 0 has sent a task; None if rank 0 has ended. Other ranks call this."""
        (lines,) = self._connections
        with suppress(OSError):
            if (line := lines.readline()).endswith(b"\n"):
                return dict(json.loads(line))
        return None

    def close(self) -> None:
        """Close the connections: the other ranks receive None."""
        for connection in self._connections:
            connection.close()


def _listen(one_node: bool, stack: ExitStack) -> tuple[socket.socket, Any]:
    """Return a socket to which the other ranks connect, and its address."""
    if one_node:
        folder = stack.enter_context(tempfile.TemporaryDirectory())  # for this user alone
        server = socket.socket(socket.AF_UNIX)
        address: Any = os.path.join(folder, "ranks")
        server.bind(address)
        server.listen(1024)
    else:
        server = socket.create_server(("", 0), backlog=1024)
        address = platform.node(), server.getsockname()[1]
    stack.callback(server.close)
    return server, address


def _accept(server: socket.socket, number: int, secret: bytes) -> list[socket.socket]:
    """Return the connections to ``number`` ranks; one without the secret is refused."""
    connections, end = dict[int, socket.socket](), monotonic() + _CONNECT_SECONDS
    while len(connections) < number:
        server.settimeout(max(end - monotonic(), 0.001))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            missing = sorted({*range(1, number + 1)} - connections.keys())
            raise RankError(
                f"no connection from ranks {missing} in {_CONNECT_SECONDS:.0f} s"
            ) from None
        connection.settimeout(max(min(end - monotonic(), 1), 0.001))
        with suppress(OSError), connection.makefile("rb") as lines:
            word, _, rank = lines.readline(_GREETING).partition(b" ")
            if hmac.compare_digest(word, secret):
                connection.settimeout(None)
                connections[int(rank)] = connection
                continue
        connection.close()
    return [connections[rank] for rank in sorted(connections)]


def _connect(address: Any, rank: int, secret: bytes) -> BinaryIO:
    """Connect to rank 0, and return the file from which its tasks are read."""
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    else:
        connection = socket.create_connection(address, _CONNECT_SECONDS)
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with connection:  # the file keeps it open
        connection.sendall(b"%s %d\n" % (secret, rank))
        return connection.makefile("rb")
