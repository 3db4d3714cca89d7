"""The compiled kernels for CPUs: the best shared library that this CPU can run.

``launch/build_cpu.py`` compiles ``kernels/cpu/``, one library per instruction-set level. It loads
this file by its path, so this file imports only the standard library.
"""

import ctypes
import functools
import os
import re
import sys
import threading
import warnings
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple


class Library(NamedTuple):
    """A loaded library, its level, and the level's readable name."""

    handle: ctypes.CDLL
    level: str
    name: str


class Level(NamedTuple):
    """An instruction-set level: its readable name, and the flags of CPUs that have it."""

    name: str
    flags: frozenset[str]  # as in /proc/cpuinfo


_V2 = frozenset(["cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"])
_V3 = _V2 | frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"])
_V4 = _V3 | frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"])

# The levels of each machine, best first, by the names that compilers take as -march=. All CPUs of
# the machine have the last level, the baseline.
LEVELS = {
    "x86_64": {
        "x86-64-v4": Level("AVX-512", _V4),
        "x86-64-v3": Level("AVX2", _V3),
        "x86-64": Level("SSE2", frozenset()),
    },
    "aarch64": {"armv8-a": Level("NEON", frozenset())},
}

_HERE = os.path.dirname(os.path.realpath(__file__))  # strings: pathlib takes 3 ms to import
FOLDER = os.path.join(_HERE, "lib")
KERNELS = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "kernels")  # in a checkout

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_lock = threading.RLock()  # a signal's handler may scan, too


def load() -> Library | None:
    """Return the best library for this CPU; None if there is none.

    The environment variable ``DISTSCAN_CPU`` chooses a level, such as ``x86-64-v3``; ``numpy``
    means no library.

    Raises ``ValueError`` if ``DISTSCAN_CPU`` is no level of this machine, if this CPU lacks it, or
    if it is not built.
    """
    with _lock:
        choice = os.environ.get("DISTSCAN_CPU")
        return _load_choice(choice) if choice else _best()


@functools.cache
def _best() -> Library | None:
    flags = cpu_flags()
    for level, (_, needs) in machine_levels().items():
        if needs <= flags and _is_built(level):
            try:
                return _load(level)
            except OSError as error:  # such as a C library that is too old
                _warn(f"NumPy is used, as the compiled kernels cannot be loaded: {error}")
                return None
    return None


@functools.cache
def _load_choice(choice: str) -> Library | None:
    if choice == "numpy":
        return None
    levels = machine_levels()
    if choice not in levels:
        names = ", ".join(["numpy", *(f"{level} ({levels[level].name})" for level in levels)])
        raise ValueError(f"DISTSCAN_CPU={choice}: on this machine it is one of {names}")
    if lacking := levels[choice].flags - cpu_flags():
        raise ValueError(
            f"DISTSCAN_CPU={choice}: this CPU lacks {', '.join(sorted(lacking))}; "
            "without DISTSCAN_CPU, the best level of this CPU is used"
        )
    if not _is_built(choice):
        raise ValueError(
            f"DISTSCAN_CPU={choice}: there is no library of this level; build it in a checkout "
            f"(python launch/build_cpu.py --levels {choice}), or install with "
            "DISTSCAN_CPU_LEVELS=all"
        )
    try:
        return _load(choice)
    except OSError as error:
        raise ValueError(f"DISTSCAN_CPU={choice}: the library cannot be loaded: {error}") from error


def machine_levels() -> dict[str, Level]:
    """Return the levels of this machine, best first; none if there are no kernels for it."""
    return LEVELS.get(os.uname().machine, {}) if sys.maxsize > 2**32 else {}


def built_levels() -> list[str]:
    """Return the readable names of the levels that are built, best first."""
    return [name for level, (name, _) in machine_levels().items() if _is_built(level)]


def cpu_flags(cpuinfo: str = "/proc/cpuinfo") -> frozenset[str]:
    """Return the flags of this CPU; the system lists those that it supports, too."""
    try:
        with open(cpuinfo, "rb") as file:
            for line in file:
                if line.startswith(b"flags"):
                    return frozenset(line.decode().partition(":")[2].split())
    except OSError:  # no /proc: the baseline runs everywhere
        pass
    return frozenset()


def path_of(level: str, folder: str) -> str:
    """Return the path of the library of a level in a folder."""
    return os.path.join(folder, f"{level}.so")


def stamp_of(library: str) -> str:
    """Return the path of a library's stamp, a checksum of its sources. Wheels have no stamps."""
    return os.path.splitext(library)[0] + ".stamp"


def _is_built(level: str) -> bool:
    """Return whether the library of a level is there, built from the sources as they are now."""
    path = path_of(level, FOLDER)
    if not os.path.isfile(path):
        return False
    try:
        with open(stamp_of(path)) as file:
            stamp = file.read()
    except FileNotFoundError:
        return True
    if not stamp.startswith(sources_digest(KERNELS)):
        _warn(f"{path} is older than kernels/cpu: run python launch/build_cpu.py")
        return False
    return True


@functools.cache
def _load(level: str) -> Library:
    handle = ctypes.CDLL(path_of(level, FOLDER))
    return Library(handle, level, machine_levels()[level].name)


def entries(handle: ctypes.CDLL, table: str, kind: type[ctypes.Structure]) -> Iterator[Any]:
    """Yield the entries of a table of a library: structures of a kind, whose first field is text.

    The text is empty at the end of the table.
    """
    address = ctypes.addressof(ctypes.c_char_p.in_dll(handle, table))
    while ctypes.c_char_p.from_address(address).value:
        yield kind.from_address(address)
        address += ctypes.sizeof(kind)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def sources_digest(kernels: str) -> str:
    """Return a checksum of ``cpu/*.cpp`` and of all headers that they include."""
    texts: dict[str, bytes] = {}  # by their paths in the folder
    cpu = os.path.join(kernels, "cpu")
    names = os.listdir(cpu) if os.path.isdir(cpu) else []
    pending = [os.path.join("cpu", name) for name in names if name.endswith(".cpp")]
    while pending:
        name = os.path.normpath(pending.pop())
        if name not in texts and os.path.isfile(path := os.path.join(kernels, name)):
            with open(path, "rb") as file:
                texts[name] = file.read()
            folder = os.path.dirname(name)
            pending += [os.path.join(folder, to.decode()) for to in _INCLUDE.findall(texts[name])]
    checksum = 0
    for name, text in sorted(texts.items()):
        checksum = zlib.crc32(b"%s\0%d\0%s" % (name.encode(), len(text), text), checksum)
    return f"{checksum:08x}"
