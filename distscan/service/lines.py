"""Rank 0 wakes the other ranks of a service by sockets: MPI's own waiting would spin on the cores.

::

    rank 0   send(task)  --+--> rank 1   receive() -> task
                           +--> rank 2   receive() -> task
                           +--> rank 3   receive() -> task

A task is JSON. What ranks do with it, they do by MPI.
"""

import hmac
import json
import os
import platform
import secrets
import socket
import struct
import tempfile
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any

from ..core.errors import RankError
from ..mpi import communicators
from ..mpi.agree import agreed
from ..mpi.communicators import Comm

_SECRET = 32  # bytes by which a rank shows that it is one
_CONNECTED = 60.0  # seconds until all ranks are connected
_LENGTH = struct.Struct("!Q")
_RANK = struct.Struct("!I")


class Lines:
    """The lines from rank 0 to the other ranks of a communicator; making them is collective."""

    def __init__(self, comm: Comm) -> None:
        self._comm, self._lines = comm, list[socket.socket]()
        one_node = communicators.node(comm).nodes == 1
        with ExitStack() as held:
            address: Any = None
            with agreed(comm):
                if comm.rank == 0:
                    server, address = _listen(one_node, held)
            address, secret = comm.bcast((address, secrets.token_bytes(_SECRET)))
            with agreed(comm):
                if comm.rank == 0:
                    self._lines = _accepted(server, comm.size - 1, secret)
                else:
                    self._lines = [_connected(address, comm.rank, secret)]

    def send(self, task: dict[str, Any]) -> None:
        """Send a task to all other ranks; rank 0 calls this.

        Raises ``RankError`` if one of them is gone.
        """
        text = json.dumps(task).encode()
        for line in self._lines:
            try:
                line.sendall(_LENGTH.pack(len(text)) + text)
            except OSError as error:
                raise RankError(f"a rank has ended: {error.strerror}") from error

    def receive(self) -> dict[str, Any] | None:
        """Sleep until rank 0 has sent a task; None if rank 0 has ended. Other ranks call this."""
        (line,) = self._lines
        with suppress(OSError):
            if (head := _read(line, _LENGTH.size)) and (text := _read(line, *_LENGTH.unpack(head))):
                return dict(json.loads(text))
        return None

    def close(self) -> None:
        """Close the lines: the other ranks receive None."""
        for line in self._lines:
            line.close()


def _listen(one_node: bool, held: ExitStack) -> tuple[socket.socket, Any]:
    """Return a socket to which the other ranks connect, and its address."""
    if one_node:
        folder = held.enter_context(tempfile.TemporaryDirectory())  # for this user alone
        server = socket.socket(socket.AF_UNIX)
        address: Any = os.path.join(folder, "ranks")
        server.bind(address)
        server.listen(1024)
    else:
        server = socket.create_server(("", 0), backlog=1024)
        address = platform.node(), server.getsockname()[1]
    held.callback(server.close)
    return server, address


def _accepted(server: socket.socket, number: int, secret: bytes) -> list[socket.socket]:
    """Return the lines to so many ranks; whoever does not know the secret is no rank."""
    lines, end = dict[int, socket.socket](), monotonic() + _CONNECTED
    while len(lines) < number:
        server.settimeout(max(end - monotonic(), 0.001))
        try:
            line, _ = server.accept()
        except TimeoutError:
            missing = sorted({*range(1, number + 1)} - lines.keys())
            raise RankError(f"no connection from ranks {missing} in {_CONNECTED:.0f} s") from None
        line.settimeout(max(min(end - monotonic(), 1), 0.001))
        with suppress(OSError):
            said = _read(line, _SECRET + _RANK.size)
            if said and hmac.compare_digest(said[:_SECRET], secret):
                line.settimeout(None)
                lines[_RANK.unpack(said[_SECRET:])[0]] = line
                continue
        line.close()
    return [lines[rank] for rank in sorted(lines)]


def _connected(address: Any, rank: int, secret: bytes) -> socket.socket:
    """Return the line to rank 0."""
    if isinstance(address, str):
        line = socket.socket(socket.AF_UNIX)
        line.connect(address)
    else:
        line = socket.create_connection(address, _CONNECTED)
        line.settimeout(None)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.sendall(secret + _RANK.pack(rank))
    return line


def _read(line: socket.socket, size: int) -> bytes:
    """Read so many bytes; none if the line ends before."""
    found = bytearray()
    while len(found) < size:
        piece = line.recv(min(size - len(found), 1 << 20))
        if not piece:
            return b""
        found += piece
    return bytes(found)
