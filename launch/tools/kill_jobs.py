"""Disturb file jobs at random moments: their files are right, and the next jobs are, too.

    python launch/tools/kill_jobs.py                  # one rank
    python launch/tools/kill_jobs.py --ranks 3
    python launch/tools/kill_jobs.py --damage 5000 --changes 300    # see damage.py

Jobs run through launch/mpirun.sh, on random data, in many small chunks, with --resume and without.
Files are .npy, or of the formats whose packages are installed.
A rank or mpirun gets a signal that it cannot, or can, catch; or the input becomes shorter while it
is read; or the disk becomes full. After each of these:

- all processes end within seconds;
- the output has its old contents, or all of the new ones;
- the next job, with --resume or without, ends with the same bytes as a job that nobody disturbs,
  and leaves no other file.

If the system permits, the script has a mount namespace of its own, and in it a disk that it can
fill. Otherwise a limit of the size of files takes its place.

A trial depends only on the seed and its number; its moment is a share of the duration of the job.
The first fault is printed with the command that repeats its trial.
"""

import argparse
import math
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from processes import LIMIT, Fault, Program, kill
from small_disk import cover, isolate, mount

GONE = 8  # seconds after which all processes have ended
CASE = 4  # trials of one case
SIGNALS = {f"{name} to {who}": (getattr(signal, f"SIG{name}"), who)
           for name in ("KILL", "TERM", "INT", "HUP") for who in ("a rank", "mpirun")}  # fmt: skip
KINDS = [*SIGNALS, "KILL to all", "a shorter input", "a full disk"]


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
    storage.is_mapped = lambda path: False
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


# ---- jobs ----------------------------------------------------------------------------------


class Case(NamedTuple):
    """A job: its arguments, its inputs, the bytes of its output, and its duration."""

    arguments: list[str]
    inputs: list[Path]
    suffix: str = ".npy"  # of the output
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
    memory = 1 + 4 * x.nbytes * threads // chunks
    names, suffix = [*map(str, inputs)], ".npy"
    if kind not in ("parts", "structures") and rng.random() < 0.5:
        name, suffix, tile = write_format(rng, x, inputs[0])
        names, inputs = [name], [Path(name.partition("::")[0])]
        memory = max(memory, 40 * tile)
    memory = (1 << 30) if rng.random() < 0.1 else memory
    options += ["--op", op, "--threads", str(threads), "--memory", str(memory)]
    return Case([*names, *options, "--backend", "cpu", "--quiet"], inputs, suffix)


