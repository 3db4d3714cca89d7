"""The local steps on CuPy arrays: checks, launches. Knows no MPI."""

from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from .. import operators
from ..dtypes import Types
from ..errors import BackendError
from ..forms import Total
from ..operators import Operator
from .kernel import HostTotal, Kernel, check_device, definitions, type_name
from .policy import ADD_THREADS, TextbookPolicy, reduce_policy, scan_policy

_VECTOR = 16  # bytes per access
_CACHED = 32 << 20  # bytes that are still in L2 when the scan comes for them
_LANES = 32
_HELPERS = 7 * _LANES  # threads of a scan's block beside those that scan
_RESIDENT = 2048  # threads that a multiprocessor holds at most


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

    def __init__(self, op: Operator, types: Types, n: int) -> None:
        """Compile, and allocate what shards of ``n`` elements need beside input and output.

        Strategies also take ``textbook``: the kernel that scans, None for the fastest.
        """
        self.types, self.n = types, n
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

    def __init__(
        self, op: Operator, types: Types, n: int, textbook: TextbookPolicy | None = None
    ) -> None:
        super().__init__(op, types, n)
        self._scan = _scan(op, types, n, textbook)

    def total(self, x: Any, out: Any, heads: Any = None) -> None:
        """Leave everything to ``seed``: nobody waits for the total."""

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None, heads: Any = None) -> None:
        """Scan ``x`` [n] into ``out`` [n], behind ``offset``."""
        if self.n > 0:
            self._scan.prepare(self._checked(x, out), out)
            self._scan.launch(offset)


class ScanAdd(_Steps):
    """Strategy ``scan-add``; each call as in ``cpu.ScanAdd``."""

    def __init__(
        self, op: Operator, types: Types, n: int, textbook: TextbookPolicy | None = None
    ) -> None:
        super().__init__(op, types, n)
        self._scan = _scan(op, Types(types.x, types.acc, types.acc), self.n, textbook)
        self._add = _Add(op, types, self.n)
        self._total = HostTotal(_running(op, types).acc)
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None if types.acc == types.out else cupy.empty(self.n, types.acc)

    def total(self, x: Any, out: Any, heads: Any = None) -> Total | None:
        """Scan ``x`` [n] on its own; return its total."""
        if self.n == 0:
            return None
        local = out if self._wide is None else self._wide
        self._scan.prepare(self._checked(x, out), local, self._total.pointer)
        return Total(self._total.wait(self._scan.launch(None)).astype(self.types.acc))

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None, heads: Any = None) -> None:
        """Combine ``offset`` into ``out`` [n]."""
        local = out if self._wide is None else self._wide
        if self.n > 0 and (offset is not None or local is not out):
            self._add(local, out, offset)


class ReduceScan(_Steps):
    """Strategy ``reduce-scan``; each call as in ``cpu.ReduceScan``."""

    def __init__(
        self, op: Operator, types: Types, n: int, textbook: TextbookPolicy | None = None
    ) -> None:
        super().__init__(op, types, n)
        self._x: Any = None
        self._reduce = _Reduce(op, types, n)
        self._scan = _scan(op, types, n, textbook)
        self._total = HostTotal(_running(op, types).acc)

    def total(self, x: Any, out: Any, heads: Any = None) -> Total | None:
        """Reduce ``x`` [n] to its total."""
        if self.n == 0:
            return None
        self._x = x = self._checked(x, out)  # a copy must live until it is scanned
        launch = self._reduce(x, self._total.pointer)
        self._scan.prepare(x, out)  # while the GPU reduces
        return Total(self._total.wait(launch).astype(self.types.acc))

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None, heads: Any = None) -> None:
        """Scan ``x`` [n] into ``out`` [n], behind ``offset``."""
        if self.n > 0:
            self._scan.launch(offset)
            self._x = None


# ---- the kernels, with their workspaces ----------------------------------------------------


