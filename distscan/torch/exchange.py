"""What the passes exchange: scans of rows, single rows, and the handshake of a backward pass."""

import functools
import time
from typing import Any, NamedTuple

import torch

from ..core.errors import RankError
from ..core.steps import WAIT, wait_limit
from ..mpi.agree import Agreement, Terms, collective
from ..mpi.communicators import MPI, Comm, gradients
from ..mpi.torch_group import TorchComm
from ..scan import scan

Tensor = Any


class Direction(NamedTuple):
    """The ranks of a scan, its direction, and its form."""

    comm: Comm
    lengths: tuple[int, ...]  # the number of rows of each rank
    reverse: bool
    exclusive: bool = False  # whether a result leaves out its own element
    segments: Tensor | None = None  # bools [n], where independent recurrences begin
    indices: bool = False  # whether to find the indices of maxima and minima
    in_place: bool = False  # whether rows are [outer, n, m], on one rank

    def ranks(self) -> list[int]:
        """Return the ranks that have rows, in the order of the scan."""
        ranks = [rank for rank, length in enumerate(self.lengths) if length]
        return ranks[::-1] if self.reverse else ranks

    def other(self) -> "Direction":
        """Return the opposite direction, that of the backward pass."""
        return self._replace(reverse=not self.reverse)


def scan_rows(x: Tensor, op: str, way: Direction) -> Tensor:
    """Scan rows [..., n, m] along n."""
    comm, reverse, exclusive = way.comm, way.reverse, way.exclusive
    return scan(plain(x), op, axis=x.ndim - 2, comm=comm, exclusive=exclusive, reverse=reverse)


def plain(x: Tensor) -> Tensor:
    """Return the numbers of a tensor in memory, one after the other, without its history."""
    return x.detach().resolve_conj().resolve_neg().contiguous()


@collective
def row_before(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the row [..., 1, m] before the first one of this rank, in scan order; else zeros.

    Without rows, return [0, m].
    """
    call.same = Terms({"the function": "a shift by one row", "reverse": way.reverse})
    row = torch.zeros_like(x[..., :1, :])
    if not call.several:
        return row
    sent = plain(x[:1] if way.reverse else x[-1:]).cpu()
    received = torch.empty_like(sent)
    call.settle()
    call.begin()
    if not len(x):
        return row
    ranks, request = way.ranks(), MPI.REQUEST_NULL
    place = ranks.index(comm.rank)
    if place + 1 < len(ranks):
        request = comm.Isend([_bytes(sent), MPI.BYTE], ranks[place + 1], _TAG)
    if place > 0:
        comm.Recv([_bytes(received), MPI.BYTE], ranks[place - 1], _TAG)
        row = received.to(x.device)
    request.Wait()
    return row


@collective
def row_of_owner(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the last row [..., m] of all ranks' x [..., n, m]; some rank has rows."""
    call.same = Terms({"the function": "the last row", "reverse": way.reverse})
    if not call.several:
        return plain(x[..., 0 if way.reverse else -1, :]).clone()
    owner = way.ranks()[-1]
    row = plain(x[:1] if way.reverse else x[-1:]).cpu()
    row = row if comm.rank == owner else torch.empty((1, x.shape[1]), dtype=x.dtype)
    call.settle()
    call.begin()
    comm.Bcast([_bytes(row), MPI.BYTE], owner)
    return row[0].to(x.device)


@collective
def sum_for_owner(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the sum of all ranks' x [..., m], to the rank that has the last row."""
    call.same = Terms({"the function": "the gradient of the last row", "reverse": way.reverse})
    if not call.several:
        return x
    sent = plain(x).cpu()
    received = torch.zeros((comm.size, len(x)), dtype=x.dtype)
    call.settle()
    call.begin()
    owner = way.ranks()[-1]
    target = [_bytes(received), MPI.BYTE] if comm.rank == owner else None
    comm.Gather([_bytes(sent), MPI.BYTE], target, owner)
    return received.sum(0).to(x.device)


_TAG = 1 << 13
_SPIN = 2e-3  # seconds of looks that give way to other processes, before this one sleeps


def _bytes(row: Tensor) -> Any:
    return row.view(torch.uint8).numpy()


@functools.cache
def _key_of_passes() -> int:
    """Return the key of the communicator's attribute that counts its backward passes."""
    return MPI.Comm.Create_keyval()


def meet(comm: Comm) -> None:
    """Wait until every rank is in this backward pass; raise RankError if one does not come.

    Each rank tells rank 0 that it is there, and rank 0 tells all when all are.
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
            time.sleep(0 if waited < _SPIN else min(1e-3, waited / 50))
    if comm.rank == 0:
        for rank in others:
            aside.send(number, rank, _TAG)


def _raise_missing(rank: int | None) -> None:
    """Raise RankError if a rank is missing."""
    if rank is not None:
        raise RankError(
            f"rank {rank} did not come to a backward pass within {wait_limit():g} s ({WAIT}): the "
            "results of distscan.torch must be part of the loss on every rank"
        )
