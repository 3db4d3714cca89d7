"""The local steps on CuPy arrays: compiles ``kernels/``, checks, launches. Knows no MPI."""

import functools
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..dtypes import Types
from ..errors import BackendError
from ..operators import Operator
from . import nvrtc
from .policy import policy

# By dtype.kind and size in bytes; the names are those of kernels/types.cuh.
_TYPES = {
    "b1": "bool",
    "i1": "signed char",
    "i2": "short",
    "i4": "int",
    "i8": "int64",
    "u1": "unsigned char",
    "u2": "unsigned short",
    "u4": "unsigned int",
    "u8": "unsigned long long",
    "f2": "half",
    "f4": "float",
    "f8": "double",
    "c8": "complex<float>",
    "c16": "complex<double>",
}
_VECTOR = 16  # bytes per access
_RUNS = np.dtype([(name, np.int64) for name in ("n", "head", "tile", "runs")])  # scan.cuh


def empty(n: int, dtype: np.dtype[Any]) -> Any:
    """Allocate an array [n] on the current GPU."""
    _type(dtype)
    return cupy.empty(n, dtype)


def staging(size: int) -> NDArray[np.uint8]:
    """Allocate ``size`` bytes of pinned host memory."""
    memory: NDArray[np.uint8] = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
    return memory


def upload(piece: NDArray[Any], array: Any) -> None:
    """Copy a piece in host memory into ``array``; the piece may then be overwritten."""
    array.set(piece)
    synchronize()  # from pinned memory, CuPy only queues the copy


