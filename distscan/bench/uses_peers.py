"""What users would take in distscan's place, for each use of ``uses.py``."""

from ctypes import c_longlong, c_void_p
from functools import partial
from typing import Any

import numpy as np

from .. import __version__, binding
from ..core.operators import BUILTIN
from . import cub
from .case import Case
from .contenders import version
from .timing import Call
from .uses import PARTS, Peer, Place


def suited(backend: str, ranks: int) -> list[Peer]:
    """Return the peers for so many ranks of this backend."""
    return [peer for peer in PEERS if backend in peer.backends and (ranks == 1 or peer.any_ranks)]


# ---- CUB -----------------------------------------------------------------------------------


def _entry(part: str, name: str, n: int) -> Any:
    floats = np.dtype(np.float32)
    return getattr(cub.entries(part, Case(BUILTIN["sum"], floats, floats, n, 1)), name)


def _cub_by_key(place: Place, keys: Any, x: Any, out: Any) -> Call:
    entry, xp = _entry("BY_KEY", "sum_by_key", x.size), place.machine.xp
    given = *(c_void_p(array.data.ptr) for array in (keys, x, out)), c_longlong(x.size)
    stream = cub.stream_of(xp)
    memory = cub.Memory(xp, lambda temp, size: entry(temp, size, *given, stream))

    def call() -> Any:
        entry(memory.pointer, memory.size, *given, stream)
        return out

    return call


def _cub_flagged(place: Place, x: Any, mask: Any) -> Call:
    """Select by CUB, into an array that is allocated once, and copy the count to the host."""
    entry, xp = _entry("FLAGGED", "flagged", x.size), place.machine.xp
    kept, count = xp.empty_like(x), xp.empty(1, np.int64)
    given = *(c_void_p(array.data.ptr) for array in (x, mask, kept, count)), c_longlong(x.size)
    stream = cub.stream_of(xp)
    memory = cub.Memory(xp, lambda temp, size: entry(temp, size, *given, stream))

    def call() -> Any:
        entry(memory.pointer, memory.size, *given, stream)
        return kept[: count.item()]

    return call


# ---- torch ---------------------------------------------------------------------------------


def _tensors(place: Place, *arrays: Any) -> list[Any]:
    """Return torch's tensors over the same memory."""
    import torch  # noqa: PLC0415 - a peer need not be installed

    if place.machine.backend == "cpu":
        torch.set_num_threads(binding.threads(None))
    return [torch.from_dlpack(array) for array in arrays]


def _torch_select(place: Place, x: Any, mask: Any) -> Call:
    import torch  # noqa: PLC0415 - as above

    tensor, flags = _tensors(place, x, mask.view(np.uint8))
    return partial(torch.masked_select, tensor, flags.view(torch.bool))


def _torch_nancumsum(place: Place, x: Any, out: Any) -> Call:
    import torch  # noqa: PLC0415 - as above

    tensor, result = _tensors(place, x, out)
    filled, inf = torch.empty_like(tensor), float("inf")

    def call() -> Any:
        torch.nan_to_num(tensor, nan=0.0, posinf=inf, neginf=-inf, out=filled)
        torch.cumsum(filled, 0, out=result)
        return out

    return call


def _torch_logcumsumexp(place: Place, x: Any, out: Any) -> Call:
    import torch  # noqa: PLC0415 - as above

    tensor, result = _tensors(place, x, out)

    def call() -> Any:
        torch.logcumsumexp(tensor, 0, out=result)
        return out

    return call


def _torch_partition(place: Place, weights: Any) -> Call:
    """Cut by sums in float64: those in float32 are off by many elements."""
    import torch  # noqa: PLC0415 - as above

    (tensor,) = _tensors(place, weights)
    ends = torch.empty_like(tensor, dtype=torch.float64)
    shares = torch.arange(1, PARTS, dtype=torch.float64, device=tensor.device) / PARTS

    def call() -> Any:
        torch.cumsum(tensor, 0, dtype=torch.float64, out=ends)
        return torch.searchsorted(ends, shares * ends[-1]).cpu().numpy()

    return call


# ---- NumPy and CuPy, SciPy -----------------------------------------------------------------


def _numpy_by_key(place: Place, keys: Any, x: Any, out: Any) -> Call:
    """Subtract from a sum over all runs what it was before each run."""

    def call() -> Any:
        np.cumsum(x, out=out)
        heads = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
        np.subtract(out, np.repeat(out[heads] - x[heads], np.diff(heads, append=x.size)), out=out)
        return out

    return call


