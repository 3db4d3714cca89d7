"""How a call is timed, on the device's clock and on the host's.

device
    CUDA events around a batch of calls back to back, divided by their number, which is 1 from
    256 MiB per call on. Each call of a batch has buffers of its own.
wall
    The host's clock around one call and the device's synchronisation, after a barrier.

queued
    The same as device, behind a copy in whose time the host queues every call: what the device
    takes where no host is too slow for it. For tuning.

Inputs come from memory: before every sample the GPU's cache is filled with other data; on a CPU
the calls rotate among buffers. Of several ranks the slowest counts, sample by sample.
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
    """The spread of a number of samples: quartiles, in the samples' unit."""

    median: float
    q1: float
    q3: float
    samples: int


class Samples(NamedTuple):
    """What one rank measured of one contender, in microseconds per call."""

    device: list[float]
    wall: list[float]


def sample(comm: Comm, machine: Host, calls: Sequence[Call], which: int, into: Samples) -> None:
    """Take one sample of each kind; collective. Every rank raises where the call failed on one.

    The device's clock is around all ``calls``, the host's around number ``which``, modulo theirs,
    which follows the one before it: between contenders, caches hold the others' code.
    """
    call = calls[which % len(calls)]

    def batch() -> None:
        for each in calls:
            each()

    machine.flush()
    comm.Barrier()
    with agreed(comm):
        device = machine.elapsed(batch)
        if device is not None:
            into.device.append(device / len(calls) * 1e6)
    with agreed(comm):
        calls[(which - 1) % len(calls)]()
    machine.flush()
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
    """Time a batch on the device's clock, behind a copy that the device is busy with meanwhile.

    Returns microseconds per call. ``before`` each batch is not timed. On one rank, with a GPU.
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
    """Take the slowest rank of each sample, then the quartiles; collective. None without samples.

    The ranks must have taken equally many.
    """
    everyone = np.array(comm.allgather(list(samples)))
    return stats(everyone.max(axis=0)) if everyone.size else None


def stats(samples: Sequence[float] | NDArray[np.float64]) -> Stats:
    """Return median and quartiles.

    >>> stats([4.0, 1.0, 3.0, 2.0, 5.0])
    Stats(median=3.0, q1=2.0, q3=4.0, samples=5)
    """
    q1, median, q3 = (float(q) for q in np.percentile(samples, [25, 50, 75]))
    return Stats(median, q1, q3, len(samples))
