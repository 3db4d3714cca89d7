"""CUB, called from C++ as its own users call it: nvcc compiles cub.cu, and ctypes loads it.

The headers are those of the Python package cuda-cccl if it is installed, else nvcc's own.
"""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..core.operators import BUILTIN
from .case import Case, Task
from .timing import Call

_SOURCE = Path(__file__).with_name("cub.cu")
_SECONDS = 300  # the time limit of nvcc
_RUN_TO_RUN = (3, 5, 0)  # the first CCCL whose scan has a deterministic form

_TYPES = {
    "float16": "__half", "float32": "float", "float64": "double",
    "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned",
    "uint64": "unsigned long long",
}  # fmt: skip
_OPERATORS = {
    "sum": "cuda::std::plus",
    "prod": "cuda::std::multiplies",
    "max": "cuda::maximum",
    "min": "cuda::minimum",
}


# ---- the contenders ------------------------------------------------------------------------


def version() -> str:
    """Return the version of CUB; raise ImportError if it cannot be compiled."""
    return "CCCL " + _text(cccl())


def run_to_run_version() -> str:
    """Return the version of CUB; raise ImportError if its scan has no deterministic form."""
    if cccl() < _RUN_TO_RUN:
        raise ImportError(f"needs CCCL {_text(_RUN_TO_RUN)}, here is {_text(cccl())}")
    return version()


def takes(case: Case) -> bool:
    """Return whether CUB scans a case: not along rows, and by flags inclusively alone."""
    flags = case.segments == np.bool_
    return not (case.row or case.in_place or case.new) and not (flags and case.exclusive)


def default(task: Task) -> list[Call]:
    """Scan by CUB's default: floats may differ from run to run. Its memory is allocated once."""
    return _scans(task.case, task.machine.xp, [(x, task.segments, out) for x, out in task.pairs])


def _scans(case: Case, xp: Any, arrays: Sequence[tuple[Any, Any, Any]]) -> list[Call]:
    """Return a call for each triple of arrays: the input, keys or flags or None, the result."""
    entry, n = entries("SCAN", case).scan, c_longlong(case.n)
    pointers = [[c_void_p(a if a is None else a.data.ptr) for a in each] for each in arrays]
    memory = Memory(xp, lambda temp, size: entry(temp, size, *pointers[0], n, stream_of(xp)))

    def call(*each: c_void_p) -> None:
        entry(memory.pointer, memory.size, *each, n, stream_of(xp))

    return [partial(call, *each) for each in pointers]


def run_to_run(task: Task) -> list[Call]:
    """Scan by CUB's deterministic form, which takes its memory from CUDA's pool in every call."""
    part = entries("RUN_TO_RUN", task.case)
    part.keep_pool(task.machine.xp.cuda.Device().id)
    n, xp = c_longlong(task.case.n), task.machine.xp

    def call(x: c_void_p, out: c_void_p) -> None:
        part.scan_run_to_run(x, out, n, stream_of(xp))

    return [partial(call, c_void_p(x.data.ptr), c_void_p(out.data.ptr)) for x, out in task.pairs]


def sum_by_key(place: Any, keys: Any, x: Any, out: Any) -> Call:
    """Sum float32 in runs of equal int32 keys."""
    case = Case(BUILTIN["sum"], x.dtype, out.dtype, x.size, 1, options={"segments": keys.dtype})
    (scan,) = _scans(case, place.machine.xp, [(x, keys, out)])

    def call() -> Any:
        scan()
        return out

    return call


def select(place: Any, x: Any, mask: Any) -> Call:
    """Select float32 into an array that is allocated once, and copy the count to the host."""
    xp = place.machine.xp
    out, count = xp.empty_like(x), xp.empty(1, np.int64)
    entry = entries("FLAGGED", Case(BUILTIN["sum"], x.dtype, x.dtype, x.size, 1)).flagged
    pointers = (c_void_p(array.data.ptr) for array in (x, mask, out, count))
    arguments = *pointers, c_longlong(x.size), stream_of(xp)
    memory = Memory(xp, lambda temp, size: entry(temp, size, *arguments))

    def call() -> Any:
        entry(memory.pointer, memory.size, *arguments)
        return out[: count.item()]

    return call


# ---- compilation and memory ----------------------------------------------------------------


class Memory:
    """The temporary memory of CUB."""

    def __init__(self, xp: Any, *entries: Callable[[None, Any], object]) -> None:
        """Allocate the most bytes that an entry asks for: without memory, it sets the size."""
        most = 1
        for entry in entries:
            size = c_size_t()
            entry(None, byref(size))
            most = max(most, size.value)
        self._array = xp.empty(most, np.uint8)
        self._size = c_size_t(most)
        self.pointer, self.size = c_void_p(self._array.data.ptr), byref(self._size)


