"""The jobs of kill_jobs.py: random inputs, what a rank runs, and the processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120  # seconds of a job that is not disturbed
MPIRUNS = {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun"}

OPERANDS = [
    *[("sum", "f4"), ("sum", "f8"), ("sum", "i2"), ("sum", ">i4"), ("sum", "F")],
    *[("max", "f8"), ("bitwise_xor", "u4"), ("logaddexp", "f8")],
]
# What a job runs: records come often, files in memory may be written as those on a disk.
JOB = """
import faulthandler, resource, signal, sys
faulthandler.enable()
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as "python -m distscan" does
from distscan import cli
from distscan.job import restart
from distscan.job.formats import storage
period, plain, size = sys.argv[1:4]
assert restart.PERIOD > 0 < restart._SHARE
restart.PERIOD, restart._SHARE = float(period), 0
if plain == "plain":
    storage.is_in_memory = lambda path: False
if int(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))
sys.exit(cli.main(sys.argv[4:]))
"""
# An operator of one's own, whose elements are structures: it does not commute.
OPERATOR = """
import distscan, numpy as np
def compose(a, b):
    made = np.empty(np.broadcast_shapes(np.shape(a), np.shape(b)), a.dtype)
    made["m"], made["c"] = a["m"] * b["m"], b["m"] * a["c"] + b["c"]
    return made
COMPOSE = distscan.Operator("compose", numpy=compose, identity=(1, 0))
"""
MAPS = np.dtype([("m", "u8"), ("c", "u8")])


class Fault(Exception):
    """What is wrong."""


class Case(NamedTuple):
    """A job: its arguments, its inputs, what it writes, and how long it takes."""

    arguments: list[str]
    inputs: list[Path]
    want: bytes = b""
    seconds: float = 0.0


def draw_case(rng: np.random.Generator, folder: Path) -> Case:
    """Write random inputs; return the job for them."""
    inputs, options, n = [folder / "x.npy"], list[str](), 1 << int(rng.integers(20, 22))
    kind = rng.choice(["flat", "parts", "rows", "columns", "long", "segments", "structures"])
    op, code = map(str, OPERANDS[rng.integers(len(OPERANDS))])
    if kind == "structures":
        n, op = n // 8, "compose:COMPOSE"
        x = np.empty(n, MAPS)
        x["m"], x["c"] = rng.integers(0, 1 << 62, (2, n)) | 1
    elif code in ("f4", "f8", "F"):
        x = rng.normal(size=n).astype(code)
    else:
        x = rng.integers(0, 1 << 15, n).astype(code)
    if kind in ("rows", "columns", "long"):
        width = {"rows": n // 30, "columns": 7, "long": n // 30}[kind]
        x = x[: n // width * width].reshape(-1, width)
        options += ["--axis", "1" if kind == "rows" else "0"]
        x = np.asfortranarray(x) if rng.random() < 0.3 else x
    if kind == "segments":
        heads = rng.random(n) < rng.choice([1e-5, 1e-3, 0.1])
        marks = [heads, np.cumsum(heads) % 5, (np.cumsum(heads) % 5).astype("U2")]
        np.save(folder / "marks.npy", marks[rng.integers(3)])
        options += ["--segments", str(folder / "marks.npy")]
    else:
        options += ["--strategy", str(rng.choice(["auto", "reduce-scan", "scan-add"]))]
    if kind == "parts":
        inputs.append(folder / "y.npy")
        np.save(inputs[1], x[n // 3 :])
        x = x[: n // 3]
    np.save(inputs[0], x)
    for option in ("--exclusive", "--reverse"):
        options += [option] if rng.random() < 0.3 and op != "max" else []
    threads, chunks = int(rng.integers(1, 3)), int(rng.integers(500, 3000))
    chunks //= 4 if kind in ("structures", "long") else 1
    memory = (1 << 30) if rng.random() < 0.1 else 1 + 4 * x.nbytes * threads // chunks
    options += ["--op", op, "--threads", str(threads), "--memory", str(memory)]
    return Case([*map(str, inputs), *options, "--backend", "cpu", "--quiet"], inputs)


# ---- jobs ----------------------------------------------------------------------------------


class Running:
    """A job, and its processes: those that have its mark in their environment."""

    number = 0

    def __init__(self, folder: Path, ranks: int, arguments: Sequence[str]) -> None:
        Running.number += 1
        self.folder, self.mark = folder, f"{folder}:{os.getpid()}:{Running.number}:"
        paths = [str(ROOT), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        changed = {"KILL_JOBS_MARK": self.mark, "PYTHONPATH": ":".join(paths)}
        changed |= {"TMPDIR": str(folder), "DISTSCAN_TIMEOUT": str(LIMIT)}
        command = [str(ROOT / "launch" / "mpirun.sh"), str(ranks), sys.executable]
        with (folder / "messages").open("w") as messages:
            self.process = subprocess.Popen(
                [*command, str(folder / "job.py"), *arguments],
                env=os.environ | changed,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )

    def processes(self) -> dict[int, str]:
        """Return the numbers of all processes, with "a rank", "mpirun" or "" for each."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or self.mark.encode() not in (
                    (entry / "environ").read_bytes()
                ):
                    continue
                line = (entry / "cmdline").read_bytes().split(b"\0")
                name = (entry / "comm").read_text().strip()
            except OSError:  # it has ended, or is of another user
                continue
            rank = line[1:2] == [str(self.folder / "job.py").encode()]
            found[int(entry.name)] = "a rank" if rank else "mpirun" if name in MPIRUNS else ""
        return found

    def send(self, number: int, who: str, rng: np.random.Generator) -> bool:
        """Send a signal to a random process of a kind, once there is one; whether there was."""
        while self.process.poll() is None:
            found = sorted(pid for pid, kind in self.processes().items() if kind == who)
            if number in (signal.SIGINT, signal.SIGHUP) and who == "a rank":
                # Before, Python may take SIGINT for a failed import, and a library SIGHUP for its
                # own; MPICH's mpirun waits for ever for a rank that ends before MPI has begun.
                found = [pid for pid in found if _catches(pid, signal.SIGTERM)]
            if found:
                return kill(int(rng.choice(found)), number)
        return False

    def kill(self) -> None:
        """End all processes, at once."""
        for pid in self.processes():
            kill(pid, signal.SIGKILL)

    def end(self, seconds: float) -> int:
        """Wait until all processes have ended; return the exit status."""
        limit = time.monotonic() + seconds
        while self.process.poll() is None or (left := self.processes()):
            if time.monotonic() > limit:
                left = self.processes()
                for pid, kind in self.processes().items():
                    if kind == "a rank":
                        kill(pid, signal.SIGABRT)  # it prints its stacks
                time.sleep(1)
                self.kill()
                raise Fault(f"{sorted(left.values())} have not ended after {seconds} s")
            time.sleep(0.02)
        return self.process.returncode


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def kill(pid: int, number: int) -> bool:
    """Send a signal to a process; return whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
