"""A row of totals or of offsets, on its way from the GPU to the host and back."""

import weakref
from contextlib import suppress
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..forms import pieces


class Row:
    """A row of running values on the GPU, and its place in pinned host memory.

    ``wait`` brings the totals to the host, and ``row[:] = offsets`` queues those to the GPU. A long
    row goes in the pieces that it is exchanged in: ``row[piece]`` waits for one of the totals, and
    ``row[piece] = offset`` queues it back, while later ones are still on their way.
    """

    def __init__(self, dtype: np.dtype[Any], inner: int, exchanged: np.dtype[Any]) -> None:
        """Allocate a row [inner] of ``dtype``, whose pieces are those of type ``exchanged``."""
        self._row = cupy.empty(inner * dtype.itemsize, np.uint8)
        self._pinned = cupy.cuda.alloc_pinned_memory(self._row.nbytes)
        self._host: NDArray[Any] = np.frombuffer(self._pinned, dtype, inner)
        self._pieces = pieces(inner, exchanged)
        self._arrived = {piece.start: _event() for piece in self._pieces}
        self._left = _event()
        # Who is given this pinned memory next may use it at once.
        last = self._arrived[self._pieces[-1].start]
        weakref.finalize(self, _settle, last, self._left).atexit = False
        self.pointer = self._row.data.ptr

    def wait(self, launch: int) -> "NDArray[Any] | Row":
        """Return the row [inner] as the work that is queued leaves it; as ``HostTotal.wait``.

        A long one is not waited for: it is this row, with all its pieces on their way.
        """
        for piece in self._pieces:
            on_gpu, on_host, size = self._places(piece)
            on_gpu.copy_to_host_async(on_host, size)
            self._arrived[piece.start].record()
        if len(self._pieces) > 1:
            return self
        cupy.cuda.get_current_stream().synchronize()
        return self._host

    def __getitem__(self, piece: slice) -> NDArray[Any]:
        self._arrived[piece.start].synchronize()
        return self._host[piece]

    def __setitem__(self, piece: slice, offset: NDArray[Any]) -> None:
        # An earlier offset has left this host memory: the total came there behind it.
        self._host[piece] = offset
        on_gpu, on_host, size = self._places(piece)
        on_gpu.copy_from_host_async(on_host, size)
        self._left.record()

    def _places(self, piece: slice) -> tuple[Any, int, int]:
        """Return where a piece is on the GPU and on the host, and its bytes."""
        low, high, _ = piece.indices(self._host.size)
        begin, size = low * self._host.itemsize, (high - low) * self._host.itemsize
        return self._row.data + begin, self._pinned.ptr + begin, size


def _event() -> Any:
    return cupy.cuda.Event(disable_timing=True)


def _settle(*events: Any) -> None:
    with suppress(cupy.cuda.runtime.CUDARuntimeError):  # which was raised where it arose
        for event in events:
            event.synchronize()
