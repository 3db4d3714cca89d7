"""Conversion of arrays: NumPy, CuPy, and every library that supports DLPack, in and out."""

import functools
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .dtypes import is_bfloat16

_DLPACK_HOST = {1, 3, 11}  # kDLCPU, kDLCUDAHost, kDLROCMHost
_DLPACK_CUDA = {2, 13}  # kDLCUDA, kDLCUDAManaged
_ANYWHERE = nullcontext()  # the host needs no GPU to be current


# An argument, and the array that ``as_native`` returned for it; both None if there is no argument.
Pair = tuple[Any, Any]

#: The array types that ``as_native`` returns unchanged. CuPy's is added with the first CuPy array.
NATIVE: set[type] = {np.ndarray}


def is_cuda(array: Any) -> bool:
    """Return whether an array from ``as_native`` is a CuPy array."""
    return not isinstance(array, np.ndarray)


def as_native(x: Any) -> Any:
    """Return a NumPy or CuPy array over the memory of ``x``, without a copy if ``x`` is an array.

    Sequences and scalars become NumPy arrays, as in ``numpy.cumsum``. Raises TypeError if the
    memory cannot be shared: for example, if ``x`` is a tensor that requires a gradient.
    """
    if type(x) in NATIVE:
        return x
    if _is_cupy(x):
        NATIVE.add(sys.modules["cupy"].ndarray)
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("masked arrays are not scanned: the mask would be lost; use filled(...)")
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        device = int(x.__dlpack_device__()[0])
        if device not in _DLPACK_HOST | _DLPACK_CUDA:
            raise TypeError(f"x is on DLPack device {device}; a scan takes host and CUDA memory")
        take: Any = np.from_dlpack
        if device in _DLPACK_CUDA:
            import cupy  # noqa: PLC0415 - only arrays on a GPU need it

            take = cupy.from_dlpack
        elif str(getattr(x, "dtype", "")).endswith("bfloat16"):
            take = _bits_of_bfloat16
        try:
            return take(x)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"a {type(x).__name__} does not share its memory: {error}") from error
    return np.asarray(x)


def _bits_of_bfloat16(x: Any) -> Any:
    """Return a NumPy array over bfloat16 numbers, a type that NumPy does not take by DLPack."""
    import ml_dtypes  # noqa: PLC0415 - only bfloat16 needs it

    if _is_jax(x):
        return np.asarray(x)  # without a copy; a view of a JAX array would be a copy
    x.__dlpack__()  # raises if the memory may not be shared: a tensor that requires a gradient
    return np.from_dlpack(x.view(_library(x).int16)).view(ml_dtypes.bfloat16)


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
    shape, strides = (*x.shape, x.itemsize // word), (*x.strides, word)
    if xp is np:
        return np.ascontiguousarray(x)
    words = xp.ascontiguousarray(xp.ndarray(shape, f"u{word}", x.data, strides))
    return xp.ndarray(x.shape, x.dtype, words.data)


def overlap(x: Any, target: Any, *, in_place: bool = True) -> bool:
    """Return whether a scan into ``target`` may overwrite elements of ``x`` before it reads them.

    With ``in_place``, the same memory in the same layout is safe. Keys are not read in this way:
    a kernel compares each key with its neighbour.
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
    import cupy  # noqa: PLC0415 - only arrays on a GPU need it

    return int(cupy.cuda.Device().id)


def device(array: Any) -> str:
    """Return the name of an array's device, for messages: "GPU 0" or "the host"."""
    return f"GPU {array.device.id}" if is_cuda(array) else "the host"


def _current(cuda: Any, gpu: int) -> AbstractContextManager[Any]:
    """Return a context in which a GPU is current.

    Usually it is current already. To check that takes a fifth of the time of making it current.
    """
    return _ANYWHERE if cuda.runtime.getDevice() == gpu else cuda.Device(gpu)


def on_device(array: Any) -> AbstractContextManager[Any]:
    """Return a context that makes the GPU of an array current; for a host array it does nothing."""
    if not is_cuda(array):
        return _ANYWHERE
    import cupy  # noqa: PLC0415 - only arrays on a GPU need it

    return _current(cupy.cuda, array.data.device_id)


def stream(array: Any) -> int | None:
    """Return the pointer of the current stream of an array's GPU; None for a host array."""
    if not is_cuda(array):
        return None
    import cupy  # noqa: PLC0415 - only arrays on a GPU need it

    return int(cupy.cuda.get_current_stream().ptr)


def on_gpu(gpu: int | None) -> tuple[type, Callable[[], AbstractContextManager[Any]]]:
    """Return the array type of a GPU, and a function whose context makes that GPU current.

    ``gpu`` None is the host.
    """
    if gpu is None:
        return np.ndarray, lambda: _ANYWHERE
    import cupy  # noqa: PLC0415 - only arrays on a GPU need it

    return cupy.ndarray, functools.partial(_current, cupy.cuda, gpu)


def converter(x: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts a NumPy or CuPy result to an array of the library of ``x``.

    None if no conversion is needed.
    """
    known = _is_cupy(x) or isinstance(x, np.ndarray | np.generic)
    if known or not hasattr(x, "__dlpack__"):
        return None
    library = _library(x)

    def convert(result: Any) -> Any:
        if not is_cuda(result) and is_bfloat16(result.dtype):
            return library.from_dlpack(result.view(np.int16)).view(library.bfloat16)
        return library.from_dlpack(result)

    return convert


def release(*used: Pair) -> None:
    """Make the streams of other libraries wait until our stream no longer uses their arrays.

    After that, the other library may overwrite or free the memory.
    """
    for given, array in filter(is_foreign, used):
        _library(given).from_dlpack(array)


def is_foreign(pair: Pair) -> bool:
    """Return whether an array on a GPU is of a library other than CuPy."""
    given, array = pair
    return array is not None and is_cuda(array) and not _is_cupy(given)


def _library(x: Any) -> Any:
    """Return the module of the library of an array that supports DLPack."""
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    for kind in type(x).__mro__:  # a derived class may be the user's; its base is the library's
        library = sys.modules.get(kind.__module__.partition(".")[0])
        if hasattr(library, "from_dlpack"):
            return library
    raise TypeError(f"the library of {type(x).__name__} has no from_dlpack to convert results with")