def write_format(rng: np.random.Generator, x: Any, path: Path) -> tuple[str, str, int]:
    """Write an input of a format, in small tiles, over the array in a .npy file.

    Return its name, the suffix of an output, and the bytes of a tile.
    """
    found = [name for name in ("h5py", "zarr", "pyarrow") if find_spec(name) is not None]
    kinds = {"h5py": ["h5", "chunks"], "zarr": ["zarr", "shards"], "pyarrow": ["parquet"]}
    kind = str(rng.choice(["npy", *(each for name in found for each in kinds[name])]))
    outputs = [".npy"] + [".h5"] * ("h5py" in found)
    tile = tuple(max(1, length // int(rng.integers(5, 30 if x.ndim > 1 else 300)))
                 for length in x.shape)  # fmt: skip
    x, nbytes = np.ascontiguousarray(x), math.prod(tile) * 16
    for old in path.parent.glob("x.*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    if kind in {"h5", "chunks"}:
        import h5py  # noqa: PLC0415

        options = {"chunks": tile, "compression": "lzf"} if kind == "chunks" else {}
        with h5py.File(path.with_suffix(".h5"), "w") as file:
            file.create_dataset("x", data=x, **options)
        return f"{path.with_suffix('.h5')}::x", str(rng.choice(outputs)), nbytes
    if kind in {"zarr", "shards"}:
        import zarr  # noqa: PLC0415

        shards = tuple(2 * each for each in tile) if kind == "shards" else None
        path = path.with_suffix(".zarr")
        array = {"shape": x.shape, "dtype": x.dtype, "chunks": tile, "shards": shards}
        zarr.create_array(str(path), **array)[...] = x
        nbytes *= 1 << x.ndim if shards else 1
        return str(path), str(rng.choice([*outputs, ".zarr", ".zarr", ".zarr"])), nbytes
    if kind == "parquet" and x.ndim == 1 and x.dtype.kind != "c":
        import pyarrow  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415

        table = pyarrow.table({"x": x.astype(x.dtype.newbyteorder("="))})
        path = path.with_suffix(".parquet")
        pyarrow.parquet.write_table(table, path, row_group_size=tile[0])
        return f"{path}::x", str(rng.choice([*outputs, ".parquet"])), nbytes
    np.save(path, x)
    return str(path), str(rng.choice(outputs)), nbytes


def content(path: Path) -> bytes | None:
    """Return the contents of a file, or of all files of a folder; None if there is none."""
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        return b"".join(bytes(each.relative_to(path)) + each.read_bytes() for each in files)
    return path.read_bytes() if path.exists() else None


def delete(path: Path) -> None:
    """Delete a file or a folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


class JobProgram(Program):
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


# ---- trials --------------------------------------------------------------------------------


class Killer:
    """Performs trials, in a folder of its own."""

    def __init__(self, options: argparse.Namespace, folder: Path, *, mounted: bool) -> None:
        self.options, self.folder, self.mounted = options, folder, mounted
        self.times, self.right, self.late = Counter[str](), Counter[str](), 0
        self.program: JobProgram | None = None
        self.cases = dict[tuple[int, Path, str], Case]()
        self.small, self.disk = folder / "small", folder / "disk"
        for each in (self.small, self.disk):
            each.mkdir()
        (folder / "job.py").write_text(JOB)
        (folder / "compose.py").write_text(OPERATOR)
        if mounted:
            mount(self.small)
            cover(folder)

    def case(self, number: int, place: Path, plain: str) -> Case:
        """Return the case of a trial, after a job that nobody disturbs.

        It writes to the same disk: with --memory, chunks depend on how files are written.
        """
        index = number // CASE
        if (case := self.cases.get((index, place, plain))) is not None:
            return case
        case = draw_case(np.random.default_rng([self.options.seed, 0, index]), self.folder)
        out = place / f"wanted{case.suffix}"
        self.job, begun = ["0", plain, "0", *case.arguments], time.monotonic()
        self.run(["-o", str(out)], "a job that nobody disturbs")
        seconds = time.monotonic() - begun
        case = case._replace(want=content(out) or b"", seconds=seconds)
        delete(out)
        self.cases = {(index, place, plain): case}
        return case

    def start(self, arguments: Sequence[str], limit: int = 0) -> JobProgram:
        """Start a job; ``limit`` is that of the size of files."""
        self.job[2] = str(limit)
        path = str(self.folder / "job.py")
        self.program = JobProgram(self.folder, self.options.ranks, path)
        self.program.launch(path, *self.job, *arguments)
        return self.program

    def run(self, arguments: Sequence[str], what: str) -> None:
        """Run a job to its end."""
        if status := self.start(arguments).end(LIMIT):
            raise Fault(f"{what} ended with status {status}")

    def trial(self, number: int) -> None:
        """Disturb a job, perhaps again and again; let the next one be."""
        rng = np.random.default_rng([self.options.seed, 1, number])
        first = np.random.default_rng([self.options.seed, 2, number // len(KINDS)])
        kinds_to_draw = self.options.kinds or KINDS
        kinds = [str(first.permutation(kinds_to_draw)[number % len(kinds_to_draw)])]
        if resume := rng.random() < 0.65:
            kinds += map(str, rng.choice(kinds_to_draw, rng.integers(3)))
        place = self.small if "a full disk" in kinds or rng.random() < 0.3 else self.disk
        plain, period = str(rng.choice(["plain", "", ""])), str(rng.choice([0.01, 0.03, 0.1]))
        case = self.case(number, place, plain)
        self.job = [period, plain, "0", *case.arguments]
        out = place / f"{rng.choice(['y', 'a long name, ' * 4])}{case.suffix}"
        old = b"old" * 100 if rng.random() < 0.5 else None
        if old is not None:
            out.write_bytes(old)
        arguments, ends = ["-o", str(out), "--force"], [old, case.want]
        for kind in kinds:
            self.title = f"{kind}, {'with' if resume else 'without'} --resume"
            in_time = self.disturb(case, kind, arguments + ["--resume"] * resume, out, rng)
            if content(out) not in ends:
                raise Fault(f"{self.title}: {out} is neither as before nor as wanted")
            leftovers = [name for name in os.listdir(place) if name != out.name]
            if kind in KINDS[-2:] and not resume and leftovers:
                raise Fault(f"{self.title}: the job has left {leftovers}")
            self.right[kind] += in_time
            self.late += not in_time
        resume ^= rng.random() < 0.2
        then = f"{self.title}; the next job, {'with' if resume else 'without'} it,"
        self.run(arguments + ["--resume"] * resume, then)
        if content(out) != case.want:
            raise Fault(f"{then} has written other bytes")
        if os.listdir(place) != [out.name]:
            raise Fault(f"{then} has left {os.listdir(place)}")
        delete(out)

    def disturb(
        self, case: Case, kind: str, arguments: list[str], out: Path, rng: np.random.Generator
    ) -> bool:
        """Start a job, and do something to it; return whether it came in time."""
        share, limit = rng.uniform(0.05, 0.95), 0
        moment = rng.uniform(0.8, 1.1) if rng.random() < 0.3 else rng.uniform(0.1, 1)
        if kind == "a full disk" and self.mounted:
            occupied = sum(path.stat().st_blocks * 512 for path in self.small.rglob("*"))
            mount(self.small, max(occupied, int(share * len(case.want))) + 65536)
        elif kind == "a full disk":
            limit = int(share * len(case.want))
        program = self.start(arguments, limit)
        try:
            there = self._act(case, kind, program, moment, rng)
            status = program.end(GONE if kind in SIGNALS and there else LIMIT)
        except Fault as fault:
            self.times[kind] += 1
            raise Fault(f"{self.title}: {fault}") from None
        finally:
            if kind == "a full disk" and self.mounted:
                mount(self.small)
        if status == 0 and content(out) != case.want:
            raise Fault(f"{self.title}: the job has succeeded, and its output is not as wanted")
        in_time = there and status != 0
        self.times[kind] += in_time
        return in_time

    def _act(
        self, case: Case, kind: str, program: JobProgram, moment: float, rng: np.random.Generator
    ) -> bool:
        """Disturb a job in one way, at a moment; return whether the job was there."""
        if kind == "a full disk":
            return True
        time.sleep(moment * case.seconds)
        if kind in SIGNALS:
            return program.send(*SIGNALS[kind], rng)
        if kind == "KILL to all":  # as a batch system does
            sent = program.send(signal.SIGKILL, "mpirun", rng)
            time.sleep(rng.choice([0, 0.01, 0.1]))
            for pid in rng.permutation(list(program.processes())):
                kill(int(pid), signal.SIGKILL)
            return sent
        path = case.inputs[rng.integers(len(case.inputs))]
        if path.is_dir():  # a part of a store
            path = rng.choice(sorted(each for each in path.rglob("*") if each.is_file()))
        text, times = path.read_bytes(), path.stat()
        os.truncate(path, int(rng.uniform() * len(text)))
        program.end(LIMIT)
        path.write_bytes(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return True


# ---- the command line ----------------------------------------------------------------------


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="kill_jobs.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--ranks", type=int, default=1)
    add("--kills", type=int, default=40, help="how many times a job is disturbed, at least")
    add("--damage", type=int, metavar="N", help="damage journals and states, N times in each way")
    add("--changes", type=int, metavar="N", help="resume N jobs with other options or inputs")
    add("--kinds", nargs="+", choices=KINDS, metavar="KIND", help=f"these only: {', '.join(KINDS)}")
    add("--folder", type=Path, help="where files are, in a new folder (default: /tmp)")
    add("--seed", type=int, help="repeats a run; printed")
    add("--first", type=int, default=0, metavar="TRIAL", help="the trial to begin with")
    return parser.parse_args()


def main(*, mounted: bool) -> int:
    """Run the trials; return the exit status. With ``mounted`` there may be a disk of its own."""
    options = parse()
    if options.seed is None:
        options.seed = secrets.randbelow(10**9)
    folder = Path(tempfile.mkdtemp(prefix="kill_jobs-", dir=options.folder))
    disk = "a small disk" if mounted else "no mounts: a limit of the size of files"
    print(f"seed {options.seed}, {options.ranks} ranks, {disk}, {folder}", flush=True)
    killer, begun, number = Killer(options, folder, mounted=mounted), time.monotonic(), 0
    fault, spoken = None, begun
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while fault is None and killer.times.total() < options.kills:
            try:
                killer.trial(options.first + number)
                number += 1
            except Fault as raised:
                fault = raised
            if time.monotonic() > spoken + 10:
                spoken = time.monotonic()
                print(f"{spoken - begun:.0f} s: {killer.right.total()} times ok", flush=True)
    except KeyboardInterrupt:
        if killer.program is not None:
            killer.program.kill()
        raise
    print(f"{'':18}{'times':>6}{'ok':>6}")
    for kind in options.kinds or KINDS:
        print(f"{kind:18}{killer.times[kind]:6}{killer.right[kind]:6}")
    print(f"{killer.right.total()} times ok in {time.monotonic() - begun:.0f} s, {number} trials; "
          f"{killer.late} more came too late")  # fmt: skip
    if fault is not None:
        print(f"FAULT in trial {options.first + number}: {fault}\n    {shlex.join(killer.job)}")
        print((folder / "messages").read_text().strip())
        repeat = f"--ranks {options.ranks} --seed {options.seed} --first {options.first + number}"
        repeat += f" --kinds {shlex.join(options.kinds)}" if options.kinds else ""
        print(f"    repeat it by python launch/tools/kill_jobs.py {repeat} --kills 1; see {folder}")
        if mounted:
            shutil.copytree(killer.small, folder / "left on the small disk")
        return 1
    if mounted:
        subprocess.run(["umount", str(killer.small)], check=True)
    shutil.rmtree(folder)
    return 0


def damage(options: argparse.Namespace) -> None:
    """Damage what jobs leave, or change the next ones; print how often."""
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    from damage import Damager  # noqa: PLC0415 - it imports distscan

    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        print(f"seed {seed}", flush=True)
        damager = Damager(Path(folder), seed)
        damager.change(options.changes or 0)
        if options.damage:
            damager.run(options.damage)
        for kind, number in damager.counts.items():
            refused = damager.refused[kind]
            print(f"{kind:32}{number:6} times: {refused:6} refused, {number - refused:6} right")


if __name__ == "__main__":
    options = parse()  # faults are told once
    if options.damage or options.changes:
        damage(options)
        sys.exit()
    sys.exit(main(mounted=isolate()))
