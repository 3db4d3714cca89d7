"""The exchange of totals, ``MPI_Exscan``: what comes before this rank's shard."""

from typing import Any

import numpy as np

from ..core.forms import PLAIN, Form, Pending, longest_piece, pieces
from ..core.operators import Operator
from .communicators import Comm, backwards
from .library import MPI
from .messages import BuiltIn, Packed, combining, mpi_name

# Begun and not yet ended: MPI writes into their buffers, whoever else has forgotten them.
_IN_FLIGHT: "set[Exscan]" = set()


class Exscan:
    """The exchange of totals, prepared once: gives each rank what comes before its shard.

    A total has a value of ``dtype``, 0-d or [inner]. The offset that comes back has the same
    shape, and begins with ``form.first``. None says that the shard begins behind ``form.first``:
    nothing comes before it, or its first element is a head. The next exchange overwrites it.

    A rank that has failed takes part too, without a call (None for ``pending``): later ranks, whose
    offsets lack its total, then raise ``RankError``.

    A long row is exchanged piece by piece, so that one piece crosses ranks while others go from a
    GPU to the host and back. Each piece of the offset is put where the total was, and ``finish``
    gets it from there.

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
        self._dtype, self._edges = dtype, edges
        self._builtin = mpi_name(op, dtype, form)
        self._mpi_op = MPI.OP_NULL
        if across:
            self._mpi_op = getattr(MPI, self._builtin) if self._builtin else combining()
        self._fault: BaseException | None = None
        self._call: Pending | None = None
        self._offset: Any = None
        self._seed = None if seeds is None or seeds == dtype else np.zeros((), seeds)
        self._messages: list[BuiltIn | Packed] = []
        #: Whether totals are rows of several pieces; then ``reserve`` comes before the first use.
        self.long = across and form.inner > longest_piece(dtype)
        if across and not self.long:
            self.reserve()

    def reserve(self) -> None:
        """Allocate what is sent and received, if that has not been done."""
        if not self._messages:
            row = pieces(self._form.inner, self._dtype) if self.long else [None]
            self._messages = [self._message(piece) for piece in row]

    def _message(self, piece: slice | None) -> "BuiltIn | Packed":
        if self._builtin:
            return BuiltIn(self._op, self._dtype, self._form, piece)
        return Packed(self._op, self._dtype, self._form, piece, self._edges)

    @property
    def nbytes(self) -> int:
        """How many bytes ``reserve`` allocates."""
        if not self._across:
            return 0
        return (BuiltIn if self._builtin else Packed).nbytes(self._dtype, self._form)

    def __call__(self, comm: Comm, pending: Pending | None) -> Any:
        """Combine the totals of all ranks before this one in scan order (``MPI_Exscan``)."""
        if comm.size == 1 or not self._across:
            return None
        comm = self._begin(comm, pending)
        for message in self._messages:
            self._pack(message)
            comm.Exscan(message.send, message.receive, self._mpi_op)
            self._unpack(message, comm)
        return self._end()

    def start(self, comm: Comm, pending: Pending | None) -> None:
        """Begin the same and do not wait for it (``MPI_Iexscan``)."""
        if comm.size > 1 and self._across:
            comm = self._begin(comm, pending)
            for message in self._messages:
                self._pack(message)
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

    def _begin(self, comm: Comm, pending: Pending | None) -> Comm:
        self._call, self._offset = pending, None
        return self._ordered(comm)

    def _end(self) -> Any:
        offset, self._call, self._offset = self._offset, None, None
        fault, self._fault = self._fault, None
        for message in self._messages:
            fault, message.fault = message.fault or fault, None
        if fault is not None:
            raise fault
        return offset

    # What goes wrong with a message is raised at the end: the other ranks count on every one.

    def _pack(self, message: "BuiltIn | Packed") -> None:
        """Put what this rank has into a message; after a fault, that there was one."""
        try:
            message.put(self._call if self._fault is None else None)
        except BaseException as error:
            self._fault = error
            message.put(None)

    def _unpack(self, message: "BuiltIn | Packed", comm: Comm) -> None:
        """Take from a message what comes before this rank's shard."""
        # MPI leaves the first rank's receive buffer undefined.
        if comm.rank == 0 or self._fault is not None:
            return
        try:
            if not message.has_offset():
                return
            if self._form.first is not None:
                self._op.combine(self._form.first, message.offset, out=message.offset)
            if message.piece is not None:
                if self._call is not None and not self._call.empty:
                    self._call.put(message.piece, message.offset)
                    self._offset = self._call.offset
                return
            self._offset = message.offset
            if self._seed is not None:
                # As C rounds: at once, and infinite without a warning.
                self._seed.reshape(1).data[0] = message.offset.item()
                self._offset = self._seed
        except BaseException as error:
            self._fault = error
