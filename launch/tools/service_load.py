"""Scan arrays of many clients at once: none is lost, none is wrong, and the memory stays flat.

    python launch/tools/service_load.py                       # 10,000 arrays, 32 clients, 8 ranks
    python launch/tools/service_load.py --times 500 --clients 4 --ranks 2

Most arrays are small, and rank 0 alone scans them; of one in ``LARGE`` all ranks scan a part. Every
result is compared with NumPy's. Each client is a process of its own. It prints

- the arrays of a second: of one client, then of all clients at once
- the resident memory of all ranks before, in the middle, and after
"""

import argparse
import multiprocessing
import secrets
import signal
import sys
import tempfile
import time
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from processes import Fault
from service_running import Running, running

from distscan.service.client import Client

LARGE = 50  # one array in so many has more than 1 MiB
GROWN = 16  # MiB by which the memory of a rank may grow in the second half
LIMIT = 1200  # seconds until all arrays are scanned
WRONG, LOST = 1, 2


def draw(seed: int, number: int) -> NDArray[np.generic]:
    """Return the array of a number."""
    rng = np.random.default_rng([seed, number])
    size = int(rng.integers(1 << 18, 1 << 20) if number % LARGE == 0 else rng.integers(0, 5000))
    return rng.integers(-1000, 1000, size).astype(rng.choice(["i4", "i8", "f8"]))


class One:
    """A client in a process of its own; a pool keeps it."""

    client: Client
    seed: int


def begin(address: str, seed: int) -> None:
    """Connect this process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which a pool ends
    One.client, One.seed = Client(address, None, 60.0), seed
    One.client.about()


def scan(number: int) -> int:
    """Scan an array; return whether the result is wrong, or lost."""
    x = draw(One.seed, number)
    try:
        y = One.client.scan(x)
    except Exception as error:
        print(f"array {number} is lost: {error!r}", flush=True)
        return LOST
    want = x.cumsum()  # whole numbers: also the sums of float64 are exact
    if y.dtype == want.dtype and np.array_equal(y, want):
        return 0
    print(f"array {number} of {x.size} {x.dtype} has a wrong scan", flush=True)
    return WRONG


def through(pool: Pool, numbers: range) -> tuple[list[int], float]:
    """Scan arrays by the clients of a pool; return what became of each, and the seconds."""
    start = time.monotonic()
    results = pool.map_async(scan, numbers, chunksize=4).get(LIMIT)
    return results, time.monotonic() - start


def load(service: Running, options: argparse.Namespace) -> list[str]:
    """Print the table; return what is wrong."""
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
    """Run the clients; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--times", type=int, default=10_000, help="how many arrays (default: 10,000)")
    add("--clients", type=int, default=32, help="(default: 32)")
    add("--ranks", type=int, default=8, help="(default: 8)")
    add("--seed", type=int, default=secrets.randbelow(10**9), help="repeats a run; printed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the service ends, too
    print(f"seed {options.seed}, {options.ranks} ranks, {options.clients} clients", flush=True)
    with tempfile.TemporaryDirectory(prefix="service_load-") as name:
        try:
            with running(Path(name), options.ranks) as service:
                faults = load(service, options)
        except (Fault, multiprocessing.TimeoutError) as fault:
            faults = [repr(fault)]
    for fault in faults:
        print(f"FAULT: {fault}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
