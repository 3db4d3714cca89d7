"""Programs that scripts run on ranks, and disturb: their processes, and faults of either."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120  # seconds of a job that is not disturbed
MPIRUNS = {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun"}
_RANK = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")


class Fault(Exception):
    """A program, or a result of it, is wrong."""


class Program:
    """A program of Python on ranks, by launch/mpirun.sh; its output goes to ``messages``.

    Its processes have its mark in their environment.
    """

    number = 0

    def __init__(self, folder: Path, ranks: int, word: str) -> None:
        """``folder`` gets its messages and temporary files; ranks have the argument ``word``."""
        Program.number += 1
        self.folder, self.ranks, self.word = folder, ranks, word
        self.mark = f"{folder}:{os.getpid()}:{Program.number}:"
        self.messages, self.temporary = folder / "messages", folder

    def launch(self, *arguments: str, limit: int = LIMIT, append: bool = False) -> None:
        """Start it. mpirun.sh ends it after ``limit`` seconds, even if this script was killed."""
        paths = [str(ROOT), str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {"DISTSCAN_MARK": self.mark, "PYTHONPATH": ":".join(paths)}
        variables |= {"TMPDIR": str(self.temporary), "DISTSCAN_TIMEOUT": str(limit)}
        with self.messages.open("a" if append else "w") as messages:
            self.process = subprocess.Popen(
                [str(ROOT / "launch/mpirun.sh"), str(self.ranks), sys.executable, *arguments],
                env=os.environ | variables | {"DISTSCAN_LABELS": "0"},
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )

    def ended(self) -> bool:
        """Return whether mpirun has ended."""
        return self.process.poll() is not None

    def processes(self) -> dict[int, int | str]:
        """Return the numbers of all processes, with the rank, "mpirun" or "" for each."""
        roles: dict[int, int | str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                if f"DISTSCAN_MARK={self.mark}".encode() not in variables:
                    continue
                name = (entry / "comm").read_text().strip()
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended, or is of another user
                continue
            ranks = [text.split(b"=")[1] for text in variables if text.startswith(_RANK)]
            if ranks and self.word.encode() in arguments:
                roles[int(entry.name)] = int(ranks[0])
            else:
                roles[int(entry.name)] = "mpirun" * (name in MPIRUNS)
        return roles

    def kill(self) -> None:
        """End all processes, at once."""
        for pid in self.processes():
            kill(pid, signal.SIGKILL)


def kill(pid: int, number: int) -> bool:
    """Send a signal to a process; return whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def until(condition: Callable[[], object], seconds: float, message: str) -> None:
    """Wait until a condition is true; raise ``Fault`` if it takes too long."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise Fault(f"{message} after {seconds} s")
        time.sleep(0.01)
