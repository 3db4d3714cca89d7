"""Everything that crosses ranks; the only file that imports MPI. A total is one element or row."""

import functools
import weakref
from array import array
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .errors import LaunchError
from .forms import PLAIN, Edges, Form, Total
from .launcher import launched_ranks, local_rank
from .operators import Operator

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise ImportError(
        f"mpi4py cannot load an MPI library ({error}); install one, "
        "for example, in a checkout: pip install '.[mpich]'"
    ) from error

Comm = MPI.Intracomm


# ---- communicators and nodes ---------------------------------------------------------------


def communicator(comm: Comm | None) -> Comm:
    """Return ``comm``, or ``MPI.COMM_WORLD`` for None.

    Raises ``LaunchError`` where the launcher started several ranks and MPI sees only one: each
    would scan its shard as if it were the whole.
    """
    if comm is None:
        if MPI.COMM_WORLD.size == 1 and (launched := launched_ranks()) > 1:
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
        launched = local_rank()
        return Node(shared.rank if launched is None else launched, nodes)
    finally:
        shared.Free()


def backwards(comm: Comm) -> Comm:
    """Return the same ranks in the opposite order; collective when first asked for.

    The communicator keeps it from then on, and frees it when it is freed.
    """
    kept: Any = comm.Get_attr(_backwards())
    if kept is None:
        kept = comm.Split(0, -comm.rank)
        comm.Set_attr(_backwards(), kept)
    return cast(Comm, kept)


@functools.cache
def _backwards() -> int:
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, kept: kept.Free())


def mpi_version() -> str:
    """Name the MPI library and its version, such as "MPICH 4.3.0"."""
    first = MPI.Get_library_version().strip("\0 \n").partition("\n")[0].partition(",")[0]
    return " ".join(first.replace("Version:", "").split())


def start_minimum(comm: Comm, values: "array[int]") -> MPI.Request:
    """Begin to replace each of the ``values`` by its minimum over all ranks."""
    return comm.Iallreduce(MPI.IN_PLACE, values, MPI.MIN)


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
_ABSENT, _PRESENT, _HEAD, _BROKEN = range(4)  # the state of a total; the higher of two outlasts


