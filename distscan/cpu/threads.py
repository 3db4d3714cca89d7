"""The threads of a rank, which run the compiled kernels side by side."""

import functools
import os
from collections.abc import Callable
from typing import Any


def usable() -> int:
    """Return the number of cores that this rank may use for itself.

    They are the cores that its affinity mask allows. Ranks of one node share its cores, even if
    their masks allow all of them. ``DISTSCAN_THREADS`` sets the number.
    """
    if given := os.environ.get("DISTSCAN_THREADS"):
        return checked(given, "DISTSCAN_THREADS")
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, (os.cpu_count() or allowed) // _ranks_of_node()))


def checked(threads: Any, name: str = "threads") -> int:
    """Return a number of threads as an integer; raise ValueError if it is not at least 1."""
    try:
        number = int(threads)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or (number != threads and not isinstance(threads, str)):
        raise ValueError(f"{name} must be an integer of at least 1, not {threads!r}")
    return number


def _ranks_of_node() -> int:
    """Return the number of ranks that the launcher has started on this node; 1 if unknown."""
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_LOCAL_SIZE"):
        if value := os.environ.get(name):
            return int(value)
    if tasks := os.environ.get("SLURM_STEP_TASKS_PER_NODE"):  # such as 4(x2),3
        return int(tasks.split("(")[0].split(",")[0])
    return 1


def run(function: Callable[[], None], threads: int) -> None:
    """Call a function in so many threads, this one among them."""
    if threads == 1:
        function()
        return
    others = [_pool(os.getpid()).submit(function) for _ in range(threads - 1)]
    function()
    for other in others:
        other.result()


@functools.cache
def _pool(process: int) -> Any:
    """Return the pool of a process; threads do not survive a fork."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - small scans need none

    return ThreadPoolExecutor(os.cpu_count(), "distscan")
