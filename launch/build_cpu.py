#!/usr/bin/env python3
"""Compile kernels/cpu/ into shared libraries, one per instruction-set level.

    python launch/build_cpu.py                  # the levels that this CPU can run
    python launch/build_cpu.py --levels all     # all levels of the architecture
    python launch/build_cpu.py --sanitize address,undefined --output build/sanitized
    CXX=aarch64-linux-gnu-g++ python launch/build_cpu.py --levels all --output build/aarch64

The libraries go to distscan/cpu/lib: checkouts and wheels have them there. A library is built again
only if its sources, the flags or the compiler changed: a file beside it, its stamp, has the hashes.
The compiler is g++ (11 or newer) or clang++ (14 or newer), or the one that CXX names.

The installation of distscan runs this file, so it imports only the standard library.
"""

import argparse
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"

FLAGS = [
    *("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-fno-math-errno", "-fwrapv", "-ffp-contract=off"),  # as NumPy computes
    *("-Wno-psabi", "-Wno-ignored-attributes"),
]
# Of libstdc++, kernels use headers alone: what needs more does not link.
LIBRARIES = ["-nodefaultlibs", "-Wl,-z,defs", "-Wl,--as-needed", "-lm", "-lgcc", "-lc"]


def _import_library():
    """Import distscan/cpu/library.py alone: distscan needs packages that may not be here yet."""
    path = ROOT / "distscan" / "cpu" / "library.py"
    spec = importlib.util.spec_from_file_location("library", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cpu_library = _import_library()


class BuildError(Exception):
    """There is no compiler, or it failed."""


class Compiler(NamedTuple):
    """A C++ compiler: its command, its version, and the machine that it compiles for."""

    command: list[str]
    version: str
    machine: str  # such as x86_64


class Built(NamedTuple):
    """The libraries of all levels that were asked for, and their machine."""

    machine: str
    paths: list[Path]


def build(
    choice: str, output: str = cpu_library.FOLDER, sanitize: str = "", only: str = "*"
) -> Built:
    """Build the libraries that are not there yet, or no longer up to date.

    ``only`` has the names of the only sources that are compiled, such as ``sum`` or
    ``fsum,window``; ``*`` is all.

    Raises ``BuildError`` if there is no compiler, or if it fails.
    """
    compiler = find_compiler()
    flags, libraries = FLAGS, LIBRARIES
    if sanitize:  # the compiler itself adds the libraries of its sanitizers
        flags = [*FLAGS, "-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitize}"]
        libraries = [f"-fsanitize={sanitize}"]

    options = [*compiler.command, compiler.version, *flags, *libraries, only]
    digest = hashlib.sha256("\0".join(options).encode()).hexdigest()
    stamp = f"{cpu_library.sources_digest(str(KERNELS))} {digest}\n"

    levels = choose_levels(choice, compiler.machine)
    paths = {level: Path(cpu_library.path_of(level, output)) for level in levels}
    outdated = {level: path for level, path in paths.items() if not _has_stamp(path, stamp)}
    if outdated:
        begin = time.monotonic()
        os.makedirs(output, exist_ok=True)
        _build(compiler.command, flags, libraries, outdated, only)
        for path in outdated.values():
            _stamp_of(path).write_text(stamp)
        seconds = time.monotonic() - begin
        print(f"build_cpu.py: {', '.join(outdated)}: {seconds:.1f} s", file=sys.stderr)
    return Built(compiler.machine, list(paths.values()))


def find_compiler() -> Compiler:
    """Return the compiler that CXX names, else g++ or clang++."""
    command = shlex.split(os.environ.get("CXX", ""))
    if not command:
        command = [name for name in ("g++", "clang++") if shutil.which(name)][:1]
    if not command:
        raise BuildError("there is no C++ compiler: install g++ or clang++, or name one in CXX")
    version = _run([*command, "--version"])
    target = _run([*command, "-dumpmachine"]).strip()  # such as x86_64-linux-gnu
    machine = target.partition("-")[0]
    if machine not in cpu_library.LEVELS or "linux" not in target:
        raise BuildError(f"{shlex.join(command)} compiles for {target}, which has no kernels yet")
    return Compiler(command, version, machine)


def choose_levels(choice: str, machine: str) -> list[str]:
    """Return the levels of a machine in ``choice``, best first.

    "native" is those that this CPU can run; "all" is all; else it is their names.
    """
    levels = cpu_library.LEVELS[machine]
    if choice == "native":
        here = cpu_library.machine_levels() == levels
        flags = cpu_library.cpu_flags() if here else frozenset()
        names = {level for level in levels if levels[level].flags <= flags}
    else:
        names = set(levels if choice == "all" else choice.split(","))
    if unknown := names - set(levels):
        raise BuildError(
            f"{', '.join(sorted(unknown))}: no level of {machine}; "
            f"levels are native, all, or some of {','.join(levels)}"
        )
    return [level for level in levels if level in names]


def _has_stamp(path: Path, stamp: str) -> bool:
    there = path.is_file() and _stamp_of(path).is_file()
    return there and _stamp_of(path).read_text() == stamp


def _stamp_of(path: Path) -> Path:
    return Path(cpu_library.stamp_of(str(path)))


def _build(
    command: list[str], flags: list[str], libraries: list[str], paths: dict[str, Path], only: str
) -> None:
    """Compile each source for each level, all of them side by side; then link each level."""
    sources = list[Path]()
    for name in only.split(","):
        matches = list((KERNELS / "cpu").glob(f"{name}.cpp"))
        if not matches:
            raise BuildError(f"{KERNELS / 'cpu'} has no {name}.cpp")
        sources += matches
    sources.sort(key=lambda source: source.stat().st_size, reverse=True)  # the long ones first
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:
        objects: dict[str, list[str]] = {level: [] for level in paths}
        compiled: list[Future[str]] = []
        for source in sources:
            for level in paths:
                object_file = os.path.join(folder, f"{source.stem}.{level}.o")
                arguments = [f"-march={level}", "-c", str(source), "-o", object_file]
                compiled.append(pool.submit(_run, [*command, *flags, *arguments]))
                objects[level].append(object_file)
        try:
            for future in compiled:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
        for level, path in paths.items():
            part = path.with_suffix(f".{os.getpid()}")  # a process may have loaded the old library
            _run([*command, "-shared", *objects[level], *libraries, "-o", str(part)])
            _stamp_of(path).unlink(missing_ok=True)  # of the old library
            part.replace(path)


def _run(command: list[str]) -> str:
    """Run a command; return its output. Raises ``BuildError`` with its errors."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from error
    if run.returncode != 0:
        raise BuildError(f"{shlex.join(command)} failed\n{run.stderr}".strip())
    return run.stdout


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--levels",
        default=os.environ.get("DISTSCAN_CPU_LEVELS") or "native",
        help="native, all, or such as x86-64,x86-64-v3 (default: DISTSCAN_CPU_LEVELS, else native)",
    )
    parser.add_argument("--output", default=cpu_library.FOLDER, metavar="DIR")
    parser.add_argument("--sanitize", default="", metavar="SANITIZERS", help="as of -fsanitize=")
    parser.add_argument("--only", default="*", metavar="NAMES", help="some sources, as sum,keys")
    arguments = parser.parse_args()
    try:
        build(arguments.levels, arguments.output, arguments.sanitize, arguments.only)
    except (BuildError, OSError) as error:
        print(f"build_cpu.py: no compiled kernels for CPUs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
