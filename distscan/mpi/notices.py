"""Notices of faults: a rank that fails alone in a plan's call sends them to the earlier ranks."""

from typing import NoReturn

from ..core.errors import RankError
from .api import MPI
from .communicators import Comm, aside
from .faults import mark_collective

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
