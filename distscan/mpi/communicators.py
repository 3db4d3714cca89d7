"""Communicators and nodes."""

import functools
import os
from typing import Any, NamedTuple, cast

from ..core.errors import LaunchError
from . import signals
from .launcher import launched_ranks, local_rank
from .library import MPI

Comm = MPI.Intracomm


# ---- communicators and nodes ---------------------------------------------------------------


def communicator(comm: Comm | None) -> Comm:
    """Return ``comm``, or ``MPI.COMM_WORLD`` for None; where it has several ranks, defer signals.

    Raises ``LaunchError`` where the launcher started several ranks and MPI sees only one: each
    would scan its shard as if it were the whole. Raises RuntimeError in a process that a rank has
    forked: it would speak in that rank's name.
    """
    if comm is None:
        comm = MPI.COMM_WORLD
        if comm.size == 1 and (launched := launched_ranks()) > 1:
            raise LaunchError(
                f"the launcher started {launched} ranks but MPI sees 1: mpirun and the MPI that "
                f"mpi4py loaded ({mpi_version()}) differ; use the mpirun of that MPI"
            )
    elif comm == MPI.COMM_NULL:
        raise ValueError("comm is MPI.COMM_NULL: this rank is not part of the communicator")
    elif not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm must be an mpi4py intracommunicator, not {type(comm).__name__}")
    if comm.size > 1:
        if _forked:
            raise RuntimeError(
                "this process was forked by a rank, and is none itself; pass comm=MPI.COMM_SELF, "
                "or start processes by multiprocessing's 'spawn' or 'forkserver'"
            )
        signals.defer()
    return comm


_forked: list[bool] = []
os.register_at_fork(after_in_child=lambda: _forked.append(True))


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


def mpi_version() -> str:
    """Name the MPI library and its version, such as "MPICH 4.3.0"."""
    first = MPI.Get_library_version().strip("\0 \n").partition("\n")[0].partition(",")[0]
    return " ".join(first.replace("Version:", "").split())


# ---- what a communicator keeps for distscan, until it is freed -----------------------------


def backwards(comm: Comm) -> Comm:
    """Return the same ranks in the opposite order; collective when first asked for."""
    kept: Any = comm.Get_attr(backwards_key())
    if kept is None:
        kept = comm.Split(0, -comm.rank)
        comm.Set_attr(backwards_key(), kept)
    return cast(Comm, kept)


def aside(comm: Comm) -> Comm:
    """Return the same ranks for messages of distscan's own; collective when first asked for."""
    kept: Any = comm.Get_attr(_aside())
    if kept is None:
        kept = comm.Dup()
        comm.Set_attr(_aside(), kept)
    return cast(Comm, kept)


@functools.cache
def backwards_key() -> int:
    """Return the key under which a communicator keeps what ``backwards`` returns."""
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, kept: kept.Free())


@functools.cache
def _aside() -> int:
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, kept: kept.Free())


# ---- names ---------------------------------------------------------------------------------


def op_name(op: Any) -> Any:
    """Return the name of an MPI op that has a built-in of its meaning; anything else unchanged."""
    if isinstance(op, MPI.Op):
        for name in ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"):
            if op == getattr(MPI, name):
                kind = {"B": "bitwise_", "L": "logical_"}.get(name[0], "")
                return kind + name[bool(kind) :].lower()
    return op
