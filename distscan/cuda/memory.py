"""Memory on a GPU: arrays, and the copies of a file's chunks to and from them."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.errors import BackendError
from .definitions import type_name

# ---- the GPU of a process --------------------------------------------------------------------

_OLDEST = 80  # compute capability 8.0 brought asynchronous copies and their barriers


def count() -> int:
    """Return the number of GPUs that this process sees; raise ``BackendError`` if there is none."""
    try:
        devices = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(f"no usable NVIDIA GPU; {error}; backend cpu needs none") from error
    if devices == 0:
        raise BackendError("no NVIDIA GPU is visible; look at CUDA_VISIBLE_DEVICES")
    return devices


def bind(local_rank: int) -> tuple[str, str]:
    """Make GPU ``local_rank`` modulo ``count()`` current; return its name and its PCI address."""
    device = cupy.cuda.Device(local_rank % count())
    try:
        device.use()
        check_device(device)
        name: bytes = cupy.cuda.runtime.getDeviceProperties(device.id)["name"]
        return name.decode(), str(device.pci_bus_id)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(f"GPU {device.id} cannot be used; {error}") from error


def check_device(device: Any) -> None:
    """Refuse a GPU that is too old for the kernels."""
    arch = device.compute_capability
    if int(arch) < _OLDEST:
        raise BackendError(
            f"GPU {device.id} has compute capability {arch[:-1]}.{arch[-1]}; "
            f"{_OLDEST / 10} (A100) or later is needed"
        )


# ---- arrays, and the copies of a file's chunks -----------------------------------------------


def empty(n: int, dtype: np.dtype[Any]) -> Any:
    """Allocate an array [n] on the current GPU."""
    type_name(dtype)
    return cupy.empty(n, dtype)


class Lane:
    """One thread's copies of chunks between host and GPU: pinned memory and a stream.

    Copies of several lanes overlap, and none waits for kernels.
    """

    def __init__(self, size: int, gpu: int | None = None) -> None:
        """Allocate ``size`` bytes of pinned memory, for the largest chunk.

        ``gpu`` becomes the current GPU of this thread; None is the one that is current.
        """
        if gpu is not None:
            cupy.cuda.Device(gpu).use()
        pinned = cupy.cuda.alloc_pinned_memory(size)
        self._host: NDArray[np.uint8] = np.frombuffer(pinned, np.uint8, size)
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def landing(self, array: Any) -> NDArray[Any]:
        """Return the pinned memory from which ``upload`` copies to ``array``."""
        host: NDArray[Any] = self._host[: array.nbytes].view(array.dtype)
        return host

    def upload(self, array: Any) -> None:
        """Copy the pinned memory of ``landing`` to ``array``."""
        array.set(self.landing(array), self._stream)
        self._stream.synchronize()

    def download(self, array: Any) -> NDArray[Any]:
        """Copy ``array`` to pinned memory; the next copy of this lane overwrites it."""
        host = self.landing(array)
        array.get(self._stream, out=host)
        self._stream.synchronize()
        return host


@functools.cache
def _stream(gpu: int) -> Any:
    """Return the stream of ``staged`` on a GPU: one, because CuPy keeps memory for each stream."""
    return cupy.cuda.Stream(non_blocking=True)


@contextmanager
def staged(gpu: int, out: NDArray[Any], *inputs: Any) -> Iterator[tuple[Any, ...]]:
    """Yield an array on a GPU for each host array; at the end, copy the first one back to ``out``.

    Inside the ``with`` block, the GPU and a stream of its own are current. ``out`` is contiguous,
    in C order. An input may be None. Copies are fast if ``pin`` was called for the memory.
    """
    cupy.cuda.Device(gpu).use()
    with _stream(gpu) as stream:
        copies = [None if x is None else _copy(x, stream) for x in inputs]
        result = cupy.empty(out.shape, out.dtype)
        yield result, *copies
        if result.size:
            result.get(stream, out=out)
        stream.synchronize()


def _copy(x: NDArray[Any], stream: Any) -> Any:
    """Return a copy of a host array on the current GPU, in the machine's byte order."""
    x = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
    copy = cupy.empty(x.shape, x.dtype)
    if copy.size:
        copy.set(x, stream)
    return copy


def pin(array: NDArray[Any]) -> None:
    """Let GPUs copy from and to the memory of an array by themselves; it takes 0.1 s for a GiB.

    Memory that CUDA cannot pin, such as a mapping of a file on a disk, is copied all the same.
    """
    with suppress(cupy.cuda.runtime.CUDARuntimeError):
        cupy.cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, 1)  # 1: portable


def unpin(array: NDArray[Any]) -> None:
    """Undo ``pin``."""
    with suppress(cupy.cuda.runtime.CUDARuntimeError):  # it was not pinned
        cupy.cuda.runtime.hostUnregister(array.ctypes.data)


def synchronize() -> None:
    """Wait for all work on the current stream."""
    cupy.cuda.get_current_stream().synchronize()


def current_gpu() -> int:
    """Return the number of the GPU that is current in this thread."""
    return int(cupy.cuda.runtime.getDevice())


def usage(gpu: int) -> tuple[int, int]:
    """Return the bytes of a GPU's memory that any process uses, and all bytes."""
    with cupy.cuda.Device(gpu):
        free, size = cupy.cuda.runtime.memGetInfo()
    return int(size - free), int(size)


def available() -> int:
    """Return the bytes of the GPU's memory that are free."""
    return int(cupy.cuda.runtime.memGetInfo()[0])
