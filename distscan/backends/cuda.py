"""The local steps on CuPy arrays: checks, launches. Knows no MPI."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from .. import operators
from ..dtypes import Types
from ..errors import BackendError
from ..operators import Operator
from .kernel import HostTotal, Kernel, definitions, type_name
from .policy import ADD_THREADS, reduce_policy, scan_policy

_VECTOR = 16  # bytes per access
_TOTALS = [("words", np.uint64), ("stride", np.int64)]  # totals.cuh
_LANES = 32
_GATHERED = 2 * _LANES  # threads of a scan's block beside those that scan


def empty(n: int, dtype: np.dtype[Any]) -> Any:
    """Allocate an array [n] on the current GPU."""
    type_name(dtype)
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
    """What the strategies share. ``total`` waits for the shard's total, ``seed`` for nothing.

    The GPU that is current when the steps are made must be current when they are used. Work is
    ordered on the current stream; where that changes, the earlier stream is waited for, since the
    workspaces are shared.
    """

    def __init__(self, op: Operator, types: Types, x: Any) -> None:
        """Compile, and allocate what shards like ``x`` [n] need beside input and output."""
        self.types, self.n = types, x.size
        self._stream: Any = None

    def empty(self) -> Any:
        """Allocate a result [n]."""
        return cupy.empty(self.n, self.types.out)

    def _checked(self, x: Any, out: Any) -> Any:
        """Refuse memory that no kernel may touch; return ``x`` as kernels read it: contiguous."""
        for name, array in (("x", x), ("out", out)):
            if array.data.ptr % array.dtype.alignment:
                raise ValueError(f"{name} begins at an address that its type cannot have")
        stream = cupy.cuda.get_current_stream()
        if self._stream is not None and stream.ptr != self._stream.ptr:
            self._stream.synchronize()
        self._stream = stream
        return x if x.flags.c_contiguous else cupy.ascontiguousarray(x)


class SinglePass(_Steps):
    """Strategy ``single-pass``: scan and store, each element moved once; for one rank."""

    def __init__(self, op: Operator, types: Types, x: Any) -> None:
        super().__init__(op, types, x)
        self._scan = _Scan(op, types, self.n)

    def total(self, x: Any, out: Any) -> None:
        """Leave everything to ``seed``: nobody waits for the total."""

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` [n] into ``out`` [n], behind ``offset``."""
        if self.n > 0:
            self._scan(self._checked(x, out), out, offset)


