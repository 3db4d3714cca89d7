"""A kernel: compiled by NVRTC for one operator, stored on disk, loaded and launched on a GPU."""

import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import os
import posixpath
import re
import stat
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from cupy_backends.cuda.libs import nvrtc
from numpy.typing import NDArray

from ..core.errors import KernelError
from .arguments import parameters_of, places
from .memory import check_device

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

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
    together
        Whether its blocks wait for each other, so that all must run at once.
    """

    blocks = 1
    nbytes = 0
    together = False
    _build: "Future[Built] | None" = None  # the compilation, while another thread does it

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
        """Compile if no earlier kernel has, load, and return the handle on the current GPU.

        Inside of ``side_by_side``, return 0 if it must be compiled; it is loaded at the end.
        """
        device = cupy.cuda.Device()
        check_device(device)
        make_context()
        arch = device.compute_capability
        key = self.entry, tuple(self.definitions.items()), arch, device.id
        function = _functions.get(key)
        if function is None:
            request = f"{self.entry}.cu", self.definitions, arch
            built = find(*request) if self._build is None else self._build.result()
            if built is None and _block.kernels is not None:
                self._build = _block.submit(*request)
                _block.kernels.append(self)
                return 0
            code, _ = built or build(*request)
            module = cupy.cuda.function.Module()
            module.load(code)
            function = _functions.setdefault(key, module.get_function(f"distscan_{self.entry}"))
        self._build = None
        handle, shared = int(function.ptr), self.block[3]
        if shared:
            allow(handle, shared)
        return handle


# The functions that are loaded, by entry, macros, architecture and GPU. If two threads load one at
# once, the first is used, and the other one is unloaded.
_functions: dict[tuple[object, ...], Any] = {}


class _Block(threading.local):
    """The compilations of the kernels that this thread makes inside of ``side_by_side``."""

    kernels: list[Kernel] | None = None
    pool: "ThreadPoolExecutor | None" = None

    def submit(self, *request: Any) -> "Future[Built]":
        """Begin to compile in a thread."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - it takes 4 ms

        self.pool = self.pool or ThreadPoolExecutor()
        return self.pool.submit(build, *request)

    def end(self) -> list[Kernel]:
        """End the block; return the kernels, when all are compiled."""
        kernels, pool, self.kernels, self.pool = self.kernels or [], self.pool, None, None
        if pool is not None:
            pool.shutdown()
        return kernels


_block = _Block()


@contextmanager
def side_by_side() -> Iterator[None]:
    """Compile the kernels that are made inside the block at the same time, each by a thread.

    They are loaded at the end of the outermost block, in the thread that made them.
    """
    if _block.kernels is not None:
        yield
        return
    _block.kernels = []
    try:
        yield
    finally:
        kernels = _block.end()
    for kernel in kernels:
        kernel.function = kernel.load()


def make_context() -> None:
    """Make the GPU's context current in this thread. Direct driver calls do not do this."""
    cupy.cuda.runtime.memGetInfo()


def launch(kernel: Kernel, stream: Any) -> None:
    """Queue a kernel, with the arguments that are set now, on the current ``stream``."""
    configuration: tuple[Any, ...] = (
        kernel.function,
        kernel.blocks,
        1,
        1,
        *kernel.block,
        stream.ptr,
        kernel.addresses,
    )
    start = driver.launchCooperativeKernel
    if not kernel.together:
        start, configuration = driver.launchKernel, (*configuration, 0)
    try:
        start(*configuration)
    except driver.CUDADriverError as error:
        if error.status != _NO_CONTEXT:
            raise
        make_context()
        start(*configuration)


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


# ---- compilation: all sources and headers are passed to NVRTC as text ------------------------

Built = tuple[bytes, str]  # machine code, and the assembler's report
_INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)"([^"\n]+)"', re.MULTILINE)


