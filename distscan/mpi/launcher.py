"""The launcher's environment variables: this process's rank, local rank, and numbers of ranks."""

import functools
import os
import re

_LAUNCHED_RANKS = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "PALS_NRANKS",
    "SLURM_STEP_NUM_TASKS",
    "WORLD_SIZE",  # torchrun's, which is the last one in each of these
)
_LAUNCHED_RANK = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
    "RANK",
)
# An MPI's own variables come first: under mpirun, Slurm's describe the daemon of mpirun.
_LOCAL_RANK = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
    "LOCAL_RANK",
)
_LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PMI_LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
)


def by_torchrun() -> bool:
    """Return whether torchrun started this process.

    It starts no MPI, and its variables count: those of MPI and of Slurm are torchrun's own.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ


@functools.cache
def launched_ranks() -> int:
    """Return how many processes the launcher started; 1 if it has no such variable.

    Where torchrun says 1, another one may have started several torchruns, or this process from it.
    """
    ranks = _variable(_LAUNCHED_RANKS) or 1
    if by_torchrun() and ranks == 1:
        ranks = _first(_LAUNCHED_RANKS) or 1
    return ranks


def launched_rank() -> int:
    """Return the launcher's rank of this process, or 0; MPI need not be loaded."""
    return _variable(_LAUNCHED_RANK) or 0


def local_rank() -> int | None:
    """Return this process's rank on its node; None if the launcher has no such variable."""
    return _variable(_LOCAL_RANK)


def local_ranks() -> int:
    """Return how many ranks may run on this node; 1 if the launcher has no such variable.

    If the launcher tells several numbers, it is the largest: that of all nodes, or of all ranks.
    """
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")  # such as 4(x2),3
    of_slurm = max(map(int, re.findall(r"(?:^|,)(\d+)", tasks)), default=0)
    return _variable(_LOCAL_RANKS) or of_slurm or _variable(_LAUNCHED_RANKS) or 1


def _variable(names: tuple[str, ...]) -> int | None:
    return _first(names[-1:] if by_torchrun() else names)


def _first(names: tuple[str, ...]) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None
