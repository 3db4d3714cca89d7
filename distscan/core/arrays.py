"""Conversion of arrays: NumPy, CuPy, and every library that supports DLPack, in and out."""

import ctypes
import itertools
import math
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import is_bfloat16
from .scalars import masked_array

_ANYWHERE = nullcontext()  # the host needs no GPU to be current


# An argument, and the array that ``as_native`` returned for it; both None if there is no argument.
Pair = tuple[Any, Any]

#: The array types that ``as_native`` returns unchanged. CuPy's is added with the first CuPy array.
NATIVE: set[type] = {np.ndarray}


def is_cuda(array: Any) -> bool:
    """Return whether an array from ``as_native`` is a CuPy array."""
    return not isinstance(array, np.ndarray)


def as_native(x: Any, name: str = "x") -> Any:
    """Return a NumPy or CuPy array over the memory of ``x``, without a copy if ``x`` is an array.

    Sequences and scalars become NumPy arrays, as in ``numpy.cumsum``. Raises TypeError if the
    memory cannot be shared: for example, if ``x`` is a tensor that requires a gradient. ``name`` is
    the name of the argument, for messages.
    """
    if type(x) in NATIVE:
        return x
    if _is_cupy(x):
        NATIVE.add(sys.modules["cupy"].ndarray)
        return x
    if isinstance(x, masked_array()):
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost; pass {name}.filled(...)"
        )
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _imported(x, name)
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} is a {type(x).__name__} that is no array: {error}") from error


def as_target(out: Any, name: str = "out") -> Any:
    """Return ``as_native(out)`` for an array that is written.

    Raises ValueError if its memory on a GPU is read-only. ``check_writable`` sees all other cases,
    and arrays of JAX, which takes no stream of -1.
    """
    if type(out) in NATIVE:
        return out
    array = as_native(out, name)
    if is_foreign((out, array)) and not _is_jax(out) and _is_read_only(out):
        raise ValueError(f"{name} is read-only, as far as DLPack says")
    return array


def check_writable(out: Any, array: Any) -> None:
    """Raise ValueError if ``out`` is read-only; ``array`` is ``as_native(out)``."""
    if array is not out and _is_jax(out):
        raise ValueError(f"out is a {type(out).__name__} of JAX, which is never written")
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        if array is out:
            raise ValueError("out is read-only")
        raise ValueError("out is read-only, as far as DLPack says; pass its NumPy array")


def _is_jax(x: Any) -> bool:
    """Return whether an array is JAX's: it is read-only, but DLPack before 1.0 cannot say so."""
    return type(x).__module__.partition(".")[0] in {"jax", "jaxlib"}


def _is_cupy(x: Any) -> bool:
    cupy = sys.modules.get("cupy")  # a caller with a CuPy array has imported it
    return cupy is not None and isinstance(x, cupy.ndarray)


def namespace(array: Any) -> Any:
    """Return the module, NumPy or CuPy, of an array from ``as_native``."""
    if not is_cuda(array):
        return np
    import cupy  # noqa: PLC0415 - only arrays on a GPU need it

    return cupy


