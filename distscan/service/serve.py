"""``python -m distscan serve``: the ranks of a service, from its start to its end."""

import argparse
import asyncio
import fcntl
import ipaddress
import logging
import os
import platform
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn

from .. import binding, command
from ..command import Parser
from ..cpu.free_memory import free_memory
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..version import __version__
from . import logs, places, work
from .app import App
from .arrays import Scanner
from .buffers import Pool
from .dispatch import Dispatcher
from .errors import ServiceError
from .lines import Lines
from .metrics import Metrics
from .origin import Names, host_of
from .requests import Paths
from .scans import Limits, Scans
from .store import Record, Store

_log = logging.getLogger("distscan.service")
_GIB = 1 << 30
# Each ends the service. Launchers hand SIGUSR1 on to the ranks; at SIGTERM, mpirun of Open MPI and
# srun kill them.
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def parser() -> Parser:
    """Return the parser of the arguments."""
    made = Parser(
        prog="python -m distscan serve",
        description="Scan what clients ask for: the ranks stay up.",
        epilog="example: mpirun -n 8 python -m distscan serve",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--socket", metavar="PATH", type=Path, help="where to listen (default: of this user)")
    add("--host", help="listen on TCP, on an address of this machine's own, such as 127.0.0.1")
    add("--port", type=int, default=0, help="of TCP (default: any that is free)")
    add("--token-file", metavar="FILE", type=Path, help="clients over TCP must bring its contents")
    add("--allow-host", metavar="NAME", action="append", default=[],
        help="that of a reverse proxy by which browsers come; may come several times")  # fmt: skip
    add("--root", metavar="DIR", type=Path, action="append", help="where files may be (default: .)")
    add("--state-dir", metavar="DIR", type=Path, help="where jobs are kept (default: of this user)")
    add("--backend", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)")
    add("--queue", metavar="N", type=int, default=1000, help="jobs that may wait (default: 1000)")
    add("--body", metavar="BYTES", type=int, default=4 * _GIB, help="the most of an array")
    add("--memory", metavar="BYTES", type=int, help="of all arrays (default: half the free)")
    add("--log-format", choices=logs.FORMS, default="text", help="of stderr (default: text)")
    add("--log-level", choices=logs.LEVELS, default="info", help="(default: info)")
    add("--grace", metavar="S", type=float, default=60.0, help="seconds for the last job")
    return made


def check(args: argparse.Namespace) -> None:
    """Refuse to listen where anybody could reach the service."""
    for name in args.allow_host:
        host_of(name)
    if args.host is None:
        if args.port or args.token_file:
            raise ValueError("--port and --token-file are for TCP: name a --host")
        return
    if args.socket is not None:
        raise ValueError("listen on a --socket or on a --host, not on both")
    if args.token_file is None:
        raise ValueError("over TCP any user of this machine could come: --token-file is needed")
    try:
        loopback = ipaddress.ip_address(args.host).is_loopback
    except ValueError:
        loopback = args.host == "localhost"
    if not loopback:
        raise ValueError(
            f"{args.host} can be reached from other machines, and requests are not encrypted: "
            "listen on 127.0.0.1, and let clients come by ssh -L or a reverse proxy"
        )


def main(argv: Sequence[str]) -> int:
    """Run the service on every rank; return the exit status."""
    return command.run("distscan", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = command.arguments(comm, argv, parser(), check)
    if args is None:
        return 0
    logs.begin(args.log_format, args.log_level)
    bound = binding.bind(comm, args.backend, _log.warning)
    lines, scanner = Lines(comm), Scanner(comm, bound)
    placement = comm.gather({"host": platform.node(), "device": bound.device})
    with ExitStack() as held:
        held.callback(lines.close)
        with agreed(comm):
            if comm.rank == 0:
                paths = Paths(args.root or [Path()])
                metrics = Metrics()
                store = Store(args.state_dir or places.state_folder(), _noting(metrics))
                held.callback(store.close)
                listening, where = held.enter_context(_listening(args))
                folder = held.enter_context(_folder_in_memory())
                token = None if args.token_file is None else places.token_in(args.token_file)
        if comm.rank > 0:
            for number in ENDS:
                signal.signal(number, signal.SIG_IGN)  # rank 0 says when the service ends
            work.follow(comm, lines, scanner)
            return 0
        given: dict[str, Any] = {"most": args.queue, "backend": args.backend}
        dispatcher = Dispatcher(comm, lines, store, scanner, **given)
        pool = Pool(folder, free_memory() // 2 if args.memory is None else args.memory)
        held.callback(pool.close)
        scans = Scans(dispatcher, scanner, pool, Limits(args.body, args.queue), metrics)
        facts: dict[str, Any] = {
            "ranks": comm.size,
            "nodes": bound.nodes,
            "backend": bound.name,
            "device": bound.device,
        }
        metrics.watch(
            facts | {"version": __version__},
            queued=store.queued,
            running=lambda: dispatcher.running is not None,
            waiting=lambda: scans.waiting,
            buffers=lambda: pool.used,
            limit=pool.most,
            gpu=scanner.gpu_memory if bound.name == "cuda" else None,
        )
        facts["placement"] = placement
        names = Names(
            over_tcp=args.host is not None, allowed=frozenset(map(host_of, args.allow_host))
        )
        app = App(dispatcher, scans, paths, token, facts=facts, metrics=metrics, names=names)
        held.callback(work.end, lines)
        with _ending(dispatcher, args.grace), _answering(app, listening):
            print(f"distscan: {comm.size} ranks ({bound.device}) listen on {where}", flush=True)
            _tell_supervisor()
            dispatcher.run()
    return 0


def _noting(metrics: Metrics) -> Callable[[Record], None]:
    """Return a function that logs and counts what becomes of a job."""

    def note(record: Record) -> None:
        logs.job_changed(record)
        metrics.job_changed(record)

    return note


def _tell_supervisor() -> None:
    """Tell systemd that the service is ready, if it asks: see ``man sd_notify``."""
    if where := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(b"READY=1", where)


@contextmanager
def _folder_in_memory() -> Iterator[Path]:
    """Make a folder in memory for arrays on their way; remove those of services that were killed.

    A service holds a lock in its folder.
    """
    shared = Path("/dev/shm")  # nosec B108 # the folder made in it has a random name and mode 0700
    if not os.access(shared, os.W_OK):
        shared = Path(tempfile.gettempdir())
    prefix = f"distscan-{os.getuid()}-"
    for path in shared.glob(f"{prefix}*/lock"):
        with suppress(OSError, ServiceError):
            places.check_private(path.parent)  # what another user has put there may block
            with path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=shared) as made,
        Path(made, "new").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(made, "new").rename(Path(made, "lock"))  # nobody sees it without its lock
        yield Path(made)


@contextmanager
def _listening(args: argparse.Namespace) -> Iterator[tuple[socket.socket, str]]:
    """Open the socket; yield it and where it is."""
    if args.host is not None:
        with socket.create_server((args.host, args.port), backlog=1024) as opened:
            host, port = opened.getsockname()[:2]
            yield opened, f"http://{host}:{port}"
        return
    path = args.socket or places.socket_path()
    if args.socket is None:
        places.make_private(path.parent)
    with socket.socket(socket.AF_UNIX) as opened:
        with suppress(FileNotFoundError):
            _remove_dead(path)
        before = os.umask(0o177)  # this user alone
        try:
            opened.bind(str(path))
        except OSError as error:
            raise ServiceError(f"cannot listen on {path}: {error.strerror}") from error
        finally:
            os.umask(before)
        try:
            opened.listen(1024)
            yield opened, str(path)
        finally:
            path.unlink(missing_ok=True)


def _remove_dead(path: Path) -> None:
    """Remove the socket of a service that was killed."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(str(path))
        except ConnectionRefusedError:
            if path.is_socket():
                path.unlink()
        else:
            raise ServiceError(f"another service listens on {path}")


@contextmanager
def _answering(app: App, listening: socket.socket) -> Iterator[None]:
    """Answer requests, in a thread of its own, while the ranks work."""
    config = uvicorn.Config(
        app.asgi,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # any client can send them: guard.py logs both addresses
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield
    finally:
        app.events.end()
        server.should_exit = True
        thread.join()


@contextmanager
def _ending(dispatcher: Dispatcher, grace: float) -> Iterator[None]:
    """Let signals end the service: after the job that runs, if it takes less than ``grace``.

    The system may deliver a signal to any thread. Python's handler would then wait until the main
    thread wakes. So the signal is written to a socket, which a thread of its own reads.
    """
    written, read = socket.socketpair()

    def stop() -> None:
        while read.recv(1):
            dispatcher.stop(grace)

    thread = threading.Thread(target=stop)
    with written, read:
        written.setblocking(False)
        writes = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        before: dict[int, Callable[..., Any] | int | None] = {
            number: signal.signal(number, lambda *_: None)
            for number in ENDS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        thread.start()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(writes)
            written.shutdown(socket.SHUT_WR)
            thread.join()
