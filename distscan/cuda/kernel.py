"""One compiled kernel, its arguments in place, and the total that it hands to the host."""

import functools
import threading
from time import perf_counter
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from numpy.typing import NDArray

from ..core.errors import KernelError
from . import nvrtc
from .gpus import check_device

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_NOT_READY = 600  # cudaErrorNotReady
_POLLS = 1 << 14  # between two looks at whether the stream is still at work
_LIMIT = 1e-3  # seconds that a kernel waits for its offset at least; kernels/offset.cuh's


# The dynamic shared memory that kernels of each function take at most, in bytes.
_MOST_SHARED: dict[int, int] = {}
_MOST_SHARED_LOCK = threading.Lock()


def _allow(function: int, shared: int) -> None:
    """Let a function have ``shared`` bytes; kernels that share it may take more and less."""
    with _MOST_SHARED_LOCK:
        most = _MOST_SHARED[function] = max(shared, _MOST_SHARED.get(function, 0))
        driver.funcSetAttribute(function, _MAX_DYNAMIC_SHARED, most)


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
        _make_context()
        self._function = _load(entry, tuple(given.items()), device.compute_capability, device.id)
        self._block = threads, 1, 1, shared
        if shared:
            _allow(self._function.ptr, shared)
        # The driver copies the arguments at each launch; all words are written in place.
        self.memory: NDArray[np.uint64] = np.zeros(sum(sizes), np.uint64)
        self.words = self.memory.data
        places = self.memory.ctypes.data + 8 * np.cumsum([0, *sizes[:-1]])
        self._places: NDArray[np.uint64] = places.astype(np.uint64)
        self._pointer = self._places.ctypes.data

    def launch(self, blocks: int) -> None:
        """Queue ``blocks`` thread blocks with the present arguments."""
        stream = cupy.cuda.get_current_stream().ptr
        given = self._function.ptr, blocks, 1, 1, *self._block, stream, self._pointer, 0
        try:
            driver.launchKernel(*given)
        except driver.CUDADriverError as error:
            if error.status != _NO_CONTEXT:
                raise
            _make_context()
            driver.launchKernel(*given)


def _make_context() -> None:
    """Make the GPU's context current in this thread, which the driver's own calls do not do."""
    cupy.cuda.runtime.memGetInfo()


@functools.cache
def _load(entry: str, given: tuple[tuple[str, object], ...], arch: str, device: int) -> Any:
    """Compile for ``arch`` and load onto the current GPU, number ``device``."""
    code, _ = nvrtc.build(f"{entry}.cu", dict(given), arch)
    module = cupy.cuda.function.Module()
    module.load(code)
    return module.get_function(f"distscan_{entry}")


def _polled(numbers: Any, place: int, epoch: int, stream: Any) -> None:
    """Wait until a kernel on ``stream`` has written its epoch; raise if it ends without."""
    polls = 0
    while numbers[place] != epoch:
        polls += 1
        if polls % _POLLS == 0:
            if cupy.cuda.runtime.streamQuery(stream.ptr) == _NOT_READY:
                continue
            stream.synchronize()  # raises what went wrong
            if numbers[place] != epoch:
                raise KernelError("a kernel ended without its word to the host")


class HostTotal:
    """One element that a kernel writes into pinned host memory while it runs; see totals.cuh."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        """Allocate the words of one element of ``dtype``."""
        self._dtype = dtype
        self._words = -(-dtype.itemsize // 4)
        self._pinned = cupy.cuda.alloc_pinned_memory(8 * self._words)
        self.pointer = self._pinned.ptr
        # [WORDS][2]: 4 bytes of the value, then the epoch of the launch that wrote them.
        self._halves: NDArray[np.uint32] = np.frombuffer(
            self._pinned, np.uint32, 2 * self._words
        ).reshape(self._words, 2)
        self._halves[...] = 0
        self._numbers = self._halves.reshape(-1).data[1::2]

    @property
    def nbytes(self) -> int:
        """How much pinned memory it has."""
        return 8 * self._words

    def wait(self, epoch: int, stream: Any) -> NDArray[Any]:
        """Return the total of the launch of ``epoch`` on ``stream``, 0-d, once it is written."""
        for word in range(self._words):
            _polled(self._numbers, word, epoch, stream)
        value = self._halves[:, 0].tobytes()[: self._dtype.itemsize]
        return np.frombuffer(value, self._dtype).reshape(())


_NOTHING, _SOMETHING, _CALLED_OFF = range(3)  # State of kernels/offset.cuh


class HostOffset:
    """What a kernel that runs already waits for in pinned host memory; see offset.cuh."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        """Allocate the words of a state and one element of ``dtype``, and those of the answer."""
        size = -(-dtype.itemsize // 4)
        pinned = cupy.cuda.alloc_pinned_memory(8 * (size + 2))
        words: NDArray[np.uint64] = np.frombuffer(pinned, np.uint64, size + 2)
        words[...] = 0
        self._words = words.data  # a state, the value, the answer
        self._halves = words.view(np.uint32).data
        value = np.zeros(size, np.uint32)
        self._value, self._parts = value.view(np.uint8)[: dtype.itemsize].view(dtype), value.data
        self._passed_on = cupy.zeros(size + 1, np.uint64)
        #: kernels/offset.cuh's Mail
        self.mail = pinned.ptr, self._passed_on.data.ptr, pinned.ptr + 8 * (size + 1)
        self._begin = 0.0

    def expect(self) -> None:
        """Note that a kernel which waits is about to be launched."""
        self._begin = perf_counter()

    def send(self, epoch: int, offset: NDArray[Any] | None, stream: Any) -> bool:
        """Hand ``offset`` to the launch of ``epoch``; return whether it was still waiting."""
        number = epoch << 32
        if offset is not None:
            self._value[0] = offset
            for i, part in enumerate(self._parts, 1):
                self._words[i] = number | part
        else:
            for i in range(1, len(self._parts) + 1):
                self._words[i] = number
        self._words[0] = number | (_NOTHING if offset is None else _SOMETHING)
        if perf_counter() - self._begin < _LIMIT / 2:
            return True  # it cannot have given up
        answer = len(self._words) - 1
        _polled(self._halves, 2 * answer + 1, epoch, stream)
        return bool(self._halves[2 * answer] != _CALLED_OFF)
