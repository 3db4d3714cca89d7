"""Damage what jobs leave, or change the next job, at random: it refuses that, or is right.

``kill_jobs.py --changes N`` stops N jobs anywhere, and resumes each with another option or input.
``kill_jobs.py --damage N`` runs it: N times each kind, of a journal and of a state, in one process.
"""

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
from processes import Fault

import distscan
from distscan.job import restart
from distscan.job.formats import files, storage

KINDS = [
    *("other bytes", "a deletion", "a truncation"),
    *("an insertion", "parts swapped", "files swapped"),
]
_CHUNKS = 40
#: Options of jobs, and some of their values.
VALUES: dict[str, list[Any]] = {
    "op": ["sum", "max", "min", "prod", "fsum"],
    "exclusive": [False, True],
    "reverse": [False, True],
    "initial": [None, 0.5, 2.0],
    "dtype": [None, "f8", "f4"],
    "strategy": ["auto", "reduce-scan"],
    "segments": [None, "flags.npy", "keys.npy"],
}


def damage(rng: np.random.Generator, kind: str, content: bytes, other: bytes) -> bytes:
    """Return the content of a file after it is damaged; ``other`` is that of another file."""
    low, high = sorted(map(int, rng.integers(0, len(content) + 1, 2)))
    high = min(high, low + int(1 << rng.integers(0, 10)))
    match kind:
        case "other bytes":
            at, changed = rng.integers(0, len(content), rng.integers(1, 4)), bytearray(content)
            for i in at:
                changed[i] ^= int(rng.integers(1, 256))
            return bytes(changed)
        case "a deletion":
            return content[:low] + content[max(high, low + 1) :]
        case "a truncation":
            return content[:low]
        case "an insertion":
            return content[:low] + rng.bytes(int(rng.integers(1, 50))) + content[low:]
        case "parts swapped":
            return content[:low] + content[high:] + content[low:high]
    half = int(rng.integers(0, min(len(content), len(other)) + 1))
    half *= int(rng.integers(2))  # 0: all of the other file
    return content[:half] + other[half:]


class Damager:
    """A job that has stopped, and a series with a state, in a folder of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.counts, self.refused = Counter[str](), Counter[str]()
        restart.PERIOD, restart._SHARE = 0.0, 0
        files.ENDS = 64
        storage.is_mapped = lambda path: False
        os.fsync = lambda opened: None
        self.x = self.rng.normal(size=100 * _CHUNKS)
        np.save(folder / "x.npy", self.x)
        heads = self.rng.random(self.x.size) < 0.02
        np.save(folder / "flags.npy", heads)
        np.save(folder / "keys.npy", np.cumsum(heads))

    def scan(self, output: str, **options: Any) -> None:
        """Run a job of some forty chunks."""
        options |= {"backend": "cpu", "threads": 1, "memory": 800 * 13}
        paths = self.folder / "x.npy", self.folder / output
        if options.get("segments") is not None:
            options["segments"] = self.folder / options["segments"]
        distscan.scan_file(*paths, force=True, **options)

    def stop(self, output: str, turn: int, **options: Any) -> tuple[Path, Path]:
        """Run a job that stops at a write; return its part file and its journal."""
        calls, write = count(), storage.Writer.__call__

        def stopping(writer: Any, *args: Any) -> None:
            if next(calls) == turn:
                raise OSError("stopped")
            write(writer, *args)

        storage.Writer.__call__ = stopping  # type: ignore[method-assign]
        try:
            self.scan(output, resume=True, **options)
        except OSError:
            pass
        finally:
            storage.Writer.__call__ = write  # type: ignore[method-assign]
        part, record = sorted(self.folder.glob(f".{output}.*"))
        return part, record

    def run(self, times: int) -> None:
        """Damage a journal and a state so many times in each way."""
        self.times = times
        self.scan("want.npy")
        (_, other), (part, record) = self.stop("z.npy", 30), self.stop("y.npy", 10)
        self.files = {path: path.read_bytes() for path in (part, record)}
        want = (self.folder / "want.npy").read_bytes()
        self._try(record, other.read_bytes(), "y.npy", want, resume=True)

        first, second = self.folder / "s.json", self.folder / "other.json"
        self.scan("want.npy", state=first)
        self.scan("want.npy", op="max", state=second)
        content = first.read_bytes()
        self.scan("want.npy", state=first)
        want = (self.folder / "want.npy").read_bytes()
        self.files = {first: content}
        self._try(first, second.read_bytes(), "w.npy", want, state=first)

    def change(self, times: int) -> None:
        """Stop jobs anywhere; resume them with other options or another input, and compare."""
        for _ in range(times):
            options = {name: self._draw(name) for name in VALUES if self.rng.random() < 0.3}
            out = self.folder / "y.npy"
            self.stop(out.name, int(self.rng.integers(1, _CHUNKS)), **options)
            name = str(self.rng.choice([*VALUES, *["input"] * 6]))
            path, before = self.folder / "x.npy", (self.folder / "x.npy").read_bytes()
            if name == "input":
                self._spoil(path, before)
            else:
                options[name] = self._draw(name)
            self.scan("want.npy", **options)
            self.counts[f"change of {name}"] += 1
            try:
                self.scan(out.name, resume=True, **options)
            except (ValueError, distscan.InputError, distscan.OutputError) as error:
                if "resume" not in str(error) or out.exists():
                    raise
                self.refused[f"change of {name}"] += 1
                self.scan(out.name, **options)
            if out.read_bytes() != (self.folder / "want.npy").read_bytes():
                raise Fault(f"{out} is wrong after another {name}: {options}")
            out.unlink()
            if name == "input":
                self._put(path, before)

    def _draw(self, name: str) -> Any:
        return VALUES[name][self.rng.integers(len(VALUES[name]))]

    def _spoil(self, path: Path, content: bytes) -> None:
        """Change a bit of an element that is at no end of the file."""
        changed = bytearray(content)
        changed[int(self.rng.integers(256, len(content) - 128))] ^= 1 << int(self.rng.integers(8))
        self._put(path, bytes(changed))

    def _put(self, path: Path, content: bytes) -> None:
        """Write a file anew; its time is as before."""
        times = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _try(self, path: Path, other: bytes, output: str, want: bytes, **how: Any) -> None:
        """Damage a file in all ways, and run the job that reads it."""
        out, content = self.folder / output, self.files[path]
        what = "state" if "state" in how else "journal"
        for kind, _ in product(KINDS, range(self.times)):
            for file, intact in self.files.items():
                if not file.exists() or file.read_bytes() != intact:
                    file.write_bytes(intact)
            path.write_bytes(damage(self.rng, kind, content, other))
            job, name = partial(self.scan, output, **how), f"{what}, {kind}"
            self.counts[name] += 1
            self.refused[name] += self._refuses(path, job)
            if out.exists():
                if out.read_bytes() != want:
                    raise Fault(f"a {what} with {kind}: {out} is wrong; see {path}")
                out.unlink()

    def _refuses(self, path: Path, job: Callable[[], None]) -> bool:
        """Run a job; return whether it refuses a file, by its name, and changes nothing."""
        before = {each: each.read_bytes() for each in self.files}
        try:
            job()
        except ValueError as error:
            if type(error) is not ValueError or str(path) not in str(error):
                raise
            if any(file.read_bytes() != content for file, content in before.items()):
                raise Fault(f"a job that refuses {path} has changed files") from error
            return True
        return False
