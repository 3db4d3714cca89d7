"""A service that scripts start, disturb, and start again in the same folder; and its processes."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from processes import Fault, Program, kill, until

from distscan.service.client import Client

GONE = 20  # seconds after which all processes of a service have ended
LONGEST = 3600  # seconds after which mpirun.sh ends it
READY = 60  # seconds after which a service listens


class ServiceProgram(Program):
    """A service of several ranks."""

    def __init__(self, folder: Path, ranks: int, *options: str, token: str | None = None) -> None:
        """Prepare its socket, state, temporary files, and files of clients: all in ``folder``.

        With a ``token``, it listens on TCP.
        """
        super().__init__(folder, ranks, "serve")
        self.socket, self.state, self.token = folder / "socket", folder / "state", token
        self.temporary, self.files = folder / "temporary", folder / "files"
        for path in (self.state, self.temporary, self.files):
            path.mkdir(exist_ok=True)
        self.options = ["--socket", str(self.socket), *options]
        if token is not None:
            (folder / "token").write_text(token)
            (folder / "token").chmod(0o600)
            self.options[:2] = ["--host", "127.0.0.1", "--token-file", str(folder / "token")]
        self.numbers = set[int]()  # of all ranks that ever ran

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self.begin = self.messages.stat().st_size if self.messages.exists() else 0
        self.launch(
            *("-m", "distscan", "serve", "--backend", "cpu", "--state-dir", str(self.state)),
            *("--root", str(self.files), *self.options),
            limit=LONGEST,
            append=True,
        )
        until(lambda: self.ended() or self.address(), READY, "the service does not listen")
        if self.ended():
            raise Fault(f"the service does not start:\n{self.messages.read_text()[-2000:]}")
        self.pids = {rank: pid for pid, rank in self.processes().items() if isinstance(rank, int)}
        self.numbers.update(self.pids.values())

    def address(self) -> str:
        """Return where it listens since it was started last; "" before."""
        lines = self.messages.read_text()[self.begin :].splitlines(keepends=True)
        ready = [line for line in lines if "listen on" in line and line.endswith("\n")]
        return ready[0].split()[-1] if ready else ""

    def client(self, patience: float = 60.0) -> Client:
        """Return a client that tries so many seconds to reach it."""
        address = str(self.socket) if self.token is None else self.address()
        return Client(address, self.token, patience)

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
        buffers = [path for path in shared if int(path.parent.name.split("-")[2]) in self.numbers]
        return [str(path) for path in buffers if path.name != "lock" and _is_held(path)]

    def end(self) -> None:
        """End it by SIGTERM, and look for leftovers."""
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
        super().kill()
        self.wait()


@contextmanager
def running(folder: Path, ranks: int, *options: str) -> Iterator[ServiceProgram]:
    """Run a service during a ``with`` block; at its end, nothing of it may be left."""
    service = ServiceProgram(folder, ranks, *options)
    try:
        service.start()
        yield service
        service.end()
    finally:
        service.kill()


def _is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a file."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
