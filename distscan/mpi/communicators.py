"""Communicators, nodes and names of MPI. Every module of this package imports ``MPI`` from here.

mpi4py is imported at the first use of MPI, not before. So a client of the service needs no MPI
library; nor does it start one, which may fail on the front end of a cluster. If mpi4py finds no
library, the process is the only rank: see ``one_process``. So it is under torchrun, too, where MPI
may end the process, unless the program itself has imported mpi4py.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ..core.errors import LaunchError
from . import signals
from .launcher import by_torchrun, launched_ranks, local_rank
from .torch_group import TorchComm, default_group, is_group, torch_comm

# ---- the only import of mpi4py ---------------------------------------------------------------


class _MPI:
    """``mpi4py.MPI``, which is imported when the first of its attributes is read."""

    Intracomm = Any  # for annotations, until then
    fault = ""  # why mpi4py has no library

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # doctest, inspect and others read such names of all objects
            raise AttributeError(name)
        loaded: Any
        try:
            if by_torchrun() and "mpi4py.MPI" not in sys.modules:
                raise ImportError("torchrun starts none")
            from mpi4py import MPI as loaded  # noqa: PLC0415 - it starts MPI
        except (ImportError, RuntimeError) as error:
            from . import one_process as loaded  # noqa: PLC0415 - most programs need none

            self.fault = f"mpi4py cannot load an MPI library ({error})"
        self.__dict__.update(vars(loaded))  # from now on Python finds them without this method
        return getattr(loaded, name)


if TYPE_CHECKING:
    from mpi4py import MPI as MPI  # noqa: PLC0414 - for the other modules
else:
    MPI = _MPI()


Comm = MPI.Intracomm


# ---- communicators and nodes ---------------------------------------------------------------


def communicator(comm: Any) -> Comm:
    """Return the communicator of ``comm``; defer signals if it has several ranks.

    ``comm`` is a communicator, or a process group of PyTorch. None is ``MPI.COMM_WORLD``; where MPI
    sees one rank, it is the default process group, if there is one.

    Raises ``LaunchError`` if the launcher started several ranks but MPI sees only one: each rank
    would scan its shard alone. Raises RuntimeError in a process that was forked by a rank: it
    cannot use that rank's connections.
    """
    if comm is None:
        comm = MPI.COMM_WORLD
        if comm.size == 1 and (group := default_group()) is not None:
            comm = group
        elif comm.size == 1 and (launched := launched_ranks()) > 1:
            raise LaunchError(_launch_fault(launched))
    if is_group(comm):
        comm = torch_comm(comm)
    elif comm == MPI.COMM_NULL:  # this loads MPI
        raise ValueError("comm is MPI.COMM_NULL: this rank is not part of the communicator")
    elif not isinstance(comm, TorchComm | MPI.Intracomm):
        late = "mpi4py.MPI" in sys.modules and by_torchrun()
        raise TypeError(
            "comm must be an mpi4py intracommunicator or a process group of PyTorch, not "
            f"{type(comm).__name__}" + "; under torchrun, import mpi4py.MPI first" * late
        )
    if comm.size > 1:
        if _forked:
            raise RuntimeError(
                "this process was forked by a rank, and is none itself; pass comm=MPI.COMM_SELF, "
                "or start processes by multiprocessing's 'spawn' or 'forkserver'"
            )
        signals.defer()
    return cast(Comm, comm)


def _launch_fault(launched: int) -> str:
    """Return what is wrong where the launcher has started several ranks, and MPI sees one."""
    fault, group = getattr(MPI, "fault", ""), "torch.distributed.init_process_group()"
    if by_torchrun():
        return (
            f"torchrun, or what started it, started {launched} ranks, which have no process group: "
            f"call {group} first; ranks of an mpirun inside of torchrun must not have its "
            "TORCHELASTIC_RUN_ID"
        )
    if fault:
        return (
            f"the launcher started {launched} ranks, and {fault}; install one, for example, in a "
            f"checkout: pip install '.[mpich]'; under torchrun, call {group} first"
        )
    return (
        f"the launcher started {launched} ranks but MPI sees 1: mpirun and the MPI that mpi4py "
        f"loaded ({mpi_version()}) differ; use the mpirun of that MPI; under torchrun, call "
        f"{group} first"
    )


def alone() -> Comm:
    """Return the communicator of this rank alone."""
    return MPI.COMM_SELF


_forked: list[bool] = []
os.register_at_fork(after_in_child=lambda: _forked.append(True))


class Node(NamedTuple):
    """The place of a rank on its node, and the number of nodes."""

    local_rank: int
    nodes: int  # of the communicator
    local_ranks: int  # of the communicator, on this node
    first: bool  # whether this rank is the first of them


def node(comm: Comm) -> Node:
    """Return this rank's ``Node``; collective. The local rank is the launcher's, if it has one."""
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        nodes = comm.allreduce(int(shared.rank == 0))
        launched = local_rank()
        return Node(
            shared.rank if launched is None else launched, nodes, shared.size, shared.rank == 0
        )
    finally:
        shared.Free()


def mpi_version() -> str:
    """Return the name of the MPI library and its version, such as "MPICH 4.3.0"."""
    first = MPI.Get_library_version().strip("\0 \n").partition("\n")[0].partition(",")[0]
    return " ".join(first.replace("Version:", "").split())


# ---- communicators derived from one, kept as its attributes until it is freed --------------


def backwards(comm: Comm) -> Comm:
    """Return a communicator of the same ranks in reverse order; the first call is collective."""
    return _derived(comm, "backwards", lambda: comm.Split(0, -comm.rank))


def aside(comm: Comm) -> Comm:
    """Return a duplicate for distscan's own messages; the first call is collective.

    Tags below 2**14 are of ``Notices``, which may stay unreceived; those above are of ``Watch``.
    """
    return _derived(comm, "aside", comm.Dup)


def gradients(comm: Comm) -> Comm:
    """Return a duplicate for backward passes, whose votes have a time limit.

    The first call is collective. The duplicate of a duplicate is itself.
    """
    if comm.size == 1 or vote_token(comm):
        return comm

    def make() -> Comm:
        duplicate = comm.Dup()
        duplicate.Set_attr(
            _key_of_tokens(), comm.bcast(1 + int.from_bytes(os.urandom(7), "little"))
        )
        return duplicate

    return _derived(comm, "gradients", make)


def in_backward_pass(comm: Comm | None) -> Comm:
    """Return the duplicate that ``gradients`` has made, if there is one; local."""
    ranks = communicator(comm)
    duplicate: Any = ranks.Get_attr(derived_key("gradients"))
    return ranks if duplicate is None else cast(Comm, duplicate)


def vote_token(comm: Comm) -> int:
    """Return the token of a communicator whose votes have a time limit; 0 for another one."""
    return cast(int, comm.Get_attr(_key_of_tokens()) or 0)


@functools.cache
def _key_of_tokens() -> int:
    return MPI.Comm.Create_keyval()


def _derived(comm: Comm, name: str, make: Callable[[], Any]) -> Comm:
    """Return the derived communicator of a name; the first call makes it."""
    key = derived_key(name)
    derived: Any = comm.Get_attr(key)
    if derived is None:
        derived = make()
        comm.Set_attr(key, derived)
    return cast(Comm, derived)


@functools.cache
def derived_key(name: str) -> int:
    """Return the key of the attribute that holds the derived communicator of a name."""
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, derived: derived.Free())


# ---- names ---------------------------------------------------------------------------------


_BUILTIN = "SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"


def op_name(op: Any) -> Any:
    """Return the name of the built-in operator for an MPI op; return anything else unchanged.

    Raises TypeError for an MPI op that scans no arrays.
    """
    loaded: Any = sys.modules.get("mpi4py.MPI")  # a client starts no MPI
    if loaded is None or not isinstance(op, loaded.Op):
        return op
    for name in _BUILTIN:
        if op == getattr(loaded, name):
            kind = {"B": "bitwise_", "L": "logical_"}.get(name[0], "")
            return kind + name[bool(kind) :].lower()
    for name in ("MAXLOC", "MINLOC", "REPLACE", "NO_OP", "OP_NULL"):
        if op == getattr(loaded, name):
            break
    else:
        raise TypeError(
            "op is an MPI op of your own, whose function only MPI can call; wrap a function of two "
            "arrays in distscan.Operator"
        )
    pairs = "; for a value and its index pass a distscan.Operator with arity=2"
    raise TypeError(
        f"op is MPI.{name}; of MPI's ops a scan takes {', '.join(_BUILTIN)}"
        + pairs * name.endswith("LOC")
    )


# ---- maxima ----------------------------------------------------------------------------------


def allreduce_max(comm: Comm, numbers: list[int]) -> list[int]:
    """Return the maximum of each number, of 64 bits, over all ranks; collective.

    >>> allreduce_max(MPI.COMM_SELF, [3, -1])
    [3, -1]
    """
    maxima = np.array(numbers, np.int64)
    if comm.size > 1:
        comm.Allreduce(MPI.IN_PLACE, [MPI.buffer(maxima), maxima.size, MPI.INT64_T], MPI.MAX)
    return [int(number) for number in maxima]