def stream_of(xp: Any) -> c_void_p:
    """Return CuPy's current stream."""
    return c_void_p(xp.cuda.get_current_stream().ptr)


class _Entries(ctypes.CDLL):
    """A compiled part of cub.cu. Its entries raise the CUDA errors that they return."""

    def __getattr__(self, name: str) -> Any:
        entry = super().__getattr__(name)
        entry.restype, entry.errcheck = c_int, _check
        return entry


def _check(error: Any, entry: Any, _: object) -> Any:
    if error:
        raise RuntimeError(f"CUB's {entry.__name__} ended with CUDA error {error}")
    return error


def entries(part: str, case: Case) -> _Entries:
    """Compile a part of cub.cu for the current GPU, the types and the operator of ``case``."""
    import cupy  # noqa: PLC0415 - a CPU run need not have CuPy

    return compile_part(part, case, cupy.cuda.Device().compute_capability)


def compile_part(part: str, case: Case, arch: str) -> _Entries:
    """Compile a part of cub.cu for compute capability ``arch``, such as "90"; no GPU is needed."""
    out = _TYPES[case.out.name]
    identity = case.op.identity(case.out).item()
    macros = {
        f"BENCH_{part}": "",
        "BENCH_X": _TYPES[case.x.name],
        "BENCH_OUT": out,
        "BENCH_OP": f"{_OPERATORS[case.op.name]}<{out}>",
        "BENCH_IDENTITY": _literal(identity),
    }
    if case.x == case.out:
        macros["BENCH_SAME"] = ""
    if case.exclusive:
        macros["BENCH_EXCLUSIVE"] = ""
    if case.segments == np.bool_:
        macros["BENCH_FLAGS"] = ""
    elif case.segments is not None:
        macros["BENCH_KEYS"] = _TYPES[case.segments.name]
    return _compile_part(tuple(f"-D{name}={value}" for name, value in macros.items()), arch)


def _literal(value: float) -> str:
    """Write a number as a literal of C++.

    >>> _literal(float("-inf")), _literal(-128), _literal(0.0)
    ('(-INFINITY)', '(-128)', '(0.0)')
    """
    if isinstance(value, float) and np.isinf(value):
        return "(INFINITY)" if value > 0 else "(-INFINITY)"
    return f"({-(2**63) + 1} - 1)" if value == -(2**63) else f"({value}{'u' * (value > 2**62)})"


@cache
def _compile_part(macros: tuple[str, ...], arch: str) -> _Entries:
    with TemporaryDirectory(prefix="distscan-cub-") as folder:
        target = Path(folder) / "cub.so"
        options = ("-O3", f"-arch=sm_{arch}", "-shared", "-Xcompiler=-fPIC", *macros)
        _nvcc((*options, str(_SOURCE), "-o", str(target)))
        return _Entries(str(target))


@cache
def cccl() -> tuple[int, int, int]:
    """Return the version of the headers that nvcc finds; raise ImportError if it finds none."""
    with TemporaryDirectory(prefix="distscan-cub-") as folder:
        source = Path(folder) / "version.cu"
        source.write_text("#include <cuda/version>\nCCCL_VERSION\n")
        try:
            text = _nvcc(("-E", str(source)))
            number = int(text.split()[-1])
        except (OSError, RuntimeError, ValueError) as error:
            raise ImportError(f"nvcc does not compile CUB: {error}") from error
    return number // 1_000_000, number // 1_000 % 1_000, number % 1_000


def _nvcc(options: Sequence[str]) -> str:
    """Run nvcc and return its output. A RuntimeError has the first error of nvcc."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    nvcc = shutil.which("nvcc", path=path)
    if nvcc is None:
        raise ImportError("there is no nvcc on PATH or in /usr/local/cuda/bin")
    command = [nvcc, "-std=c++17", *(f"-I{folder}" for folder in _headers()), *options]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"nvcc took more than {_SECONDS} s") from error
    if process.returncode:
        lines = process.stderr.splitlines()
        first = next((line for line in lines if "error" in line), process.stderr.strip())
        raise RuntimeError(f"nvcc: {first or f'exit status {process.returncode}'}")
    return process.stdout


def _headers() -> list[Path]:
    """Return the folders of the headers of cuda-cccl."""
    try:
        spec = importlib.util.find_spec("cuda.cccl")
    except ModuleNotFoundError:  # there is no package named cuda
        spec = None
    places = spec.submodule_search_locations or [] if spec else []
    folders = [Path(place) / "headers" / "include" for place in places]
    return [folder for folder in folders if (folder / "cub").is_dir()]


def _text(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))