def _head(array: Any, n: int) -> int:
    """How many of the ``n`` elements lie before the first one that is aligned for vectors."""
    short = -array.data.ptr % _VECTOR
    return min(n, short // array.itemsize) if short % array.itemsize == 0 else 0


def _per_vector(*dtypes: np.dtype[Any]) -> int:
    return int(max(_VECTOR // max(dtype.itemsize for dtype in dtypes), 1))


def _processors() -> int:
    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def _scan(op: Operator, types: Types, n: int, textbook: TextbookPolicy | None) -> "_Scan":
    types = _running(op, types)
    cut = _production(types, n) if textbook is None else _textbook(types, textbook)
    return _Scan(op, types, n, cut)


class _Cut(NamedTuple):
    """A kernel that scans, and how."""

    entry: str
    policy: dict[str, int | str]
    tile: int  # elements
    threads: int
    shared: int  # dynamic, in bytes
    blocks: int  # at most
    words: int = 1  # published per 4 bytes of a tile's total


def _production(types: Types, n: int) -> _Cut:
    """``kernels/scan.cuh``."""
    chosen = scan_policy(types, cupy.cuda.Device().compute_capability, n, _processors())
    tile = chosen.threads * chosen.rows * _per_vector(types.x, types.out)
    shared = chosen.slots * (tile * types.x.itemsize + 16)
    return _Cut("scan", chosen._asdict(), tile, chosen.threads + _HELPERS, shared, _processors())


def _textbook(types: Types, chosen: TextbookPolicy) -> _Cut:
    """``kernels/textbook.cuh``; a tile's total there has a prefix beside it."""
    tile = chosen.threads * chosen.rows * _per_vector(types.x, types.out)
    shared = tile * max(types.x.itemsize, types.out.itemsize)
    policy = chosen._asdict() | {"blocks": chosen.blocks}
    blocks = _RESIDENT // chosen.threads * _processors()
    return _Cut("textbook", policy, tile, chosen.threads, shared, blocks, words=2)


class _Scan:
    """A kernel that scans a shard in one pass."""

    def __init__(self, op: Operator, types: Types, n: int, cut: _Cut) -> None:
        self._n, self._launch, self._tile, self._blocks = n, 0, cut.tile, cut.blocks
        stride = n // self._tile + 2
        self._totals = cupy.zeros((cut.words * -(-types.acc.itemsize // 4), stride), np.uint64)
        self._drawn = cupy.zeros(1, np.uint32)
        size = -(-types.acc.itemsize // 8)
        self._kernel = Kernel(
            cut.entry,
            definitions(op, types, **cut.policy),
            [1, 1, 3, 6, size, 1],  # x, y, shard, work, offset, has_offset
            cut.threads,
            cut.shared,
        )
        words = self._kernel.words
        words[2] = n
        words[5], words[6] = self._totals.data.ptr, stride
        words[8], words[9] = 1, self._drawn.data.ptr
        self._offset = self._kernel.memory[11 : 11 + size].view(types.acc)[:1]

    def prepare(self, x: Any, y: Any, total: int = 0) -> None:
        """Set all but the offset; the last value goes to ``total`` unless that is null."""
        head = _head(y, self._n)
        tiles = (head > 0) + -(-(self._n - head) // self._tile)
        self._launch = _next(self._launch)
        self._grid = min(tiles, self._blocks)
        words = self._kernel.words
        words[0], words[1], words[3], words[4] = x.data.ptr, y.data.ptr, head, tiles
        words[7], words[10] = total, self._launch

    def launch(self, offset: NDArray[Any] | None) -> int:
        """Launch; return the launch's number, which comes with the last value."""
        self._kernel.words[-1] = offset is not None
        if offset is not None:
            self._offset[0] = offset
        self._kernel.launch(self._grid)
        return self._launch


class _Reduce:
    """The kernel of ``kernels/reduce.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int) -> None:
        types = _running(op, types)
        chosen = reduce_policy(types, cupy.cuda.Device().compute_capability)
        self._step = _LANES * chosen.rows * _per_vector(types.x)
        self._n, self._launch, self._blocks = n, 0, chosen.blocks * _processors()
        self._totals = cupy.empty(2 * self._blocks, types.acc)
        self._arrived = cupy.zeros(1, np.uint32)
        self._kernel = Kernel(
            "reduce",
            definitions(op, types, **chosen._asdict()),
            [1, 1, 1, 1, 1, 1, 2, 1],  # x, n, head, cached, totals, arrived, total, launch
            chosen.threads,
        )
        self._kernel.words[1] = n
        self._kernel.words[3] = _CACHED // types.x.itemsize
        self._kernel.words[4] = self._totals.data.ptr
        self._kernel.words[5] = self._arrived.data.ptr
        self._kernel.words[7] = 1

    def __call__(self, x: Any, total: int) -> int:
        """Launch; return the launch's number, which comes with the shard's total at ``total``."""
        head = _head(x, self._n)
        self._launch = _next(self._launch)
        words = self._kernel.words
        words[0], words[2], words[6], words[8] = x.data.ptr, head, total, self._launch
        self._kernel.launch(max(1, min(-(-(self._n - head) // self._step), self._blocks)))
        return self._launch


class _Add:
    """The kernel of ``kernels/add.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int) -> None:
        self._n = n
        self._each = ADD_THREADS * _per_vector(types.acc, types.out)
        offset = -(-types.acc.itemsize // 8)
        self._kernel = Kernel(
            "add",
            definitions(op, types, threads=ADD_THREADS),
            [1, 1, 1, 1, offset, 1],  # y, out, n, head, offset, has_offset
            ADD_THREADS,
        )
        self._kernel.words[2] = n
        self._offset = self._kernel.memory[4 : 4 + offset].view(types.acc)[:1]

    def __call__(self, y: Any, out: Any, offset: NDArray[Any] | None) -> None:
        head = _head(out, self._n)
        words = self._kernel.words
        words[0], words[1], words[3] = y.data.ptr, out.data.ptr, head
        words[-1] = offset is not None
        if offset is not None:
            self._offset[0] = offset
        self._kernel.launch(max(1, -(-(self._n - head) // self._each)))


def _next(launch: int) -> int:
    """Number the next launch: 32 bits, never 0, which fresh workspaces hold."""
    return launch % 0xFFFFFFFF + 1


def _running(op: Operator, types: Types) -> Types:
    """Let built-in operators run narrow integers in 32 bits: the low ones come out the same.

    Not where x must first be cut to the narrow type: the maximum of 300 and 50 as int8 is 50.
    """
    x, acc = types.x, types.acc
    narrow = acc.kind in "iu" and acc.itemsize < 4 and np.can_cast(x, acc)
    logical = x == acc == np.bool_ and op.name != "sum"  # of which 2 ** 32 would make a zero
    if not (narrow or logical) or operators.BUILTIN.get(op.name) is not op:
        return types
    return Types(x, np.dtype(np.int32 if acc.kind == "i" else np.uint32), types.out)


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
        check_device(device)
        name: bytes = cupy.cuda.runtime.getDeviceProperties(device.id)["name"]
        return name.decode(), str(device.pci_bus_id)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(f"GPU {device.id} cannot be used; {error}") from error
