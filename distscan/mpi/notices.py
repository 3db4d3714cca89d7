"""Messages beside the collective calls: notices of faults, and the progress of all ranks.

A rank that fails alone in a plan's call sends notices to the earlier ranks. In a sweep of a file
job, ranks tell rank 0 what they have done, at most ten times a second. If one fails, rank 0 tells
the others, so that they do not go on for hours before they learn of it.
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

    They go to the ranks before the one at fault in scan order. The exchange of totals tells the
    ranks after it.
    """

    def __init__(self, comm: Comm, number: int, *, reverse: bool) -> None:
        """Create a communicator for notices; collective."""
        self._aside, self._reverse = aside(comm), reverse
        self._number, self._tag = number, number % _TAGS
        ranks = range(comm.size)
        earlier, later = ranks[: comm.rank], ranks[comm.rank + 1 :]
        self._before, self._behind = (later, earlier) if reverse else (earlier, later)
        self._sent = self._received = 0
        self._heard: list[str] = []  # received, and not raised yet

    def send(self, fault: BaseException) -> None:
        """Send a notice of this rank's fault to the ranks before it."""
        _sent[:] = [request for request in _sent if not request.Test()]
        self._sent += 1
        notice = self._number, self._aside.rank, f"{type(fault).__name__}: {fault}"
        _sent.extend(self._aside.isend(notice, other, self._tag) for other in self._before)

    def receive(self) -> bool:
        """Receive the notices that have arrived, without waiting; return whether there are any."""
        while self._behind and self._aside.Iprobe(MPI.ANY_SOURCE, self._tag):
            number, source, text = self._aside.recv(tag=self._tag)
            if number == self._number:  # otherwise the notice is of a plan that no longer exists
                self._heard.append(f"rank {source}: {text}")
                self._received += 1
        return bool(self._heard)

    def tell(self) -> NoReturn:
        """Raise RankError for the notices that have been received."""
        said, self._heard = "; ".join(self._heard), []
        raise RankError(
            f"earlier calls of this plan failed on other ranks ({said}): later ranks' results "
            "lack their shards; this rank's results are right, also in this call"
        )

    def close(self) -> None:
        """Raise RankError on every rank if a rank has not received or raised one; collective."""
        self.receive()
        everyone = self._aside.allgather((self._sent, self._received, self._heard))
        sent = [count for count, _, _ in everyone]
        missed = any(
            received < sum(sent[:rank] if self._reverse else sent[rank + 1 :])
            for rank, (_, received, _) in enumerate(everyone)
        )
        said = dict.fromkeys(text for _, _, heard in everyone for text in heard)
        if missed or said:
            what = "; ".join(said) or "its notice is still on its way"
            raise mark_collective(RankError(f"a rank failed alone in a call of this plan: {what}"))


# ---- the progress of all ranks, shown by rank 0 ----------------------------------------------

_PERIOD = 0.1  # seconds between two messages of a rank
_DONE, _STOP = 1 << 14, (1 << 14) + 1  # tags; those below are of notices
_FAILED = -1

_pause = interruptible(sleep)
# The requests of messages that were sent. MPI sends small ones at once.


@contextmanager
def watching(comm: Comm, show: Callable[[int], None]) -> Iterator["Watch"]:
    """Watch the work of the ``with`` block on all ranks; collective.

    ``show`` is called on rank 0, with what all ranks have done.
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
        self._done = [0] * comm.size
        self._open = set(range(1, comm.size))  # ranks from which rank 0 still expects messages
        self._next = monotonic()
        self._stopped = False

    @uninterruptible  # or a signal would raise between a message and what is known of it
    def __call__(self, done: int) -> None:
        """Note what this rank has done; raise ``RankError`` if another rank has failed."""
        self._done[self._comm.rank] += done
        now = monotonic()
        if now < self._next:
            return
        self._next = now + _PERIOD
        if self._comm.rank > 0:
            self._send(0, _DONE, self._done[self._comm.rank])
            if self._comm.Iprobe(0, _STOP):
                self._stop()
        else:
            self._receive()
        if self._stopped:
            raise RankError("another rank has failed")

    @uninterruptible
    def end(self, fault: BaseException | None) -> None:
        """End the sweep; collective. Rank 0 shows the progress of the others until they end, too.

        Every rank calls this, also after a fault.
        """
        comm = self._comm
        if comm.rank > 0:
            self._send(0, _DONE, self._done[comm.rank])
            self._send(0, _DONE, _FAILED if fault is not None else _FAILED - 1)
            if not self._stopped:  # rank 0 answers the last message of each rank
                comm.recv(source=0, tag=_STOP)
            return
        late: BaseException | None = None  # Ctrl-C, or an output that is closed
        while True:
            try:
                if fault is not None or late is not None:
                    self._tell()
                while self._open:
                    now = monotonic()
                    self._receive(show=late is None and now >= self._next)
                    if now >= self._next:
                        self._next = now + _PERIOD
                    if self._open:
                        _pause(0.001)
                if late is None:
                    self._show(sum(self._done))
            except BaseException as raised:
                late = raised
                continue
            self._tell()
            break
        if late is not None and fault is None:
            raise late

    def _receive(self, *, show: bool = True) -> None:
        """Receive what other ranks have sent to rank 0, and show it."""
        status = MPI.Status()
        while self._open and self._comm.Iprobe(MPI.ANY_SOURCE, _DONE, status):
            done = self._comm.recv(source=status.source, tag=_DONE)
            if done >= 0:
                self._done[status.source] = done
                continue
            self._open.discard(status.source)
            if done == _FAILED:
                self._tell()
        if show:
            self._show(sum(self._done))

    def _tell(self) -> None:
        """Tell the other ranks to end, once."""
        if not self._stopped:
            self._stopped = True
            for rank in range(1, self._comm.size):
                self._send(rank, _STOP, None)

    def _stop(self) -> None:
        self._comm.recv(source=0, tag=_STOP)
        self._stopped = True

    def _send(self, rank: int, tag: int, what: object) -> None:
        _sent[:] = [request for request in _sent if not request.Test()]
        _sent.append(self._comm.isend(what, rank, tag))
