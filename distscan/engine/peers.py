"""The set-up of strategy ``fused``: the ranks' inboxes, opened once, and closed on all ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from ..cuda.workspace import keep_captured
from ..mpi.agree import Agreement, agreed
from ..mpi.communicators import MPI, Comm
from .shard_scan import ShardScan


def connect(scan: ShardScan, comm: Comm) -> None:
    """Make this rank's inbox and open those of the others; collective.

    Raises ValueError on every rank if a shard is empty, if ranks are on several nodes or share a
    GPU, or if their GPUs do not reach each other's memory.
    """
    steps: Any = scan.steps
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks_of_node = shared.size
    shared.Free()
    with agreed(comm):
        if ranks_of_node < comm.size:
            raise ValueError(
                f"strategy 'fused' is for ranks of one node, which has {ranks_of_node} of the "
                f"{comm.size} ranks; use 'reduce-scan'"
            )
        if not scan.has_elements:
            raise ValueError("strategy 'fused' needs elements on every rank; use 'reduce-scan'")
    inbox: Any = None
    try:
        with agreed(comm), _reaching():
            inbox = steps.make_inbox(comm.size)
            card = inbox.card()
        cards = comm.allgather(card)
        with agreed(comm), _reaching():
            inbox.open(cards, comm.rank, reverse=scan.form.reverse)
    except BaseException:  # on every rank
        _release(inbox, comm)
        raise


@contextmanager
def _reaching() -> Iterator[None]:
    """Say what faults of CUDA mean here."""
    try:
        yield
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ValueError(
            "strategy 'fused' needs GPUs that reach each other's memory, by CUDA IPC; use "
            f"'reduce-scan': {error}"
        ) from error


def disconnect(scan: ShardScan, call: Agreement) -> None:
    """Close and free all inboxes, after all work of this GPU; collective."""
    steps: Any = scan.steps
    cupy.cuda.Device().synchronize()
    call.settle()  # no GPU writes to an inbox any more, but by a graph
    inbox = steps.inbox
    if call.comm.allreduce(inbox.is_captured, MPI.LOR):
        keep_captured(inbox)
    else:
        _release(inbox, call.comm)
    call.begin()
    inbox.raise_fault()


def _release(inbox: Any, comm: Comm) -> None:
    """Close the inboxes of the others, then free this one; collective."""
    if inbox is not None:
        inbox.close_others()
    comm.Barrier()
    if inbox is not None:
        inbox.free()