@functools.cache
def source_folder() -> Path:
    """Return the folder of the kernels' sources: inside an installed wheel, or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "scan.cu").is_file():
            return folder
    raise KernelError(f"no kernels beside {package}: the installation is incomplete")


def build(entry: str, macros: Mapping[str, object], arch: str) -> Built:
    """Compile ``kernels/<entry>`` for compute capability ``arch``, such as "90".

    ``macros`` has macros by their names, and the text of headers by names that end in ".h".
    Returns the machine code, and the assembler's report of registers and spills. If this NVRTC is
    older than the GPU, the machine code is PTX. No GPU is needed. One process compiles. The others
    of the node wait for its result in the cache, ``$DISTSCAN_CACHE_DIR`` or ``~/.cache/distscan``.

    Raises ``KernelError`` with the compiler's own lines.
    """
    built = find(entry, macros, arch)
    if built is not None:
        return built
    key = _key(request_name(entry, macros, arch), compiler())
    return load_or_make(key, lambda: _compile(entry, macros, arch))


def find(entry: str, macros: Mapping[str, object], arch: str) -> Built | None:
    """Return what ``build`` returns if it is there without NVRTC; else None.

    It is in the wheel, or in the cache if NVRTC's library is where pip installs it.
    """
    name, library = request_name(entry, macros, arch), installed_compiler()
    built = _of_wheel(name, arch)
    return load(_key(name, library)) if built is None and library is not None else built


def request_name(entry: str, macros: Mapping[str, object], arch: str) -> str:
    """Return a digest of all that the machine code depends on, but the compiler."""
    parts = (FORMAT, arch, entry, _options(macros), _headers(macros), sources().digest)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _key(name: str, library: "Library") -> str:
    """Return the key of an entry in the cache, from the name of the request, and the compiler."""
    return hashlib.sha256(repr((name, library)).encode()).hexdigest()


def _options(macros: Mapping[str, object]) -> tuple[str, ...]:
    """Return the options of NVRTC for any GPU."""
    return (
        "-std=c++17",
        "--ptxas-options=-v",
        "-diag-error=940",  # a function, such as an operator's, may end without a return
        *(f"-D{name}={macros[name]}" for name in sorted(macros) if not name.endswith(".h")),
        *os.environ.get("DISTSCAN_NVRTC_OPTIONS", "").split(),
    )


def _headers(macros: Mapping[str, object]) -> dict[str, str]:
    """Return the headers among the macros."""
    return {name: str(macros[name]) for name in sorted(macros) if name.endswith(".h")}


def _compile(entry: str, macros: Mapping[str, object], arch: str) -> Built:
    """Compile one of the sources, which may include the others and the headers by their names."""
    archs = [number for number in map(int, nvrtc.getSupportedArchs()) if number <= int(arch)]
    if not archs:
        raise KernelError(f"the GPU's compute capability, {arch}, is older than this NVRTC knows")
    native = max(archs) == int(arch)
    target = f"-arch={'sm' if native else 'compute'}_{max(archs)}"
    texts = {**sources().texts, **_headers(macros)}
    names = [name.encode() for name in texts]
    program = nvrtc.createProgram(texts[entry], entry, [*map(str.encode, texts.values())], names)
    try:
        nvrtc.compileProgram(program, (target, *_options(macros)))
        code = nvrtc.getCUBIN(program) if native else nvrtc.getPTX(program)
        return code, _log(program)
    except nvrtc.NVRTCError as error:
        raise KernelError(f"{entry}: {error}\n{_log(program)}") from error
    finally:
        nvrtc.destroyProgram(program)


def _log(program: int) -> str:
    """Return the compiler's log. It may be cut inside a character, which does not matter."""
    try:
        return str(nvrtc.getProgramLog(program))
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


class Sources:
    """The kernels' sources, by their paths in the folder.

    Attributes
    ----------
    digest
        The digest of all files.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        content = hashlib.sha256()
        for name, text in files.items():
            content.update(f"{name}\0{len(text)}\0".encode() + text)
        self.digest = content.hexdigest()

    @functools.cached_property
    def texts(self) -> dict[str, str]:
        """The texts, in which each include is a path in the folder."""
        texts = {name: text.decode() for name, text in self._files.items()}
        return {name: with_full_names(name, text, texts) for name, text in texts.items()}


@functools.cache
def sources() -> Sources:
    """Read the sources, once per process. If files change later, the process uses the old texts."""
    folder = source_folder()
    paths = sorted(folder.rglob("*.cu*"))
    return Sources({path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})


def with_full_names(name: str, text: str, texts: Mapping[str, str]) -> str:
    """Write each include as a path in the folder, because NVRTC compares names as they stand.

    >>> with_full_names("a/b.cuh", '#include "../c.cuh"', {"c.cuh": ""})
    '#include "c.cuh"'
    """

    def full(include: re.Match[str]) -> str:
        for folder in (posixpath.dirname(name), ""):
            path = posixpath.normpath(posixpath.join(folder, include[2]))
            if path in texts:
                return f'{include[1]}"{path}"'
        return include[0]

    return _INCLUDE.sub(full, text)


Library = tuple[tuple[int, int], ...]  # the size and the time of change of each file


@functools.cache
def compiler() -> Library:
    """Load NVRTC, and return the identity of its library."""
    version = nvrtc.getVersion()  # this loads the library
    files = set()
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.name.startswith("libnvrtc.so"):
                files.add(_identity(path))
    return tuple(sorted(files)) or (version,)


@functools.cache
def installed_compiler() -> Library | None:
    """Return the identity of NVRTC as pip has installed it, without loading it.

    CuPy loads this library, if there is one. A process may load another one all the same. Then
    ``compiler`` differs, and this process uses entries of both. None is an unknown library.
    """
    name = f"libnvrtc.so.{driver.get_build_version() // 1000}"
    with suppress(OSError, ValueError):  # ValueError: there is another number than one
        package = importlib.util.find_spec("nvidia")
        folders = [] if package is None else package.submodule_search_locations or []
        (path,) = (path for folder in folders for path in Path(folder).glob(f"*/lib/{name}"))
        return (_identity(path),)
    return None


def _identity(path: Path) -> tuple[int, int]:
    """Return the size and the time of change of a file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


# ---- the cache: a folder of compiled kernels --------------------------------------------------

