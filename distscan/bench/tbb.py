"""oneTBB's ``parallel_scan`` of float64: a C++ compiler compiles tbb.cpp, and ctypes loads it.

The headers and the library are those of the package tbb-devel, or the system's.
"""

import ctypes
import os
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import binding
from .case import Case, Task
from .timing import Call

_SOURCE = Path(__file__).with_name("tbb.cpp")
_SECONDS = 120  # the time limit of the compiler


def version() -> str:
    """Return the version of oneTBB; raise ImportError if tbb.cpp cannot be compiled."""
    function = _compiled().version
    function.restype = ctypes.c_char_p
    return str(function().decode())


def takes(case: Case) -> bool:
    """Return whether the case is a sum of float64."""
    return case.plain and case.op.name == "sum" and {case.x.name, case.out.name} == {"float64"}


def scan(task: Task) -> list[Call]:
    """Scan by as many threads as the case has."""
    count = ctypes.c_int(task.case.threads or binding.threads(None))
    function, n = _compiled().scan, ctypes.c_longlong(task.case.n)
    function.restype = None
    return [
        partial(function, *(ctypes.c_void_p(array.ctypes.data) for array in pair), n, count)
        for pair in task.pairs
    ]


@cache
def _compiled() -> ctypes.CDLL:
    prefix = Path(sys.prefix)  # where pip puts headers and libraries
    with TemporaryDirectory(prefix="distscan-tbb-") as folder:
        made = Path(folder) / "tbb.so"
        command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O3", "-march=native", "-shared",
                   "-fPIC", f"-I{prefix / 'include'}", str(_SOURCE), "-o", str(made),
                   f"-L{prefix / 'lib'}", f"-Wl,-rpath,{prefix / 'lib'}", "-ltbb"]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ImportError(f"{command[0]} does not compile oneTBB: {error}") from error
        if done.returncode:
            missing = "oneapi/tbb" in done.stderr and "No such file" in done.stderr
            line = next((line for line in done.stderr.splitlines() if "error" in line), "")
            raise ImportError("not installed" if missing else f"{command[0]}: {line}")
        return ctypes.CDLL(str(made))
