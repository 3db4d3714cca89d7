"""What a service answers in, beside the same work by mpirun.

Usage: python launch/tools/service.py [--ranks 8] [--backend cpu|cuda] [--repeat 200]

It starts a service in a folder of its own, and prints milliseconds: the median, and the 99th of
100, of

- an array of 1,000 elements, and one of 2^24 float32, beside a copy of it in and out
- a file of 1,000 elements, from the request to the report, on an open connection
- the command ``submit`` of that file, above ``python -c pass``
- ``mpirun ... python -m distscan`` of that file

All results are checked.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from processes import ROOT
from service_running import running

from distscan.service.client import Client


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
    rng, few = np.random.default_rng(), max(3, args.repeat // 20)
    print(f"{'milliseconds':44}{'median':>10}{'99 of 100':>10}")
    small, large = rng.random(1000), rng.integers(0, 8, 1 << 24).astype("f4")
    for x in (small, large):
        np.testing.assert_allclose(client.scan(x), x.cumsum(dtype="f8"), rtol=1e-4)
    line("an array of 1,000 float64", milliseconds(lambda: client.scan(small), args.repeat))
    copies = milliseconds(lambda: large.copy().copy(), few)
    times = milliseconds(lambda: client.scan(large), few)
    line("an array of 2^24 float32", times, f"a copy in and out takes {copies[0]:.2f}")

    source, target = folder / "x.npy", folder / "y.npy"
    np.save(source, small)
    line(
        "a file of 1,000 elements, by a client",
        milliseconds(lambda: client.submit(source, target, force=True).wait(), args.repeat),
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


def main() -> None:
    """Measure as the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeat", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        options = ("--backend", args.backend, "--log-level", "warning")
        with running(Path(name), args.ranks, *options) as service, service.client(120) as client:
            print(client.about())
            measure(client, service.files, args)


if __name__ == "__main__":
    main()
