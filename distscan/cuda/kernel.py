"""One compiled kernel, its arguments in place, and the total that it hands to the host."""

import functools
import re
import threading
from time import perf_counter
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from numpy.typing import NDArray

from ..core.dtypes import Types, is_bfloat16
from ..core.errors import KernelError
from ..core.forms import Form
from ..core.operators import BUILTIN, LOGICAL, Operator
from . import nvrtc
from .gpus import check_device

# By dtype.kind and size in bytes; the names are those of kernels/base/types.cuh.
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
_STRUCTURES = (4, 8, 16, 32)  # bytes: vectors are aligned to their size
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_NOT_READY = 600  # cudaErrorNotReady
_POLLS = 1 << 14  # between two looks at whether the stream is still at work
_LIMIT = 1e-3  # seconds that a kernel waits for its offset at least; linear/offset.cuh's


def type_name(dtype: np.dtype[Any]) -> str:
    """Return what kernels call a type; raise TypeError for one that no GPU has."""
    if dtype.names:
        return "Structure"
    name = "bfloat16" if is_bfloat16(dtype) else _TYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if name is None:
        raise TypeError(f"{dtype} does not exist on a GPU; pass dtype= with a type that does")
    return name


def structure(dtype: np.dtype[Any]) -> str:
    """Declare a structured type in C++; raise TypeError if that would lie in memory in another way.

    >>> structure(np.dtype([("a", "f8"), ("b", "f8")]))
    'struct Structure { double a; double b; };'
    """
    names = dtype.names or ()
    fields = [(name, dtype[name]) for name in names]
    like_c = np.dtype(fields, align=True)
    if dtype.itemsize not in _STRUCTURES:
        raise TypeError(f"{dtype} has {dtype.itemsize} bytes; a GPU takes {_STRUCTURES}")
    if dtype.itemsize != like_c.itemsize or dtype.fields != like_c.fields:
        raise TypeError(f"{dtype} does not lie in memory as in C++; align=True makes one that does")
    for name, field in fields:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise TypeError(f"{name!r} of {dtype} cannot be the name of a field in C++")
        if field.names or field.shape:
            raise TypeError(f"field {name!r} of {dtype} is {field}; on a GPU a field is one number")
    declared = "".join(f"{type_name(field)} {name}; " for name, field in fields)
    return f"struct Structure {{ {declared}}};"


def body(op: Operator) -> str:
    """Return the body of the operator's function in C++; errors name the operator and its line."""
    if op.cuda is None:
        raise TypeError(f"operator {op.name!r} has no CUDA form: without cuda= only CPUs scan")
    name = re.sub(r"[^\w .-]", "_", op.name)
    start = "" if re.search(r"\breturn\b", op.cuda) else "return\n"
    return f'{start}#line 1 "operator {name}"\n{op.cuda}\n;\n'


def definitions(op: Operator, types: Types, form: Form, **policy: int | str) -> dict[str, object]:
    """Return what ``kernels/config.cuh`` asks for: macros, and headers by their file names."""
    return {
        "DISTSCAN_X": type_name(types.x),
        "DISTSCAN_T": _running_name(op, types),
        "DISTSCAN_OUT": type_name(types.out),
        "DISTSCAN_PARTIAL": _partial(op, types),
        "structure.h": structure(types.acc) if types.acc.names else "",
        "combine.h": body(op),
        "DISTSCAN_COMMUTATIVE": str(op.commutative).lower(),
        "DISTSCAN_EXCLUSIVE": str(form.exclusive).lower(),
        "DISTSCAN_REVERSE": str(form.reverse).lower(),
        **{f"DISTSCAN_{name.upper()}": value for name, value in policy.items()},
    }


def _running_name(op: Operator, types: Types) -> str:
    """Name the type of the running value; logical operators have one for bools in 32 bits."""
    return "truth" if op in LOGICAL and types.acc != np.bool_ else type_name(types.acc)


def _partial(op: Operator, types: Types) -> str:
    """Name a type that holds any total of one warp's elements: 32 bits are half the shuffles."""
    narrow = types.x.kind in "biu" and types.x.itemsize <= 2 and types.acc.kind in "iu"
    if op is BUILTIN["sum"] and narrow and types.acc.itemsize == 8:
        return "int" if types.x.kind == "i" else "unsigned int"
    return _running_name(op, types)


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
    """One element that a kernel writes into pinned memory while it runs; see status_words.cuh."""

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


_NOTHING, _SOMETHING, _CALLED_OFF = range(3)  # State of kernels/linear/offset.cuh


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
        #: kernels/linear/offset.cuh's Mail
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
