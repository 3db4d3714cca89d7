"""A row of totals or of offsets, and its copies from the GPU to the host and back."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.pieces import pieces
from .registers import as_numbers, settable


class Row:
    """A row of running values on the GPU, and a row in pinned host memory.

    ``bring`` queues copies of the totals to the host. ``take`` waits for them. ``put`` queues
    copies of offsets back. A long row is copied in the pieces in which it is exchanged. So an early
    piece can be exchanged while later ones are still copied.
    """

    def __init__(self, dtype: np.dtype[Any], inner: int, exchanged: np.dtype[Any]) -> None:
        """Allocate a row [inner] of ``dtype``. Its pieces are those of a row of ``exchanged``."""
        self._row = cupy.empty(inner * dtype.itemsize, np.uint8)
        self._pinned = cupy.cuda.alloc_pinned_memory(self._row.nbytes)
        self._host: NDArray[Any] = np.frombuffer(self._pinned, dtype, inner)
        self._pieces = pieces(inner, exchanged)
        self._arrived = {
            piece.start: cupy.cuda.Event(disable_timing=True) for piece in self._pieces
        }
        self.pointer = self._row.data.ptr

    @property
    def nbytes(self) -> int:
        """Bytes of memory on the GPU and on the host."""
        return 2 * int(self._row.nbytes)

    def bring(self) -> None:
        """Queue copies of the row to the host, behind the work that is queued already."""
        for piece in self._pieces:
            on_gpu, on_host, size = self._places(piece)
            on_gpu.copy_to_host_async(on_host, size)
            self._arrived[piece.start].record()

    def take(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for a piece, or for all pieces. Return it, or the row, in host memory."""
        for one in self._pieces if piece is None else (piece,):
            self._arrived[one.start].synchronize()
        row = self._host if piece is None else self._host[piece]
        return row if row.dtype.names is None else as_numbers(row)

    def put(self, piece: slice, offset: NDArray[Any]) -> None:
        """Queue a copy of ``offset`` to the GPU, over totals that have been taken."""
        # The copy of an earlier offset has ended: this total was queued behind it, and has come.
        if self._host.dtype.names is None:
            self._host[piece] = offset
        else:
            settable(self._host[piece])[...] = offset
        on_gpu, on_host, size = self._places(piece)
        on_gpu.copy_from_host_async(on_host, size)

    def _places(self, piece: slice) -> tuple[Any, int, int]:
        """Return a piece's places on the GPU and on the host, and its size in bytes."""
        low, high, _ = piece.indices(self._host.size)
        begin, size = low * self._host.itemsize, (high - low) * self._host.itemsize
        return self._row.data + begin, self._pinned.ptr + begin, size
