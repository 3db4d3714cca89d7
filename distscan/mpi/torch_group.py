"""Process groups of ``torch.distributed`` in the place of MPI's communicators.

``TorchComm`` has the methods of ``mpi4py.MPI.Intracomm`` that collective calls use, with the same
arguments. Their messages are small: faults, totals, rows. They travel by gloo, whatever the backend
of the group, and never meet those of the program.
"""

import pickle  # nosec B403 # other ranks run the same program
import platform
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    def __init__(self, name: str, rank: int, size: int) -> None:
        """Connect the ranks by gloo, apart from PyTorch's groups; collective.

        The name is the same on every rank, and of this communicator alone. So PyTorch's own names,
        which count the groups that a process has made, need not be the same.
        """
        import torch.distributed  # noqa: PLC0415 - the caller has
        from torch.distributed import distributed_c10d as c10d  # noqa: PLC0415

        super().__init__()
        self.rank, self.size = rank, size
        self._torch, self._name, self._derived = torch, name, 0
        store = torch.distributed.PrefixStore(f"distscan/{name}", c10d._get_default_store())
        self._gloo: Any = torch.distributed.ProcessGroupGloo(store, rank, size)

    @classmethod
    def of(cls, group: Any) -> "TorchComm":
        """Return the communicator of a group; collective over the group."""
        from torch import distributed  # noqa: PLC0415 - the caller has

        ranks = distributed.get_process_group_ranks(group)
        rank = ranks.index(distributed.get_rank())
        return cls(_new_name(f"{group.group_name} of {ranks}"), rank, len(ranks))

    # ---- communicators of the same ranks ---------------------------------------------------------

    def Dup(self) -> "TorchComm":
        """Return another communicator of these ranks, with messages of its own; collective."""
        return TorchComm(self._next_name(), self.rank, self.size)

    def Split(self, color: int, key: int) -> "TorchComm":
        """Return one of all ranks in the order of their keys; collective. Colors are the same."""
        keys = self.allgather(key)
        order = sorted(range(self.size), key=lambda rank: (keys[rank], rank))
        return TorchComm(self._next_name(), order.index(self.rank), self.size)

    def _next_name(self) -> str:
        """Return the name of the next communicator that is derived from this one."""
        self._derived += 1
        return f"{self._name}.{self._derived}"

    def Split_type(self, _: Any) -> "_Node":
        """Return the ranks of this node; collective."""
        names = self.allgather(platform.node())
        here = [rank for rank, name in enumerate(names) if name == names[self.rank]]
        return _Node(here.index(self.rank), len(here))

    # ---- objects ---------------------------------------------------------------------------------

    def allgather(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order; collective."""
        text = pickle.dumps(value)
        lengths = [int(part.view(np.int64)[0]) for part in self._gather(np.array([len(text)]))]
        parts = self._gather(text.ljust(max(lengths), b"\0"))
        return [
            pickle.loads(part[:length].tobytes())  # nosec B301 # other ranks run the same program
            for part, length in zip(parts, lengths, strict=True)
        ]

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """Return the object of rank ``root``; collective."""
        return self.allgather(value if self.rank == root else None)[root]

    def allreduce(self, value: Any) -> Any:
        """Return the sum of all ranks' objects; collective."""
        return sum(self.allgather(value))

    def Barrier(self) -> None:
        """Wait for all ranks; collective."""
        self._gather(b"0")

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
                earlier = [part.numpy() for part in parts[: self.rank]]
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
        options = self._torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._gloo.broadcast([self._memory(buffer[0])], options).wait()

    def Isend(self, sent: Any, rank: int, tag: int) -> "_Request":
        """Begin to send a buffer to a rank."""
        memory = self._memory(sent[0])
        work = self._gloo.send([memory], rank, tag)
        return _Request(work, lambda: memory)  # which lives until then

    def Recv(self, received: Any, rank: int, tag: int, limit: float | None = None) -> None:
        """Receive a buffer from a rank; after ``limit`` seconds, raise RuntimeError.

        This communicator is of no use then: gloo closes its connections.
        """
        work = self._gloo.recv([self._memory(received[0])], rank, tag)
        if limit is None:
            work.wait()
        else:
            work.wait(timedelta(seconds=max(limit, 1e-3)))

    def _memory(self, buffer: Any) -> Any:
        """Return a tensor over the bytes of a buffer."""
        return self._torch.from_numpy(_bytes(buffer))

    def _gather(self, memory: Any) -> list[NDArray[np.uint8]]:
        """Return the bytes of all ranks, in rank order; collective."""
        parts, work = self._begin_to_gather(memory)
        work.wait()
        return [part.numpy() for part in parts]

    def _begin_to_gather(self, memory: Any) -> tuple[list[Any], Any]:
        """Begin to gather the bytes of all ranks."""
        own = self._torch.from_numpy(_bytes(memory).copy())
        parts = [self._torch.empty_like(own) for _ in range(self.size)]
        return parts, self._gloo.allgather([parts], [own])


_used: dict[str, int] = {}


def _new_name(name: str) -> str:
    """Return a name that no group had before: PyTorch may use that of a destroyed one again."""
    _used[name] = _used.get(name, 0) + 1
    return f"{name}, {_used[name]}"


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