def download(array: Any, buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """Copy ``array`` into the host memory ``buffer`` and return it there."""
    host: NDArray[Any] = buffer[: array.nbytes].view(array.dtype)
    array.get(out=host)
    return host


def synchronize() -> None:
    """Wait for all work on the current stream."""
    cupy.cuda.get_current_stream().synchronize()


class _Steps:
    """What the strategies share: a shard cut into runs, one per thread block, and their totals.

    The shard's GPU must be current. Work is ordered on its current stream; ``total`` waits for it,
    since the total goes to the host, ``seed`` does not.
    """

    source: str  # in kernels/
    writes: str  # the type, of Types, that the scanning kernel writes

    def __init__(self, op: Operator, types: Types, x: Any) -> None:
        """Compile, and allocate what shards like ``x`` [n] need beside their input and output."""
        self.types, self.n = types, x.size
        self.policy = policy(types)
        written: np.dtype[Any] = getattr(types, self.writes)
        widest = max(types.x.itemsize, types.acc.itemsize, written.itemsize)
        self._tile = self.policy.threads * self.policy.rows * max(_VECTOR // widest, 1)
        processors = x.device.attributes["MultiProcessorCount"]
        self._most_runs = max(1, min(-(-self.n // self._tile), processors * self.policy.blocks))
        given = tuple(definitions(op, types).items())
        arch, device = x.device.compute_capability, x.device.id
        self._total_kernel, self._seed_kernel = _load(self.source, given, arch, device)
        self._prefixes = cupy.empty(self._most_runs, types.acc)
        self._arrived = cupy.zeros(1, np.uint32)
        # The last block writes the total straight into the host's memory: no copy call.
        self._pinned = cupy.cuda.alloc_pinned_memory(types.acc.itemsize)
        self._total: NDArray[Any] = np.frombuffer(self._pinned, types.acc, 1)
        self._totals = cupy.empty(self._most_runs, types.acc)
        self._workspace = self._totals, self._prefixes, self._arrived, self._pinned.ptr
        self._shard = np.zeros((), _RUNS)

    def empty(self) -> Any:
        """Allocate a result [n]."""
        return cupy.empty(self.n, self.types.out)

    def _cut(self, array: Any) -> None:
        """Deal elements out to runs, those before the first aligned address of ``array`` aside."""
        short = -array.data.ptr % _VECTOR
        head = min(self.n, short // array.itemsize) if short % array.itemsize == 0 else 0
        runs = max(1, min(-(-(self.n - head) // self._tile), self._most_runs))
        self._shard[...] = self.n, head, self._tile, runs

    def _launch_total(self, *arrays: Any) -> NDArray[Any]:
        runs = int(self._shard["runs"])
        arguments = (*arrays, self._shard, *self._workspace)
        self._total_kernel((runs,), (self.policy.threads,), arguments)
        synchronize()
        return np.array(self._total[0])

    def _launch_seed(self, offset: NDArray[Any] | None, blocks: int, *arrays: Any) -> None:
        by_value = np.zeros((), self.types.acc) if offset is None else offset
        grid = int(self._shard["runs"]), blocks
        arguments = (*arrays, self._shard, self._prefixes, by_value, offset is not None)
        self._seed_kernel(grid, (self.policy.threads,), arguments)


class ScanAdd(_Steps):
    """Strategy ``scan-add``; each call as in ``cpu.ScanAdd``."""

    source, writes = "scan_add.cu", "acc"

    def __init__(self, op: Operator, types: Types, x: Any) -> None:
        super().__init__(op, types, x)
        self._wide = None if types.acc == types.out else cupy.empty(self.n, types.acc)

    def total(self, x: Any, out: Any) -> NDArray[Any] | None:
        """Scan ``x`` [n] on its own; return its total."""
        if self.n == 0:
            return None
        x = _checked(x, out)
        local = out if self._wide is None else self._wide
        self._cut(local)  # it is written, read and written; x is read once
        return self._launch_total(x, local)

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` and the runs' own prefixes into ``out`` [n]."""
        local = out if self._wide is None else self._wide
        runs = int(self._shard["runs"])
        if self.n == 0 or (offset is None and runs == 1 and local is out):
            return
        sharing = min(self.policy.add_blocks, -(-self.n // (runs * self._tile)))
        self._launch_seed(offset, sharing, local, out)


class ReduceScan(_Steps):
    """Strategy ``reduce-scan``; each call as in ``cpu.ReduceScan``."""

    source, writes = "reduce_scan.cu", "out"

    def total(self, x: Any, out: Any) -> NDArray[Any] | None:
        """Reduce ``x`` [n] to its total."""
        if self.n == 0:
            return None
        self._x = _checked(x, out)
        self._cut(self._x)
        return self._launch_total(self._x)

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` [n] into ``out`` [n], behind ``offset``."""
        if self.n > 0:
            self._launch_seed(offset, 1, self._x, out)


def _checked(x: Any, out: Any) -> Any:
    """Refuse memory that no kernel may touch; return ``x`` as kernels read it: contiguous."""
    for name, array in (("x", x), ("out", out)):
        if array.data.ptr % array.dtype.alignment:
            raise ValueError(f"{name} begins at an address that its type cannot have")
    return cupy.ascontiguousarray(x)


def definitions(op: Operator, types: Types) -> dict[str, object]:
    """Return what ``kernels/given.cuh`` asks for."""
    chosen = policy(types)
    return {
        "DISTSCAN_X": _type(types.x),
        "DISTSCAN_T": _type(types.acc),
        "DISTSCAN_OUT": _type(types.out),
        "DISTSCAN_COMBINE": op.cuda,
        "DISTSCAN_COMMUTATIVE": str(op.commutative).lower(),
        "DISTSCAN_THREADS": chosen.threads,
        "DISTSCAN_ROWS": chosen.rows,
        "DISTSCAN_BLOCKS": chosen.blocks,
    }


@functools.cache
def _load(
    source: str, given: tuple[tuple[str, object], ...], arch: str, device: int
) -> tuple[Any, Any]:
    """Compile for ``arch`` and load onto the current GPU, number ``device``: (total, seed)."""
    code, _ = nvrtc.build(source, dict(given), arch)
    module = cupy.cuda.function.Module()
    module.load(code)
    return module.get_function("distscan_total"), module.get_function("distscan_seed")


def _type(dtype: np.dtype[Any]) -> str:
    name = _TYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if name is None:
        raise TypeError(f"{dtype} does not exist on a GPU; pass dtype= with a type that does")
    return name


# ---- which GPU -----------------------------------------------------------------------------


def count() -> int:
    """Return how many GPUs this process sees; raise ``BackendError`` if there is none."""
    try:
        devices = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(f"no usable NVIDIA GPU; {error}") from error
    if devices == 0:
        raise BackendError("no NVIDIA GPU is visible; look at CUDA_VISIBLE_DEVICES")
    return devices


def bind(local_rank: int) -> tuple[str, str]:
    """Make GPU ``local_rank`` modulo their number current; return its name and its PCI address."""
    device = cupy.cuda.Device(local_rank % count())
    try:
        device.use()
        name: bytes = cupy.cuda.runtime.getDeviceProperties(device.id)["name"]
        return name.decode(), str(device.pci_bus_id)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(f"GPU {device.id} cannot be used; {error}") from error
