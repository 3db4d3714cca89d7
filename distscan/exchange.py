"""Everything that crosses ranks; the only file that imports MPI. A total is one element or row."""

import functools
import weakref
from array import array
from contextlib import suppress
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .errors import LaunchError
from .forms import PLAIN, Edges, Form, Total, pieces
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


def minimum(comm: Comm, values: "array[int]") -> "array[int]":
    """Replace each of the ``values``, of 8 bytes, by its minimum over all ranks; return them."""
    # Blocking: of so few values no library's MPI_Iallreduce is as fast.
    comm.Allreduce(MPI.IN_PLACE, [values, len(values), MPI.INT64_T], MPI.MIN)
    return values


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

    A long row is exchanged piece by piece, so that one piece crosses ranks while others go from a
    GPU to the host and back. Each piece of the offset takes the place of the total's, and the
    total's value is what comes back; an empty shard, which has none, gets None.

    ``seeds`` is the type of 0-d offsets, where the running value is narrower than ``dtype``.
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
        seeds: np.dtype[Any] | None = None,
        across: bool = True,
    ) -> None:
        self._op, self._form, self._across = op, form, across
        self._mpi_op = MPI.OP_NULL
        if dtype.kind in op.mpi_kinds and not self._form.segmented:
            self._mpi_op = getattr(MPI, op.mpi)
        self._builtin = self._mpi_op != MPI.OP_NULL
        self._fault: BaseException | None = None
        self._total: Total | None = None
        self._given = False  # whether a message has taken something from the total
        self._offset: Any = None
        self._seed = None if seeds is None or seeds == dtype else np.zeros((), seeds)
        edge = None if self._builtin else edges or np.dtype(np.bool_)
        row = pieces(form.inner, dtype)
        self._messages: list[_Message] = []
        if across and len(row) > 1:
            self._messages = [_Message(dtype, (p.stop - p.start,), edge, p) for p in row]
        elif across:
            self._messages = [_Message(dtype, (form.inner,) if form.inner > 1 else (), edge)]
        self._items = {message.item.itemsize: message.item for message in self._messages}

    def __call__(self, comm: Comm, total: Total | None, edges: Edges | None = None) -> Any:
        """Combine the totals of all ranks before this one in scan order (``MPI_Exscan``)."""
        if comm.size == 1 or not self._across:
            return None
        comm = self._begin(comm, total)
        for message in self._messages:
            self._pack(message, edges)
            comm.Exscan(message.send, message.receive, self._mpi_op)
            self._unpack(message, comm)
        return self._end()

    def start(self, comm: Comm, total: Total | None, edges: Edges | None = None) -> None:
        """Begin the same and do not wait for it (``MPI_Iexscan``)."""
        if comm.size > 1 and self._across:
            comm = self._begin(comm, total)
            for message in self._messages:
                self._pack(message, edges)
                message.request = comm.Iexscan(message.send, message.receive, self._mpi_op)
            _IN_FLIGHT.add(self)

    def wait(self, comm: Comm) -> Any:
        """End what ``start`` began; return the offset."""
        if comm.size == 1 or not self._across:
            return None
        comm = self._ordered(comm)
        for message in self._messages:
            message.request.Wait()
            self._unpack(message, comm)
        _IN_FLIGHT.discard(self)
        return self._end()

    def prepare(self, comm: Comm) -> None:
        """Make what exchanges over ``comm`` need; collective. The first exchange does it, too."""
        if comm.size > 1 and self._across:
            self._ordered(comm)

    def _ordered(self, comm: Comm) -> Comm:
        """Return the ranks in scan order."""
        return backwards(comm) if self._form.reverse else comm

    def _begin(self, comm: Comm, total: Total | None) -> Comm:
        comm, self._total, self._offset = self._ordered(comm), total, None
        self._given = False
        if not self._builtin:
            # Freed after each exchange: an MPI process has room for 32 of them.
            self._mpi_op = MPI.Op.Create(self._combine, commute=False)
        return comm

    def _end(self) -> Any:
        if not self._builtin:
            self._mpi_op.Free()
        offset, self._total, self._offset = self._offset, None, None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return offset

    # What goes wrong with a message is raised at the end: the other ranks count on every one.

    def _pack(self, message: "_Message", edges: Edges | None) -> None:
        """Put what this rank has into a message; after a fault, nothing."""
        try:
            self._put(message, self._total if self._fault is None else None, edges)
        except BaseException as error:
            self._fault = error
            with suppress(BaseException):  # the identity may be what fails
                self._put(message, None, edges)

    def _put(self, message: "_Message", total: Total | None, edges: Edges | None) -> None:
        if self._builtin:
            if total is None:
                message.total[...] = self._op.identity(message.total.dtype)
        else:
            # Whose total cannot be read has given nothing: as if its shard were empty.
            broken = self._fault is not None and self._given
            present = _ABSENT if total is None else _HEAD if total.head else _PRESENT
            message.sent["state"] = _BROKEN if broken else present
            if edges is not None:
                message.sent["enters"], message.sent["leaves"] = edges
        if total is not None:
            message.total[...] = total.value[... if message.part is None else message.part]
            self._given = True

    def _unpack(self, message: "_Message", comm: Comm) -> None:
        """Take from a message what comes before this rank's shard."""
        # MPI leaves the first rank's receive buffer undefined.
        if comm.rank == 0 or self._fault is not None:
            return
        try:
            if not self._builtin:
                if message.received["state"] == _BROKEN:
                    raise RuntimeError(f"operator {self._op.name!r} failed on an earlier rank")
                if message.received["state"] == _ABSENT or self._parted(
                    message.received, message.sent
                ):
                    return
            if self._form.first is not None:
                self._op.combine(self._form.first, message.offset, out=message.offset)
            if message.part is None:
                self._offset = message.offset
                if self._seed is not None:
                    # As C rounds: at once, and infinite without a warning.
                    self._seed.reshape(1).data[0] = message.offset.item()
                    self._offset = self._seed
            elif self._total is not None:
                self._offset = self._total.value
                self._offset[message.part] = message.offset
        except BaseException as error:
            self._fault = error

    def _parted(self, earlier: NDArray[Any], later: NDArray[Any]) -> bool:
        """Whether a segment begins between two shards that follow each other."""
        return self._form.segmented and bool((earlier["leaves"] != later["enters"])[0])

    def _combine(self, earlier: Any, later: Any, _: MPI.Datatype) -> None:
        """Combine the bytes of two totals for MPI: later = earlier op later."""
        item = self._items[len(later)]
        state = item.itemsize - 1  # its place
        try:
            if later[state] == _ABSENT:
                later[:] = earlier[:]
            elif earlier[state] != _ABSENT:
                a, b = (np.frombuffer(packed, item, 1) for packed in (earlier, later))
                begins = later[state] == _HEAD or self._parted(a, b)
                b["enters"] = a["enters"]
                if _BROKEN in (earlier[state], later[state]):
                    later[state] = _BROKEN
                elif begins:
                    later[state] = _HEAD
                else:
                    b["value"][0] = self._op.combine(a["value"][0], b["value"][0])
                    later[state] = earlier[state]
        except BaseException as error:  # cannot cross MPI, which would abort: raised at the end
            self._fault = error
            later[state] = _BROKEN


