"""The handshake of a node's hosts, before their GPUs wait for each other inside kernels.

A GPU that waits spins, and its kernel has a time limit. So a rank first waits here, as long as it
takes, until the ranks whose GPUs its own GPU would wait for have come to the same call. Each rank
has a few words of memory that all ranks of the node share, and writes the number of its call.

    call 7 of rank 1 of 3    waits for call 7 of rank 0, whose total comes before its own
                             waits for call 6 of rank 2, which takes totals from the same place
"""

import mmap
import os
import time
from contextlib import suppress
from typing import Any

from ..core.errors import RankError
from ..core.steps import Pending
from .agree import agreed
from .communicators import Comm

_LINE = 64  # bytes of a rank, which share no cache line with another rank's
_PLACES = 4  # calls that a rank's words remember; a rank is at most 2 calls ahead of later ones
_FOLDER = "/dev/shm"  # nosec B108 - the file gets a random name
_LOOKS = 200  # at full speed, some microseconds
_PATIENCE = 0.01  # seconds of looks that give way to other processes; then this rank sleeps


class Handshake:
    """The handshakes of one plan: an exchange as ``Exscan``, of the ranks' numbers of calls alone.

    ``Handshake(comm)`` is collective. All ranks must be on one node. The memory goes when no rank
    has it any more: nothing is left behind, whichever way a process ends.
    """

    long = False
    nbytes = 0

    def __init__(self, comm: Comm, *, reverse: bool) -> None:
        """Make and share the words. Raises OSError on every rank if the ranks share no folder."""
        self._comm, self._number, size = comm, 0, _LINE * comm.size
        with agreed(comm):
            path = _make_file(size) if comm.rank == 0 else None
        path = comm.bcast(path)
        try:
            with agreed(comm):
                memory = _map(path, size)
        finally:
            if comm.rank == 0:
                with suppress(OSError):
                    os.unlink(path)
        lines = [
            memory[rank * _LINE : (rank + 1) * _LINE].cast("q")[:_PLACES]
            for rank in range(comm.size)
        ]
        self._words, before, after = lines[comm.rank], lines[: comm.rank], lines[comm.rank + 1 :]
        self._earlier, self._later = (after, before) if reverse else (before, after)

    def reserve(self) -> None:
        """Do nothing: the words are there."""

    def prepare(self, comm: Comm) -> None:
        """Do nothing: the constructor was collective."""

    def __call__(self, comm: Comm, pending: Pending | None) -> None:
        """Come to the next call, and wait for the others; ``pending`` is None after a fault."""
        self.start(comm, pending)
        self.wait(comm)

    def start(self, comm: Comm, pending: Pending | None) -> None:
        """Come to the next call; do not wait for other ranks."""
        self.come(failed=pending is None)

    def come(self, *, failed: bool = False) -> None:
        """Come to the next call, for which later ranks wait; ``failed`` is whether with a fault."""
        self._number += 1
        # One store writes a word, and one load reads it.
        self._words[self._number % _PLACES] = 2 * self._number + failed

    def is_ready(self) -> bool:
        """Return whether ``wait`` would return at once if this rank came now."""
        number = self._number + 1
        return all(words[number % _PLACES] >> 1 == number for words in self._earlier) and all(
            words[(number - 1) % _PLACES] >> 1 == number - 1 for words in self._later
        )

    def wait(self, comm: Comm) -> None:
        """Wait for the others. Raises RankError if an earlier rank came with a fault."""
        number, failed = self._number, False
        place = number % _PLACES
        for words in self._earlier:
            if words[place] >> 1 != number:
                self._wait_for(words, number)
            failed = failed or bool(words[place] & 1)
        for words in self._later:
            if words[(number - 1) % _PLACES] >> 1 != number - 1:
                self._wait_for(words, number - 1)
        if failed:
            raise RankError("an earlier rank failed in this call: its shard is missing")

    def _wait_for(self, words: Any, number: int) -> None:
        """Wait until a rank has come to a call. Meanwhile MPI serves other ranks' messages."""
        place, begin, looks = number % _PLACES, time.monotonic(), 0
        while words[place] >> 1 != number:
            looks += 1
            if looks > _LOOKS:
                self._comm.Iprobe()
                time.sleep(0 if time.monotonic() - begin < _PATIENCE else 1e-4)


def _make_file(size: int) -> str:
    """Make a file of zeros, in memory, that only this user can open."""
    path = f"{_FOLDER}/distscan-{os.urandom(8).hex()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(file, 0, size)  # a full folder raises here, not at the first access
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(file)
    return path


def _map(path: str, size: int) -> memoryview:
    """Map a file of so many bytes into the memory of this process."""
    file = os.open(path, os.O_RDWR)
    try:
        return memoryview(mmap.mmap(file, size))
    finally:
        os.close(file)
