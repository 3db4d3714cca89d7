"""A row of totals or of offsets, and its copies from the GPU to the host and back."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.pieces import IN_FLIGHT, Pieces
from .registers import as_numbers, settable

# Pieces of a long row in pinned memory: while some are exchanged, others are copied. A piece has at
# most 2 MiB: a megabyte of numbers that are exchanged, of which logaddexp holds two in registers.
_PLACES = 2 * IN_FLIGHT


class Row:
    """A row of running values on the GPU, and places for some of its pieces in pinned host memory.

    ``bring`` queues copies of the first totals to the host. ``take`` waits for a piece. ``put``
    queues a copy of its offset back, and then one of a later piece of the totals to the same place.
    So an early piece can be exchanged while later ones are still copied.
    """

    def __init__(self, dtype: np.dtype[Any], inner: int, exchanged: np.dtype[Any]) -> None:
        """Allocate a row [inner] of ``dtype``. Its pieces are those of a row of ``exchanged``."""
        self._row = cupy.empty(inner * dtype.itemsize, np.uint8)
        self._pieces = Pieces(inner, exchanged)
        places, self._width = min(len(self._pieces), _PLACES), self._pieces[0].stop
        self._pinned = cupy.cuda.alloc_pinned_memory(places * self._width * dtype.itemsize)
        host: NDArray[Any] = np.frombuffer(self._pinned, dtype, places * self._width)
        self._host = host.reshape(places, self._width)
        #: Behind the last copy to or from each place that the host may wait for.
        self._copied = [cupy.cuda.Event(disable_timing=True) for _ in range(places)]
        self.pointer = self._row.data.ptr

    @property
    def nbytes(self) -> int:
        """Bytes of memory on the GPU and on the host."""
        return int(self._row.nbytes) + self._host.nbytes

    def bring(self) -> None:
        """Queue copies of the first pieces to the host, behind the work that is queued already."""
        for i in range(len(self._host)):
            self._bring(i)

    def take(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for a piece, and return it in host memory, where it is valid until its ``put``.

        Without ``piece``, return the row; if it is long, a copy that takes the memory of a row.
        """
        if piece is None and len(self._pieces) > 1:
            row: list[NDArray[Any]] = []
            for each in self._pieces:
                row.append(self.take(each).copy())
                self.put(each, None)
            return np.concatenate(row)
        i = self._number(piece or self._pieces[0])
        self._copied[i % len(self._host)].synchronize()
        host = self._place(i)
        return host if host.dtype.names is None else as_numbers(host)

    def put(self, piece: slice, offset: NDArray[Any] | None) -> None:
        """Queue a copy of ``offset`` to the GPU, over totals that have been taken; None: leave it.

        Then queue a copy of the next piece that has no place yet. ``slice(None)`` is the row.
        """
        several = len(self._pieces) > 1
        if several and piece == slice(None):
            assert offset is not None
            for i, each in enumerate(self._pieces):
                if i >= len(self._host):
                    self._copied[i % len(self._host)].synchronize()
                self._send(i, np.asarray(offset[each]))
                self._copied[i % len(self._host)].record()
            return
        i = self._number(piece)
        if offset is not None:
            # The copy of an earlier offset has ended: this total was queued behind it, and has
            # come.
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
        self._copied[i % len(self._host)].record()

    def _send(self, i: int, offset: NDArray[Any]) -> None:
        """Store ``offset`` in the place of piece ``i``, and queue its copy to the GPU."""
        host = self._place(i)
        if host.dtype.names is None:
            host[...] = offset
        else:
            settable(host)[...] = offset
        on_gpu, on_host, size = self._addresses(i)
        on_gpu.copy_from_host_async(on_host, size)
