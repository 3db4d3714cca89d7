"""A row of totals or of offsets, on its way from the GPU to the host and back."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.pieces import pieces


class Row:
    """A row of running values on the GPU, and its place in pinned host memory.

    ``bring`` queues the totals to the host, ``take`` waits for them, and ``put`` queues offsets
    back. A long row goes in the pieces that it is exchanged in, each while later ones are still on
    their way.
    """

    def __init__(self, dtype: np.dtype[Any], inner: int, exchanged: np.dtype[Any]) -> None:
        """Allocate a row [inner] of ``dtype``, whose pieces are those of type ``exchanged``."""
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
        """How much memory it has on the GPU and on the host."""
        return 2 * int(self._row.nbytes)

    def bring(self) -> None:
        """Queue the row, as the work that is queued leaves it, to the host."""
        for piece in self._pieces:
            on_gpu, on_host, size = self._places(piece)
            on_gpu.copy_to_host_async(on_host, size)
            self._arrived[piece.start].record()

    def take(self, piece: slice | None = None) -> NDArray[Any]:
        """Wait for a piece, or for all of them, and return it in host memory."""
        for one in self._pieces if piece is None else (piece,):
            self._arrived[one.start].synchronize()
        return self._host if piece is None else self._host[piece]

    def put(self, piece: slice, offset: NDArray[Any]) -> None:
        """Queue ``offset`` to the GPU, in place of totals that have been taken."""
        # An earlier offset has left this host memory: the total came there behind it.
        self._host[piece] = offset
        on_gpu, on_host, size = self._places(piece)
        on_gpu.copy_from_host_async(on_host, size)

    def _places(self, piece: slice) -> tuple[Any, int, int]:
        """Return where a piece is on the GPU and on the host, and its bytes."""
        low, high, _ = piece.indices(self._host.size)
        begin, size = low * self._host.itemsize, (high - low) * self._host.itemsize
        return self._row.data + begin, self._pinned.ptr + begin, size
