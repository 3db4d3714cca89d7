"""A service that scripts start, disturb, and start again in the same folder; and its processes."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kill_cases import MPIRUNS, ROOT, Fault, kill

from distscan.service.client import Client

GONE = 20  # seconds after which all processes of a service have ended
LONGEST = 3600  # seconds after which it is ended, even if this script was killed
READY = 60  # seconds after which a service listens
_RANK = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")


class Running:
    """A service of several ranks, on CPUs. Its processes have its mark in their environment."""

    def __init__(self, folder: Path, ranks: int, *options: str) -> None:
        """Prepare its socket, state, temporary files, and files of clients: all in ``folder``."""
        self.folder, self.ranks, self.options = folder, ranks, options
        self.mark = f"{folder}:{os.getpid()}:"
        self.socket, self.state = folder / "socket", folder / "state"
        self.messages = folder / "messages"
        self.temporary, self.files = folder / "temporary", folder / "files"
        for each in (self.state, self.temporary, self.files):
            each.mkdir(exist_ok=True)
        self.numbers = set[int]()  # of all ranks that ever ran

    def start(self) -> None:
        """Start it, and wait until it listens."""
        changed = {"DISTSCAN_MARK": self.mark, "PYTHONPATH": str(ROOT), "DISTSCAN_LABELS": "0"}
        changed |= {"TMPDIR": str(self.temporary), "DISTSCAN_TIMEOUT": str(LONGEST)}
        with self.messages.open("a") as messages:
            self.said = messages.tell()
            self.process = subprocess.Popen(
                [str(ROOT / "launch/mpirun.sh"), str(self.ranks), sys.executable,
                 "-m", "distscan", "serve", "--backend", "cpu", "--socket", str(self.socket),
                 "--state-dir", str(self.state), "--root", str(self.files), *self.options],
                env=os.environ | changed,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )  # fmt: skip
        until(lambda: self.ended() or self.listens(), READY, "the service does not listen")
        if self.ended():
            raise Fault(f"the service does not start:\n{self.messages.read_text()[-2000:]}")
        self.pids = {rank: pid for pid, rank in self.processes().items() if isinstance(rank, int)}
        self.numbers.update(self.pids.values())

    def listens(self) -> bool:
        """Return whether it has said that it listens, since it was started last."""
        return "listen on" in self.messages.read_text()[self.said :]

    def ended(self) -> bool:
        """Return whether mpirun has ended."""
        return self.process.poll() is not None

    def client(self, patience: float = 60.0) -> Client:
        """Return a client that tries so many seconds to reach it."""
        return Client(str(self.socket), None, patience)

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
                serves = b"serve" in (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended, or is of another user
                continue
            ranks = [each.split(b"=")[1] for each in variables if each.startswith(_RANK)]
            number = int(entry.name)
            roles[number] = int(ranks[0]) if ranks and serves else "mpirun" * (name in MPIRUNS)
        return roles

    def mpirun(self) -> int:
        """Return the number of the process of mpirun."""
        return next(pid for pid, what in self.processes().items() if what == "mpirun")

    def memory(self) -> list[float]:
        """Return the resident memory of each rank, in MiB, without buffers that clients share.

        These are reused, and have a limit of their own: ``serve --memory``.
        """
        mebibytes = []
        for _, pid in sorted(self.pids.items()):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            sizes = [line.split()[1] for line in lines if line.startswith(("RssAnon:", "RssFile:"))]
            mebibytes.append(sum(map(int, sizes)) / 1024)
        return mebibytes

    def sockets(self) -> int:
        """Return how many sockets rank 0 has open."""
        count = 0
        for each in Path(f"/proc/{self.pids[0]}/fd").iterdir():
            with suppress(OSError):
                count += os.readlink(each).startswith("socket:")
        return count

    def arrays(self) -> list[str]:
        """Return the buffers that somebody uses, of all services that ran here."""
        shared = Path("/dev/shm").glob(f"distscan-{os.getuid()}-*/*")  # nosec B108 # it is read
        mine = [path for path in shared if int(path.parent.name.split("-")[2]) in self.numbers]
        return [str(path) for path in mine if path.name != "lock" and _is_held(path)]

    def end(self) -> None:
        """End it by SIGTERM, and look for what is left."""
        for pid in self.pids.values():
            kill(pid, signal.SIGTERM)
        self.wait()
        if status := self.process.returncode:
            raise Fault(f"the service ended with status {status} after SIGTERM")
        leftovers = [str(self.socket)] if self.socket.exists() else []
        leftovers += [str(path) for path in self.temporary.iterdir()]
        for path in Path("/dev/shm").glob(f"distscan-{os.getuid()}-*"):  # nosec B108 # likewise
            leftovers += [str(path)] if int(path.name.split("-")[2]) in self.numbers else []
        if leftovers:
            raise Fault(f"the service has left {leftovers}")

    def wait(self) -> None:
        """Wait until all processes have ended."""
        until(
            lambda: self.ended() and not self.processes(),
            GONE,
            "the service's processes have not ended",
        )

    def kill(self) -> None:
        """End all processes, at once."""
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        self.wait()


@contextmanager
def running(folder: Path, ranks: int, *options: str) -> Iterator[Running]:
    """Run a service during a ``with`` block; at its end, nothing of it may be left."""
    service = Running(folder, ranks, *options)
    try:
        service.start()
        yield service
        service.end()
    finally:
        service.kill()


def until(done: Callable[[], object], seconds: float, message: str) -> None:
    """Wait until something is true; raise ``Fault`` if it takes too long."""
    limit = time.monotonic() + seconds
    while not done():
        if time.monotonic() > limit:
            raise Fault(f"{message} after {seconds} s")
        time.sleep(0.01)


def _is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a file."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
