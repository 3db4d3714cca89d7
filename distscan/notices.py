"""What a rank that fails alone in a plan's call tells those that do not hear of it in that call."""

from mpi4py import MPI

from .exchange import Comm, aside

_TAGS = 1 << 14  # MPI promises tags up to 32767

# Messages on their way. A small one leaves at once; who never looks for it leaves it to MPI.
_sent: list[MPI.Request] = []


class Notices:
    """The notices of one plan, which has the same ``number`` on every rank of ``comm``."""

    def __init__(self, comm: Comm, number: int) -> None:
        """Prepare; collective."""
        self._aside = aside(comm)
        self._number, self._tag = number, number % _TAGS
        self.sent = 0
        self.received = 0

    def send(self, text: str, *, reverse: bool) -> None:
        """Tell the ranks before this one in scan order; those behind it hear by its total."""
        _sent[:] = [request for request in _sent if not request.Test()]
        rank, size = self._aside.rank, self._aside.size
        self.sent += 1
        for other in range(rank + 1, size) if reverse else range(rank):
            _sent.append(self._aside.isend((self._number, rank, text), other, self._tag))

    def receive(self) -> list[str]:
        """Return what has arrived, each with the rank it is of; look, and do not wait."""
        texts: list[str] = []
        while self._aside.Iprobe(MPI.ANY_SOURCE, self._tag):
            number, source, text = self._aside.recv(tag=self._tag)
            if number == self._number:  # else of a plan that is gone
                texts.append(f"rank {source}: {text}")
                self.received += 1
        return texts

    def missed(self, *, reverse: bool) -> bool:
        """Whether a rank has not been told of all that it should have been; collective."""
        everyone = self._aside.allgather((self.sent, self.received))
        sent = [count for count, _ in everyone]
        return any(
            received < sum(sent[:rank] if reverse else sent[rank + 1 :])
            for rank, (_, received) in enumerate(everyone)
        )
