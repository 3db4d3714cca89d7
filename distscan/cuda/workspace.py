"""Who uses a plan's memory on a GPU, and when: order between streams, numbers of calls, release.

Every call has an epoch, a number that no other call of the process has: words in memory that carry
it are of that call. A workspace is used by one call at a time, on any stream, each behind the one
before; and lives on, when its plan is dropped, until its last use has ended.
"""

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

_PER_THREAD = 2  # cudaStreamPerThread: one pointer, but a stream of each thread's own


class LastUse:
    """A workspace's last use, on a stream, and an event behind it.

    Uses on one stream need no event: the stream keeps their order. The event is recorded when
    another stream comes, or when the workspace is dropped. Once another stream has come, the event
    is recorded behind each use at once: a stream then waits for that use, and not for work that the
    other stream got after it. For streams that may be gone when the event is needed, it is always
    recorded at once.
    """

    def __init__(self) -> None:
        """Begin the first use, on the stream that is current now."""
        self._device, self._event = cupy.cuda.Device(), cupy.cuda.Event(disable_timing=True)
        self._stream, self._recorded = cupy.cuda.get_current_stream(), False
        self._later = _stays(self._stream)  # whether it is enough to record later
        self.end()

    def begin(self, stream: Any) -> None:
        """Order the next use, on the current ``stream``, behind this one."""
        # One stream keeps its own order. That of a thread may be another's under the same pointer;
        # the pointer of a stream that is gone may come again, but not while its object is held.
        if stream is not self._stream or stream.ptr == _PER_THREAD:
            if not self._record():
                raise RuntimeError(
                    "the stream of this plan's last call is being captured into a CUDA graph; end "
                    "that, or call the plan there"
                )
            runtime.streamWaitEvent(stream.ptr, self._event.ptr)
            self._stream, self._later = stream, False

    def end(self) -> None:
        """Note that all launches of the use are queued."""
        if not self._later:
            runtime.eventRecord(self._event.ptr, self._stream.ptr)
            self._recorded = True

    def is_over(self) -> bool:
        """Whether the GPU has done all of it; nobody begins another one any more."""
        try:
            with self._device:
                return self._record() and bool(self._event.done)
        except runtime.CUDARuntimeError:  # the GPU has failed: nothing runs any more
            return True

    def _record(self) -> bool:
        """Record what is not recorded yet; return False where a capture forbids it now."""
        if self._recorded:
            return True
        try:
            if is_capturing(self._stream):
                return False
        except runtime.CUDARuntimeError:  # the null stream, while another one is captured
            return False
        runtime.eventRecord(self._event.ptr, self._stream.ptr)
        self._recorded = True
        return True


def _stays(stream: Any) -> bool:
    """Whether a stream lives while its object does, and is the same one in every thread."""
    return type(stream) is cupy.cuda.Stream and stream.ptr != _PER_THREAD


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
    enter: Callable[[Any], None] = staticmethod(lambda stream: None)
    leave: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)
        self._memory = [part for part in parts.values() if part is not None]
        #: Of the calls whose epochs its words may carry; those of another round are used again.
        self.round = next_call() >> ROUND
        #: Whether a CUDA graph has it alone.
        self.is_of_a_graph = is_capturing(cupy.cuda.get_current_stream())
        if self.is_of_a_graph:  # which orders what it captures
            return
        last = LastUse()
        #: Order the current stream, which is given, behind the last use.
        self.enter = last.begin
        #: Note that all launches of a use are queued, on the stream that entered.
        self.leave = last.end
        weakref.finalize(self, _release, last, self._memory).atexit = False

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

    def keep(self, *temporary: Any) -> None:
        """Keep arrays until what is queued now is over: they may be of another stream's pool."""
        if not self.is_of_a_graph:
            _release(LastUse(), [*temporary])


# ---- numbers --------------------------------------------------------------------------------

# One, of the process: no two calls, of whichever plans, have one number.
_numbers: list[Iterator[int]] = [itertools.count(1)]
ROUND = 30  # bits of a number that make epochs, of which there are four to a call


def next_call() -> int:
    """Give a call its number; refuse one in a process that was forked from one which uses a GPU."""
    return next(_numbers[0])


def epoch(number: int) -> int:
    """Return the first epoch of a call, of 32 bits; it and the two behind it are never 0.

    >>> epoch(1), epoch(2), epoch((1 << 30) + 1)
    (5, 9, 5)
    """
    return (number << 2 & 0xFFFFFFFF) + 1


# ---- release ----------------------------------------------------------------------------------

_releases: deque[tuple[LastUse, list[Any]]] = deque()  # and what its launches may touch
_captured: list[Any] = []


def _release(last: LastUse, memory: list[Any]) -> None:
    """Drop memory as soon as its last use is over; called by finalizers, in any thread."""
    _releases.append((last, memory))
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
            last, memory = _releases.popleft()
        except IndexError:  # another thread sweeps, too
            return
        if not last.is_over():
            _releases.append((last, memory))


# ---- graphs and processes ---------------------------------------------------------------------


def is_capturing(stream: Any) -> bool:
    """Whether work on a stream goes into a CUDA graph instead of to the GPU."""
    return bool(runtime.streamIsCapturing(stream.ptr))


def keep_captured(*used: Any) -> None:
    """Keep what a graph uses of ours until the process ends: nobody says when a graph is gone."""
    _captured.append(used)


class _NoCalls(Iterator[int]):
    """The numbers of calls in a process that was forked: there are none."""

    def __next__(self) -> int:
        raise RuntimeError(
            "this process was forked from one that uses a GPU, which CUDA does not allow; "
            "start processes by multiprocessing's 'spawn' or 'forkserver'"
        )


def _after_fork() -> None:
    _numbers[:] = [_NoCalls()]
    _releases.clear()


os.register_at_fork(after_in_child=_after_fork)
