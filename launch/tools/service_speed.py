"""Measure a service: the times of single requests beside mpirun, and the load of many clients.

    python launch/tools/service_speed.py [--ranks 8] [--backend cpu|cuda] [--times 200]
    python launch/tools/service_speed.py --clients 32 [--ranks 8] [--times 10000] [--seed N]

It starts a service in a folder of its own. Without --clients it prints milliseconds, the median,
and the 99th of 100, of

- an array of 1,000 elements, and one of 2^24 float32, beside a copy of it in and out
- a file of 1,000 elements, from the request to the report, on an open connection
- the command ``submit`` of that file, above ``python -c pass``
- ``mpirun ... python -m distscan`` of that file

With --clients, each client is a process that scans arrays. Most arrays are small, and rank 0 alone
scans them; of one in ``LARGE`` all ranks scan a part. It prints

- the arrays of a second: of one client, then of all clients at once
- the resident memory of all ranks before, in the middle, and after

All results are checked. The exit status is 1 if an array is lost or wrong, or the memory grows.
"""

import argparse
import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from processes import ROOT, Fault
from service_running import ServiceProgram, running

from distscan.service.client import Client

# ---- single requests -----------------------------------------------------------------------


def milliseconds(work: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Return the median and the 99th of 100 of several runs, after two that do not count."""
    times = []
    for _ in range(repeat + 2):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times[2:])), float(np.quantile(times[2:], 0.99))


def line(name: str, times: tuple[float, float], rest: str = "") -> None:
    """Print a line of the table."""
    print(f"{name:44}{times[0]:10.2f}{times[1]:10.2f}  {rest}", flush=True)


def measure(client: Client, folder: Path, args: argparse.Namespace) -> None:
    """Print the table."""
    rng, few = np.random.default_rng(), max(3, args.times // 20)
    print(f"{'milliseconds':44}{'median':>10}{'99 of 100':>10}")
    small, large = rng.random(1000), rng.integers(0, 8, 1 << 24).astype("f4")
    for x in (small, large):
        np.testing.assert_allclose(client.scan(x), x.cumsum(dtype="f8"), rtol=1e-4)
    line("an array of 1,000 float64", milliseconds(lambda: client.scan(small), args.times))
    copies = milliseconds(lambda: large.copy().copy(), few)
    times = milliseconds(lambda: client.scan(large), few)
    line("an array of 2^24 float32", times, f"a copy in and out takes {copies[0]:.2f}")

    source, target = folder / "x.npy", folder / "y.npy"
    np.save(source, small)
    line(
        "a file of 1,000 elements, by a client",
        milliseconds(lambda: client.submit(source, target, force=True).wait(), args.times),
    )
    np.testing.assert_allclose(np.load(target), small.cumsum())
    python = [sys.executable, "-m", "distscan"]
    job = [str(source), "-o", str(target), "--force", "--quiet"]
    passed = milliseconds(lambda: run([sys.executable, "-c", "pass"]), few)
    times = milliseconds(lambda: run([*python, "submit", *job, "--address", client.address]), few)
    line("the same by the command submit", times, f"python -c pass takes {passed[0]:.2f}")
    mpirun = [str(ROOT / "launch/mpirun.sh"), str(args.ranks)]
    alone = [*mpirun, *python, *job, "--backend", args.backend]
    line("the same by mpirun", milliseconds(lambda: run(alone), few))


def run(command: list[str]) -> None:
    """Run a command."""
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


# ---- many clients --------------------------------------------------------------------------

LARGE = 50  # one array in so many has more than 1 MiB
GROWN = 16  # MiB by which the memory of a rank may grow in the second half
LIMIT = 1200  # seconds until all arrays are scanned
WRONG, LOST = 1, 2


def draw(seed: int, number: int) -> NDArray[np.generic]:
    """Return the array of a number."""
    rng = np.random.default_rng([seed, number])
    size = int(rng.integers(1 << 18, 1 << 20) if number % LARGE == 0 else rng.integers(0, 5000))
    return rng.integers(-1000, 1000, size).astype(rng.choice(["i4", "i8", "f8"]))


class Worker:
    """The client of a process of a pool."""

    client: Client
    seed: int


def begin(address: str, seed: int) -> None:
    """Connect this process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which a pool ends
    Worker.client, Worker.seed = Client(address, None, 60.0), seed
    Worker.client.about()


def scan(number: int) -> int:
    """Scan an array; return whether the result is wrong, or lost."""
    x = draw(Worker.seed, number)
    try:
        y = Worker.client.scan(x)
    except Exception as error:
        print(f"array {number} is lost: {error!r}", flush=True)
        return LOST
    want = x.cumsum()  # whole numbers: also the sums of float64 are exact
    if y.dtype == want.dtype and np.array_equal(y, want):
        return 0
    print(f"array {number} of {x.size} {x.dtype} has a wrong scan", flush=True)
    return WRONG


def through(pool: Pool, numbers: range) -> tuple[list[int], float]:
    """Scan arrays by the clients of a pool; return the result of each, and the seconds."""
    start = time.monotonic()
    results = pool.map_async(scan, numbers, chunksize=4).get(LIMIT)
    return results, time.monotonic() - start


def load(service: ServiceProgram, options: argparse.Namespace) -> list[str]:
    """Print the table; return the faults."""
    context, times = multiprocessing.get_context("fork"), options.times
    arguments, few = (str(service.socket), options.seed), range(times, times + times // 10)
    with context.Pool(1, begin, arguments) as pool:
        alone, seconds = through(pool, few)
    print(f"1 client: {len(few) / seconds:.0f} arrays/s", flush=True)
    with context.Pool(options.clients, begin, arguments) as pool:
        results, _ = through(pool, few)  # threads and buffers are there then
        memory, duration = [service.memory()], 0.0
        for half in (range(times // 2), range(times // 2, times)):
            part, seconds = through(pool, half)
            results, duration = results + part, duration + seconds
            memory.append(service.memory())
    results += alone
    wrong, lost = results.count(WRONG), results.count(LOST)
    print(f"{options.clients} clients: {times / duration:.0f} arrays/s")
    print(f"{len(results)} arrays: {wrong} wrong, {lost} lost")
    for when, sizes in zip(("before", "in the middle", "after"), memory, strict=True):
        print(f"MiB of each rank {when}: {' '.join(f'{size:.0f}' for size in sizes)}")
    faults = [f"{wrong} arrays are wrong, {lost} are lost"] if wrong or lost else []
    grown = max(after - middle for middle, after in zip(*memory[1:], strict=True))
    if grown > GROWN:
        faults.append(f"the memory of a rank has grown by {grown:.0f} MiB in the second half")
    return faults


def main() -> int:
    """Measure as the arguments ask for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--ranks", type=int, default=8, help="(default: 8)")
    add("--backend", choices=("cpu", "cuda"), default="cpu")
    add("--clients", type=int, help="clients that scan arrays at once")
    add("--times", type=int, help="requests (default: 200), or arrays (default: 10,000)")
    add("--seed", type=int, default=secrets.randbelow(10**9), help="of arrays; printed")
    args = parser.parse_args()
    args.times = args.times or (200 if args.clients is None else 10_000)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the service ends, too
    options, faults = ("--backend", args.backend, "--log-level", "warning"), list[str]()
    with tempfile.TemporaryDirectory(prefix="service-") as name:
        try:
            with running(Path(name), args.ranks, *options) as service:
                if args.clients is None:
                    with service.client(120) as client:
                        print(client.about())
                        measure(client, service.files, args)
                else:
                    print(f"seed {args.seed}, {args.ranks} ranks, {args.clients} clients")
                    faults = load(service, args)
        except (Fault, multiprocessing.TimeoutError) as fault:
            faults = [repr(fault)]
    for fault in faults:
        print(f"FAULT: {fault}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
