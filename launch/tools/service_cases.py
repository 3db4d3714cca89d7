"""The trials of service_faults.py: a service, its jobs, its clients, and faults that disturb it."""

import json
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from processes import LIMIT, Fault, kill
from service_fuzz import RawRequest, Requests, exchange, framed
from service_running import ServiceProgram
from small_disk import mount

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

    def __init__(
        self, service: ServiceProgram, rng: np.random.Generator, name: str, *, mounted: bool
    ):
        """``mounted`` says whether the state is on a disk of its own."""
        self.service, self.rng, self.name, self.mounted = service, rng, name, mounted
        self.jobs = [draw_job(rng, service.files, f"{name}-{i}") for i in range(3)]
        self.numbers, self.wrong, self.longest = dict[str, int](), list[str](), 0.0
        self._stop = threading.Event()

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
            self._stop.set()
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
            while not self._stop.is_set():
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


LARGE = 1 << 19  # elements of an array of which all ranks scan a part
SLOW = 0.5  # seconds that a slow client takes
ANSWERED = 5.0  # seconds until a client is answered while others are slow
# A client that sends its request in pieces, and can be killed meanwhile.
SENDER = """
import socket, sys, time
line, raw, size = socket.socket(socket.AF_UNIX), sys.stdin.buffer.read(), int(sys.argv[2])
line.connect(sys.argv[1])
print(flush=True)
for i in range(0, len(raw), size):
    line.sendall(raw[i : i + size])
    time.sleep(0.002)
time.sleep(60)
"""


def kill_a_client(trial: Trial) -> None:
    """Kill a client while it sends an array, or a job."""
    rng, service = trial.rng, trial.service
    if rng.random() < 0.5:
        raw, size = framed(b"POST /v1/scans", npy(np.zeros(LARGE))), 1 << 15
    else:
        job = draw_job(rng, service.files, f"{trial.name}-killed")
        trial.jobs.append(job)
        key = b"idempotency-key: " + job.key.encode()
        raw, size = framed(b"POST /v1/jobs", json.dumps(job.request).encode(), key), 5
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", SENDER, str(service.socket), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(raw)
        process.stdin.close()
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.003) * (len(raw) / size))
        process.kill()


def kill_a_rank(trial: Trial) -> None:
    """Kill a rank other than 0."""
    kill(trial.service.pids[int(trial.rng.integers(1, trial.service.ranks))], signal.SIGKILL)


def kill_rank_0(trial: Trial) -> None:
    """Kill the rank that answers."""
    kill(trial.service.pids[0], signal.SIGKILL)


def kill_mpirun(trial: Trial) -> None:
    """Kill mpirun."""
    kill(trial.service.mpirun(), signal.SIGKILL)


def fill_the_disk(trial: Trial) -> None:
    """Let the disk of the jobs be full for a while: they are refused, and nothing is lost."""
    service, accepted = trial.service, list[str]()
    with _full(trial), service.client() as client:
        folder = str(service.files / ("x" * 200))
        many = [f"{folder}/{i}" for i in range(500)]
        job = trial.jobs[0].request | {"inputs": many, "initial": 1}  # that are not there
        for i in range(100):
            key = f"{trial.name}-large-{i}"
            headers = {"idempotency-key": key}
            try:
                client.request("POST", "/v1/jobs", json=job, headers=headers)
            except StoreError:
                break
            accepted.append(key)
        else:
            raise Fault("the disk was not full")
        job_0 = trial.jobs[0]
        if job_0.key in trial.numbers:  # its client is told, although nothing can be written
            trial.note(job_0, job_0.submit(client))
        time.sleep(trial.rng.uniform(0, 0.5))
    with service.client() as client:
        for key in accepted:  # all that were taken are there
            headers = {"idempotency-key": key}
            client.request("POST", "/v1/jobs", json=job, headers=headers)
        records = client.request("GET", "/v1/jobs", params={"most": 1000}).json()["jobs"]
    keys = [str(record["key"]) for record in records]
    listed = [key for key in keys if key.startswith(f"{trial.name}-l")]
    if sorted(listed) != sorted(accepted):
        raise Fault(f"jobs were taken on a full disk: {accepted}; {listed} are there")


