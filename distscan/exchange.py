"""Everything that crosses ranks; the only file that imports MPI.

A total is one element on the host. What a rank finds wrong is agreed on here, so that every rank
raises or none does.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import DisagreementError, LaunchError
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
        launched = _variable(_LAUNCHED_RANKS) or 1
        if MPI.COMM_WORLD.size == 1 < launched:
            library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")
            raise LaunchError(
                f"the launcher started {launched} ranks but MPI sees 1: mpirun and the MPI that "
                f"mpi4py loaded ({library}) differ; use the mpirun of that MPI"
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


def exscan(
    comm: Comm, op: Operator, dtype: np.dtype[Any], total: NDArray[Any] | None
) -> NDArray[Any] | None:
    """Combine the totals of all earlier ranks, in rank order (``MPI_Exscan``).

    ``total`` is a 0-d array of ``dtype``, or None for an empty shard. So is the result: None says
    that nothing comes before this rank's shard.
    """
    if comm.size == 1:
        return None
    if dtype.kind not in op.mpi_kinds:
        return _exscan_numpy_form(comm, op, dtype, total)
    send, offset = np.zeros((), dtype), np.empty((), dtype)
    fault: Exception | None = None
    try:
        send[...] = op.identity(dtype) if total is None else total
    except Exception as error:  # raised below: the other ranks count on this one's part
        fault = error
    comm.Exscan(send, offset, getattr(MPI, op.mpi))
    if fault is not None:
        raise fault
    # MPI leaves rank 0's receive buffer undefined.
    return None if comm.rank == 0 else offset


def _exscan_numpy_form(
    comm: Comm, op: Operator, dtype: np.dtype[Any], total: NDArray[Any] | None
) -> NDArray[Any] | None:
    """Exchange (present, value) pairs, so that an empty shard needs no identity."""
    pair = np.dtype([("present", np.bool_), ("value", dtype)])
    faults: list[Exception] = []

    def combine(earlier_buffer: Any, later_buffer: Any, _: MPI.Datatype) -> None:
        earlier, later = np.frombuffer(earlier_buffer, pair), np.frombuffer(later_buffer, pair)
        try:
            for a, b in zip(earlier, later, strict=True):
                if a["present"]:
                    b["value"] = op.combine(a["value"], b["value"]) if b["present"] else a["value"]
                    b["present"] = True
        except Exception as error:  # an exception cannot cross MPI: it is raised below
            faults.append(error)

    send, receive = np.zeros(1, pair), np.zeros(1, pair)
    if total is not None:
        send["present"], send["value"] = True, total
    element = MPI.BYTE.Create_contiguous(pair.itemsize).Commit()
    mpi_op = MPI.Op.Create(combine, commute=False)
    try:
        comm.Exscan([send.view(np.uint8), 1, element], [receive.view(np.uint8), 1, element], mpi_op)
    finally:
        mpi_op.Free()
        element.Free()
    if faults:
        raise faults[0]
    if comm.rank == 0 or not receive["present"][0]:
        return None
    return np.array(receive["value"][0])


# ---- agreement on faults -------------------------------------------------------------------


@contextmanager
def agreed(comm: Comm) -> Iterator[dict[str, object]]:
    """Run a local step, collectively: afterwards every rank goes on, or every rank raises.

    All ranks raise the same exception, whose message names the ranks and the fault. What the step
    puts into the dictionary must be the same on every rank; it costs one ``MPI_Allreduce``.

    Example::

        with agreed(comm) as same:
            same["dtype"] = x.dtype
            check(x)
    """
    same: dict[str, object] = {}
    fault: BaseException | None = None
    try:
        yield same
    except BaseException as error:  # Ctrl-C too: the other ranks must not wait for this one
        fault = error
    terms = {name: str(value) for name, value in same.items()}
    if comm.size == 1:
        if fault is not None:
            raise fault
        return
    key = zlib.crc32(repr(terms).encode())
    status = np.array([fault is None, key, -key], np.int64)
    comm.Allreduce(MPI.IN_PLACE, status, MPI.MIN)
    if status[0] and status[1] == -status[2]:
        return
    faults = comm.allgather(None if fault is None else _portable(fault))
    if fault is not None and not isinstance(fault, Exception):
        raise fault
    if any(faults):
        kind = next(found[0] for found in faults if found)
        raise everywhere(kind(_by_rank([found and found[1] for found in faults]))) from fault
    everyone = comm.allgather(terms)
    for name in everyone[0]:
        values = [other.get(name) for other in everyone]
        if len(set(values)) > 1:
            raise everywhere(DisagreementError(f"the ranks disagree on {name}: {_by_rank(values)}"))
    raise everywhere(DisagreementError("the ranks disagree on what they are doing"))


def everywhere(fault: Exception) -> Exception:
    """Mark an exception that every rank is about to raise."""
    fault.__dict__["on_every_rank"] = True
    return fault


def is_agreed(fault: Exception) -> bool:
    """Whether every rank raises this exception too."""
    return "on_every_rank" in fault.__dict__


def _portable(fault: BaseException) -> tuple[type[Exception], str]:
    """Reduce an exception to a type that every rank can import and build from a message."""
    try:
        message = str(fault) or type(fault).__name__
    except Exception:  # an exception that cannot even be printed
        message = type(fault).__name__
    for kind in type(fault).__mro__:
        known = kind.__module__ in {"builtins", "distscan.errors", "numpy.exceptions"}
        if known and issubclass(kind, Exception):
            try:
                if str(kind(message)) == message:
                    return kind, message
            except TypeError:
                continue
    return RuntimeError, message


def _by_rank(messages: list[str | None]) -> str:
    """Join the messages of all ranks, each said once behind the ranks that say it.

    >>> _by_rank(["no", None, "no", "no"])
    'ranks 0, 2-3: no'
    """
    ranks: dict[str, list[int]] = {}
    for rank, message in enumerate(messages):
        if message is not None:
            ranks.setdefault(message, []).append(rank)
    parts = []
    for message, where in list(ranks.items())[:4]:
        if len(where) == len(messages):
            return f"every rank: {message}"
        parts.append(f"{'rank' if len(where) == 1 else 'ranks'} {_ranges(where)}: {message}")
    if len(ranks) > len(parts):
        parts.append(f"and {len(ranks) - len(parts)} more faults")
    return "; ".join(parts)


def _ranges(numbers: list[int]) -> str:
    """Write sorted numbers shortly.

    >>> _ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
