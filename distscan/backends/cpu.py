"""The local steps on NumPy arrays, in cache-sized chunks; the reference for every test."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Types
from ..operators import Operator
from ..shards import chunks

# Elements scanned before the running total is combined into them: few enough to be in cache still
# and to keep chains of roundings short. 2^25 float32 on a core: 8192 343 ms, 4096 456, 16384 327.
CHUNK = 8192


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

    def __init__(self, op: Operator, types: Types, n: int) -> None:
        """Allocate what shards of ``n`` elements need beside their input and output."""
        self.op, self.types, self.n = op, types, n
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None if types.acc == types.out else np.empty(self.n, types.acc)

    def empty(self) -> NDArray[Any]:
        """Allocate a result [n]."""
        return np.empty(self.n, self.types.out)

    def total(
        self, x: NDArray[Any], out: NDArray[Any], *, soon: bool = False
    ) -> NDArray[Any] | None:
        """Return the total of ``x`` [n], 0-d, or None if ``n`` is 0.

        ``out`` [n] may be ``x`` itself; it is whole only after ``seed``. ``soon`` promises that
        ``seed`` follows as soon as the totals are exchanged.
        """
        local = out if self._wide is None else self._wide
        return _scan(self.op, x, local, None, self.types.acc)

    def seed(self, x: NDArray[Any], out: NDArray[Any], offset: NDArray[Any] | None) -> None:
        """Complete ``out`` [n] with ``offset``, the total of all that comes before this shard."""
        local = out if self._wide is None else self._wide
        if offset is None and local is out:
            return
        for low, high in chunks(0, self.n, CHUNK):
            piece = local[low:high]
            if offset is not None:
                self.op.combine(offset, piece, out=piece)
            if local is not out:
                _store(piece, out[low:high])


class ReduceScan:
    """Strategy ``reduce-scan`` on one shard: reduce it, then scan it behind the rank's offset."""

    def __init__(self, op: Operator, types: Types, n: int) -> None:
        """Prepare for shards of ``n`` elements."""
        self.op, self.types, self.n = op, types, n

    empty = ScanAdd.empty

    def total(
        self, x: NDArray[Any], out: NDArray[Any], *, soon: bool = False
    ) -> NDArray[Any] | None:
        """Return the total of ``x`` [n], 0-d, or None if ``n`` is 0; ``out`` is left alone."""
        total: Any = None
        for low, high in chunks(0, self.n, CHUNK):
            part = _reduce(self.op, x[low:high], self.types.acc)
            total = part if total is None else self.op.combine(total, part)
        return None if total is None else np.array(total)

    def seed(self, x: NDArray[Any], out: NDArray[Any], offset: NDArray[Any] | None) -> None:
        """Scan ``x`` [n] into ``out`` [n], which may be ``x``, behind ``offset``."""
        _scan(self.op, x, out, offset, self.types.acc)


class SinglePass(ReduceScan):
    """Strategy ``single-pass`` on the only shard: it has no total to give and nothing before it."""

    def total(
        self, x: NDArray[Any], out: NDArray[Any], *, soon: bool = False
    ) -> NDArray[Any] | None:
        """Do nothing: ``seed`` is the whole scan."""
        return None


def _scan(
    op: Operator,
    x: NDArray[Any],
    out: NDArray[Any],
    total: NDArray[Any] | None,
    acc: np.dtype[Any],
) -> NDArray[Any] | None:
    """Scan ``x`` [n] into ``out`` [n] behind ``total``, in type ``acc``; return the last value."""
    for low, high in chunks(0, x.size, CHUNK):
        direct = acc == out.dtype
        piece = out[low:high] if direct else np.empty(high - low, acc)
        _accumulate(op, x[low:high], piece)
        if total is not None:
            op.combine(total, piece, out=piece)
        total = np.array(piece[-1])
        if not direct:
            _store(piece, out[low:high])
    return total


def _store(piece: NDArray[Any], out: NDArray[Any]) -> None:
    with np.errstate(all="ignore"):
        out[...] = piece


def _reduce(op: Operator, x: NDArray[Any], acc: np.dtype[Any]) -> Any:
    """Combine one chunk: x[0] op ... op x[-1], in type ``acc``."""
    if op.is_ufunc:
        with np.errstate(all="ignore"):
            # Behind the first element, not behind 0.0, which would make a sum of -0.0 into 0.0.
            return op.numpy.reduce(  # type: ignore[attr-defined]
                x[1:], dtype=acc, initial=x[0].astype(acc)
            )
    # Any vectorised function: neighbours in pairs, an odd last one waits.
    x = x.astype(acc)
    while len(x) > 1:
        paired = op.combine(x[0 : len(x) // 2 * 2 : 2], x[1::2])
        x = np.concatenate([paired, x[len(x) // 2 * 2 :]])
    return x[0]


def _accumulate(op: Operator, x: NDArray[Any], out: NDArray[Any]) -> None:
    """Scan one chunk: out[i] = x[0] op ... op x[i], in the type of ``out``."""
    if op.is_ufunc:
        with np.errstate(all="ignore"):
            op.numpy.accumulate(x, dtype=out.dtype, out=out)  # type: ignore[attr-defined]
        return
    # Any vectorised function: log-step doubling (Hillis and Steele, 1986).
    out[...] = x
    step = 1
    while step < len(out):
        out[step:] = op.combine(out[:-step], out[step:])
        step *= 2
