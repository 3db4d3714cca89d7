"""Memory of the CPU backend: arrays, and the copies of a file's chunks to and from them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray


def empty(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array [n]."""
    return np.empty(n, dtype)


class Lane:
    """One thread's copies of chunks between host and device: here both are the same memory."""

    def __init__(self, size: int, gpu: None = None) -> None:
        """Do nothing: no chunk is copied."""

    def landing(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the host memory from which ``upload`` copies to ``array``: the array itself."""
        return array

    def upload(self, array: NDArray[Any]) -> None:
        """Do nothing: the elements are in the array."""

    def download(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the elements of ``array`` in host memory: the array itself."""
        return array


@contextmanager
def staged(gpu: None, out: NDArray[Any], *inputs: Any) -> Iterator[tuple[Any, ...]]:
    """Yield ``out`` and the inputs: host arrays need no copies."""
    yield out, *inputs


def pin(array: NDArray[Any]) -> None:
    """Do nothing: no GPU copies from this memory."""


unpin = pin


def synchronize() -> None:
    """Wait for all work on this backend."""


def current_gpu() -> None:
    """Return None: there is no GPU."""


def available() -> int:
    """Return the bytes of memory that this machine and this process's control group have free."""
    return free_memory()


# ---- the memory that is free -----------------------------------------------------------------

_UNLIMITED = 1 << 62  # version 1 of control groups writes a number near 2^63 for no limit


def free_memory(
    groups: str = "/sys/fs/cgroup",
    process: str = "/proc/self/cgroup",
    machine: str = "/proc/meminfo",
) -> int:
    """Return the bytes that may be allocated before the machine or a control group has no more.

    Files in the page cache count as free, because the system drops them when it must.
    """
    free = _numbers(machine, ":").get("MemAvailable", _UNLIMITED >> 10) << 10
    for line in _lines(process):
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers == "":  # version 2
            for folder in _upwards(groups, group):
                free = min(free, _headroom(folder, "memory.max", "memory.current", "file", "shmem"))
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"
            for folder in _upwards(f"{groups}/memory", group):
                free = min(free, _headroom(folder, *names))
    return max(free, 0)


def _headroom(folder: str, limit: str, usage: str, cached: str, shared: str) -> int:
    """Return the bytes that a control group may still allocate; 2^62 if it has no limit."""
    most, now = _number(f"{folder}/{limit}"), _number(f"{folder}/{usage}")
    if most is None or now is None or most >= _UNLIMITED:
        return _UNLIMITED
    statistics = _numbers(f"{folder}/memory.stat", "")
    return most - now + statistics.get(cached, 0) - statistics.get(shared, 0)


def _upwards(top: str, group: str) -> Iterator[str]:
    """Yield the folders of a control group and of those that it is in.

    >>> list(_upwards("/top", "/a/b"))
    ['/top/a/b', '/top/a', '/top']
    """
    group = group.rstrip("/")
    while group:
        yield top + group
        group = os.path.dirname(group).rstrip("/")
    yield top


def _lines(path: str) -> list[str]:
    """Return the lines of a file; none if there is no such file."""
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def _number(path: str) -> int | None:
    """Return the number in a file; None if there is none."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _numbers(path: str, mark: str) -> dict[str, int]:
    """Return the numbers of a file by their names, which end with a mark."""
    numbers = {}
    for line in _lines(path):
        words = line.split()
        if len(words) > 1 and words[1].isdecimal():
            numbers[words[0].removesuffix(mark)] = int(words[1])
    return numbers
