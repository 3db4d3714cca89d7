"""The jobs of kill_jobs.py: random inputs, the program of a rank, and its end."""

import signal
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from processes import Fault, Program, kill

OPERANDS = [
    *[("sum", "f4"), ("sum", "f8"), ("sum", "i2"), ("sum", ">i4"), ("sum", "F")],
    *[("max", "f8"), ("bitwise_xor", "u4"), ("logaddexp", "f8")],
]
# The program of a job: records come often, files in memory may be written as those on a disk.
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
# A user's operator, whose elements are structures: it does not commute.
OPERATOR = """
import distscan, numpy as np
def compose(a, b):
    result = np.empty(np.broadcast_shapes(np.shape(a), np.shape(b)), a.dtype)
    result["m"], result["c"] = a["m"] * b["m"], b["m"] * a["c"] + b["c"]
    return result
COMPOSE = distscan.Operator("compose", numpy=compose, identity=(1, 0))
"""
MAPS = np.dtype([("m", "u8"), ("c", "u8")])


class Case(NamedTuple):
    """A job: its arguments, its inputs, the bytes of its output, and its duration."""

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


class Running(Program):
    """A job."""

    def of(self, who: str) -> list[int]:
        """Return the processes that are "a rank", or "mpirun"."""
        return sorted(
            pid
            for pid, role in self.processes().items()
            if role == who or (who == "a rank" and isinstance(role, int))
        )

    def send(self, number: int, who: str, rng: np.random.Generator) -> bool:
        """Send a signal to a random process of a kind, once there is one; whether there was."""
        while not self.ended():
            pids = self.of(who)
            if number in (signal.SIGINT, signal.SIGHUP) and who == "a rank":
                # Before, Python may take SIGINT for a failed import, and a library SIGHUP for its
                # own; MPICH's mpirun waits for ever for a rank that ends before MPI has begun.
                pids = [pid for pid in pids if _catches(pid, signal.SIGTERM)]
            if pids:
                return kill(int(rng.choice(pids)), number)
        return False

    def end(self, seconds: float) -> int:
        """Wait until all processes have ended; return the exit status."""
        limit = time.monotonic() + seconds
        while not self.ended() or self.processes():
            if time.monotonic() > limit:
                roles = sorted(map(str, self.processes().values()))
                for pid in self.of("a rank"):
                    kill(pid, signal.SIGABRT)  # it prints its stacks
                time.sleep(1)
                self.kill()
                raise Fault(f"{roles} have not ended after {seconds} s")
            time.sleep(0.02)
        return int(self.process.returncode)


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((line.split()[1] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)
