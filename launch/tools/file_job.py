"""The file job's wall clock, beside plain copies of the same bytes, NumPy, and the start-up alone.

Usage: python launch/tools/file_job.py FOLDER... [--gib 4 32] [--ranks 2 8] [--backend cuda|cpu]

For each folder, size and number of ranks it prints the seconds of

- the fastest plain copy of the input that was found: ``cp``, threads with ``pwrite``, threads that
  read into a mapping; on a disk, each with and without the wait until the data is on it
- the start-up: the same ranks that import mpi4py, NumPy and CuPy, and run one empty kernel
- NumPy's load, cumsum and save
- ``python -m distscan``, the share of its own start-up, and the bound: 1.2 copies, the start-up and
  0.3 s

With ``--backend cpu`` the bound is 1.2 times the plain reading (twice at several ranks) and writing
of the same ranks, the reduction and the scan as the job reports them, and the start-up. That of a
tiny file (--gib 1e-5) is the start-up and 0.2 s.

Each figure is the smallest of --repeat runs. The input is random; the result is checked once.
"""

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from distscan.job.formats import storage

ROOT = Path(__file__).parents[2]
PIECE = 4 << 20
TINY = 1 << 20  # bytes
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE
madvise = ctypes.CDLL(None, use_errno=True).madvise
madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

START_UP = {
    "cuda": """
from mpi4py import MPI
import cupy
cupy.cuda.Device(MPI.COMM_WORLD.rank % cupy.cuda.runtime.getDeviceCount()).use()
cupy.RawKernel('extern "C" __global__ void empty() {}', "empty")((1,), (1,), ())
cupy.cuda.Device().synchronize()
MPI.COMM_WORLD.Barrier()
""",
    "cpu": """
import numpy
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
""",
}
PLAIN = """
import os, sys, time
from mpi4py import MPI
comm, size = MPI.COMM_WORLD, os.path.getsize(sys.argv[1])
low, high = size * comm.rank // comm.size, size * (comm.rank + 1) // comm.size
source, target = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
piece = memoryview(bytearray(4 << 20))
comm.Barrier()
begun = time.perf_counter()
for _ in range(1 if comm.size == 1 else 2):
    for at in range(low, high, len(piece)):
        os.preadv(source, [piece[: high - at]], at)
for at in range(low, high, len(piece)):
    os.pwrite(target, piece[: high - at], at)
comm.Barrier()
if comm.rank == 0:
    print(time.perf_counter() - begun)
"""
NUMPY = """
import numpy, sys
numpy.save(sys.argv[2], numpy.cumsum(numpy.load(sys.argv[1]), dtype=sys.argv[3]))
"""


def seconds(work: Callable[[], object], repeat: int) -> float:
    """Return the smallest wall clock of several runs."""
    samples = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        samples.append(time.perf_counter() - begin)
    return min(samples)


def make_input(path: Path, nbytes: int, dtype: str) -> None:
    """Write a random array."""
    rng, n = np.random.default_rng(), nbytes // np.dtype(dtype).itemsize
    x = np.lib.format.open_memmap(path, "w+", dtype, (n,))
    block = rng.random(1 << 22).astype(dtype)
    for low in range(0, n, len(block)):
        x[low : low + len(block)] = block[: n - low]


# ---- plain copies --------------------------------------------------------------------------------


def copy(source: Path, target: Path, threads: int, how: str, *, sync: bool) -> None:
    """Copy a file to a new one by threads, each with its own pieces."""
    target.unlink(missing_ok=True)
    size = source.stat().st_size
    read = os.open(source, os.O_RDONLY)
    write = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.ftruncate(write, size)
    mapped = mmap.mmap(write, size) if how == "mapping" else None
    view = memoryview(mapped if mapped is not None else b"")
    address = np.frombuffer(view, np.uint8).ctypes.data
    buffers = [memoryview(mmap.mmap(-1, PIECE)) for _ in range(threads)]

    def work(thread: int) -> None:
        for low in range(thread * PIECE, size, threads * PIECE):
            high = min(low + PIECE, size)
            if mapped is None:
                os.preadv(read, [buffers[thread][: high - low]], low)
                os.pwrite(write, buffers[thread][: high - low], low)
            else:
                if how == "mapping":
                    madvise(address + low, high - low, POPULATE_WRITE)
                os.preadv(read, [view[low:high]], low)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    if sync:
        os.fsync(write)
    os.close(read)
    os.close(write)


