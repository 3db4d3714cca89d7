"""First calls in a process, beside second ones: with an empty folder of kernels, and a full one.

    python launch/tools/first_call.py [--forms I,...] [--runs 3]

Needs a GPU. Each form runs in processes of its own. CuPy, the GPU's context, MPI and distscan are
loaded before the calls, and a process prints their times. Prints a line for each form,
milliseconds, the least of the runs: the first call with an empty folder, that with a full one, the
second call, and how much the first takes longer; and of the first call with a full folder, the time
to import the modules for GPUs, to find compiled kernels and to load them onto the GPU. Python's
compiled modules must be on the disk: without PYTHONDONTWRITEBYTECODE, and not the first time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import Any

# Shape, type, and the arguments of scan.
FORMS: dict[str, tuple[tuple[int, ...], str, dict[str, Any]]] = {
    "2^10 float32": ((1 << 10,), "f4", {}),
    "2^26 float32": ((1 << 26,), "f4", {}),
    "2^26 float32, exclusive": ((1 << 26,), "f4", {"exclusive": True}),
    "2^26 float32, reduce-scan": ((1 << 26,), "f4", {"strategy": "reduce-scan"}),
    "2^26 float64": ((1 << 26,), "f8", {}),
    "2^26 int8": ((1 << 26,), "i1", {}),
    "2^26 float32, segments": ((1 << 26,), "f4", {"segments": True}),
    "[2^13, 2^13] float32, axis 1": ((1 << 13, 1 << 13), "f4", {"axis": 1}),
    "[2^13, 2^13] float32, axis 0": ((1 << 13, 1 << 13), "f4", {"axis": 0}),
    "the same, reduce-scan": ((1 << 13, 1 << 13), "f4", {"axis": 0, "strategy": "reduce-scan"}),
}


def timed(parts: dict[str, float], name: str, function: Any) -> Any:
    """Return ``function``, whose time is added to a part; threads add theirs, too."""

    def call(*arguments: Any) -> Any:
        begin = perf_counter()
        try:
            return function(*arguments)
        finally:
            parts[name] = parts.get(name, 0.0) + perf_counter() - begin

    return call


def measure(form: str) -> dict[str, float]:
    """Time the start of a process and two calls, in seconds."""
    shape, code, options = FORMS[form]
    parts: dict[str, float] = {}
    clock = [perf_counter()]

    def note(name: str) -> None:
        clock.append(perf_counter())
        parts[name] = clock[-1] - clock[-2]

    import cupy  # noqa: PLC0415 - its time is measured

    note("import cupy")
    x = cupy.empty(shape, code)
    x.data.memset(0, x.nbytes)
    if "segments" in options:
        options["segments"] = cupy.empty(shape, bool)
        options["segments"].data.memset(0, x.size)
    cupy.cuda.Device().synchronize()
    note("context")
    from mpi4py import MPI  # noqa: PLC0415

    MPI.COMM_WORLD.Barrier()
    note("MPI")
    import distscan  # noqa: PLC0415

    note("import distscan")
    from distscan.cuda import kernel, steps  # noqa: F401, PLC0415 - the first call would do it

    note("import")
    kernel.find = timed(parts, "find", kernel.find)
    module = kernel.cupy.cuda.function.Module

    def timed_module() -> Any:
        code = module()

        class Timed:
            load = staticmethod(timed(parts, "load", code.load))
            get_function = staticmethod(code.get_function)

        return Timed

    kernel.cupy.cuda.function.Module = timed_module
    for name in ("first", "second"):
        clock.append(perf_counter())
        distscan.scan(x, **options)
        cupy.cuda.Device().synchronize()
        note(name)
    parts["first"] += parts["import"]
    return parts


def in_process(form: str, folder: str) -> dict[str, float]:
    """Measure in a new process, with a folder of compiled kernels."""
    # NVRTC 12.9 and later keep what they have compiled, too: in the cache of the driver.
    own = {"DISTSCAN_CACHE_DIR": folder, "CUDA_CACHE_DISABLE": "1"}
    environment = {**os.environ, **own}
    command = [sys.executable, __file__, "--measure", form]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    parts: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return parts


def main() -> None:
    """Print a line for each form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", default=",".join(map(str, range(len(FORMS)))), metavar="I,...")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    names = [list(FORMS)[int(i)] for i in args.forms.split(",")]
    width = max(map(len, names))
    columns = ("empty", "full", "second", "more", "import", "find", "load")
    print(" " * width, *(f"{column:>8}" for column in columns), flush=True)
    for form in names:
        empty, full = [], []
        for _ in range(args.runs):
            with tempfile.TemporaryDirectory() as folder:
                empty.append(in_process(form, folder)["first"])
                full.append(in_process(form, folder))
        best = min(full, key=lambda parts: parts["first"] - parts["second"])
        more = best["first"] - best["second"]
        parts = [best[name] for name in ("import", "find", "load")]
        numbers = (min(empty), best["first"], best["second"], more, *parts)
        print(f"{form:{width}}", *(f"{number * 1e3:8.1f}" for number in numbers), flush=True)
    starts = ("import cupy", "context", "MPI", "import distscan")
    print("before:", ", ".join(f"{name} {best[name] * 1e3:.0f}" for name in starts))


if __name__ == "__main__":
    main()
