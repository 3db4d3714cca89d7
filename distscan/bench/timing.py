"""The times of a call, on the device's clock and on the host's.

device
    The time between CUDA events around a batch of calls back to back, divided by their number. Each
    call of a batch has its own buffers. From 256 MiB per call on, a batch is one call.
wall
    The time on the host's clock of one call and a synchronisation of the device, after a barrier.
queued
    The same as device, behind a copy. While the device copies, the host queues all calls. So the
    time has no gaps between calls for which the host was too slow. For tuning.

Inputs come from memory. Before every sample, the GPU's cache is filled with other data. On a CPU,
the calls rotate among buffers. With several ranks, each sample is that of the slowest rank.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from .machine import Host

Call = Callable[[], object]
WARM_UPS = 3  # samples that are not counted


class Stats(NamedTuple):
    """The quartiles of samples, in their unit; and the number of samples."""

    median: float
    q1: float
    q3: float
    samples: int


class Samples(NamedTuple):
    """The samples of one contender on one rank, in microseconds per call."""

    device: list[float]
    wall: list[float]

    def add(self, *others: "Samples") -> None:
        """Append the samples of others."""
        for other in others:
            self.device.extend(other.device)
            self.wall.extend(other.wall)


def sample(comm: Comm, machine: Host, calls: Sequence[Call], which: int, into: Samples) -> None:
    """Take one sample of each kind; collective. If the call fails on one rank, every rank raises.

    The device's clock measures all ``calls``. The host's clock measures one of them: number
    ``which``, modulo their number. Before both, the call before that one runs without a clock,
    because after another contender the caches hold that contender's code.
    """
    call = calls[which % len(calls)]

    def batch() -> None:
        for each in calls:
            each()

    def warm_up() -> None:
        with agreed(comm):
            calls[(which - 1) % len(calls)]()
        machine.flush()

    if machine.backend == "cuda":  # a CPU has no clock of its own
        warm_up()
        comm.Barrier()
        with agreed(comm):
            device = machine.elapsed(batch)
            if device is not None:
                into.device.append(device / len(calls) * 1e6)
    warm_up()
    machine.synchronize()
    comm.Barrier()
    with agreed(comm):
        begin = perf_counter()
        call()
        machine.synchronize()
        into.wall.append((perf_counter() - begin) * 1e6)


def queued(
    machine: Host,
    calls: Sequence[Call],
    before: Call = lambda: None,
    *,
    repeat: int = 11,
) -> Stats:
    """Time batches on the device's clock, each behind a copy; for one rank with a GPU.

    Returns microseconds per call. ``before`` is called before each batch, and is not timed.
    """

    def batch() -> None:
        for each in calls:
            each()

    samples = []
    for turn in range(-WARM_UPS, repeat):
        before()
        machine.occupy()
        seconds = machine.elapsed(batch)
        if seconds is None:
            raise NotImplementedError("a CPU has no clock of its own")
        if turn >= 0:
            samples.append(seconds / len(calls) * 1e6)
    return stats(samples)


def of_all_ranks(comm: Comm, samples: Sequence[float]) -> Stats | None:
    """Return the quartiles of ``slowest``; None without samples; collective."""
    slow = slowest(comm, samples)
    return stats(slow) if slow.size else None


def slowest(comm: Comm, samples: Sequence[float]) -> NDArray[np.float64]:
    """Return each sample of the rank that was slowest in it; collective.

    All ranks must have the same number of samples.
    """
    found: NDArray[np.float64] = np.array(comm.allgather(list(samples))).max(axis=0)
    return found


def stats(samples: Sequence[float] | NDArray[np.float64]) -> Stats:
    """Return the median, the quartiles and the number of samples.

    >>> stats([4.0, 1.0, 3.0, 2.0, 5.0])
    Stats(median=3.0, q1=2.0, q3=4.0, samples=5)
    """
    q1, median, q3 = (float(q) for q in np.percentile(samples, [25, 50, 75]))
    return Stats(median, q1, q3, len(samples))
