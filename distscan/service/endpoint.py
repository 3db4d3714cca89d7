"""The socket of a service: opened, answered, removed."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from . import protocol
from .app import App
from .errors import ServiceError


@contextmanager
def listening(
    path: Path | None, host: str | None, port: int
) -> Iterator[tuple[socket.socket, str]]:
    """Open the socket, by default the one of this user; yield it and where it is."""
    if host is not None:
        with socket.create_server((host, port), backlog=1024) as opened:
            host, port = opened.getsockname()[:2]
            yield opened, f"http://{host}:{port}"
        return
    if path is None:
        path = protocol.socket_path()
        protocol.make_private(path.parent)
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
def answering(app: App, listening: socket.socket) -> Iterator[None]:
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
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield
    finally:
        app.events.end()
        server.should_exit = True
        thread.join()
