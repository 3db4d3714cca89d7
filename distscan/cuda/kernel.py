"""A kernel: compiled for one operator, checked, and loaded onto the current GPU."""

import ctypes
import functools
import struct
import threading
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from numpy.typing import NDArray

from ..core.errors import KernelError
from . import nvrtc
from .arguments import declared, places
from .memory import check_device

# ---- the parameters of a kernel, as its machine code describes them --------------------------

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_HEADER = struct.Struct("<40xQ10xHHH")  # of the sections: offset, size of each, number, names
_SECTION = struct.Struct("<I20xQQ24x")  # name, offset, size
_ATTRIBUTE = struct.Struct("<BBH")  # format, kind, value
_SIZED = 4  # the format whose value is the number of bytes that follow
_PARAMETER_INFO, _PARAMETERS_SIZE = 0x17, 0x19  # EIATTR_KPARAM_INFO, EIATTR_CBANK_PARAM_SIZE
_PARAMETER = struct.Struct("<IHHI")  # index, number, offset; size from bit 18 on


def parameters(code: bytes, function: str) -> list[tuple[int, int]] | None:
    """Return the offset and the size of each parameter of ``function``, in bytes.

    ``code`` is the output of NVRTC. A cubin is an ELF file. Its section ``.nv.info.<function>`` is
    a list of attributes: one for each parameter, and one for the size of all. The result is None
    for PTX, and for a format that is newer than this reader.
    """
    try:
        attributes = [*_attributes(_section(code, f".nv.info.{function}".encode()))]
        described = sorted(
            _PARAMETER.unpack(data)[1:] for kind, _, data in attributes if kind == _PARAMETER_INFO
        )
        (size,) = (value for kind, value, _ in attributes if kind == _PARAMETERS_SIZE)
    except (LookupError, ValueError, struct.error):
        return None
    numbers = [number for number, *_ in described]
    places = [(offset, bits >> 18) for _, offset, bits in described]
    # The description is complete if the numbers have no gap, and the last parameter ends at `size`.
    complete = places and numbers == [*range(len(places))] and sum(places[-1]) == size
    return places if complete else None


def _section(code: bytes, name: bytes) -> bytes:
    """Return the section ``name`` of an ELF file; raise LookupError where there is none."""
    if not code.startswith(_MAGIC):
        raise LookupError("not an ELF file")
    begin, each, number, of_names = _HEADER.unpack_from(code)
    sections = [_SECTION.unpack_from(code, begin + i * each) for i in range(number)]
    _, offset, size = sections[of_names]
    names = code[offset : offset + size]
    for at, offset, size in sections:
        if names[at:].startswith(name + b"\0"):
            return code[offset : offset + size]
    raise LookupError(f"no section {name!r}")


def _attributes(section: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the kind, the value and the bytes of each attribute."""
    at = 0
    while at < len(section):
        form, kind, value = _ATTRIBUTE.unpack_from(section, at)
        at += _ATTRIBUTE.size
        size = value if form == _SIZED else 0
        yield kind, value, section[at : at + size]
        at += size


# ---- the kernel ------------------------------------------------------------------------------

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
        parameters = declared(entry, acc, fields)
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
            tuple(self.places),
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
    expected: tuple[tuple[int, int], ...],
    arch: str,
    device: int,
) -> Any:
    """Compile for ``arch``, check, and load onto the current GPU, whose number is ``device``."""
    code, _ = nvrtc.build(f"{entry}.cu", dict(macros), arch)
    check(entry, code, [*expected])
    module = cupy.cuda.function.Module()
    module.load(code)
    return module.get_function(f"distscan_{entry}")


def check(entry: str, code: bytes, expected: list[tuple[int, int]]) -> None:
    """Raise ``KernelError`` if the parameters of compiled code are not where they are declared.

    Code that cannot be read is not checked: a newer CUDA may describe parameters in another way.
    """
    compiled = parameters(code, f"distscan_{entry}")
    if compiled is not None and compiled != expected:
        raise KernelError(
            f"kernels/{entry}.cu has parameters at (offset, size) {compiled}; "
            f"cuda/arguments.py declares {expected}"
        )


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