FORMAT = "distscan 2"  # the format of an entry; part of its key
_LOCK_SECONDS = 300.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LENGTHS = struct.Struct("<QQ")
_DIGEST = hashlib.sha256().digest_size


def load(key: str) -> Built | None:
    """Return the entry of ``key``; None if there is none."""
    where = cache_folder()
    return None if where is None else _read(where / f"{key}.kernel")


def load_or_make(key: str, make: Callable[[], Built]) -> Built:
    """Return the entry of ``key``. If there is none, ``make`` makes it, and it is stored.

    One process makes an entry, and the others of the node wait for it. An incomplete entry is made
    again, and so is one that another user may have written. If there is no folder, each process
    makes its own entry.
    """
    where = cache_folder()
    if where is None:
        return make()
    entry = load(key)
    if entry is not None:
        return entry
    path = where / f"{key}.kernel"
    with _hold_lock(path.with_suffix(".lock")):
        entry = _read(path)  # another process may have stored it meanwhile
        if entry is None:
            entry = make()
            with suppress(OSError):  # if the disk is full, the next process compiles again
                _write(path, entry)
    return entry


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder of the entries; None if there is none, or if others may write to it."""
    setting, caches = os.environ.get("DISTSCAN_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    try:
        where = Path(setting or Path(caches or Path.home() / ".cache") / "distscan")
        if not where.exists():
            where.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another process made it meanwhile
                where.mkdir(mode=0o700)
        status = where.stat()
        if not setting and status.st_uid == os.geteuid() and status.st_mode & _OTHERS_WRITE:
            with suppress(OSError):  # an earlier version made it, under a umask such as 002
                where.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
            status = where.stat()
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None
    if not _is_trusted(status):
        warnings.warn(
            f"kernels are compiled anew by each process: other users may write {where}, the folder "
            f"for compiled kernels (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}); "
            f"make it yours (chmod go-w {where}), or set DISTSCAN_CACHE_DIR to a folder that is",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return where


def _is_trusted(status: os.stat_result) -> bool:
    """Return whether only this user and root may have written a file or folder."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & _OTHERS_WRITE


def _read(path: Path) -> Built | None:
    """Return the entry in a file; None if it is incomplete, or cannot be trusted."""
    with suppress(OSError), path.open("rb") as file:
        if _is_trusted(os.fstat(file.fileno())):
            return _unpack(path.stem, file.read())
    return None


def _pack(key: str, entry: Built) -> bytes:
    """Lay out an entry as a file: digest, length of the code, length of the report, code, report.

    The digest covers the key and all that follows. So a file under the wrong name is noticed.
    """
    report = entry[1].encode(errors="replace")
    content = _LENGTHS.pack(len(entry[0]), len(report)) + entry[0] + report
    return digest(key, content) + content


def _unpack(key: str, file: bytes) -> Built | None:
    """Return the entry that ``_pack`` laid out for ``key``; None for any other content."""
    content = file[_DIGEST:]
    if len(content) < _LENGTHS.size or digest(key, content) != file[:_DIGEST]:
        return None
    code, report = _LENGTHS.unpack_from(content)
    end = _LENGTHS.size + code
    if end + report != len(content):
        return None
    return content[_LENGTHS.size : end], content[end:].decode(errors="replace")


def digest(key: str, content: bytes) -> bytes:
    """Return the digest in front of ``content``, which tells whether an entry is complete."""
    return hashlib.sha256(key.encode() + b"\0" + content).digest()


# ---- the kernels that a wheel brings: an archive for each compute capability ------------------

_ARCHIVES = Path(__file__).with_name("compiled")


def _of_wheel(name: str, arch: str) -> Built | None:
    """Return what the wheel brings for a request; None if it brings nothing."""
    # A damaged archive raises exceptions of many kinds; _unpack compares digests.
    with suppress(Exception), ZipFile(_ARCHIVES / f"sm_{arch}.zip") as archive:
        return _unpack(name, archive.read(name))
    return None


def write_archive(path: Path, entries: Mapping[str, Built]) -> None:
    """Write an archive of entries, by the names of their requests. Its bytes depend on these.

    The 934 kernels of a wheel take 13 MiB, and 18 as ZIP_DEFLATED. One is read in 0.8 ms, not 0.2.
    """
    with ZipFile(path, "w") as archive:
        for name in sorted(entries):
            archive.writestr(ZipInfo(name), _pack(name, entries[name]), ZIP_LZMA)


# ---- locks, and files that are complete --------------------------------------------------------


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold a file lock. If the process dies, the system releases it.

    After a time limit, and where files cannot be locked, the block runs without the lock: two
    processes may then do the same work.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(path.open("a"))
            limit = time.monotonic() + _LOCK_SECONDS
            while time.monotonic() < limit:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
        yield


def _write(path: Path, entry: Built) -> None:
    """Write an entry to a temporary file, and rename it: a file under its name is complete."""
    part = path.with_suffix(f".{uuid4().hex[:8]}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(part, "wb", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
            file.write(_pack(path.stem, entry))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
