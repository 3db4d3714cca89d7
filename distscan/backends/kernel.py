"""One compiled kernel, its arguments in place, and the total that it hands to the host."""

import functools
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from numpy.typing import NDArray

from ..dtypes import Types
from ..errors import BackendError, KernelError
from ..forms import Form
from ..operators import Operator
from . import nvrtc

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
_OLDEST = 80  # compute capability: asynchronous copies and their barriers
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NOT_READY = 600  # cudaErrorNotReady
_POLLS = 1 << 14  # between two looks at whether the stream is still at work


def check_device(device: Any) -> None:
    """Refuse a GPU that is too old for the kernels."""
    arch = device.compute_capability
    if int(arch) < _OLDEST:
        raise BackendError(
            f"GPU {device.id} has compute capability {arch[:-1]}.{arch[-1]}; "
            f"{_OLDEST / 10} (A100) or later is needed"
        )


def type_name(dtype: np.dtype[Any]) -> str:
    """Return what kernels call a type; raise TypeError for one that no GPU has."""
    name = _TYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if name is None:
        raise TypeError(f"{dtype} does not exist on a GPU; pass dtype= with a type that does")
    return name


def definitions(op: Operator, types: Types, form: Form, **policy: int | str) -> dict[str, object]:
    """Return what ``kernels/given.cuh`` asks for."""
    return {
        "DISTSCAN_X": type_name(types.x),
        "DISTSCAN_T": type_name(types.acc),
        "DISTSCAN_OUT": type_name(types.out),
        "DISTSCAN_COMBINE": op.cuda,
        "DISTSCAN_COMMUTATIVE": str(op.commutative).lower(),
        "DISTSCAN_EXCLUSIVE": str(form.exclusive).lower(),
        "DISTSCAN_REVERSE": str(form.reverse).lower(),
        **{f"DISTSCAN_{name.upper()}": value for name, value in policy.items()},
    }


class Kernel:
    """A kernel on the current GPU, launched on its current stream without an allocation."""

    def __init__(
        self,
        entry: str,
        given: dict[str, object],
        sizes: list[int],
        threads: int,
        shared: int = 0,
    ) -> None:
        """Compile and load ``kernels/<entry>.cu``, with parameters of ``sizes`` words of 8 bytes.

        ``threads`` is the size of a block and ``shared`` its dynamic shared memory in bytes.
        """
        device = cupy.cuda.Device()
        check_device(device)
        self._function = _load(entry, tuple(given.items()), device.compute_capability, device.id)
        self._block = threads, 1, 1, shared
        if shared:
            driver.funcSetAttribute(self._function.ptr, _MAX_DYNAMIC_SHARED, shared)
        # The driver copies the arguments at each launch; all words are written in place.
        self.memory: NDArray[np.uint64] = np.zeros(sum(sizes), np.uint64)
        self.words = self.memory.data
        places = self.memory.ctypes.data + 8 * np.cumsum([0, *sizes[:-1]])
        self._places: NDArray[np.uint64] = places.astype(np.uint64)
        self._pointer = self._places.ctypes.data

    def launch(self, blocks: int) -> None:
        """Queue ``blocks`` thread blocks with the present arguments."""
        stream = cupy.cuda.get_current_stream().ptr
        driver.launchKernel(
            self._function.ptr, blocks, 1, 1, *self._block, stream, self._pointer, 0
        )


@functools.cache
def _load(entry: str, given: tuple[tuple[str, object], ...], arch: str, device: int) -> Any:
    """Compile for ``arch`` and load onto the current GPU, number ``device``."""
    code, _ = nvrtc.build(f"{entry}.cu", dict(given), arch)
    module = cupy.cuda.function.Module()
    module.load(code)
    return module.get_function(f"distscan_{entry}")


class HostTotal:
    """One element that a kernel writes into pinned host memory while it runs; see totals.cuh."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        """Allocate the words of one element of ``dtype``."""
        self._dtype = dtype
        self._words = -(-dtype.itemsize // 4)
        self._pinned = cupy.cuda.alloc_pinned_memory(8 * self._words)
        self.pointer = self._pinned.ptr
        # [WORDS][2]: 4 bytes of the value, then the number of the launch that wrote them.
        self._halves: NDArray[np.uint32] = np.frombuffer(
            self._pinned, np.uint32, 2 * self._words
        ).reshape(self._words, 2)
        self._halves[...] = 0
        self._numbers = self._halves.reshape(-1).data[1::2]

    def wait(self, launch: int) -> NDArray[Any]:
        """Return the total of launch number ``launch``, 0-d, as soon as it has been written."""
        for word in range(self._words):
            polls = 0
            while self._numbers[word] != launch:
                polls += 1
                if polls % _POLLS == 0:
                    stream = cupy.cuda.get_current_stream()
                    if cupy.cuda.runtime.streamQuery(stream.ptr) == _NOT_READY:
                        continue
                    stream.synchronize()  # raises what went wrong
                    if self._numbers[word] != launch:
                        raise KernelError("a kernel ended without its total")
        value = self._halves[:, 0].tobytes()[: self._dtype.itemsize]
        return np.frombuffer(value, self._dtype).reshape(())
