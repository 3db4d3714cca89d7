"""What the passes exchange: scans of rows, and single rows."""

import functools
from typing import Any, NamedTuple

import numpy as np
import torch

from ..core.operators import BUILTIN, Operator
from ..mpi.agree import Agreement, Terms, collective
from ..mpi.communicators import MPI, Comm
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
    """Scan rows [..., n, m] along n; those with segments are [n, m], and not exclusive."""
    comm, reverse, exclusive = way.comm, way.reverse, way.exclusive
    if way.segments is None:
        return scan(plain(x), op, axis=x.ndim - 2, comm=comm, exclusive=exclusive, reverse=reverse)
    pair = plain(x), plain(heads_in_order(way).expand(x.shape))
    y: Tensor = scan(pair, _in_segments(op), axis=0, comm=comm, reverse=reverse)[0]
    return y


def heads_in_order(way: Direction) -> Tensor:
    """Return bools [n, 1]: whether a segment begins, in the order of the scan; collective."""
    assert way.segments is not None
    heads = plain(way.segments.unsqueeze(1))
    if not way.reverse:
        return heads
    # The last element of a segment is the one before the head of the next.
    row = row_before(heads, comm=way.comm, way=way)
    return torch.cat([heads[1:], row]) if len(heads) else heads


@functools.cache
def _in_segments(name: str) -> Operator:
    """Return the operator of pairs: an element, and whether a segment begins there."""
    op = BUILTIN[name]
    assert op.cuda is not None

    def combine(earlier: Any, later: Any) -> tuple[Any, Any]:
        return np.where(later[1], later[0], op.numpy(earlier[0], later[0])), earlier[1] | later[1]

    text = op.cuda.replace("a, b", "a.x0, b.x0")
    return Operator(f"{name} in segments", combine, f"b.x1 ? b : T{{{text}, a.x1}}", arity=2)


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


def _bytes(row: Tensor) -> Any:
    return row.view(torch.uint8).numpy()