class _Message:
    """What MPI sends and receives: a total, or one piece of a long row of totals.

    With ``edge``, the type of the segments' edges, it is one item (value, edges, state), so that
    MPI calls the NumPy form and an empty shard needs no identity.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        edge: np.dtype[Any] | None,
        part: slice | None = None,
    ) -> None:
        self.part, self.request = part, MPI.REQUEST_NULL
        if edge is None:
            self.item = dtype
            self.total, self.offset = np.zeros(shape, dtype), np.zeros(shape, dtype)
            self.send: Any = self.total
            self.receive: Any = self.offset
            return
        self.item = np.dtype(
            [("value", dtype, shape), ("enters", edge), ("leaves", edge), ("state", np.uint8)]
        )
        self.sent, self.received = np.zeros(1, self.item), np.zeros(1, self.item)
        self.total = self.sent["value"].reshape(shape)
        self.offset = self.received["value"].reshape(shape)
        # One element, so that MPI never hands a part of it to the operator.
        element = MPI.BYTE.Create_contiguous(self.item.itemsize).Commit()
        weakref.finalize(self, _free, element)
        self.send = [self.sent.view(np.uint8), 1, element]
        self.receive = [self.received.view(np.uint8), 1, element]


def _free(element: MPI.Datatype) -> None:
    if not MPI.Is_finalized():
        element.Free()