class ScanAdd(_Steps):
    """Strategy ``scan-add``; each call as in ``cpu.ScanAdd``."""

    def __init__(self, op: Operator, types: Types, x: Any) -> None:
        super().__init__(op, types, x)
        self._scan = _Scan(op, Types(types.x, types.acc, types.acc), self.n)
        self._add = _Add(op, types, self.n)
        self._total = HostTotal(_running(op, types).acc)
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None if types.acc == types.out else cupy.empty(self.n, types.acc)

    def total(self, x: Any, out: Any) -> NDArray[Any] | None:
        """Scan ``x`` [n] on its own; return its total."""
        if self.n == 0:
            return None
        local = out if self._wide is None else self._wide
        launch = self._scan(self._checked(x, out), local, None, self._total.pointer)
        return self._total.wait(launch).astype(self.types.acc)

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` into ``out`` [n]."""
        local = out if self._wide is None else self._wide
        if self.n > 0 and (offset is not None or local is not out):
            self._add(local, out, offset)


class ReduceScan(_Steps):
    """Strategy ``reduce-scan``; each call as in ``cpu.ReduceScan``."""

    def __init__(self, op: Operator, types: Types, x: Any) -> None:
        super().__init__(op, types, x)
        self._reduce = _Reduce(op, types, self.n)
        self._scan = _Scan(op, types, self.n)
        self._total = HostTotal(_running(op, types).acc)
        self._x: Any = None

    def total(self, x: Any, out: Any) -> NDArray[Any] | None:
        """Reduce ``x`` [n] to its total."""
        if self.n == 0:
            return None
        self._x = self._checked(x, out)
        return self._total.wait(self._reduce(self._x, self._total.pointer)).astype(self.types.acc)

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None) -> None:
        """Scan ``x`` [n] into ``out`` [n], behind ``offset``."""
        if self.n > 0:
            self._scan(self._x, out, offset)
            self._x = None


# ---- the kernels, with their workspaces ----------------------------------------------------


def _head(array: Any, n: int) -> int:
    """How many of the ``n`` elements lie before the first one that is aligned for vectors."""
    short = -array.data.ptr % _VECTOR
    return min(n, short // array.itemsize) if short % array.itemsize == 0 else 0


def _words(dtype: np.dtype[Any]) -> int:
    return -(-dtype.itemsize // 4)


def _per_vector(*dtypes: np.dtype[Any]) -> int:
    return int(max(_VECTOR // max(dtype.itemsize for dtype in dtypes), 1))


def _processors() -> int:
    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


class _Scan:
    """The kernel of ``kernels/scan.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int) -> None:
        types = _running(op, types)
        chosen = scan_policy(types, cupy.cuda.Device().compute_capability)
        self._tile = chosen.threads * chosen.rows * _per_vector(types.x, types.out)
        self._n, self._launch, self._blocks = n, 0, _processors()
        stride = n // self._tile + 2
        self._totals = cupy.zeros((_words(types.acc), stride), np.uint64)
        self._drawn = cupy.zeros(1, np.uint32)
        self._kernel = Kernel(
            "scan",
            definitions(op, types, **chosen._asdict()),
            [
                ("x", np.uint64),
                ("y", np.uint64),
                ("shard", [("n", np.int64), ("head", np.int64), ("tiles", np.int64)]),
                ("work", [("totals", _TOTALS), ("total", _TOTALS), ("drawn", np.uint64),
                          ("launch", np.uint64)]),
                ("offset", types.acc),
                ("has_offset", np.bool_),
            ],
            chosen.threads + _GATHERED,
            chosen.slots * (self._tile * types.x.itemsize + 16),
        )  # fmt: skip
        arguments = self._kernel.arguments
        arguments["shard"]["n"] = n
        arguments["work"]["totals"] = self._totals.data.ptr, stride
        arguments["work"]["total"]["stride"] = 1
        arguments["work"]["drawn"] = self._drawn.data.ptr

    def __call__(self, x: Any, y: Any, offset: NDArray[Any] | None, total: int = 0) -> int:
        """Launch; return the launch's number, which comes with the last value at ``total``."""
        head = _head(y, self._n)
        tiles = (head > 0) + -(-(self._n - head) // self._tile)
        self._launch = _next(self._launch)
        arguments = self._kernel.arguments
        arguments["x"], arguments["y"] = x.data.ptr, y.data.ptr
        arguments["shard"]["head"], arguments["shard"]["tiles"] = head, tiles
        arguments["work"]["total"]["words"], arguments["work"]["launch"] = total, self._launch
        arguments["has_offset"] = offset is not None
        if offset is not None:
            arguments["offset"] = offset
        self._kernel.launch(min(tiles, self._blocks))
        return self._launch


class _Reduce:
    """The kernel of ``kernels/reduce.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int) -> None:
        types = _running(op, types)
        chosen = reduce_policy(types, cupy.cuda.Device().compute_capability)
        self._step = _LANES * chosen.rows * _per_vector(types.x)
        self._n, self._launch, self._blocks = n, 0, chosen.blocks * _processors()
        self._totals = cupy.empty(self._blocks, types.acc)
        self._arrived = cupy.zeros(1, np.uint32)
        self._kernel = Kernel(
            "reduce",
            definitions(op, types, **chosen._asdict()),
            [("x", np.uint64), ("n", np.int64), ("head", np.int64), ("totals", np.uint64),
             ("arrived", np.uint64), ("total", _TOTALS), ("launch", np.uint32)],
            chosen.threads,
        )  # fmt: skip
        arguments = self._kernel.arguments
        arguments["n"], arguments["totals"] = n, self._totals.data.ptr
        arguments["total"]["stride"] = 1
        arguments["arrived"] = self._arrived.data.ptr

    def __call__(self, x: Any, total: int) -> int:
        """Launch; return the launch's number, which comes with the shard's total at ``total``."""
        head = _head(x, self._n)
        self._launch = _next(self._launch)
        arguments = self._kernel.arguments
        arguments["x"], arguments["head"] = x.data.ptr, head
        arguments["total"]["words"], arguments["launch"] = total, self._launch
        self._kernel.launch(max(1, min(-(-(self._n - head) // self._step), self._blocks)))
        return self._launch


class _Add:
    """The kernel of ``kernels/add.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int) -> None:
        self._n = n
        self._each = ADD_THREADS * _per_vector(types.acc, types.out)
        self._kernel = Kernel(
            "add",
            definitions(op, types, threads=ADD_THREADS),
            [("y", np.uint64), ("out", np.uint64), ("n", np.int64), ("head", np.int64),
             ("offset", types.acc), ("has_offset", np.bool_)],
            ADD_THREADS,
        )  # fmt: skip
        self._kernel.arguments["n"] = n

    def __call__(self, y: Any, out: Any, offset: NDArray[Any] | None) -> None:
        head = _head(out, self._n)
        arguments = self._kernel.arguments
        arguments["y"], arguments["out"], arguments["head"] = y.data.ptr, out.data.ptr, head
        arguments["has_offset"] = offset is not None
        if offset is not None:
            arguments["offset"] = offset
        self._kernel.launch(max(1, -(-(self._n - head) // self._each)))


def _running(op: Operator, types: Types) -> Types:
    """Let built-in operators run narrow integers in 32 bits: the low ones come out the same."""
    narrow = types.acc.kind in "iu" and types.acc.itemsize < 4
    if not narrow or operators.BUILTIN.get(op.name) is not op:
        return types
    return Types(types.x, np.dtype(np.int32 if types.acc.kind == "i" else np.uint32), types.out)


def _next(launch: int) -> int:
    """Number the next launch: 32 bits, never 0, which fresh workspaces hold."""
    return launch % 0xFFFFFFFF + 1


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
