"""Who uses a plan's memory on a GPU, and when: order between streams, numbers of calls, release.

Every call has an epoch, a number that no other call of the process has: words in memory that carry
it are of that call. A workspace is used by one call at a time, on any stream, each behind the one
before; and lives on, when its plan is dropped, until its last use has ended.
"""

import itertools
import os
import weakref
from collections import deque
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

_PER_THREAD = 2  # cudaStreamPerThread: one pointer, but a stream of each thread's own


class Workspace:
    """The kernels of a plan, with their arguments, and all the memory that they share.

    ``parts`` become its attributes. They have been allocated, and zeroed, on the stream that is
    current now.
    """

    scan: Any
    reduce: Any = None
    add: Any = None
    total: Any = None
    wide: Any = None
    heads: Any = None

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)
        self._memory = [part for part in parts.values() if part is not None]
        self._stream = cupy.cuda.get_current_stream()
        #: Of the calls whose epochs its words may carry; those of another round are used again.
        self.round = next(_CALLS) >> ROUND
        #: The event behind the last use; None in a graph, which orders its own.
        self._ended: Any = None
        if not is_capturing(self._stream):
            self._ended = cupy.cuda.Event(disable_timing=True)
            self._ended.record(self._stream)
            weakref.finalize(self, _release, self._ended, self._memory).atexit = False

    @property
    def nbytes(self) -> int:
        """How much memory of the GPU and of the pinned kind there is."""
        return sum(int(part.nbytes) for part in self._memory)

    def flags(self, n: int) -> Any:
        """Return bools [n], for where segments begin; the same for every call."""
        if self.heads is None:
            self.heads = cupy.empty(n, np.bool_)
            self._memory.append(self.heads)
        return self.heads

    @property
    def is_of_a_graph(self) -> bool:
        """Whether a CUDA graph has it alone."""
        return self._ended is None

    def enter(self, stream: Any) -> None:
        """Order the current ``stream`` behind the last use, whichever stream that was on."""
        # One stream keeps its own order. That of a thread may be another's under the same pointer;
        # the pointer of a stream that is gone may come again, but not while its object is held.
        if self._ended is not None and (stream is not self._stream or stream.ptr == _PER_THREAD):
            runtime.streamWaitEvent(stream.ptr, self._ended.ptr)
            self._stream = stream

    def leave(self, stream: Any) -> None:
        """Note that all launches of a use are queued."""
        if self._ended is not None:
            runtime.eventRecord(self._ended.ptr, stream.ptr)

    def keep(self, *temporary: Any) -> None:
        """Keep arrays until the last use has ended: they may be of another stream's pool."""
        if self._ended is not None:
            _release(self._ended, [*temporary])


# ---- numbers --------------------------------------------------------------------------------

_CALLS = itertools.count(1)  # of the process: no two calls, of whichever plans, have one number
ROUND = 30  # bits of a number that make epochs, of which there are four to a call


def next_call() -> int:
    """Number a call."""
    return next(_CALLS)


def epoch(number: int) -> int:
    """Return the first epoch of a call, of 32 bits; it and the two behind it are never 0.

    >>> epoch(1), epoch(2), epoch((1 << 30) + 1)
    (5, 9, 5)
    """
    return (number << 2 & 0xFFFFFFFF) + 1


# ---- release ----------------------------------------------------------------------------------

_releases: deque[tuple[Any, list[Any]]] = deque()  # an event, and what its launches may touch
_captured: list[Any] = []


def _release(event: Any, memory: list[Any]) -> None:
    """Drop memory as soon as an event is over; called by finalizers, in any thread."""
    _releases.append((event, memory))
    sweep()


def sweep() -> None:
    """Drop what has ended."""
    try:
        if is_capturing(cupy.cuda.get_current_stream()):
            return  # which a look at an event could spoil
    except runtime.CUDARuntimeError:
        return
    for _ in range(len(_releases)):
        try:
            event, memory = _releases.popleft()
        except IndexError:  # another thread sweeps, too
            return
        if not _is_over(event):
            _releases.append((event, memory))


def _is_over(event: Any) -> bool:
    try:
        return bool(event.done)
    except runtime.CUDARuntimeError:  # the GPU has failed: nothing runs any more
        return True


# ---- graphs and processes ---------------------------------------------------------------------


def is_capturing(stream: Any) -> bool:
    """Whether work on a stream goes into a CUDA graph instead of to the GPU."""
    return bool(runtime.streamIsCapturing(stream.ptr))


def keep_captured(*used: Any) -> None:
    """Keep what a graph uses of ours until the process ends: nobody says when a graph is gone."""
    _captured.append(used)


def check_process() -> None:
    """Refuse a GPU in a process that was forked from one which uses it."""
    if _forked:
        raise RuntimeError(
            "this process was forked from one that uses a GPU, which CUDA does not allow; "
            "start processes by multiprocessing's 'spawn' or 'forkserver'"
        )


_forked: list[bool] = []


def _after_fork() -> None:
    _forked.append(True)
    _releases.clear()


os.register_at_fork(after_in_child=_after_fork)