def copies(
    source: Path, target: Path, threads: list[int], repeat: int, *, sync: bool
) -> Iterator[tuple[str, float]]:
    """Yield the names and the seconds of plain copies by so many threads."""

    def cp() -> None:
        target.unlink(missing_ok=True)
        subprocess.run(["cp", source, target], check=True)
        if sync:
            with target.open("r+b") as file:
                os.fsync(file.fileno())

    yield "cp", seconds(cp, repeat)
    for number in threads:
        for how in ("pwrite", "mapping"):
            work = partial(copy, source, target, number, how, sync=sync)
            yield f"{number} {how}", seconds(work, repeat)
    target.unlink(missing_ok=True)


# ---- jobs ----------------------------------------------------------------------------------------


def launched(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python on ranks."""
    environment = os.environ | {"DISTSCAN_LABELS": "0", "PYTHONPATH": str(ROOT)}
    line = [str(ROOT / "launch/mpirun.sh"), str(ranks), sys.executable, *command]
    return subprocess.run(line, check=True, text=True, stdout=subprocess.PIPE, env=environment)


def plain(source: Path, target: Path, ranks: int) -> float:
    """Return the seconds in which ranks read and write their parts of a file, and do no more."""
    target.unlink(missing_ok=True)
    return float(launched(ranks, "-c", PLAIN, str(source), str(target)).stdout)


def job(
    source: Path, target: Path, ranks: int, options: list[str], repeat: int
) -> tuple[float, dict[str, float]]:
    """Return the wall clock of the job, and the seconds of its phases."""
    jobs = []
    for _ in range(repeat):
        target.unlink(missing_ok=True)
        begin = time.perf_counter()
        run = launched(ranks, "-m", "distscan", str(source), "-o", str(target), "--json",
                       "--quiet", *options)  # fmt: skip
        wall = time.perf_counter() - begin
        jobs.append((wall, json.loads(run.stdout)["seconds"]))
    return min(jobs, key=lambda job: job[0])


def table(folder: Path, gib: float, args: argparse.Namespace) -> None:
    """Measure one folder and one size, and print a line for each number of ranks."""
    source, target = folder / "distscan-in.npy", folder / "distscan-out.npy"
    repeat, backend = args.repeat, ["--backend", args.backend]
    if args.memory:
        backend += ["--memory", args.memory]
    try:
        make_input(source, int(gib * 2**30), args.dtype)
        times = dict(copies(source, target, args.threads, repeat, sync=False))
        synced = times
        if not storage.is_in_memory(folder):
            synced = dict(copies(source, target, args.threads, repeat, sync=True))
        best, best_synced = (min(each, key=each.__getitem__) for each in (times, synced))
        numpy = [sys.executable, "-c", NUMPY, str(source), str(target), args.dtype]
        slow = seconds(lambda: subprocess.run(numpy, check=True), 1)
        target.unlink()
        print(f"{folder}, {gib:g} GiB of {args.dtype}: cp {times['cp']:.2f}, fastest copy "
              f"{times[best]:.2f} ({best}), until it is on the disk {synced[best_synced]:.2f} "
              f"({best_synced}); NumPy {slow:.2f}", flush=True)  # fmt: skip
        for ranks in args.ranks:
            start = seconds(lambda n=ranks: launched(n, "-c", START_UP[args.backend]), repeat)
            wall, phases = job(source, target, ranks, backend, repeat)
            moved = synced[best_synced]
            if args.backend == "cpu":
                moved = min(plain(source, target, ranks) for _ in range(repeat))
            bound = 1.2 * moved + start + 0.3
            if args.backend == "cpu":
                bound = 1.2 * (moved + phases["reduce"] + phases["scan"]) + start
                if source.stat().st_size < TINY:
                    bound = start + 0.2
            print(f"  {ranks} ranks: distscan {wall:.2f} (its start {phases['start']:.2f}); "
                  f"start-up alone {start:.2f}; copy {moved:.2f}; bound {bound:.2f}: "
                  f"{'met' if wall <= bound else 'MISSED'}; NumPy / distscan {slow / wall:.1f}",
                  flush=True)  # fmt: skip
        if args.check:
            launched(2, "-m", "distscan", str(source), "-o", str(target), "--force", "--check",
                     "--quiet", *backend)  # fmt: skip
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)


def main() -> None:
    """Measure all that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--gib", nargs="+", type=float, default=[4.0])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 8])
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--memory", help="as of python -m distscan")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 4, 8, 16], help="that copy")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="check a result with NumPy")
    args = parser.parse_args()
    for folder in args.folders:
        for gib in args.gib:
            table(folder, gib, args)


if __name__ == "__main__":
    main()
