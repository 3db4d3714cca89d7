"""The memory of a plan on a GPU: the order of its uses on several streams, and its release.

One call at a time uses a workspace, on any stream. Each use waits for the one before it. If the
plan is dropped, the workspace lives until its last use has ended.
"""

import itertools
import os
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime
from numpy.typing import NDArray

from ..core.form import IN_FLIGHT, Pieces
from .definitions import as_numbers, settable

# ---- the numbers of calls --------------------------------------------------------------------
#
# All calls of a process have different numbers, also those of different plans. The low 32 bits of a
# number are the call's first epoch. A call has four epochs, and the first three are never 0. The
# higher bits are the round of the call. After 2^30 calls the next round begins, and epochs repeat.

BITS = 32  # per epoch
LAST = (1 << BITS) - 1


def numbers(call: int) -> Iterator[int]:
    """Return the numbers of all calls from number ``call`` on, counted from 1.

    >>> next(numbers(1)), next(numbers(2)), next(numbers((1 << 30) + 1)) & LAST
    (5, 9, 5)
    """
    return itertools.count(4 * call + 1, 4)


#: The numbers of this process. Each call takes the next one.
calls = numbers(1)


class _NoCalls(Iterator[int]):
    """The numbers of a process that was forked from one that uses a GPU: there are none."""

    def __next__(self) -> int:
        raise RuntimeError(
            "this process was forked from one that uses a GPU, which CUDA does not allow; "
            "start processes by multiprocessing's 'spawn' or 'forkserver'"
        )


def _after_fork() -> None:
    global calls  # noqa: PLW0603 - of the process
    calls = _NoCalls()


os.register_at_fork(after_in_child=_after_fork)


# ---- a row of totals or of offsets -----------------------------------------------------------

# Pieces of a long row in pinned memory: while some are exchanged, others are copied. A piece has at
# most 2 MiB: a megabyte of numbers that are exchanged, of which logaddexp holds two in registers.
_PLACES = 2 * IN_FLIGHT


