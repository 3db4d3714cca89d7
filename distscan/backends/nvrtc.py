"""CUDA C++ in, machine code out: NVRTC, with a cache on disk that the ranks of a node share."""

import fcntl
import functools
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from cupy_backends.cuda.libs import nvrtc

from ..errors import KernelError

_LOCK_SECONDS = 300.0


@functools.cache
def kernels() -> Path:
    """Find the folder of the kernels' sources: inside an installed wheel, or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "scan.cu").is_file():
            return folder
    raise KernelError(f"no kernels beside {package}: the installation is incomplete")


def build(entry: str, given: Mapping[str, object], arch: str) -> tuple[bytes, str]:
    """Compile ``kernels/<entry>`` for compute capability ``arch``, such as "90".

    ``given`` has macros by their names, and the text of headers by names that end in ".h".
    Returns the machine code (PTX where this NVRTC is older than the GPU) and the assembler's
    report of registers and spills. Needs no GPU. One process compiles, the others of the node
    wait for its result in the cache: ``$DISTSCAN_CACHE_DIR``, else ``~/.cache/distscan``.

    Raises ``KernelError`` with the compiler's own lines.
    """
    archs = [known for known in map(int, nvrtc.getSupportedArchs()) if known <= int(arch)]
    if not archs:
        raise KernelError(f"the GPU's compute capability, {arch}, is older than this NVRTC knows")
    native = max(archs) == int(arch)
    options = (
        f"-arch={'sm' if native else 'compute'}_{max(archs)}",
        "-std=c++17",
        "-lineinfo",
        "--ptxas-options=-v",
        *(f"-D{name}={value}" for name, value in given.items() if not name.endswith(".h")),
        *os.environ.get("DISTSCAN_NVRTC_OPTIONS", "").split(),
    )
    headers = {
        name.encode(): str(text).encode() for name, text in given.items() if name.endswith(".h")
    }
    folder = _cache()
    if folder is None:
        return _compile(entry, options, headers, native)
    key = hashlib.sha256()
    for part in (nvrtc.getVersion(), entry, options, headers):
        key.update(repr(part).encode())
    key.update(_sources())
    code, report = (folder / f"{key.hexdigest()}.{suffix}" for suffix in ("bin", "log"))
    with suppress(OSError):
        return code.read_bytes(), report.read_text()
    with _locked(code.with_suffix(".lock")):
        with suppress(OSError):  # another process has built it meanwhile
            return code.read_bytes(), report.read_text()
        built = _compile(entry, options, headers, native)
        with suppress(OSError):  # a full disk costs the next process a compilation, no more
            _write(report, built[1].encode())
            _write(code, built[0])
    return built


def _compile(
    entry: str, options: tuple[str, ...], headers: dict[bytes, bytes], native: bool
) -> tuple[bytes, str]:
    source = (kernels() / entry).read_text()
    program = nvrtc.createProgram(source, entry, list(headers.values()), list(headers))
    try:
        nvrtc.compileProgram(program, (*options, f"-I{kernels()}"))
        report = nvrtc.getProgramLog(program)
        code = nvrtc.getCUBIN(program) if native else nvrtc.getPTX(program)
    except nvrtc.NVRTCError as error:
        raise KernelError(f"{entry}: {error}\n{nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
    return code, report


@functools.cache
def _sources() -> bytes:
    """Everything that an entry may include."""
    return b"\0".join(path.read_bytes() for path in sorted(kernels().rglob("*.cu*")))


@functools.cache
def _cache() -> Path | None:
    """Return a folder to keep results in, or None where there is none to write."""
    given, caches = os.environ.get("DISTSCAN_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(given or Path(caches or Path.home() / ".cache") / "distscan")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home at all is a RuntimeError
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock, which the system takes back from a process that dies.

    After a time limit, or where files cannot be locked, the work is done twice rather than never.
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


def _write(path: Path, content: bytes) -> None:
    """Put a file in place whole: readers see all of it or none."""
    part = path.with_suffix(f".{uuid4().hex[:8]}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
