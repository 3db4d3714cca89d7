"""The local steps on CuPy arrays: checks, launches. Knows no MPI."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..dtypes import Types
from ..errors import BackendError
from ..forms import PLAIN, Form, Total
from ..operators import Operator
from . import columns, launches
from .kernel import HostTotal, check_device, type_name
from .policy import TextbookPolicy
from .row import Row

_TOO_LATE = 3  # offsets in a row that came too late for a kernel that waits


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
    """What the strategies share. ``seed`` is done when its kernel is queued.

    The GPU that is current when the steps are made must be current when they are used. Work is
    ordered on the current stream; where that changes, the earlier stream is waited for, since the
    workspaces are shared.
    """

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate what shards of ``n`` elements need beside input and output.

        Strategies also take ``textbook``: the kernel that scans, None for the fastest.
        """
        self.types, self.n, self.form = types, n, form
        self._stream: Any = None

    def empty(self) -> Any:
        """Allocate a result [outer * n * inner]."""
        return cupy.empty(self.form.outer * self.n * self.form.inner, self.types.out)

    def _behind(self, offset: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return what the shard starts behind, or None where that is nothing."""
        return self.form.first if offset is None else offset

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
        self,
        op: Operator,
        types: Types,
        n: int,
        form: Form = PLAIN,
        textbook: TextbookPolicy | None = None,
    ) -> None:
        super().__init__(op, types, n, form)
        self._scan = _make_scan(op, types, n, form, textbook)

    def total(self, x: Any, out: Any, heads: Any = None, *, soon: bool = False) -> None:
        """Leave everything to ``seed``: nobody waits for the total."""

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None, heads: Any = None) -> None:
        """Scan ``x`` into ``out``, behind ``offset``."""
        if self.n * self.form.outer > 0:
            self._scan.prepare(self._checked(x, out), out, heads)
            self._scan.launch(self._behind(offset))


class ScanAdd(_Steps):
    """Strategy ``scan-add``; each call as in ``cpu.ScanAdd``."""

    def __init__(
        self,
        op: Operator,
        types: Types,
        n: int,
        form: Form = PLAIN,
        textbook: TextbookPolicy | None = None,
    ) -> None:
        super().__init__(op, types, n, form)
        wide = Types(types.x, types.acc, types.acc)
        self._scan = launches.make_scan(op, wide, n, form, textbook)
        self._add = launches.Add(op, types, n, form)
        self._total = HostTotal(launches.running(op, types).acc)
        # A result narrower than the running value is rounded once, after the offset is known.
        self._wide = None if types.acc == types.out else cupy.empty(self.n, types.acc)

    def total(self, x: Any, out: Any, heads: Any = None, *, soon: bool = False) -> Total | None:
        """Scan ``x`` [n] on its own; return its total."""
        if self.n == 0:
            return None
        local = out if self._wide is None else self._wide
        self._scan.prepare(self._checked(x, out), local, total=self._total.pointer)
        return Total(self._total.wait(self._scan.launch(None)).astype(self.types.acc))

    def seed(self, x: Any, out: Any, offset: NDArray[Any] | None, heads: Any = None) -> None:
        """Combine ``offset`` into ``out`` [n]."""
        local, offset = out if self._wide is None else self._wide, self._behind(offset)
        if self.n > 0 and (offset is not None or local is not out):
            self._add(local, out, offset)


class ReduceScan(_Steps):
    """Strategy ``reduce-scan``; each call as in ``cpu.ReduceScan``."""

    def __init__(
        self,
        op: Operator,
        types: Types,
        n: int,
        form: Form = PLAIN,
        textbook: TextbookPolicy | None = None,
    ) -> None:
        super().__init__(op, types, n, form)
        self._held: Any = None
        self._reduce: Any = (columns if form.inner > 1 else launches).Reduce(op, types, n, form)
        self._scan = _make_scan(op, types, n, form, textbook)
        acc = launches.running(op, types).acc
        self._total: Any = (
            Row(acc, form.inner, types.acc)
            if form.inner > 1
            else HostTotal(launches.flagged(acc) if form.segmented else acc)
        )
        self._coming: _OnItsWay | None = None
        self._waiting = 0  # the number of the launch that waits for the offset, or 0
        self._too_late = 0  # in a row

    def total(self, x: Any, out: Any, heads: Any = None, *, soon: bool = False) -> Total | None:
        """Reduce ``x`` [n], of which ``heads`` [n] begin segments, to its total.

        With ``soon`` the scan is launched too: it fetches, and waits for the offset, which should
        come at once; and the total is waited for where it is read, so that until then the host is
        free. Where offsets keep coming too late, as on a GPU that ranks share, the scan is not
        launched ahead any more.
        """
        self._coming = None  # of a call that was broken off
        if self.n == 0:
            return None
        x = self._checked(x, out)
        self._held = x, heads  # copies must live until they are scanned
        launch = self._reduce(x, self._total.pointer, heads)
        self._scan.prepare(x, out, heads)  # while the GPU reduces
        ahead = soon and self._scan.waits and self._too_late < _TOO_LATE
        self._waiting = self._scan.launch_ahead() if ahead else 0
        if self._waiting and not self.form.segmented:
            self._coming = _OnItsWay(self._total, launch, self.types.acc)
            return Total(self._coming)
        total = self._total.wait(launch)
        if total is self._total:  # a long row, still on its way
            return Total(total)
        if self.form.segmented:
            return Total(total["value"].astype(self.types.acc), bool(total["head"]))
        return Total(total.astype(self.types.acc))

    def seed(self, x: Any, out: Any, offset: Any, heads: Any = None) -> None:
        """Scan ``x`` [n] into ``out`` [n], behind ``offset``: None, an array, or a long row."""
        if self.n == 0:
            return
        if self._coming is not None and not self._coming.read:
            self._coming[...]  # the scan of the call before, which has its mail, ends before that
        self._coming = None
        offset = self._behind(offset)
        if isinstance(offset, np.ndarray) and offset.ndim > 0:
            self._total[:] = offset
            offset = self._total
        in_time = self._waiting and self._scan.mail.send(self._waiting, offset)
        if self._waiting:
            self._too_late = 0 if in_time else self._too_late + 1
        if not in_time:
            self._scan.launch(offset)
        self._waiting, self._held = 0, None

    def __del__(self) -> None:
        # After a fault between total and seed a kernel may still look into this memory, briefly.
        if getattr(self, "_waiting", 0):
            self._stream.synchronize()


class _OnItsWay:
    """The value of the total of launch number ``launch``; reading ``value[...]`` waits for it."""

    def __init__(self, total: HostTotal, launch: int, dtype: np.dtype[Any]) -> None:
        self._total, self._launch, self._dtype = total, launch, dtype
        self.read = False

    def __getitem__(self, _: Any) -> NDArray[Any]:
        value = self._total.wait(self._launch).astype(self._dtype)
        self.read = True
        return value


def _make_scan(
    op: Operator, types: Types, n: int, form: Form, textbook: TextbookPolicy | None
) -> Any:
    """The kernel that scans: down columns, or along rows."""
    if form.inner == 1:
        return launches.make_scan(op, types, n, form, textbook)
    if textbook is not None:
        raise NotImplementedError("block_scan= is for scans along the last axis")
    return columns.make_scan(op, types, n, form)


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