def contiguous(x: Any) -> Any:
    """Return a NumPy or CuPy array in C order, with the same bits: ``x``, or a copy of it.

    CuPy copies elements by arithmetic: float16 by way of float32, which changes NaNs. So words of
    the same size are copied in their place.
    """
    if x.flags.c_contiguous:
        return x
    xp, word = namespace(x), math.gcd(x.itemsize, 8)
    if xp is np:
        return np.ascontiguousarray(x)
    shape, strides = (*x.shape, x.itemsize // word), (*x.strides, word)
    words = xp.ascontiguousarray(xp.ndarray(shape, f"u{word}", x.data, strides))
    return xp.ndarray(x.shape, x.dtype, words.data)


def overlap(x: Any, target: Any, *, in_place: bool = True) -> bool:
    """Return whether a scan into ``target`` may overwrite elements of ``x`` before it reads them.

    With ``in_place``, the same memory in the same layout is safe. Keys need ``in_place=False``: a
    kernel compares each key with its neighbour.
    """
    if x is target:
        return not in_place
    if not is_cuda(x):
        shares = np.may_share_memory(x, target)
    elif x.flags.c_contiguous and target.flags.c_contiguous:
        begin, other = x.data.ptr, target.data.ptr
        shares = begin < other + target.nbytes and other < begin + x.nbytes
    else:
        import cupy  # noqa: PLC0415 - only arrays on a GPU need it

        shares = cupy.may_share_memory(x, target)
    if not shares:
        return False
    alike = in_place and x.strides == target.strides and x.dtype == target.dtype
    return not (alike and _address(x) == _address(target))


def _address(array: Any) -> int:
    return int(array.data.ptr if is_cuda(array) else array.ctypes.data)


def gpu(array: Any) -> int | None:
    """Return the number of the GPU that holds an array; None for the host."""
    return None if isinstance(array, np.ndarray) else int(array.data.device_id)


def current_gpu() -> int:
    """Return the number of the current GPU."""
    return gpu_getter()()


def gpu_getter() -> Callable[[], int]:
    """Return CUDA's function that returns the number of the current GPU."""
    import cupy  # noqa: PLC0415 - only arrays on a GPU need it

    getter: Callable[[], int] = cupy.cuda.runtime.getDevice
    return getter


def device(array: Any) -> str:
    """Return the name of an array's device, for messages: "GPU 0" or "the host"."""
    return f"GPU {array.device.id}" if is_cuda(array) else "the host"


def _current(cuda: Any, gpu: int) -> AbstractContextManager[Any]:
    """Return a context in which a GPU is current.

    Usually it is current already. The check takes a fifth of the time of making it current.
    """
    return _ANYWHERE if cuda.runtime.getDevice() == gpu else cuda.Device(gpu)


def on_device(array: Any) -> AbstractContextManager[Any]:
    """Return a context that makes the GPU of an array current; for a host array it does nothing."""
    return where(array)[1]


def where(array: Any) -> tuple[int | None, AbstractContextManager[Any], int | None]:
    """Return an array's GPU, a context that makes it current, and its current stream.

    GPU and stream of a host array are None.
    """
    if isinstance(array, np.ndarray):
        return None, _ANYWHERE, None
    gpu, cuda = int(array.data.device_id), sys.modules["cupy"].cuda
    return gpu, _current(cuda, gpu), cuda.get_current_stream(gpu).ptr


def context(gpu: int | None) -> AbstractContextManager[Any]:
    """Return a context in which a GPU is current; None is the host, which needs none."""
    return _ANYWHERE if gpu is None else _current(sys.modules["cupy"].cuda, gpu)


def type_on(gpu: int | None) -> type:
    """Return the type of arrays on a GPU; None is the host."""
    if gpu is None:
        return np.ndarray
    import cupy  # noqa: PLC0415 - only arrays on a GPU need it

    array: type = cupy.ndarray
    return array


def describer(gpu: int | None) -> Callable[[Any], Any]:
    """Return a function of arrays of ``type_on``: all their properties but their address.

    Of two arrays with equal properties, checks of the one hold for the other.
    """
    if gpu is None:
        return attrgetter("dtype", "shape", "strides", "flags.num")
    return attrgetter("dtype", "shape", "strides", "data.device_id")


def converter(x: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts a NumPy or CuPy result to an array of the library of ``x``.

    None if no conversion is needed. A library that only exports arrays gets NumPy's or CuPy's.
    """
    is_native = _is_cupy(x) or isinstance(x, np.ndarray | np.generic)
    if is_native or not hasattr(x, "__dlpack__"):
        return None
    library = _library(x)

    def convert(result: Any) -> Any:
        if library is None:
            _synchronize(result)
            return result
        if not is_cuda(result) and is_bfloat16(result.dtype):
            return library.from_dlpack(result.view(np.int16)).view(library.bfloat16)
        return library.from_dlpack(result)

    return convert


def release(*pairs: Pair) -> None:
    """Make the streams of other libraries wait until our stream no longer uses their arrays.

    After that, the other library may overwrite or free the memory. A library that only exports
    arrays has no such wait: the host waits in its place.
    """
    for original, array in filter(is_foreign, pairs):
        library = _library(original)
        if library is None:
            _synchronize(array)
        else:
            library.from_dlpack(array)


def _synchronize(array: Any) -> None:
    """Wait for the work on the current stream, if an array is on a GPU."""
    if is_cuda(array):
        sys.modules["cupy"].cuda.get_current_stream().synchronize()


def is_foreign(pair: Pair) -> bool:
    """Return whether an array on a GPU is of a library other than CuPy."""
    original, array = pair
    return array is not None and is_cuda(array) and not _is_cupy(original)


def _library(x: Any) -> Any:
    """Return the module of the library of an array that supports DLPack.

    None if the library only exports arrays: it has no ``from_dlpack``.
    """
    if hasattr(x, "__array_namespace__"):
        library = x.__array_namespace__()
        return library if hasattr(library, "from_dlpack") else None
    for kind in type(x).__mro__:  # a derived class may be the user's; its base is the library's
        library = sys.modules.get(kind.__module__.partition(".")[0])
        if hasattr(library, "from_dlpack"):
            return library
    return None


# ---- DLPack ------------------------------------------------------------------------------------


_HOST, _CUDA = {1, 3, 11}, {2, 13}  # kDLCPU, kDLCUDAHost, kDLROCMHost; kDLCUDA, kDLCUDAManaged
_OTHERS = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU"}


def _imported(x: Any, name: str) -> Any:
    """Return a NumPy or CuPy array over the memory of an array that supports DLPack."""
    try:
        device = int(x.__dlpack_device__()[0])
        if device in _CUDA:
            import cupy  # noqa: PLC0415 - only arrays on a GPU need it

            return cupy.from_dlpack(x)
        if device in _HOST:
            return _on_host(x)
    except MemoryError:
        raise
    except Exception as error:
        kind = type(x).__name__
        if isinstance(error, ModuleNotFoundError):
            raise TypeError(f"{name} is a {kind}, which needs the package {error.name}") from error
        raise TypeError(f"{name} is a {kind} that does not share its memory: {error}") from error
    raise TypeError(
        f"{name} is on DLPack device {device} ({_OTHERS.get(device, 'unknown')}); "
        "copy it to host or CUDA memory"
    )


def _on_host(x: Any) -> Any:
    """Return a NumPy array over the memory of ``x``; NumPy itself does not take bfloat16."""
    with suppress(BufferError, RuntimeError):
        return np.from_dlpack(x)
    bits = _Bits(x)
    array = np.from_dlpack(bits)  # raises again, unless the type was the fault
    if not bits.of_bfloat16:
        return array
    import ml_dtypes  # noqa: PLC0415 - only bfloat16 needs it

    return array.view(ml_dtypes.bfloat16)


class _Bits:
    """An array that exports bfloat16 numbers by their bits, as uint16."""

    def __init__(self, x: Any) -> None:
        self._x, self.of_bfloat16 = x, False

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._x.__dlpack__(**options)
        tensor, _ = _content(capsule)
        self.of_bfloat16 = (tensor.code, tensor.bits) == (_BFLOAT, 16)
        if self.of_bfloat16:
            tensor.code = _UINT
        return capsule


def _is_read_only(x: Any) -> bool:
    """Return whether an array on a GPU says that its memory is read-only; CuPy does not ask."""
    try:
        capsule = x.__dlpack__(stream=-1, max_version=(1, 0))  # -1: no stream waits
    except TypeError:  # a library before DLPack 1.0 cannot say it
        return False
    return bool(_content(capsule)[1] & _READ_ONLY)


class _Tensor(ctypes.Structure):
    """``DLTensor`` of DLPack, without its last members."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned`` of DLPack 1.0."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_UINT, _BFLOAT, _READ_ONLY = 1, 4, 1  # kDLUInt, kDLBfloat, DLPACK_FLAG_BITMASK_READ_ONLY
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _content(capsule: Any) -> tuple[_Tensor, int]:
    """Return the tensor that a capsule of ``__dlpack__`` holds, and its flags.

    There are no flags before DLPack 1.0. The tensor is valid as long as the capsule is.
    """
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), 0
    managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
    return managed.tensor, managed.flags


# ---- tuples of arrays: one array for each field of a structure -------------------------------

_CHUNK = 1 << 16  # elements that are gathered at a time
_ALIGNED = 16  # bytes: a multiple of the alignment of every type


class FieldArrays(tuple[Any, ...]):
    """Contiguous arrays [n] of CuPy on one GPU: the fields of n elements."""

    #: The addresses of the arrays. An array takes ten times as long to tell its address.
    addresses: list[int]

    def __new__(cls, arrays: Iterable[Any]) -> "FieldArrays":
        """Hold ``arrays``."""
        fields = super().__new__(cls, arrays)
        fields.addresses = [array.data.ptr for array in fields]
        return fields

    def misaligned(self) -> bool:
        """Return whether an array begins at an address that its type cannot have."""
        return any(address % _ALIGNED for address in self.addresses) and any(
            address % array.dtype.alignment
            for address, array in zip(self.addresses, self, strict=True)
        )

    def overwritten(self, results: "FieldArrays") -> list[int]:
        """Return which arrays a scan into ``results`` may overwrite before it reads them.

        An array in the place of a result, element by element, is safe.
        """
        sources, targets = self._spans(), results._spans()
        # Usually spans do not overlap, or are the same. Neighbours in sorted order tell this.
        if all(a == b or a[1] <= b[0] for a, b in itertools.pairwise(sorted(sources + targets))):
            return []
        return [
            i
            for i, (begin, end) in enumerate(sources)
            if any(
                begin < stop and start < end and (begin, end) != (start, stop)
                for start, stop in targets
            )
        ]

    def _spans(self) -> list[tuple[int, int]]:
        """Return where each array begins and ends."""
        return [
            (begin, begin + array.nbytes) for begin, array in zip(self.addresses, self, strict=True)
        ]


class HostFields:
    """NumPy's arrays of one shape, as if they were one array of structures.

    A part of it is a view. Where NumPy needs an array of structures, only the part becomes one: so
    elements are gathered chunk by chunk.
    """

    def __init__(self, arrays: Iterable[NDArray[Any]], dtype: np.dtype[Any]) -> None:
        """Hold ``arrays``; ``dtype`` is that of the structures, whose fields may be of other types.

        >>> fields = HostFields([np.arange(3), np.ones(3)], np.dtype([("x0", "f8"), ("x1", "f8")]))
        >>> np.asarray(fields[1:])
        array([(1., 1.), (2., 1.)], dtype=[('x0', '<f8'), ('x1', '<f8')])
        """
        self.arrays, self.dtype = tuple(arrays), dtype
        self.shape, self.ndim, self.size = (
            self.arrays[0].shape,
            self.arrays[0].ndim,
            self.arrays[0].size,
        )

    def __getitem__(self, index: Any) -> "HostFields":
        """View a part of all arrays."""
        return HostFields((array[index] for array in self.arrays), self.dtype)

    def __setitem__(self, index: Any, values: Any) -> None:
        """Store structures, each field in its array and its type."""
        for name, array in zip(self.dtype.names or (), self.arrays, strict=True):
            array[index] = values[name]

    def reshape(self, *shape: int) -> "HostFields":
        """View all arrays in another shape."""
        return HostFields((array.reshape(*shape) for array in self.arrays), self.dtype)

    def astype(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Gather the elements."""
        elements = np.empty(self.shape, dtype)
        for name, array in zip(dtype.names or (), self.arrays, strict=True):
            elements[name] = array
        return elements

    def digest(self) -> str:
        """Return a digest of all numbers, which tells 0.0 and -0.0 apart."""
        from xxhash import xxh3_128  # noqa: PLC0415 - its import takes 3 ms

        digest = xxh3_128()
        for low in range(0, len(self.arrays[0]), _CHUNK):
            for array in self[low : low + _CHUNK].arrays:
                padded = array.dtype.char in "gG"  # with bytes that are no part of the number
                digest.update(str(array.tolist()).encode() if padded else array.tobytes())
        return digest.hexdigest()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Gather the elements, for NumPy."""
        return self.astype(self.dtype if dtype is None else np.dtype(dtype))
