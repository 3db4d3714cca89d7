"""The first vote of a call in a backward pass: a rank that leaves it out is a fault, and no hang.

::

    rank 0                              any other rank
    says that it is here         ->     waits for it, for ``wait_limit`` seconds
    waits for the votes of all,  <-     votes, and then waits for the answer, however long it takes
    for ``wait_limit`` seconds
    answers                      ->     has the minima of all votes, or knows which rank is missing

A rank that gives up has not voted, and one that has voted does not give up. So either all ranks
raise, or none. A message has the number of the vote, and a token of the communicator: what was sent
to a rank that did not come is dropped when it comes later, or when MPI uses the communicator's
place for another one.
"""

import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import RankError
from ..core.steps import WAIT, wait_limit
from .communicators import MPI, Comm, vote_token
from .torch_group import TorchComm

_HERE, _VOTE, _ANSWER = range((1 << 13) + 1, (1 << 13) + 4)  # tags
# The places in a message: a vote and an answer have minima behind them.
_TOKEN, _NUMBER, _OWN, _MINIMA = range(4)  # _OWN: the voter's number, or what an answer says
_SPIN = 2e-3  # seconds of looks that give way to other processes, before this one sleeps
Words = NDArray[np.int64]


class Meeting:
    """The votes of one communicator of backward passes."""

    def __init__(self, comm: Comm) -> None:
        self._comm, self._token = comm, vote_token(comm)
        self._sent: list[tuple[Any, Words]] = []  # messages that may be on their way
        self._lost: list[tuple[Any, Words]] = []  # those that perhaps nobody receives

    def vote(self, number: int, own: bytearray, minima: bytearray) -> None:
        """Find the minima, over ranks, of numbers of 8 bytes; ``number`` is that of the vote.

        Raises RankError on every rank that has come, if one does not come in time, or is at another
        vote.
        """
        message = self._message(number, 0, own)
        answer = self._ask(message) if self._comm.rank == 0 else self._give(message)
        verdict = int(answer[_OWN])
        if verdict:
            self._give_up()
            raise RankError(_missing(verdict - 1) if verdict > 0 else _out_of_step(-1 - verdict))
        while self._sent:  # all have arrived
            self._sent.pop()[0].Wait()
        minima[:] = answer[_MINIMA:].tobytes()

    def _message(self, number: int, own: int, numbers: bytearray | Words) -> Words:
        return np.concatenate([[self._token, number, own], np.frombuffer(numbers, np.int64)])

    def _ask(self, answer: Words) -> Words:
        """Wait for the votes of all other ranks, and answer them: as rank 0."""
        deadline, number = time.monotonic() + wait_limit(), answer[_NUMBER]
        for rank in range(1, self._comm.size):
            self._send(answer[:_OWN], rank, _HERE)
        for rank in range(1, self._comm.size):
            vote = self._receive(rank, _VOTE, len(answer), number, deadline)
            if vote is None or vote[_OWN] != number:
                answer[_OWN] = 1 + rank if vote is None else -1 - rank
                break
            np.minimum(answer[_MINIMA:], vote[_MINIMA:], out=answer[_MINIMA:])
        for rank in range(1, self._comm.size):
            self._send(answer, rank, _ANSWER)
        return answer

    def _give(self, vote: Words) -> Words:
        """Wait for rank 0, vote, and wait for its answer."""
        deadline, number = time.monotonic() + wait_limit(), vote[_NUMBER]
        here = self._receive(0, _HERE, _OWN, number, deadline)
        if here is None:
            self._give_up()
            raise RankError(_missing(0))
        vote[_OWN], vote[_NUMBER] = number, here[_NUMBER]
        self._send(vote, 0, _VOTE)
        answer = self._receive(0, _ANSWER, len(vote), vote[_NUMBER], None)
        if answer is None:  # gloo: rank 0 has given up, and the connection is closed
            self._give_up()
            raise RankError(_missing(None))
        if not answer[_OWN] and vote[_OWN] != vote[_NUMBER]:
            answer[_OWN] = -1 - self._comm.rank
        return answer

    def _give_up(self) -> None:
        self._lost, self._sent = [*self._lost, *self._sent], []

    def _send(self, words: Words, rank: int, tag: int) -> None:
        try:
            self._sent.append((self._comm.Isend([words, MPI.BYTE], rank, tag), words))
        except RuntimeError:  # gloo's, of a connection that is closed
            return

    def _receive(
        self, rank: int, tag: int, length: int, number: int, deadline: float | None
    ) -> Words | None:
        """Receive the message of this vote, or of a later one; None if it does not come in time."""
        while True:
            words = _receive(self._comm, rank, tag, length, deadline)
            if words is None:
                return None
            if words[_TOKEN] == self._token and words[_NUMBER] >= number:
                return words


def _receive(comm: Comm, rank: int, tag: int, length: int, deadline: float | None) -> Words | None:
    """Receive the next message of a tag; without ``deadline``, wait however long it takes."""
    if isinstance(comm, TorchComm):
        words = np.empty(length, np.int64)
        limit = None if deadline is None else deadline - time.monotonic()
        try:
            comm.Recv([words, MPI.BYTE], rank, tag, limit)
        except RuntimeError:  # gloo's: the limit is over, or the other rank has closed
            return None
        return words
    status, begin = MPI.Status(), time.monotonic()
    while not comm.Iprobe(rank, tag, status):
        now = time.monotonic()
        if deadline is not None and now > deadline:
            return None
        if now - begin < _SPIN:
            os.sched_yield()  # ``time.sleep(0)`` takes some 60 us
        else:
            time.sleep(min(1e-3, (now - begin) / 50))
    words = np.empty(status.Get_count(MPI.INT64_T), np.int64)
    comm.Recv([words, MPI.INT64_T], rank, tag)
    return words


def _missing(rank: int | None) -> str:
    name = "a rank" if rank is None else f"rank {rank}"
    return (
        f"{name} did not come to a backward pass within {wait_limit():g} s ({WAIT}): the results "
        "of differentiable scans must be part of the loss on every rank"
    )


def _out_of_step(rank: int) -> str:
    return f"rank {rank} is out of step: it has left out a backward pass, or another rank has"
