"""The handshake of a backward pass: a rank that leaves it out is a fault, not a hang."""

import functools
import os
import time

from ..core.errors import RankError
from ..core.steps import WAIT, wait_limit
from .communicators import MPI, Comm, gradients
from .torch_group import TorchComm

_TAG = 1 << 13
_SPIN = 2e-3  # seconds of looks that give way to other processes, before this one sleeps


@functools.cache
def _key_of_passes() -> int:
    """Return the key of the communicator's attribute that counts its backward passes."""
    return MPI.Comm.Create_keyval()


def meet(comm: Comm) -> None:
    """Wait until every rank is in this backward pass; raise RankError if one does not come.

    Each rank tells rank 0 that it is there, and rank 0 tells all when all are. The forward pass has
    called ``gradients``, where all ranks were.
    """
    if comm.size == 1:
        return
    aside = gradients(comm)
    if isinstance(aside, TorchComm):
        _raise_missing(aside.find_missing())
        return
    number = 1 + (aside.Get_attr(_key_of_passes()) or 0)
    aside.Set_attr(_key_of_passes(), number)
    begin, limit = time.monotonic(), wait_limit()
    others = range(1, comm.size) if comm.rank == 0 else [0]
    if comm.rank > 0:
        aside.send(number, 0, _TAG)
    missing = set(others)
    while missing:
        for rank in [rank for rank in missing if aside.Iprobe(rank, _TAG)]:
            if aside.recv(source=rank, tag=_TAG) != number:
                raise RankError(f"rank {rank} has left out a backward pass, and is out of step")
            missing.discard(rank)
        waited = time.monotonic() - begin
        if missing and waited > limit:
            _raise_missing(min(missing))
        if missing:
            if waited < _SPIN:
                os.sched_yield()  # ``time.sleep(0)`` takes some 60 us
            else:
                time.sleep(min(1e-3, waited / 50))
    if comm.rank == 0:
        for rank in others:
            aside.send(number, rank, _TAG)


def _raise_missing(rank: int | None) -> None:
    """Raise RankError if a rank is missing."""
    if rank is not None:
        raise RankError(
            f"rank {rank} did not come to a backward pass within {wait_limit():g} s ({WAIT}): the "
            "results of differentiable scans must be part of the loss on every rank"
        )
