"""Process groups of ``torch.distributed`` in the place of MPI's communicators.

``TorchComm`` has the methods of ``mpi4py.MPI.Intracomm`` that collective calls use, with the same
arguments. Their messages are small: faults, totals, rows. They travel by gloo; a group of another
backend gets one of gloo beside it.
"""

import platform
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.steps import wait_limit
from .one_process import Comm


def is_group(comm: Any) -> bool:
    """Return whether an object is a process group of PyTorch; PyTorch is not imported here."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and isinstance(comm, getattr(distributed, "ProcessGroup", ()))


def default_group() -> Any:
    """Return the default process group; None if there is none, or one process alone."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.group.WORLD if distributed.get_world_size() > 1 else None


# The groups that have been used, which are kept, and their communicators.
_known: dict[int, tuple[Any, "TorchComm"]] = {}


def torch_comm(group: Any) -> "TorchComm":
    """Return the communicator of a process group; the first call for a group is collective."""
    known = _known.get(id(group))
    if known is None:
        known = _known[id(group)] = group, TorchComm.of(group)
    return known[1]


class TorchComm(Comm):
    """The ranks of a process group, as an intracommunicator of mpi4py has them.

    Attributes
    ----------
    rank, size
        This rank, and the number of ranks.
    """

    def __init__(self, gloo: Any, processes: list[int]) -> None:
        """Take the processes of a group of gloo, as ranks in this order.

        They are numbered as in the default group.
        """
        import torch.distributed  # noqa: PLC0415 - the caller has

        super().__init__()
        self._torch: Any = torch
        self._gloo, self._processes = gloo, processes
        #: For each rank of this communicator, its rank in the group of gloo.
        self._ranks = [torch.distributed.get_group_rank(gloo, number) for number in processes]
        self.size = len(processes)
        self.rank = self._ranks.index(torch.distributed.get_rank(gloo))

    @classmethod
    def of(cls, group: Any) -> "TorchComm":
        """Return the communicator of a group, with gloo; collective over the group."""
        from torch import distributed  # noqa: PLC0415 - the caller has

        gloo = group if distributed.get_backend(group) == "gloo" else _new_gloo(group)
        return cls(gloo, distributed.get_process_group_ranks(group))

    # ---- communicators of the same ranks ---------------------------------------------------------

    def Dup(self) -> "TorchComm":
        """Return another communicator of these ranks, with messages of its own; collective.

        A message that does not come within ``wait_limit`` raises RuntimeError.
        """
        return TorchComm(_new_gloo(self._gloo, wait_limit()), self._processes)

    def Split(self, color: int, key: int) -> "TorchComm":
        """Return one of all ranks in the order of their keys; collective. Colors are the same."""
        keys = self.allgather(key)
        order = sorted(range(self.size), key=lambda rank: (keys[rank], rank))
        return TorchComm(_new_gloo(self._gloo), [self._processes[rank] for rank in order])

    def Split_type(self, _: Any) -> "_Node":
        """Return the ranks of this node; collective."""
        names = self.allgather(platform.node())
        here = [rank for rank, name in enumerate(names) if name == names[self.rank]]
        return _Node(here.index(self.rank), len(here))

    # ---- objects ---------------------------------------------------------------------------------

    def allgather(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order; collective."""
        values: list[Any] = [None] * self.size
        self._distributed.all_gather_object(values, value, group=self._gloo)
        return [values[rank] for rank in self._ranks]

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """Return the object of rank ``root``; collective."""
        values = [value]
        root = self._ranks[root]
        self._distributed.broadcast_object_list(values, group=self._gloo, group_src=root)
        return values[0]

    def allreduce(self, value: Any) -> Any:
        """Return the sum of all ranks' objects; collective."""
        return sum(self.allgather(value))

    def Barrier(self) -> None:
        """Wait for all ranks; collective."""
        self._distributed.barrier(group=self._gloo)

    # ---- buffers: [memory, count, type], or [memory, type] of bytes ------------------------------

    def Allreduce(self, sent: Any, received: Any, op: Any) -> None:
        """Combine the buffers of all ranks in rank order; collective."""
        if not isinstance(sent, list):  # MPI.IN_PLACE
            sent = [_bytes(received[0]).copy(), *received[1:]]
        parts = self._gather(sent[0])
        _bytes(received[0])[:] = _combination(parts, sent[1:], op)

    def Exscan(self, sent: Any, received: Any, op: Any) -> None:
        """Combine the buffers of all earlier ranks in rank order; collective."""
        self.Iexscan(sent, received, op).Wait()

    def Iexscan(self, sent: Any, received: Any, op: Any) -> "_Request":
        """Begin to do the same."""
        parts, work = self._begin_to_gather(sent[0])

        def end() -> None:
            if self.rank > 0:
                earlier = [parts[rank].numpy() for rank in self._ranks[: self.rank]]
                _bytes(received[0])[:] = _combination(earlier, sent[1:], op)

        return _Request(work, end)

    def Allgather(self, sent: Any, received: Any) -> None:
        """Receive the buffers of all ranks; collective."""
        _bytes(received[0])[:] = np.concatenate(self._gather(sent[0]))

    def Gather(self, sent: Any, received: Any, root: int) -> None:
        """Receive the buffers of all ranks on rank ``root``; collective."""
        parts = self._gather(sent[0])
        if self.rank == root:
            _bytes(received[0])[:] = np.concatenate(parts)

    def Bcast(self, buffer: Any, root: int) -> None:
        """Receive the buffer of rank ``root``; collective."""
        memory = self._torch.from_numpy(_bytes(buffer[0]))
        self._distributed.broadcast(memory, group=self._gloo, group_src=self._ranks[root])

    def Isend(self, sent: Any, rank: int, tag: int) -> "_Request":
        """Begin to send a buffer to a rank."""
        memory = self._torch.from_numpy(_bytes(sent[0]))
        to = self._ranks[rank]
        work = self._distributed.isend(memory, group=self._gloo, tag=tag, group_dst=to)
        return _Request(work, lambda: memory)  # which lives until then

    def Recv(self, received: Any, rank: int, tag: int) -> None:
        """Receive a buffer from a rank."""
        memory = self._torch.from_numpy(_bytes(received[0]))
        self._distributed.recv(memory, group=self._gloo, tag=tag, group_src=self._ranks[rank])

    def Iprobe(self, rank: int, tag: int) -> bool:
        """Return False: gloo does not say what has arrived."""
        return False

    @property
    def _distributed(self) -> Any:
        return self._torch.distributed

    def _gather(self, memory: Any) -> list[NDArray[np.uint8]]:
        """Return the bytes of all ranks, in rank order; collective."""
        parts, work = self._begin_to_gather(memory)
        work.wait()
        return [parts[rank].numpy() for rank in self._ranks]

    def _begin_to_gather(self, memory: Any) -> tuple[list[Any], Any]:
        """Begin to gather the bytes of all ranks, in the order of the group."""
        own = self._torch.from_numpy(_bytes(memory).copy())
        parts = [self._torch.empty_like(own) for _ in range(self.size)]
        return parts, self._distributed.all_gather(parts, own, group=self._gloo, async_op=True)


def _new_gloo(group: Any, limit: float | None = None) -> Any:
    """Make a group of gloo of the same ranks; collective over the group.

    ``limit`` is for its messages, in seconds; None is PyTorch's.
    """
    from torch import distributed  # noqa: PLC0415 - the caller has

    ranks = distributed.get_process_group_ranks(group)
    options = {} if limit is None else {"timeout": timedelta(seconds=limit)}
    return distributed.new_group(ranks, backend="gloo", use_local_synchronization=True, **options)


class _Node:
    """The place of this rank among those of its node."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def Free(self) -> None:
        """Do nothing."""


class _Request:
    """A message on its way, and what is done at its end."""

    def __init__(self, work: Any, end: Callable[[], Any] = lambda: None) -> None:
        self._work, self._end = work, end

    def Wait(self) -> None:
        """Wait for its end."""
        self._work.wait()
        self._end()


def _bytes(memory: Any) -> NDArray[np.uint8]:
    """View the bytes of a buffer."""
    return np.frombuffer(memory, np.uint8)


def _combination(parts: list[NDArray[np.uint8]], kind: list[Any], op: Any) -> NDArray[np.uint8]:
    """Combine buffers, in order, by an operator of MPI; ``kind`` is a count and a type of MPI."""
    total = parts[0]
    for part in parts[1:]:
        op.Reduce_local([total, *kind], [part, *kind])  # part = total op part
        total = part
    return total
