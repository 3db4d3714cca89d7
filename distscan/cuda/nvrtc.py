"""NVRTC: from CUDA C++ to machine code. All sources and headers are passed to it as text."""

import functools
import hashlib
import os
import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cupy_backends.cuda.libs import nvrtc

from ..core.errors import KernelError
from . import kernel_cache
from .kernel_cache import Built

_INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)"([^"\n]+)"', re.MULTILINE)


@functools.cache
def kernels() -> Path:
    """Return the folder of the kernels' sources: inside an installed wheel, or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "scan.cu").is_file():
            return folder
    raise KernelError(f"no kernels beside {package}: the installation is incomplete")


def build(entry: str, given: Mapping[str, object], arch: str) -> Built:
    """Compile ``kernels/<entry>`` for compute capability ``arch``, such as "90".

    ``given`` has macros by their names, and the text of headers by names that end in ".h".
    Returns the machine code, and the assembler's report of registers and spills. If this NVRTC is
    older than the GPU, the machine code is PTX. No GPU is needed. One process compiles. The others
    of the node wait for its result in the cache, ``$DISTSCAN_CACHE_DIR`` or ``~/.cache/distscan``.

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
        "-diag-error=940",  # a function, such as an operator's, may end without a return
        *(f"-D{name}={value}" for name, value in given.items() if not name.endswith(".h")),
        *os.environ.get("DISTSCAN_NVRTC_OPTIONS", "").split(),
    )
    headers = {name: str(text) for name, text in given.items() if name.endswith(".h")}
    read = sources()
    parts = (kernel_cache.FORMAT, compiler(), entry, options, headers, read.digest)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    texts = {**read.texts, **headers}
    return kernel_cache.kept(key, lambda: _compile(entry, options, texts, native))


def _compile(entry: str, options: tuple[str, ...], texts: dict[str, str], native: bool) -> Built:
    """Compile one of the ``texts``, which may include the others by their names."""
    names = [name.encode() for name in texts]
    headers = [text.encode() for text in texts.values()]
    program = nvrtc.createProgram(texts[entry], entry, headers, names)
    try:
        nvrtc.compileProgram(program, options)
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


class Sources(NamedTuple):
    """The texts of the kernels' sources, by their paths in the folder; and their digest."""

    texts: dict[str, str]
    digest: str


@functools.cache
def sources() -> Sources:
    """Read the sources, once per process. If files change later, the process uses the old texts."""
    folder = kernels()
    paths = sorted(folder.rglob("*.cu*"))
    texts = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}
    texts = {name: with_full_names(name, text, texts) for name, text in texts.items()}
    return Sources(texts, hashlib.sha256(repr(texts).encode()).hexdigest())


def with_full_names(name: str, text: str, known: Mapping[str, str]) -> str:
    """Write each include as a path in the folder, because NVRTC compares names as they stand.

    >>> with_full_names("a/b.cuh", '#include "../c.cuh"', {"c.cuh": ""})
    '#include "c.cuh"'
    """

    def full(include: re.Match[str]) -> str:
        for folder in (posixpath.dirname(name), ""):
            path = posixpath.normpath(posixpath.join(folder, include[2]))
            if path in known:
                return f'{include[1]}"{path}"'
        return include[0]

    return _INCLUDE.sub(full, text)


@functools.cache
def compiler() -> tuple[object, ...]:
    """Return what identifies this build of NVRTC: its version, and its library's size and time."""
    version = nvrtc.getVersion()  # this loads the library
    files = set()
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.name.startswith("libnvrtc.so"):
                status = path.stat()
                files.add((status.st_size, status.st_mtime_ns))
    return version, *sorted(files)