class Row:
    """A row of running values on the GPU, and places for some of its pieces in pinned host memory.

    ``bring`` queues copies of the first pieces of the totals to the host. ``take`` waits for a
    piece. ``put`` queues a copy of the piece's offset to the GPU, and then a copy of a later piece
    of the totals to the same place. So the first pieces are exchanged while others are copied.
    """

    def __init__(self, dtype: np.dtype[Any], inner: int, exchanged: np.dtype[Any]) -> None:
        """Allocate a row [inner] of ``dtype``. Its pieces are those of a row of ``exchanged``."""
        self._row = cupy.empty(inner * dtype.itemsize, np.uint8)
        self._pieces = Pieces(inner, exchanged)
        places, self._width = min(len(self._pieces), _PLACES), self._pieces[0].stop
        self._pinned = cupy.cuda.alloc_pinned_memory(places * self._width * dtype.itemsize)
        host: NDArray[Any] = np.frombuffer(self._pinned, dtype, places * self._width)
        self._host = host.reshape(places, self._width)
        #: For each place, the event after its last copy.
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(places)]
        self.pointer = self._row.data.ptr

    @property
    def nbytes(self) -> int:
        """Bytes of memory on the GPU and on the host."""
        return int(self._row.nbytes) + self._host.nbytes

    def field(self, acc: np.dtype[Any], name: str, inner: int) -> Any:
        """View a field [inner] of the row on the GPU, whose structures are ``acc``."""
        return field_of_row(self._row, acc, name, inner)

    def bring(self) -> None:
        """Queue copies of the first pieces to the host, after the work that is queued already."""
        for i in range(len(self._host)):
            self._bring(i)

    def take(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for a piece, and return it in host memory, where it is valid until its ``put``.

        Without ``piece``, return the row; if it is long, a copy that takes the memory of a row.
        """
        if piece is None and len(self._pieces) > 1:
            row: list[NDArray[Any]] = []
            for part in self._pieces:
                row.append(self.take(part).copy())
                self.put(part, None)
            return np.concatenate(row)
        i = self._number(piece or self._pieces[0])
        self._events[i % len(self._host)].synchronize()
        host = self._place(i)
        return host if host.dtype.names is None else as_numbers(host)

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Queue a copy of ``offset``, if any, to the GPU, over totals that ``take`` has returned.

        Then queue a copy of the next piece that has no place yet. ``slice(None)`` is the full row.
        """
        several = len(self._pieces) > 1
        if several and piece == slice(None):
            assert offset is not None
            for i, part in enumerate(self._pieces):
                if i >= len(self._host):
                    self._events[i % len(self._host)].synchronize()
                self._send(i, np.asarray(offset[part]))
                self._events[i % len(self._host)].record()
            return
        i = self._number(piece)
        if offset is not None:
            # The copy of an earlier offset from this place has ended: the copy of this total was
            # queued after it, and has ended, too.
            self._send(i, offset)
        if i + len(self._host) < len(self._pieces):
            self._bring(i + len(self._host))

    def _number(self, piece: slice) -> int:
        """Return the number of a piece."""
        return int((piece.start or 0) // self._width)

    def _place(self, i: int) -> NDArray[Any]:
        """Return the place of piece ``i`` on the host."""
        piece = self._pieces[i]
        host: NDArray[Any] = self._host[i % len(self._host), : piece.stop - piece.start]
        return host

    def _addresses(self, i: int) -> tuple[Any, int, int]:
        """Return the places of piece ``i`` on the GPU and on the host, and its size in bytes."""
        piece, item = self._pieces[i], self._host.itemsize
        on_host = self._pinned.ptr + i % len(self._host) * self._width * item
        return self._row.data + piece.start * item, on_host, (piece.stop - piece.start) * item

    def _bring(self, i: int) -> None:
        """Queue the copy of piece ``i`` to the host."""
        on_gpu, on_host, size = self._addresses(i)
        on_gpu.copy_to_host_async(on_host, size)
        self._events[i % len(self._host)].record()

    def _send(self, i: int, offset: NDArray[Any]) -> None:
        """Store ``offset`` in the place of piece ``i``, and queue its copy to the GPU."""
        host = self._place(i)
        if host.dtype.names is None:
            host[...] = offset
        else:
            settable(host)[...] = offset
        on_gpu, on_host, size = self._addresses(i)
        on_gpu.copy_from_host_async(on_host, size)


def field_of_row(row: Any, acc: np.dtype[Any], name: str, inner: int) -> Any:
    """View a field [inner] of structures ``acc``, in memory of bytes on a GPU."""
    fields: Any = acc.fields
    dtype, begin = fields[name][:2]
    return cupy.ndarray(inner, dtype, row.data + begin, (acc.itemsize,))


# ---- the memory of a plan --------------------------------------------------------------------

_PER_THREAD = 2  # cudaStreamPerThread: the same pointer in all threads, another stream in each


class LastUse:
    """The last use of a workspace: its stream, and an event after it.

    Uses on one stream need no event, because the stream keeps their order. The event is recorded
    when another stream uses the workspace, or when the workspace is dropped. Once a second stream
    has used the workspace, the event is recorded at the end of each use. So the next stream waits
    for this use only, and not for later work of the same stream. A stream may be gone by the time
    that its event is needed. For such streams, the event is always recorded at the end of the use.

    A use begins and ends like this, all on the current ``stream``::

        if stream is not last.stream:
            last.order(stream)
        last.recorded = False
        ...  # launches
        if last.at_once:
            last.record()
    """

    #: The stream on which the next use needs no event; None if there is no such stream.
    stream: Any
    #: Whether the event is recorded at the end of each use.
    at_once: bool
    #: Whether the event is recorded after this use. A use sets it to False where it begins. So the
    #: event is recorded before anyone waits for it, even if an interrupt ends the use early.
    recorded: bool

    def __init__(self) -> None:
        """Begin the first use, on the stream that is current now, and end it."""
        self._device, self._event = cupy.cuda.Device(), cupy.cuda.Event(disable_timing=True)
        self.recorded = False
        self._take(cupy.cuda.get_current_stream())
        # A stream of CuPy lives as long as its object. Other streams may be gone, or differ in
        # each thread.
        self.at_once = type(self._on) is not cupy.cuda.Stream or self.stream is None
        if self.at_once:
            self.record()

    def order(self, stream: Any) -> None:
        """Order the next use, on the current ``stream``, after this one."""
        if not self._record_once():
            raise RuntimeError(
                "the stream of this plan's last call is being captured into a CUDA graph; end "
                "that, or call the plan there"
            )
        runtime.streamWaitEvent(stream.ptr, self._event.ptr)
        self._take(stream)
        self.at_once = True

    def record(self) -> None:
        """Record the event after this use, when all its launches are queued."""
        runtime.eventRecord(self._event.ptr, self._on.ptr)
        self.recorded = True

    def is_over(self) -> bool:
        """Whether the GPU has done all work of this use. No other use may begin afterwards."""
        try:
            with self._device:
                return self._record_once() and bool(self._event.done)
        except runtime.CUDARuntimeError:  # the GPU has failed: nothing runs any more
            return True

    def _take(self, stream: Any) -> None:
        # The per-thread stream has the same pointer in all threads, but is another stream in each.
        # The pointer of a destroyed stream may be used again, but not while its object lives.
        self._on, self.stream = stream, None if stream.ptr == _PER_THREAD else stream

    def _record_once(self) -> bool:
        """Record the event if it is not recorded yet; return False if a capture forbids that."""
        if self.recorded:
            return True
        try:
            if is_capturing(self._on):
                return False
        except runtime.CUDARuntimeError:  # this is the null stream, and another one is captured
            return False
        self.record()
        return True


class GraphUse:
    """The use of a workspace by one CUDA graph alone. The graph itself keeps the order."""

    stream, at_once, recorded = None, False, False

    def order(self, stream: Any) -> None:
        """Do nothing."""

    def record(self) -> None:
        """Do nothing."""


class Workspace:
    """The kernels of a plan, with their arguments, and all the memory that they share.

    ``parts`` become the attributes. They were allocated, and set to zero, on the current stream.
    """

    scan: Any
    reduce: Any = None
    add: Any = None
    call_off: Any = None
    total: Any = None
    wide: Any = None
    violation: Any = None
    segments: Any = None  # a buffer, once it is needed: see ``core.segments.as_read``

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)
        self._memory = [part for part in parts.values() if part is not None]
        #: The round of calls that may use this memory. Its words may have the epochs of this round.
        self.round = next(calls) >> BITS
        #: Whether one CUDA graph has this workspace alone.
        self.is_of_a_graph = is_capturing(cupy.cuda.get_current_stream())
        self.last: LastUse | GraphUse
        if self.is_of_a_graph:
            self.last = GraphUse()
        else:
            self.last = LastUse()
            weakref.finalize(self, releases.add, self.last, self._memory).atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory on the GPU, and of pinned memory on the host."""
        return sum(int(part.nbytes) for part in self._memory)

    def hold_segments(self, n: int, dtype: Any) -> Any:
        """Allocate, and keep, the buffer [n] for segments that kernels cannot read in place."""
        # A graph's memory is not from a pool: see ``Strategy.make_for_a_graph``.
        with cupy.cuda.using_allocator(None) if self.is_of_a_graph else nullcontext():
            self.segments = cupy.empty(n, dtype)
        self._memory.append(self.segments)
        return self.segments

    def keep(self, *temporary: Any) -> None:
        """Keep arrays until the work that is queued now has ended.

        They may be from another stream's pool, which could use their memory again before that.
        """
        releases.add(LastUse(), [*temporary])


class Releases:
    """Memory that is dropped after its last use. The next call of any thread drops it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[LastUse, list[Any]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, last: LastUse, memory: list[Any]) -> None:
        """Drop ``memory`` after its last use, ``last``."""
        self._waiting.append((last, memory))
        self.sweep()

    def sweep(self) -> None:
        """Drop all memory whose last use has ended."""
        try:
            if is_capturing(cupy.cuda.get_current_stream()):
                return  # a query of an event could invalidate the capture
        except runtime.CUDARuntimeError:
            return
        for _ in range(len(self)):
            try:
                last, memory = self._waiting.popleft()
            except IndexError:  # another thread has taken the rest
                return
            if not last.is_over():
                self._waiting.append((last, memory))

    def forget(self) -> None:
        """Forget all memory, in a process that was forked: the memory is the parent's."""
        self._waiting.clear()


releases = Releases()
os.register_at_fork(after_in_child=releases.forget)


# ---- graphs -----------------------------------------------------------------------------------


def zeros(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """Allocate memory that is zero before the first launch; replays of a graph do not clear it."""
    if not is_capturing(cupy.cuda.get_current_stream()):
        return cupy.zeros(shape, dtype)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array = cupy.zeros(shape, dtype)
        stream.synchronize()
    return array


_captured: list[Any] = []


def is_capturing(stream: Any) -> bool:
    """Return whether a stream is captured: its work goes into a CUDA graph, not to the GPU."""
    return bool(runtime.streamIsCapturing(stream.ptr))


def refuse_capture_of_new() -> None:
    """Raise RuntimeError if the current stream is captured: nothing can be made meanwhile."""
    if is_capturing(cupy.cuda.get_current_stream()):
        raise RuntimeError(
            "nothing can be made for a new kind of scan while a CUDA graph is captured: make the "
            "plan, or call scan() once with such arrays, before the capture"
        )


def keep_captured(*memory: Any) -> None:
    """Keep a graph's memory until the process ends: CUDA does not tell when a graph is gone."""
    _captured.append(memory)
