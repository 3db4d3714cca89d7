"""Who uses a plan's memory on a GPU, and when: order between streams, and release.

A workspace is used by one call at a time, on any stream, each behind the one before; and lives on,
when its plan is dropped, until its last use has ended.
"""

import os
import weakref
from collections import deque
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

from . import epochs

_PER_THREAD = 2  # cudaStreamPerThread: one pointer, but a stream of each thread's own


class LastUse:
    """A workspace's last use, on a stream, and an event behind it.

    Uses on one stream need no event: the stream keeps their order. The event is recorded when
    another stream comes, or when the workspace is dropped. Once another stream has come, the event
    is recorded behind each use at once: a stream then waits for that use, and not for work that the
    other stream got after it. For streams that may be gone when the event is needed, it is always
    recorded at once.

    A use begins and ends so, all on the current ``stream``::

        if stream is not last.stream:
            last.order(stream)
        ...  # launches
        if last.at_once:
            last.record()
    """

    #: The stream whose own order is enough; None where there is none.
    stream: Any
    #: Whether each use is recorded when it ends.
    at_once: bool

    def __init__(self) -> None:
        """Begin the first use, on the stream that is current now, and end it."""
        self._device, self._event = cupy.cuda.Device(), cupy.cuda.Event(disable_timing=True)
        self._recorded = False
        self._take(cupy.cuda.get_current_stream())
        # Whether the stream lives while its object does, and is the same one in every thread.
        self.at_once = type(self._on) is not cupy.cuda.Stream or self.stream is None
        if self.at_once:
            self.record()

    def order(self, stream: Any) -> None:
        """Order the next use, on the current ``stream``, behind this one."""
        if not self._record_once():
            raise RuntimeError(
                "the stream of this plan's last call is being captured into a CUDA graph; end "
                "that, or call the plan there"
            )
        runtime.streamWaitEvent(stream.ptr, self._event.ptr)
        self._take(stream)
        self.at_once = True

    def record(self) -> None:
        """Note that all launches of the use are queued."""
        runtime.eventRecord(self._event.ptr, self._on.ptr)
        self._recorded = True

    def is_over(self) -> bool:
        """Whether the GPU has done all of it; nobody begins another one any more."""
        try:
            with self._device:
                return self._record_once() and bool(self._event.done)
        except runtime.CUDARuntimeError:  # the GPU has failed: nothing runs any more
            return True

    def _take(self, stream: Any) -> None:
        # The stream of a thread may be another's under the same pointer. The pointer of a stream
        # that is gone may come again, but not while its object is held.
        self._on, self.stream = stream, None if stream.ptr == _PER_THREAD else stream

    def _record_once(self) -> bool:
        """Record what is not recorded yet; return False where a capture forbids it now."""
        if self._recorded:
            return True
        try:
            if is_capturing(self._on):
                return False
        except runtime.CUDARuntimeError:  # the null stream, while another one is captured
            return False
        self.record()
        return True


class GraphUse:
    """The use of a workspace that one CUDA graph has alone: the graph orders what it captures."""

    stream, at_once = None, False

    def order(self, stream: Any) -> None:
        """Leave the order to the graph."""

    def record(self) -> None:
        """Leave the order to the graph."""


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
        #: Of the calls whose epochs its words may carry; those of another round are used again.
        self.round = next(epochs.calls) >> epochs.BITS
        #: Whether a CUDA graph has it alone.
        self.is_of_a_graph = is_capturing(cupy.cuda.get_current_stream())
        self.last: LastUse | GraphUse
        if self.is_of_a_graph:
            self.last = GraphUse()
        else:
            self.last = LastUse()
            weakref.finalize(self, releases.add, self.last, self._memory).atexit = False

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
        releases.add(LastUse(), [*temporary])


class Releases:
    """Memory that is dropped as soon as its last use is over; in any thread."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[LastUse, list[Any]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, last: LastUse, memory: list[Any]) -> None:
        """Drop ``memory`` behind ``last``."""
        self._waiting.append((last, memory))
        self.sweep()

    def sweep(self) -> None:
        """Drop what has ended."""
        try:
            if is_capturing(cupy.cuda.get_current_stream()):
                return  # which a look at an event could spoil
        except runtime.CUDARuntimeError:
            return
        for _ in range(len(self)):
            try:
                last, memory = self._waiting.popleft()
            except IndexError:  # another thread sweeps, too
                return
            if not last.is_over():
                self._waiting.append((last, memory))

    def forget(self) -> None:
        """Drop all at once: in a process that was forked, whose GPU memory is its parent's."""
        self._waiting.clear()


releases = Releases()
os.register_at_fork(after_in_child=releases.forget)


# ---- graphs -----------------------------------------------------------------------------------

_captured: list[Any] = []


def is_capturing(stream: Any) -> bool:
    """Whether work on a stream goes into a CUDA graph instead of to the GPU."""
    return bool(runtime.streamIsCapturing(stream.ptr))


def keep_captured(*used: Any) -> None:
    """Keep what a graph uses of ours until the process ends: nobody says when a graph is gone."""
    _captured.append(used)
