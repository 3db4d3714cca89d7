"""Prefixes of distscan on all ranks, and of the array libraries, whose errors are compared."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distscan import binding
from distscan.core.form import bounds
from distscan.mpi.agree import agreed
from distscan.mpi.communicators import Comm

Floats = NDArray[Any]
Scan = Callable[[Floats], tuple[str, Floats]]  # returns where it ran, and all prefixes


def ours(
    comm: Comm, bound: binding.Binding, x: Floats, scan: Callable[[Any], object]
) -> tuple[slice, Floats]:
    """Return which elements are this rank's, and their prefixes by ``scan``; collective."""
    mine = slice(*bounds(len(x), comm.size, comm.rank))
    with agreed(comm):
        shard = bound.memory.empty(mine.stop - mine.start, x.dtype)
        lane = bound.memory.Lane(max(shard.nbytes, 1))
        lane.landing(shard)[:] = x[mine]
        lane.upload(shard)
    scan(shard)
    with agreed(comm):
        bound.memory.synchronize()  # a lane does not wait for the scan
        return mine, lane.download(shard).copy()


def by_numpy(scan: Callable[[Floats], Floats]) -> Scan:
    """Scan with NumPy."""
    return lambda x: ("CPU", scan(x))


def by_torch(name: str) -> Scan:
    """Scan with PyTorch, which adds float32 in float64 on a CPU."""

    def scan(x: Floats) -> tuple[str, Floats]:
        import torch  # noqa: PLC0415 - it may be absent

        device = "cuda" if torch.cuda.is_available() else "cpu"
        y = getattr(torch, name)(torch.from_numpy(x).to(device), 0).cpu().numpy()
        return "GPU" if device == "cuda" else "CPU", y

    return scan


def by_cupy(x: Floats) -> tuple[str, Floats]:
    """Add with CuPy."""
    import cupy  # noqa: PLC0415 - it may be absent

    try:
        return "GPU", cupy.cumsum(cupy.asarray(x)).get()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ImportError(f"no GPU for CuPy: {error}") from error


SUMS: dict[str, Scan] = {
    "numpy.cumsum": by_numpy(np.cumsum),
    "torch.cumsum": by_torch("cumsum"),
    "cupy.cumsum": by_cupy,
}


def theirs(scans: Mapping[str, Scan], x: Floats) -> Iterator[tuple[str, str, Floats]]:
    """Yield the name, where it ran, and the prefixes of each library that is installed."""
    for name, scan in scans.items():
        try:
            where, y = scan(x)
        except ImportError:
            continue
        yield name, where, y
