"""A kernel: compiled for one operator, and loaded onto the current GPU."""

import ctypes
import functools
import threading
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from numpy.typing import NDArray

from . import nvrtc
from .arguments import parameters_of, places
from .memory import check_device

_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernel:
    """A kernel on the current GPU, and the arguments of its next launch.

    Attributes
    ----------
    entry
        The kernel is ``distscan_<entry>`` of ``kernels/<entry>.cu``.
    definitions
        The macros and headers of its compilation, by name.
    arguments
        The arguments, by name. They are set in place, and the driver copies them at each launch.
    places
        The offset and the size of each argument, in bytes.
    blocks
        The number of thread blocks of the next launch.
    block
        The shape of a block, as the driver takes it: threads along three axes, and bytes of dynamic
        shared memory.
    function
        The driver's handle of the kernel.
    addresses
        The address of an array with the addresses of the arguments.
    nbytes
        The bytes of GPU memory that the kernel keeps beside its arguments.
    """

    blocks = 1
    nbytes = 0

    def __init__(
        self,
        entry: str,
        definitions: dict[str, object],
        acc: np.dtype[Any],
        threads: int,
        shared: int = 0,
        *,
        fields: tuple[int, int] = (1, 1),
    ) -> None:
        """Compile and load. ``acc`` is the type of the running value; ``threads`` are per block.

        ``fields`` are the numbers of arrays that an element is read from, and written to.
        """
        self.entry, self.definitions = entry, definitions
        parameters = parameters_of(entry, acc, fields)
        self.arguments: Any = parameters()
        self.places = places(parameters)
        begin = ctypes.addressof(self.arguments)
        self._addresses: NDArray[np.uint64] = np.array(
            [begin + offset for offset, _ in self.places], np.uint64
        )
        self.addresses = self._addresses.ctypes.data
        self.block = threads, 1, 1, shared
        self.function = self.load()

    def load(self) -> int:
        """Compile if no earlier kernel has, load, and return the handle on the current GPU."""
        device = cupy.cuda.Device()
        check_device(device)
        make_context()
        function = _loaded(
            self.entry,
            tuple(self.definitions.items()),
            device.compute_capability,
            device.id,
        )
        # The code is unloaded with this object. Two threads may have loaded it at once, each its
        # own, and the cache keeps one.
        self._code = function
        handle, shared = int(function.ptr), self.block[3]
        if shared:
            allow(handle, shared)
        return handle


@functools.cache
def _loaded(
    entry: str,
    macros: tuple[tuple[str, object], ...],
    arch: str,
    device: int,
) -> Any:
    """Compile for ``arch``, and load onto the current GPU, whose number is ``device``."""
    code, _ = nvrtc.build(f"{entry}.cu", dict(macros), arch)
    module = cupy.cuda.function.Module()
    module.load(code)
    return module.get_function(f"distscan_{entry}")


def make_context() -> None:
    """Make the GPU's context current in this thread. Direct driver calls do not do this."""
    cupy.cuda.runtime.memGetInfo()


def launch(kernel: Kernel, stream: Any) -> None:
    """Queue a kernel, with the arguments that are set now, on the current ``stream``."""
    configuration = (
        kernel.function,
        kernel.blocks,
        1,
        1,
        *kernel.block,
        stream.ptr,
        kernel.addresses,
        0,
    )
    try:
        driver.launchKernel(*configuration)
    except driver.CUDADriverError as error:
        if error.status != _NO_CONTEXT:
            raise
        make_context()
        driver.launchKernel(*configuration)


# The most dynamic shared memory that the kernels of each function take, in bytes.
_most_shared: dict[int, int] = {}
_most_shared_lock = threading.Lock()


def allow(function: int, shared: int) -> None:
    """Allow a function ``shared`` bytes of dynamic shared memory.

    Kernels that share the function may take more or less. So the limit only grows.
    """
    with _most_shared_lock:
        most = _most_shared[function] = max(shared, _most_shared.get(function, 0))
        driver.funcSetAttribute(function, _MAX_DYNAMIC_SHARED, most)
