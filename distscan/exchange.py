"""Everything that crosses ranks; the only file that imports MPI. A total is one element there."""

import functools
import os
from array import array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import LaunchError
from .operators import Operator

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise ImportError(
        f"mpi4py cannot load an MPI library ({error}); install one, "
        "for example, in a checkout: pip install '.[mpich]'"
    ) from error

Comm = MPI.Intracomm

_LAUNCHED_RANKS = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "PALS_NRANKS",
    "SLURM_STEP_NUM_TASKS",
)
_LAUNCHED_RANK = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
)
# An MPI's own variables first: inside mpirun, Slurm's describe the daemon that mpirun started.
_LOCAL_RANK = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
)


# ---- communicators and nodes ---------------------------------------------------------------


def communicator(comm: Comm | None) -> Comm:
    """Return ``comm``, or ``MPI.COMM_WORLD`` for None.

    Raises ``LaunchError`` where the launcher started several ranks and MPI sees only one: each
    would scan its shard as if it were the whole.
    """
    if comm is None:
        if MPI.COMM_WORLD.size == 1 and (launched := _variable(_LAUNCHED_RANKS) or 1) > 1:
            raise LaunchError(
                f"the launcher started {launched} ranks but MPI sees 1: mpirun and the MPI that "
                f"mpi4py loaded ({mpi_version()}) differ; use the mpirun of that MPI"
            )
        return MPI.COMM_WORLD
    if comm == MPI.COMM_NULL:
        raise ValueError("comm is MPI.COMM_NULL: this rank is not part of the communicator")
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm must be an mpi4py intracommunicator, not {type(comm).__name__}")
    return comm


class Node(NamedTuple):
    """Where a rank stands among the ranks of its node."""

    local_rank: int
    nodes: int  # in the whole communicator


def node(comm: Comm) -> Node:
    """Find this rank's place on its node; collective. The launcher's own word counts first."""
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        nodes = comm.allreduce(int(shared.rank == 0))
        launched = _variable(_LOCAL_RANK)
        return Node(shared.rank if launched is None else launched, nodes)
    finally:
        shared.Free()


def launched_rank() -> int:
    """Return the launcher's number for this process: known even where MPI itself is not."""
    return _variable(_LAUNCHED_RANK) or 0


def mpi_version() -> str:
    """Name the MPI library and its version, such as "MPICH 4.3.0"."""
    first = MPI.Get_library_version().strip("\0 \n").partition("\n")[0].partition(",")[0]
    return " ".join(first.replace("Version:", "").split())


def start_minimum(comm: Comm, values: "array[int]") -> MPI.Request:
    """Begin to replace each of the ``values`` by its minimum over all ranks."""
    return comm.Iallreduce(MPI.IN_PLACE, values, MPI.MIN)


def _variable(names: tuple[str, ...]) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def op_name(op: Any) -> Any:
    """Return the name of an MPI op that has a built-in of its meaning; anything else unchanged."""
    if isinstance(op, MPI.Op):
        for name in ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"):
            if op == getattr(MPI, name):
                kind = {"B": "bitwise_", "L": "logical_"}.get(name[0], "")
                return kind + name[bool(kind) :].lower()
    return op


# ---- the exchange of totals ----------------------------------------------------------------

# Begun and not yet ended: MPI writes into their buffers, whoever else has forgotten them.
_IN_FLIGHT: "set[Exscan]" = set()
_ABSENT, _PRESENT, _BROKEN = range(3)  # the state of a total; the higher of two outlasts


class Exscan:
    """The exchange of totals, prepared once: gives each rank what comes before its shard.

    A total is a 0-d array of ``dtype``, or None for an empty shard. So is the offset that comes
    back: None says that nothing comes before this rank's shard. The next exchange overwrites it.
    """

    def __init__(self, op: Operator, dtype: np.dtype[Any]) -> None:
        self._op, self._dtype = op, dtype
        self._mpi_op = getattr(MPI, op.mpi) if dtype.kind in op.mpi_kinds else MPI.OP_NULL
        self._builtin = self._mpi_op != MPI.OP_NULL
        self._fault: Exception | None = None
        self._request = MPI.REQUEST_NULL
        if self._builtin:
            self._total, self._offset = np.zeros((), dtype), np.zeros((), dtype)
            self._send: Any = self._total
            self._receive: Any = self._offset
            return
        # MPI calls the NumPy form on (value, state) pairs: an empty shard needs no identity.
        pair = np.dtype([("value", dtype), ("state", np.uint8)])
        send, receive = np.zeros((), pair), np.zeros((), pair)
        self._sent, self._total = send["state"], send["value"]
        self._received, self._offset = receive["state"], receive["value"]
        element = _bytes(pair.itemsize)
        self._send = [send.reshape(1).view(np.uint8), 1, element]
        self._receive = [receive.reshape(1).view(np.uint8), 1, element]

    def __call__(self, comm: Comm, total: NDArray[Any] | None) -> NDArray[Any] | None:
        """Combine the totals of all earlier ranks, in rank order (``MPI_Exscan``)."""
        if comm.size == 1:
            return None
        self._pack(total)
        comm.Exscan(self._send, self._receive, self._mpi_op)
        return self._unpack(comm)

    def start(self, comm: Comm, total: NDArray[Any] | None) -> None:
        """Begin the same and do not wait for it (``MPI_Iexscan``)."""
        if comm.size > 1:
            self._pack(total)
            self._request = comm.Iexscan(self._send, self._receive, self._mpi_op)
            _IN_FLIGHT.add(self)

    def wait(self, comm: Comm) -> NDArray[Any] | None:
        """End what ``start`` began; return the offset."""
        if comm.size == 1:
            return None
        self._request.Wait()
        _IN_FLIGHT.discard(self)
        return self._unpack(comm)

    def _pack(self, total: NDArray[Any] | None) -> None:
        if not self._builtin:
            # Freed after each exchange: an MPI process has room for 32 of them.
            self._mpi_op = MPI.Op.Create(self._combine, commute=False)
            self._sent[()] = _ABSENT if total is None else _PRESENT
        try:
            if total is not None:
                self._total[()] = total
            elif self._builtin:
                self._total[()] = self._op.identity(self._dtype)
        except Exception as error:  # raised at the end: the other ranks count on this one's part
            self._fault = error
            if not self._builtin:
                self._sent[()] = _BROKEN

    def _unpack(self, comm: Comm) -> NDArray[Any] | None:
        if not self._builtin:
            self._mpi_op.Free()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if comm.rank == 0:  # MPI leaves its receive buffer undefined
            return None
        if not self._builtin and self._received != _PRESENT:
            if self._received == _BROKEN:
                raise RuntimeError(f"operator {self._op.name!r} failed on an earlier rank")
            return None
        return self._offset

    def _combine(self, earlier: Any, later: Any, _: MPI.Datatype) -> None:
        """Combine the bytes of two pairs for MPI: later = earlier op later."""
        state = self._dtype.itemsize  # its place
        try:
            if earlier[state] == later[state] == _PRESENT:
                a, b = (np.frombuffer(pair, self._dtype, 1) for pair in (earlier, later))
                b[0] = self._op.combine(a[0], b[0])
            elif later[state] == _ABSENT:
                later[:state] = earlier[:state]
            later[state] = max(earlier[state], later[state])
        except Exception as error:  # an exception cannot cross MPI: it is raised at the end
            self._fault = error
            later[state] = _BROKEN


@functools.cache
def _bytes(size: int) -> MPI.Datatype:
    """One element of ``size`` bytes, so that MPI never hands a part of one to an operator."""
    return MPI.BYTE.Create_contiguous(size).Commit()
