"""The local steps on NumPy arrays, in cache-sized chunks; the reference for every test."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Types
from ..operators import Operator
from ..shards import chunks

# Elements scanned before the running total is combined into them: half an L2 of float64, so that
# they are still in cache. 4096 to 65536 ran within 5 % of each other on a 2.x GHz Xeon core.
CHUNK = 16384


def empty(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array [n]."""
    return np.empty(n, dtype)


def staging(size: int) -> NDArray[np.uint8]:
    """Allocate ``size`` bytes of the host memory that ``upload`` and ``download`` like best."""
    return np.empty(size, np.uint8)


def upload(piece: NDArray[Any], array: NDArray[Any]) -> None:
    """Copy a piece in host memory into ``array``."""
    array[...] = piece


def download(array: NDArray[Any], buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """Return ``array`` in host memory, in ``buffer`` if it is not there already."""
    return array


def synchronize() -> None:
    """Wait for all work on this backend."""


class ScanAdd:
    """Strategy ``scan-add`` on one shard: scan it, then combine the rank's offset into it."""

    def __init__(self, op: Operator, types: Types, x: NDArray[Any]) -> None:
        """Allocate what shards like ``x`` [n] need beside their input and output."""
        self.op, self.types, self.n = op, types, x.size
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None if types.acc == types.out else np.empty(self.n, types.acc)

    def empty(self) -> NDArray[Any]:
        """Allocate a result [n]."""
        return np.empty(self.n, self.types.out)

    def scan(self, x: NDArray[Any], out: NDArray[Any]) -> NDArray[Any] | None:
        """Scan ``x`` [n] on its own and return its total, 0-d, or None if ``n`` is 0.

        ``out`` [n] may be ``x`` itself; it is whole only after ``add``.
        """
        local = out if self._wide is None else self._wide
        total: Any = None
        for low, high in chunks(0, self.n, CHUNK):
            piece = local[low:high]
            _accumulate(self.op, x[low:high], piece)
            if total is not None:
                self.op.combine(total, piece, out=piece)
            total = np.array(piece[-1])
        return total  # type: ignore[no-any-return]

    def add(self, offset: NDArray[Any] | None, out: NDArray[Any]) -> None:
        """Combine ``offset``, the total of all that comes before this shard, into ``out`` [n]."""
        local = out if self._wide is None else self._wide
        if offset is None and local is out:
            return
        for low, high in chunks(0, self.n, CHUNK):
            piece = local[low:high]
            if offset is not None:
                self.op.combine(offset, piece, out=piece)
            if local is not out:
                with np.errstate(all="ignore"):
                    out[low:high] = piece


def _accumulate(op: Operator, x: NDArray[Any], out: NDArray[Any]) -> None:
    """Scan one chunk: out[i] = x[0] op ... op x[i], in the type of ``out``."""
    if isinstance(op.numpy, np.ufunc):
        with np.errstate(all="ignore"):
            op.numpy.accumulate(x, dtype=out.dtype, out=out)
        return
    # Any vectorised function: log-step doubling (Hillis and Steele, 1986).
    out[...] = x
    step = 1
    while step < len(out):
        out[step:] = op.combine(out[:-step], out[step:])
        step *= 2