def _rows(place: Place, a: Any, b: Any) -> Call:
    """Go down the columns row by row."""
    h = np.empty_like(b)

    def call() -> Any:
        h[0] = b[0]
        for before, after, factor, term in zip(h, h[1:], a[1:], b[1:], strict=False):
            np.multiply(factor, before, out=after)
            np.add(after, term, out=after)
        return h

    return call


def _lfilter(place: Place, b: Any) -> Call:
    from scipy import signal  # noqa: PLC0415 - a peer need not be installed

    numbers = np.ones(1, b.dtype), np.ones(2, b.dtype)  # h[t] + h[t-1] = b[t]
    return partial(signal.lfilter, *numbers, b)


def _matmuls(place: Place, *arrays: Any) -> Call:
    """Multiply one matrix after the other, from an array [n, 4, 4]."""
    x = np.ascontiguousarray(np.stack(arrays[:16], axis=1)).reshape(-1, 4, 4)
    out = np.empty_like(x)

    def call() -> Any:
        out[0] = x[0]
        for before, after, matrix in zip(out, out[1:], x[1:], strict=False):
            np.matmul(before, matrix, out=after)
        return tuple(out.reshape(-1, 16).T)

    return call


def _by_mask(place: Place, x: Any, mask: Any) -> Call:
    return lambda: x[mask]


def _nancumsum(place: Place, x: Any, out: Any) -> Call:
    return partial(place.machine.xp.nancumsum, x, out=out)


def _logaddexp(place: Place, x: Any, out: Any) -> Call:
    """Accumulate in float64: float32 has an error of 1e-3 after 2^16 elements.

    Into a result of float32, NumPy would convert buffers that it has not filled, with warnings.
    """

    def call() -> Any:
        out[...] = np.logaddexp.accumulate(x, dtype=np.float64)
        return out

    return call


def _searchsorted(place: Place, weights: Any) -> Call:
    shares = np.arange(1, PARTS) / PARTS

    def call() -> Any:
        ends = np.cumsum(weights, dtype=np.float64)
        return np.searchsorted(ends, shares * ends[-1])

    return call


# ---- MPI -----------------------------------------------------------------------------------


def _two_sums(place: Place, count: Any) -> Call:
    """Exchange a count of 8 bytes by two calls of MPI."""
    comm, n = place.comm, np.array([count], np.int64)
    start, total = np.zeros_like(n), np.zeros_like(n)

    def call() -> Any:
        comm.Exscan(n, start)
        comm.Allreduce(n, total)
        return int(start[0]) if comm.rank > 0 else 0, int(total[0])

    return call


_HOST, _GPU = ("cpu",), ("cuda",)
_TORCH, _NUMPY, _CUPY = version("torch"), version("numpy"), version("cupy")

PEERS = (
    Peer("cub", "keys", _cub_by_key, cub.version, _GPU),
    Peer("numpy", "keys", _numpy_by_key, _NUMPY, _HOST),
    Peer("numpy", "columns", _rows, _NUMPY, _HOST),
    Peer("scipy", "filter", _lfilter, version("scipy"), _HOST),
    Peer("numpy", "matrices", _matmuls, _NUMPY, _HOST),
    Peer("cub", "compact", _cub_flagged, cub.version, _GPU),
    Peer("torch", "compact", _torch_select, _TORCH),
    Peer("cupy", "compact", _by_mask, _CUPY, _GPU),
    Peer("numpy", "compact", _by_mask, _NUMPY, _HOST),
    Peer("torch", "nancumsum", _torch_nancumsum, _TORCH),
    Peer("cupy", "nancumsum", _nancumsum, _CUPY, _GPU),
    Peer("numpy", "nancumsum", _nancumsum, _NUMPY, _HOST),
    Peer("torch", "logcumsumexp", _torch_logcumsumexp, _TORCH),
    Peer("numpy", "logcumsumexp", _logaddexp, _NUMPY, _HOST),
    Peer("torch", "partition", _torch_partition, _TORCH),
    Peer("numpy", "partition", _searchsorted, _NUMPY, _HOST),
    Peer("by-hand", "offsets", _two_sums, lambda: __version__, any_ranks=True),
)
