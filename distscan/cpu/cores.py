"""The cores of this machine that a rank may use."""

import functools
import os
from contextlib import suppress


def allowed() -> int:
    """Return the number of cores in this process's affinity mask, which launchers set."""
    return len(os.sched_getaffinity(0))


def unbind() -> None:
    """Let this thread run on every core that the control group allows, whatever mask it has.

    Launchers bind a rank to one core: Open MPI does by default. That is right for a rank that
    computes on it, but not for threads that only copy on behalf of a GPU.
    """
    with suppress(OSError):  # a system that allows no change
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


@functools.cache
def of_node(groups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """Return the number of cores that the ranks of this node share.

    The control group of a container or a batch job (version 2) may have fewer than the machine: a
    set of cores, or a quota of processor time, which is rounded up to cores.
    """
    cores = os.cpu_count() or 1
    group = _read(own).rpartition("0::")[2].strip()  # such as /system.slice/job.scope
    with suppress(ValueError):  # no file: all cores
        cores = min(cores, _length(_read(f"{groups}{group}/cpuset.cpus.effective")))
    while True:
        quota, _, period = _read(f"{groups}{group}/cpu.max").partition(" ")
        with suppress(ValueError):  # no file, or "max 100000": no quota
            cores = min(cores, -(-int(quota) // int(period)))
        if not group.strip("/"):
            return max(1, cores)
        group = os.path.dirname(group)  # its quota counts, too


def _length(cpus: str) -> int:
    """Return the length of a list of cores.

    >>> _length("0-3,8")
    5
    """
    ranges = [part.partition("-") for part in cpus.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _read(path: str) -> str:
    """Return the text of a file; nothing if there is no such file."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
