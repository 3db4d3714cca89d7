"""The trials of service_faults.py: a service, its file jobs, and clients that work meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kill_cases import LIMIT, Fault
from numpy.typing import NDArray
from service_running import Running

from distscan.service.client import Client
from distscan.service.errors import StoreError


class Job(NamedTuple):
    """A file job: its key, its request, and its result."""

    key: str
    request: dict[str, Any]
    want: NDArray[Any]

    def submit(self, client: Client) -> int:
        """Submit it under its key; return its number."""
        options = dict(self.request)
        inputs, output = options.pop("inputs"), options.pop("output")
        return client.submit(inputs, output, key=self.key, **options).number

    @property
    def output(self) -> Path:
        """The file that it writes."""
        return Path(self.request["output"])


def draw_job(rng: np.random.Generator, files: Path, key: str) -> Job:
    """Write a random input; return a job of it, in many small chunks.

    The job does not replace its output: it would fail if it ran twice.
    """
    x = rng.integers(-1000, 1000, 1 << int(rng.integers(17, 20)))
    np.save(files / f"{key}.npy", x)
    op, reverse = str(rng.choice(["sum", "max"])), bool(rng.random() < 0.5)
    y = x[::-1] if reverse else x
    y = y.cumsum() if op == "sum" else np.maximum.accumulate(y)
    request = {"inputs": [str(files / f"{key}.npy")], "output": str(files / f"{key}.scan.npy")}
    memory = 1 + 4 * x.nbytes // int(rng.integers(50, 500))
    how = {"op": op, "reverse": reverse, "threads": 1, "memory": memory}
    return Job(key, request | how, y[::-1] if reverse else y)


class Trial:
    """A service, its jobs, and the others who work while something happens to it."""

    def __init__(self, service: Running, rng: np.random.Generator, name: str, *, mounted: bool):
        """``mounted`` says whether the state is on a disk of its own."""
        self.service, self.rng, self.name, self.mounted = service, rng, name, mounted
        self.jobs = [draw_job(rng, service.files, f"{name}-{i}") for i in range(3)]
        self.numbers, self.wrong, self.longest = dict[str, int](), list[str](), 0.0
        self._done = threading.Event()

    @contextmanager
    def others(self) -> Iterator[None]:
        """Submit the jobs, and scan small arrays, during a ``with`` block."""
        pauses, seed = self.rng.uniform(0, 0.2, len(self.jobs)), int(self.rng.integers(1 << 32))
        threads = [threading.Thread(target=self._guarded, args=(work, argument), daemon=True)
                   for work, argument in ((self._submit, pauses), (self._scan, seed))]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._done.set()
            for thread in threads:
                thread.join(LIMIT)
        if any(thread.is_alive() for thread in threads):
            self.wrong.append(f"a client was not answered in {LIMIT} s")
        if self.wrong:
            raise Fault("; ".join(self.wrong))

    def _guarded(self, work: Callable[[Any], None], argument: Any) -> None:
        try:
            work(argument)
        except Exception as error:
            self.wrong.append(f"a client got {error!r}")

    def _submit(self, pauses: NDArray[Any]) -> None:
        with self.service.client() as client:
            for job, pause in zip(self.jobs[:3], pauses, strict=True):
                time.sleep(pause)
                while job.key not in self.numbers:
                    try:
                        self.note(job, job.submit(client))
                    except StoreError:  # a full disk
                        time.sleep(0.1)

    def _scan(self, seed: int) -> None:
        with self.service.client() as client:
            rng = np.random.default_rng(seed)
            while not self._done.is_set():
                x, begun = rng.integers(0, 1000, int(rng.integers(1, 3000))), time.monotonic()
                if not np.array_equal(client.scan(x), x.cumsum()):
                    self.wrong.append(f"a wrong scan of {x.size} elements")
                self.longest = max(self.longest, time.monotonic() - begun)

    def remove(self) -> None:
        """Remove the files of the jobs."""
        for job in self.jobs:
            for path in (*map(Path, job.request["inputs"]), job.output):
                path.unlink()

    def note(self, job: Job, number: int) -> None:
        """Note the number of a job: it stays the same."""
        if self.numbers.setdefault(job.key, number) != number:
            raise Fault(f"job {self.numbers[job.key]} is job {number}, too: one key")