class Exscan:
    """The exchange of totals, prepared once: gives each rank what comes before its shard.

    A total has a value of ``dtype``, 0-d or [inner]; it is None for an empty shard. The offset
    that comes back has the same shape, and begins with ``form.first``. None says that the shard
    begins behind ``form.first``: nothing comes before it, or its first element is a head. The next
    exchange overwrites it.

    ``edges`` is the type of the segments' edges, for a segmented form. Without ``across`` nothing
    crosses ranks: each is on its own.
    """

    def __init__(
        self,
        op: Operator,
        dtype: np.dtype[Any],
        form: Form = PLAIN,
        *,
        edges: np.dtype[Any] | None = None,
        across: bool = True,
    ) -> None:
        self._op, self._form, self._across = op, form, across
        shape = (self._form.inner,) if self._form.inner > 1 else ()
        self._mpi_op = MPI.OP_NULL
        if dtype.kind in op.mpi_kinds and not self._form.segmented:
            self._mpi_op = getattr(MPI, op.mpi)
        self._builtin = self._mpi_op != MPI.OP_NULL
        self._fault: Exception | None = None
        self._request = MPI.REQUEST_NULL
        if self._builtin:
            self._total, self._offset = np.zeros(shape, dtype), np.zeros(shape, dtype)
            self._send: Any = self._total
            self._receive: Any = self._offset
            return
        # MPI calls the NumPy form on (value, edges, state): an empty shard needs no identity.
        edge = edges or np.dtype(np.bool_)
        self._item = np.dtype(
            [("value", dtype, shape), ("enters", edge), ("leaves", edge), ("state", np.uint8)]
        )
        self._sent, self._received = np.zeros(1, self._item), np.zeros(1, self._item)
        self._offset = self._received["value"].reshape(shape)
        # One element, so that MPI never hands a part of it to the operator.
        element = MPI.BYTE.Create_contiguous(self._item.itemsize).Commit()
        weakref.finalize(self, _free, element)
        self._send = [self._sent.view(np.uint8), 1, element]
        self._receive = [self._received.view(np.uint8), 1, element]

    def __call__(
        self, comm: Comm, total: Total | None, edges: Edges | None = None
    ) -> NDArray[Any] | None:
        """Combine the totals of all ranks before this one in scan order (``MPI_Exscan``)."""
        if comm.size == 1 or not self._across:
            return None
        comm = self._ordered(comm)
        self._pack(total, edges)
        comm.Exscan(self._send, self._receive, self._mpi_op)
        return self._unpack(comm)

    def start(self, comm: Comm, total: Total | None, edges: Edges | None = None) -> None:
        """Begin the same and do not wait for it (``MPI_Iexscan``)."""
        if comm.size > 1 and self._across:
            self._pack(total, edges)
            comm = self._ordered(comm)
            self._request = comm.Iexscan(self._send, self._receive, self._mpi_op)
            _IN_FLIGHT.add(self)

    def wait(self, comm: Comm) -> NDArray[Any] | None:
        """End what ``start`` began; return the offset."""
        if comm.size == 1 or not self._across:
            return None
        self._request.Wait()
        _IN_FLIGHT.discard(self)
        return self._unpack(self._ordered(comm))

    def prepare(self, comm: Comm) -> None:
        """Make what exchanges over ``comm`` need; collective. The first exchange does it, too."""
        if comm.size > 1 and self._across:
            self._ordered(comm)

    def _ordered(self, comm: Comm) -> Comm:
        """Return the ranks in scan order."""
        return backwards(comm) if self._form.reverse else comm

    def _pack(self, total: Total | None, edges: Edges | None) -> None:
        if not self._builtin:
            # Freed after each exchange: an MPI process has room for 32 of them.
            self._mpi_op = MPI.Op.Create(self._combine, commute=False)
            self._sent["state"] = _ABSENT if total is None else _HEAD if total.head else _PRESENT
        try:
            if not self._builtin:
                if total is not None:
                    self._sent["value"] = total.value
                if edges is not None:
                    self._sent["enters"], self._sent["leaves"] = edges
            else:
                self._total[...] = (
                    self._op.identity(self._total.dtype) if total is None else total.value
                )
        except Exception as error:  # raised at the end: the other ranks count on this one's part
            self._fault = error
            if not self._builtin:
                self._sent["state"] = _BROKEN

    def _unpack(self, comm: Comm) -> NDArray[Any] | None:
        if not self._builtin:
            self._mpi_op.Free()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if comm.rank == 0:  # MPI leaves its receive buffer undefined
            return None
        if not self._builtin:
            if self._received["state"] == _BROKEN:
                raise RuntimeError(f"operator {self._op.name!r} failed on an earlier rank")
            if self._received["state"] == _ABSENT or self._parted(self._received, self._sent):
                return None
        if self._form.first is not None:
            self._op.combine(self._form.first, self._offset, out=self._offset)
        return self._offset

    def _parted(self, earlier: NDArray[Any], later: NDArray[Any]) -> bool:
        """Whether a segment begins between two shards that follow each other."""
        return self._form.segmented and bool((earlier["leaves"] != later["enters"])[0])

    def _combine(self, earlier: Any, later: Any, _: MPI.Datatype) -> None:
        """Combine the bytes of two totals for MPI: later = earlier op later."""
        state = self._item.itemsize - 1  # its place
        try:
            if later[state] == _ABSENT:
                later[:] = earlier[:]
            elif earlier[state] != _ABSENT:
                a, b = (np.frombuffer(item, self._item, 1) for item in (earlier, later))
                begins = later[state] == _HEAD or self._parted(a, b)
                b["enters"] = a["enters"]
                if _BROKEN in (earlier[state], later[state]):
                    later[state] = _BROKEN
                elif begins:
                    later[state] = _HEAD
                else:
                    b["value"][0] = self._op.combine(a["value"][0], b["value"][0])
                    later[state] = earlier[state]
        except Exception as error:  # an exception cannot cross MPI: it is raised at the end
            self._fault = error
            later[state] = _BROKEN


def _free(element: MPI.Datatype) -> None:
    if not MPI.Is_finalized():
        element.Free()
