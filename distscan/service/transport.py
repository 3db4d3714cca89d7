"""Requests of HTTP to one service: a pool of connections, which threads share.

Python's own ``http.client`` speaks HTTP. A larger library would take longer to import than a small
job takes.
"""

import json as codec
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from . import places
from .client_stop import Stop

#: What a request raises if it was not answered.
LOST = (OSError, HTTPException)
# A host that has died is noticed after a minute.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)
_SPARE = 8  # connections that are kept for requests to come


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    content: bytes

    def json(self) -> Any:
        """Return its value; raise ValueError if it is no JSON."""
        return codec.loads(self.content)


class _UnixConnection(HTTPConnection):
    """A connection to a socket in the file system."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("distscan", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to it."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Transport:
    """Sends requests to ``address``: the path of a socket, or ``http://HOST:PORT/...``."""

    def __init__(self, address: str, headers: Mapping[str, str], patience: float) -> None:
        """``headers`` go with every request; ``patience`` limits the seconds to connect."""
        self._spare, self._owner = deque[HTTPConnection](), os.getpid()
        self._busy, self._closed = set[Stop](), False
        self._address, self._headers, self._patience = address, dict(headers), patience
        self._over_tcp = places.is_url(address)
        self._base = urlsplit(address).path.rstrip("/") if self._over_tcp else ""
        self._tls: ssl.SSLContext | None = None

    def __del__(self) -> None:  # after such as connect().scan(x)
        self.close()

    def close(self) -> None:
        """Close all connections; requests of other threads end."""
        self._closed = True
        # A process that was forked would end those of its parent: they share the sockets.
        for stop in list(self._busy) if self._owner == os.getpid() else ():
            stop.set()
        with suppress(IndexError):
            while True:
                self._spare.pop().close()

    def request(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: Any = None,
        timeout: float | None = None,
        stop: Stop,
    ) -> Answer:
        """Send a request, and return the answer; the body is ``json``, or ``content`` as it is.

        Raises one of ``LOST`` if there is no answer, TimeoutError if the service says nothing for
        ``timeout`` seconds. ``stop`` ends it.
        """
        given = self._headers | dict(headers or {})
        if json is not None:
            given["content-type"], content = "application/json", codec.dumps(json).encode()
        path = self._base + url + (f"?{urlencode(params)}" if params else "")
        if self._owner != os.getpid():  # this process was forked: the connections are its parent's
            self._spare, self._busy, self._owner = deque(), set[Stop](), os.getpid()
        self._busy.add(stop)
        try:
            if self._closed:
                stop.set()
            stop.check()
            return self._exchange((method, path, content, given), timeout, stop)
        finally:
            self._busy.discard(stop)

    def _exchange(self, asked: tuple[Any, ...], timeout: float | None, stop: Stop) -> Answer:
        """Send a request over a connection of its own, and return the answer."""
        connection = self._connected()
        try:
            connection.sock.settimeout(timeout)
            with stop.ends(connection.sock):
                with suppress(BrokenPipeError, ConnectionResetError):
                    # A service that refuses a long body answers before the end of it.
                    connection.request(*asked)
                answer = connection.getresponse()
                found = Answer(answer.status, answer.read())
        except BaseException:  # what is left of this answer must not be that of another request
            connection.close()
            raise
        if answer.will_close or self._closed or len(self._spare) >= _SPARE:
            connection.close()
        else:
            self._spare.append(connection)
        return found

    def _connected(self) -> Any:
        """Return a connection that no other request uses."""
        with suppress(IndexError):
            while True:
                connection = self._spare.pop()
                if _is_open(connection):
                    return connection
                connection.close()
        connection = self._new()
        try:
            connection.connect()
            if self._over_tcp:
                for option in _KEEP_ALIVE:
                    connection.sock.setsockopt(*option)
        except TimeoutError as error:
            connection.close()
            raise ConnectionError(f"no connection within {self._patience:g} s") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _new(self) -> HTTPConnection:
        if not self._over_tcp:
            return _UnixConnection(self._address, self._patience)
        parts = urlsplit(self._address)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "http":
            return HTTPConnection(host, port, timeout=self._patience)
        self._tls = self._tls or ssl.create_default_context()  # loads certificates: 40 ms
        return HTTPSConnection(host, port, timeout=self._patience, context=self._tls)


def _is_open(connection: HTTPConnection) -> bool:
    """Whether the service has not closed a connection: there is nothing to be read on it."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)