@contextmanager
def _full(trial: Trial) -> Iterator[None]:
    """Leave no room on the disk of the state; without mounts, limit the size of files."""
    state, number = trial.service.state, trial.service.pids[0]
    if trial.mounted:
        occupied = sum(path.stat().st_blocks * 512 for path in state.iterdir())
        mount(state, occupied + 65536)
    else:
        most = max(path.stat().st_size for path in state.iterdir()) + 65536
        resource.prlimit(number, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        if trial.mounted:
            mount(state)
        else:
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(number, resource.RLIMIT_FSIZE, unlimited)


def remove_the_jobs(trial: Trial) -> None:
    """Remove the file of the jobs while the service uses it: it is written again."""
    (trial.service.state / "jobs.sqlite").unlink()
    with trial.service.client() as client:
        client.jobs()
    if not (trial.service.state / "jobs.sqlite").exists():
        raise Fault("the jobs were not written again")


def send_what_is_corrupt(trial: Trial) -> None:
    """Send bodies that are cut short, or changed."""
    address, draw = str(trial.service.socket), random.Random(int(trial.rng.integers(1 << 32)))
    job, key = json.dumps(trial.jobs[0].request).encode(), b"idempotency-key: corrupt"
    small, large = npy(np.zeros(1000)), npy(np.zeros(LARGE))
    for line, body, head in (
        (b"POST /v1/jobs", job[: draw.randrange(len(job) - 1)], key),
        (b"POST /v1/jobs", job.replace(b"inputs", b"in\xffuts"), key),
        (b"POST /v1/scans", small[: draw.randrange(len(small))], b"x: y"),
        (b"POST /v1/scans", large[: draw.randrange(1 << 21, len(large))], b"x: y"),
        (b"POST /v1/scans", large.replace(b"NUMPY", b"NUMPI"), b"x: y"),
    ):
        status, answer = exchange(address, RawRequest(framed(line, body, head), framed=True))
        if status != "400":
            raise Fault(f"{line!r} with a corrupt body: {status} {answer[:200]!r}")
    for _ in range(20):
        request = Requests(draw, trial.service.files).one()
        status, answer = exchange(address, request)
        if status.startswith("5"):
            raise Fault(f"{request.raw[:300]!r}: {status} {answer[:200]!r}")


def read_slowly(trial: Trial) -> None:
    """Read an answer in small pieces, or not at all; then to its end, or not."""
    x, pieces = trial.rng.integers(0, 1000, LARGE), bytearray()
    with _connected(trial) as line:
        line.sendall(framed(b"POST /v1/scans", npy(x)))
        _go_slowly(trial, lambda: pieces.extend(line.recv(1000)))
        if trial.rng.random() < 0.5:
            _check(line, bytes(pieces), x)


def send_slowly(trial: Trial) -> None:
    """Send an array in small pieces, or stop; then to its end, or not."""
    x = trial.rng.integers(0, 1000, LARGE)
    rest = bytearray(framed(b"POST /v1/scans", npy(x)))
    with _connected(trial) as line:
        first = int(trial.rng.integers(len(rest)))
        line.sendall(rest[:first])
        del rest[:first]

        def send() -> None:
            del rest[: line.send(rest[:100])]

        _go_slowly(trial, send)
        if trial.rng.random() < 0.5:
            line.sendall(rest)
            _check(line, b"", x)


def _go_slowly(trial: Trial, step: Callable[[], object]) -> None:
    """Do a step now and then, or none; others are served meanwhile."""
    end, stops = time.monotonic() + SLOW, trial.rng.random() < 0.5
    while time.monotonic() < end:
        if not stops:
            step()
        time.sleep(0.02)
        _others_are_served(trial)


@contextmanager
def _connected(trial: Trial) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(LIMIT)
        line.connect(str(trial.service.socket))
        yield line


def _others_are_served(trial: Trial) -> None:
    """Scan a large array, as another client."""
    x, begun = trial.rng.integers(0, 1000, LARGE // 2), time.monotonic()
    with trial.service.client() as client:
        if not np.array_equal(client.scan(x), x.cumsum()):
            raise Fault("a large array has a wrong scan")
    trial.longest = max(trial.longest, time.monotonic() - begun)
    if trial.longest > ANSWERED:
        raise Fault(f"a client is slow, and another one has waited {trial.longest:.1f} s")


def _check(line: socket.socket, begun: bytes, x: NDArray[Any]) -> None:
    """Read an answer to its end, and compare it."""
    answer = bytearray(begun)
    want = npy(x.cumsum())
    while len(answer.partition(b"\r\n\r\n")[2]) < len(want):
        if not (piece := line.recv(1 << 20)):
            break
        answer += piece
    if answer.partition(b"\r\n\r\n")[2] != want:
        raise Fault(f"a slow client has a wrong answer: {bytes(answer[:200])!r}")


def npy(x: NDArray[Any]) -> bytes:
    """Return an array in the format ``.npy``."""
    file = BytesIO()
    np.save(file, x)
    return file.getvalue()


FAULTS: dict[str, Callable[[Trial], None]] = {
    "KILL to a client": kill_a_client,
    "KILL to a rank": kill_a_rank,
    "KILL to rank 0": kill_rank_0,
    "KILL to mpirun": kill_mpirun,
    "a full disk": fill_the_disk,
    "removed jobs": remove_the_jobs,
    "a corrupt body": send_what_is_corrupt,
    "a slow reader": read_slowly,
    "a slow sender": send_slowly,
}
ENDING = ("KILL to a rank", "KILL to rank 0", "KILL to mpirun")  # those that end the service
