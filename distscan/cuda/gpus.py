"""The GPU of a process: its choice, and the check that it is new enough."""

from typing import Any

import cupy

from ..core.errors import BackendError

_OLDEST = 80  # compute capability 8.0 brought asynchronous copies and their barriers


def count() -> int:
    """Return the number of GPUs that this process sees; raise ``BackendError`` if there is none."""
    try:
        devices = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(f"no usable NVIDIA GPU; {error}") from error
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
