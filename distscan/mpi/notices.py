"""Messages beside the collective calls: notices of faults, and the progress of all ranks.

A rank that fails alone in a plan's call sends notices to the earlier ranks. In a sweep of a file
job, ranks send their progress to rank 0, at most ten times a second. If a rank fails, rank 0 stops
the others, which would otherwise learn of the fault at the end of their work, hours later.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import NoReturn

from ..core.errors import RankError
from .agree import mark_collective
from .communicators import MPI, Comm, aside
from .signals import interruptible, uninterruptible

_TAGS = 1 << 14  # MPI promises tags up to 32767

# The requests of notices that were sent. MPI sends small ones at once; nobody need receive them.
_sent: "list[MPI.Request]" = []


class Notices:
    """The notices of one plan, which has the same ``number`` on every rank of ``comm``.

    They go from the rank at fault to the ranks before it in scan order. The ranks after it learn of
    the fault by the exchange of totals.
    """

    def __init__(self, comm: Comm, number: int, *, reverse: bool) -> None:
        """Create a communicator for notices; collective."""
        self._aside, self._reverse = aside(comm), reverse
        self._number, self._tag = number, number % _TAGS
        ranks = range(comm.size)
        lower, higher = ranks[: comm.rank], ranks[comm.rank + 1 :]
        self._earlier, self._later = (higher, lower) if reverse else (lower, higher)
        self._sent = self._received = 0
        self._texts: list[str] = []  # of notices that were received, and not raised yet

    def send(self, fault: BaseException) -> None:
        """Send a notice of this rank's fault to the ranks before it."""
        _sent[:] = [request for request in _sent if not request.Test()]
        self._sent += 1
        notice = self._number, self._aside.rank, f"{type(fault).__name__}: {fault}"
        _sent.extend(self._aside.isend(notice, other, self._tag) for other in self._earlier)

    def receive(self) -> bool:
        """Receive the notices that have arrived, without waiting; return whether there are any."""
        while self._later and self._aside.Iprobe(MPI.ANY_SOURCE, self._tag):
            number, source, text = self._aside.recv(tag=self._tag)
            if number == self._number:  # otherwise the notice is of a plan that no longer exists
                self._texts.append(f"rank {source}: {text}")
                self._received += 1
        return bool(self._texts)

    def raise_fault(self) -> NoReturn:
        """Raise RankError for the notices that have been received."""
        faults, self._texts = "; ".join(self._texts), []
        raise RankError(
            f"earlier calls of this plan failed on other ranks ({faults}): later ranks' results "
            "lack their shards; this rank's results are right, also in this call"
        )

    def close(self) -> None:
        """Raise RankError on every rank if a notice was not received or raised; collective."""
        self.receive()
        ranks = self._aside.allgather((self._sent, self._received, self._texts))
        sent = [count for count, _, _ in ranks]
        missed = any(
            received < sum(sent[:rank] if self._reverse else sent[rank + 1 :])
            for rank, (_, received, _) in enumerate(ranks)
        )
        faults = dict.fromkeys(text for _, _, texts in ranks for text in texts)
        if missed or faults:
            text = "; ".join(faults) or "its notice is still on its way"
            raise mark_collective(RankError(f"a rank failed alone in a call of this plan: {text}"))


# ---- the progress of all ranks, shown by rank 0 ----------------------------------------------

_PERIOD = 0.1  # seconds between two messages of a rank
_PROGRESS, _STOP = 1 << 14, (1 << 14) + 1  # tags; those below are of notices
_FAILED = -1  # in place of progress, as the last message of a rank; _FAILED - 1: it has not failed

_pause = interruptible(sleep)


@contextmanager
def watching(comm: Comm, show: Callable[[int], None]) -> Iterator["Watch"]:
    """Watch the work of the ``with`` block on all ranks; collective.

    ``show`` is called on rank 0, with the progress of all ranks together.
    """
    watch, fault = Watch(comm, show), None
    try:
        yield watch
    except BaseException as raised:
        fault = raised
        raise
    finally:
        watch.end(fault)


class Watch:
    """The progress of one sweep of all ranks."""

    def __init__(self, comm: Comm, show: Callable[[int], None]) -> None:
        self._comm, self._show = aside(comm) if comm.size > 1 else comm, show
        self._progress = [0] * comm.size  # on rank 0, of all ranks; on others, of this one
        self._open = set(range(1, comm.size))  # ranks from which rank 0 still expects messages
        self._next = monotonic()
        self._stopped = False

    @uninterruptible  # a signal must not raise between a message and the note that it was sent
    def __call__(self, progress: int) -> None:
        """Add to the progress of this rank; raise ``RankError`` if another rank has failed."""
        self._progress[self._comm.rank] += progress
        now = monotonic()
        if now < self._next:
            return
        self._next = now + _PERIOD
        if self._comm.rank > 0:
            self._send(0, _PROGRESS, self._progress[self._comm.rank])
            if self._comm.Iprobe(0, _STOP):
                self._receive_stop()
        else:
            self._receive()
        if self._stopped:
            raise RankError("another rank has failed")

    @uninterruptible
    def end(self, fault: BaseException | None) -> None:
        """End the sweep; collective, also after a fault.

        Rank 0 shows the progress of the others until they end, too.
        """
        comm = self._comm
        if comm.rank > 0:
            self._send(0, _PROGRESS, self._progress[comm.rank])
            self._send(0, _PROGRESS, _FAILED if fault is not None else _FAILED - 1)
            if not self._stopped:  # rank 0 answers the last message of each rank
                comm.recv(source=0, tag=_STOP)
            return
        late: BaseException | None = None  # Ctrl-C, or an output that is closed
        while True:
            try:
                if fault is not None or late is not None:
                    self._stop_others()
                while self._open:
                    now = monotonic()
                    self._receive(show=late is None and now >= self._next)
                    if now >= self._next:
                        self._next = now + _PERIOD
                    if self._open:
                        _pause(0.001)
                if late is None:
                    self._show(sum(self._progress))
            except BaseException as raised:
                late = raised
                continue
            self._stop_others()
            break
        if late is not None and fault is None:
            raise late

    def _receive(self, *, show: bool = True) -> None:
        """Receive the progress of other ranks on rank 0, and show it."""
        status = MPI.Status()
        while self._open and self._comm.Iprobe(MPI.ANY_SOURCE, _PROGRESS, status):
            progress = self._comm.recv(source=status.source, tag=_PROGRESS)
            if progress >= 0:
                self._progress[status.source] = progress
                continue
            self._open.discard(status.source)
            if progress == _FAILED:
                self._stop_others()
        if show:
            self._show(sum(self._progress))

    def _stop_others(self) -> None:
        """Send a stop to the other ranks, once."""
        if not self._stopped:
            self._stopped = True
            for rank in range(1, self._comm.size):
                self._send(rank, _STOP, None)

    def _receive_stop(self) -> None:
        self._comm.recv(source=0, tag=_STOP)
        self._stopped = True

    def _send(self, rank: int, tag: int, message: object) -> None:
        _sent[:] = [request for request in _sent if not request.Test()]
        _sent.append(self._comm.isend(message, rank, tag))
