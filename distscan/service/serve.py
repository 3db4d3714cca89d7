"""``python -m distscan serve``: the ranks of a service, from its start to its end."""

import argparse
import asyncio
import ipaddress
import logging
import os
import platform
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from .. import binding, cli
from ..cli import Parser
from ..cpu.memory import free_memory
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..version import __version__
from . import protocol
from .activity import private_memory
from .app import App
from .arrays import Pool, Scanner, folder_in_memory
from .dispatch import Dispatcher, Wakeup, end_ranks, follow
from .errors import ServiceError
from .monitoring import LOG_FORMS, LOG_LEVELS, Metrics, begin_logs, log_job
from .requests import Names, Paths, host_of
from .scans import Limits, Scans
from .store import Store

_log = logging.getLogger("distscan.service")
_GIB, _DAY = 1 << 30, 86400.0


def parser() -> Parser:
    """Return the parser of the arguments."""
    parser = Parser(
        "serve",
        description="Scan what clients ask for: the ranks stay up.",
        epilog="example: mpirun -n 8 python -m distscan serve",
    )
    add = parser.add_argument
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
    add("--log-format", choices=LOG_FORMS, default="text", help="of stderr (default: text)")
    add("--log-level", choices=LOG_LEVELS, default="info", help="(default: info)")
    add("--keep", metavar="DAYS", type=float, default=90.0, help="of ended jobs (default: 90)")
    add("--grace", metavar="S", type=float, default=60.0, help="seconds for the last job")
    return parser


def check(args: argparse.Namespace) -> None:
    """Refuse to listen where anybody could reach the service."""
    for name in args.allow_host:
        host_of(name)
    if args.keep < 0:
        raise ValueError(f"--keep is a number of days, 0 or more, not {args.keep}")
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
    return cli.run("distscan", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = cli.arguments(comm, argv, parser(), check)
    if args is None:
        return 0
    begin_logs(args.log_format, args.log_level)
    backend = binding.bind(comm, args.backend, _log.warning)
    wakeup, scanner = Wakeup(comm), Scanner(comm, backend)
    processes = comm.gather((platform.node(), backend.device, os.getpid())) or []
    placement = [{"host": host, "device": device} for host, device, _ in processes]
    with ExitStack() as stack:
        stack.callback(wakeup.close)
        with agreed(comm):
            if comm.rank == 0:
                paths = Paths(args.root or [Path()])
                metrics = Metrics()
                folder = args.state_dir or protocol.state_folder()
                store = Store(folder, log_job, metrics.count_job)
                stack.callback(store.close)
                opened = _open_socket(args.socket, args.host, args.port)
                listener, where = stack.enter_context(opened)
                buffers = stack.enter_context(folder_in_memory())
                token = None if args.token_file is None else protocol.token_in(args.token_file)
        if comm.rank > 0:
            for number in SHUTDOWN_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # rank 0 says when the service ends
            follow(comm, wakeup, scanner)
            return 0
        keep = args.keep * _DAY
        dispatcher = Dispatcher(
            comm, wakeup, store, scanner, limit=args.queue, keep=keep, backend=args.backend
        )
        pool = Pool(buffers, free_memory() // 2 if args.memory is None else args.memory)
        stack.callback(pool.close)
        scans = Scans(dispatcher, scanner, pool, Limits(args.body, args.queue), metrics)
        facts: dict[str, Any] = {
            "ranks": comm.size,
            "nodes": backend.nodes,
            "backend": backend.name,
            "device": backend.device,
        }
        metrics.watch(
            facts | {"version": __version__},
            queued=store.count_queued,
            running=lambda: dispatcher.current_job is not None,
            waiting=lambda: scans.waiting,
            buffers=lambda: pool.size,
            limit=pool.limit,
            gpu=scanner.gpu_memory if backend.name == "cuda" else None,
        )
        facts["placement"] = placement
        local = [process for host, _, process in processes if host == platform.node()]
        samples = dispatcher.activity.sampling(
            lambda: private_memory(local) + pool.size,
            lambda: scanner.gpu_memory()[0] if backend.name == "cuda" else None,
        )
        names = Names(
            over_tcp=args.host is not None, allowed=frozenset(map(host_of, args.allow_host))
        )
        app = App(dispatcher, scans, paths, token, facts=facts, metrics=metrics, names=names)
        stack.callback(end_ranks, wakeup)
        stop = partial(dispatcher.stop, args.grace)
        with _shutdown_on_signals(stop), samples, _answer_requests(app, listener):
            print(f"distscan: {comm.size} ranks ({backend.device}) listen on {where}", flush=True)
            _notify_systemd()
            dispatcher.run()
    return 0


def _notify_systemd() -> None:
    """Tell systemd that the service is ready, if it asks: see ``man sd_notify``."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"READY=1", address)


# ---- the socket: opened, answered, removed -------------------------------------------------------


@contextmanager
def _open_socket(
    path: Path | None, host: str | None, port: int
) -> Iterator[tuple[socket.socket, str]]:
    """Open the socket, by default the one of this user; yield it and where it is."""
    if host is not None:
        with socket.create_server((host, port), backlog=1024) as listener:
            host, port = listener.getsockname()[:2]
            yield listener, f"http://{host}:{port}"
        return
    if path is None:
        path = protocol.socket_path()
        protocol.make_private(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        with suppress(FileNotFoundError):
            _remove_dead(path)
        before = os.umask(0o177)  # this user alone
        try:
            listener.bind(str(path))
        except OSError as error:
            raise ServiceError(f"cannot listen on {path}: {error.strerror}") from error
        finally:
            os.umask(before)
        try:
            listener.listen(1024)
            yield listener, str(path)
        finally:
            path.unlink(missing_ok=True)


def _remove_dead(path: Path) -> None:
    """Remove the socket of a service that was killed."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except ConnectionRefusedError:
            if path.is_socket():
                path.unlink()
        else:
            raise ServiceError(f"another service listens on {path}")


@contextmanager
def _answer_requests(app: App, listener: socket.socket) -> Iterator[None]:
    """Answer requests, in a thread of its own, while the ranks work."""
    config = uvicorn.Config(
        app.asgi,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # any client can send them: requests.py logs both addresses
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield
    finally:
        app.events.end()
        server.should_exit = True
        thread.join()


# ---- the signals that end a service --------------------------------------------------------------

# Each ends the service. Launchers hand SIGUSR1 on to the ranks; at SIGTERM, mpirun of Open MPI and
# srun kill them.
SHUTDOWN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def _shutdown_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` when a signal comes that ends the service.

    The system may deliver a signal to any thread. Python's handler would then wait until the main
    thread wakes. So the signal is written to a socket, which a thread of its own reads.
    """
    sender, receiver = socket.socketpair()

    def wait() -> None:
        while receiver.recv(1):
            stop()

    thread = threading.Thread(target=wait)
    with sender, receiver:
        sender.setblocking(False)
        writes = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        before: dict[int, Callable[..., Any] | int | None] = {
            number: signal.signal(number, lambda *_: None)
            for number in SHUTDOWN_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        thread.start()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(writes)
            sender.shutdown(socket.SHUT_WR)
            thread.join()
