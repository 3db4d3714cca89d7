"""How a client's requests and arrays go to one service: over HTTP, or in memory that both share.

Python's own ``http.client`` speaks HTTP. A larger library would take longer to import than a small
job takes.
"""

import errno
import fcntl
import json as codec
import math
import mmap
import os
import select
import socket
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from io import BytesIO
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

import numpy as np
from numpy.typing import NDArray

from . import protocol
from .errors import NotFoundError, StoppedError

#: The exceptions of a request without an answer.
CONNECTION_ERRORS = (OSError, HTTPException)
# A host that has died is noticed after a minute.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)
_SPARE = 8  # connections that stay open for later requests


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    content: bytes

    def json(self) -> Any:
        """Return the value of the content; raise ValueError if that is no JSON."""
        return codec.loads(self.content)


class _UnixConnection(HTTPConnection):
    """A connection to a socket in the file system."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("distscan", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
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
        self._over_tcp = protocol.is_url(address)
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
        stop: "Stop",
    ) -> Answer:
        """Send a request, and return the answer; the body is ``json``, or ``content`` as it is.

        Raises one of ``CONNECTION_ERRORS`` if there is no answer, TimeoutError if the service says
        nothing for ``timeout`` seconds. ``stop`` ends it.
        """
        all_headers = self._headers | dict(headers or {})
        if json is not None:
            all_headers["content-type"], content = "application/json", codec.dumps(json).encode()
        path = self._base + url + (f"?{urlencode(params)}" if params else "")
        if self._owner != os.getpid():  # this process was forked: the connections are its parent's
            self._spare, self._busy, self._owner = deque(), set[Stop](), os.getpid()
        self._busy.add(stop)
        try:
            if self._closed:
                stop.set()
            stop.check()
            return self._exchange((method, path, content, all_headers), timeout, stop)
        finally:
            self._busy.discard(stop)

    def _exchange(self, parts: tuple[Any, ...], timeout: float | None, stop: "Stop") -> Answer:
        """Send a request over a connection of its own, and return the answer."""
        connection = self._take_connection()
        try:
            connection.sock.settimeout(timeout)
            with stop.ends(connection.sock):
                with suppress(BrokenPipeError, ConnectionResetError):
                    # A service that refuses a long body answers before the end of it.
                    connection.request(*parts)
                answer = connection.getresponse()
                result = Answer(answer.status, answer.read())
        except BaseException:  # the rest of this answer must not become that of another request
            connection.close()
            raise
        if answer.will_close or self._closed or len(self._spare) >= _SPARE:
            connection.close()
        else:
            self._spare.append(connection)
        return result

    def _take_connection(self) -> Any:
        """Return a connection that no other request uses."""
        with suppress(IndexError):
            while True:
                connection = self._spare.pop()
                if _is_open(connection):
                    return connection
                connection.close()
        connection = self._new_connection()
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

    def _new_connection(self) -> HTTPConnection:
        if not self._over_tcp:
            return _UnixConnection(self._address, self._patience)
        parts = urlsplit(self._address)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "http":
            return HTTPConnection(host, port, timeout=self._patience)
        self._tls = self._tls or ssl.create_default_context()  # loads certificates: 40 ms
        return HTTPSConnection(host, port, timeout=self._patience, context=self._tls)


def _is_open(connection: HTTPConnection) -> bool:
    """Return whether a connection is open: a service that closes it makes it readable."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


# ---- how a thread ends a request for whose answer another thread waits ---------------------------


class Stop:
    """Ends the requests of another thread: the one that waits for its answer, and later ones."""

    def __init__(self) -> None:
        self._set, self._lock = threading.Event(), threading.Lock()
        self._socket: socket.socket | None = None

    def set(self) -> None:
        """End the requests: the other thread raises ``StoppedError``, unless it has its answer."""
        with self._lock:
            self._set.set()
            if self._socket is not None:
                with suppress(OSError):  # it is closed already
                    # The method of an encrypted socket would change the state of the other thread.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @contextmanager
    def ends(self, connection: socket.socket) -> Iterator[None]:
        """Let ``set`` shut a connection down, in the ``with`` block."""
        with self._lock:
            self.check()
            self._socket = connection
        try:
            yield
        finally:
            with self._lock:
                self._socket = None

    def check(self) -> None:
        """Raise ``StoppedError`` after ``set``."""
        if self._set.is_set():
            raise StoppedError("the client was closed, or the task that asked was cancelled")

    def sleep(self, seconds: float) -> None:
        """Sleep, at most until ``set``."""
        self._set.wait(seconds)
        self.check()


#: The ``Stop`` of the requests of this context, if there is one.
current_stop = ContextVar[Stop | None]("current_stop", default=None)


# ---- memory that is shared with a service on this host -------------------------------------------

# A buffer of ``arrays.py`` is this client's as long as its file is open and locked. An array in it
# keeps it. When the array is gone, the buffer waits for the next one.

_IDLE = 3  # buffers that wait for the next scan: of x, out, segments
_ATTEMPTS = 5


class LockedBuffer:
    """A buffer that this client has locked and mapped."""

    def __init__(self, location: dict[str, Any]) -> None:
        """Lock and map the buffer at a location that a service has answered with.

        Raises OSError if there is no such file here, BlockingIOError if another client has it.
        """
        self.path = str(location["path"])
        file = os.open(self.path, os.O_RDWR)
        self._close = weakref.finalize(self, os.close, file)
        status = os.fstat(file)
        if (status.st_dev, status.st_ino) != (location["device"], location["inode"]):
            raise FileNotFoundError(errno.ENOENT, "the service is on another host", self.path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.size = status.st_size
        self.memory = mmap.mmap(file, self.size)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data


class BufferCache:
    """The buffers of a client. Threads may share it."""

    def __init__(self, request_buffer: Callable[[int], dict[str, Any]]) -> None:
        """``request_buffer`` asks the service for a buffer, by its bytes."""
        self._request_buffer = request_buffer
        self._reset()
        _caches.add(self)

    def _reset(self) -> None:
        self._idle: deque[LockedBuffer] = deque(maxlen=_IDLE)
        self._buffers = weakref.WeakValueDictionary[int, LockedBuffer]()  # by address
        self._same_host, self._lock = True, threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an array in C order in a buffer; None if the service is on another host."""
        nbytes = math.prod(shape) * dtype.itemsize
        buffer = self._acquire(max(nbytes, 1)) if self._same_host else None
        if buffer is None:
            return None
        # Views of this array keep it, and it keeps the buffer.
        memory: NDArray[np.uint8] = np.frombuffer(buffer.memory, np.uint8)
        with self._lock:
            self._buffers[buffer.address] = buffer
        weakref.finalize(memory, self._idle.append, buffer).atexit = False
        return memory[:nbytes].view(dtype).reshape(shape)

    def place(self, array: NDArray[Any]) -> dict[str, Any] | None:
        """Return the place of an array in a buffer; None if it is in none, or not in C order."""
        if not array.flags.c_contiguous or not array.dtype.isnative:
            return None
        address = array.ctypes.data
        with self._lock:
            buffers = list(self._buffers.values())
        for buffer in buffers:
            offset = address - buffer.address
            if offset >= 0 and offset + array.nbytes <= buffer.size:
                return {
                    "path": buffer.path,
                    "offset": offset,
                    "dtype": str(array.dtype),
                    "shape": list(array.shape),
                }
        return None

    def hold(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """Return an array in a buffer: the array itself, or a copy; None as for ``empty``."""
        if self.place(array) is not None:
            return array
        if (copy := self.empty(array.shape, array.dtype.newbyteorder("="))) is not None:
            copy[...] = array
        return copy

    def forget(self) -> None:
        """Forget the buffers that are idle: the service may still write to them."""
        self._idle = deque(maxlen=_IDLE)

    def close(self) -> None:
        """Let go of all buffers in which no array is."""
        self.forget()
        self._same_host = False

    def _acquire(self, size: int) -> LockedBuffer | None:
        """Return a buffer of ``size`` bytes, or of not many more."""
        for _ in range(len(self._idle)):
            with suppress(IndexError):  # another thread has taken it
                buffer = self._idle.popleft()
                if size <= buffer.size < 4 * max(size, 1 << 20):
                    return buffer
                self._idle.append(buffer)
        for _ in range(_ATTEMPTS):
            location = self._request_buffer(size)
            try:
                return LockedBuffer(location)
            except BlockingIOError:  # another client was faster
                continue
            except OSError:
                self._same_host = False
                return None
        return None


# A process that is forked has the parent's arrays. Neither uses their memory for another array.
_caches = weakref.WeakSet[BufferCache]()


def _before_fork() -> None:
    for cache in _caches:
        cache.forget()


def _in_child() -> None:
    for cache in _caches:
        cache._reset()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)


# ---- arrays on their way to a service and back ---------------------------------------------------

# Bytes of an array above which shared memory is faster than a request's body.
_LEAST_SHARED = 1 << 20


class RemoteScan(NamedTuple):
    """A scan of ``x`` into ``out``, or into a new array."""

    x: NDArray[Any]
    segments: NDArray[Any] | None
    out: NDArray[Any] | None
    shape: tuple[int, ...]  # of the result
    dtype: np.dtype[Any]
    options: dict[str, Any]  # of the request


class Arrays:
    """The scans of a client. Threads may share it."""

    def __init__(self, request: Callable[..., Answer], timeout: float | None) -> None:
        """``request`` sends a request, as ``Client.request`` does.

        ``timeout``: seconds for which the service may say nothing while it scans.
        """
        self._request, self._timeout = request, timeout
        self._buffers = BufferCache(
            lambda size: dict(request("POST", "/v1/buffers", json={"bytes": size}).json())
        )

    def close(self) -> None:
        """Let go of shared memory in which no array is."""
        self._buffers.close()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a new array, in shared memory if there is any."""
        array = self._buffers.empty(shape, dtype)
        return np.empty(shape, dtype) if array is None else array

    def scan(self, request: RemoteScan) -> NDArray[Any]:
        """Scan an array."""
        if request.x.nbytes > _LEAST_SHARED or self._buffers.place(request.x) is not None:
            try:
                result = self._scan_shared(request)
            except NotFoundError:  # the service is not the one that had these buffers
                self._buffers.forget()
                result = None
            except BaseException:
                self._buffers.forget()
                raise
            if result is not None:
                return result
        return self._send(request)

    def _send(self, request: RemoteScan) -> NDArray[Any]:
        """Send an array, and receive its scan."""
        body, params = BytesIO(), request.options
        np.save(body, request.x, allow_pickle=False)
        if request.segments is not None:
            np.save(body, request.segments, allow_pickle=False)
            params = params | {"segments": "true"}
        answer = self._post(params, content=body.getvalue())
        y = cast("NDArray[Any]", np.load(BytesIO(answer.content), allow_pickle=False))
        if request.out is None:
            return y
        request.out[...] = y
        return request.out

    def _scan_shared(self, request: RemoteScan) -> NDArray[Any] | None:
        """Scan an array in memory that the service shares; None if it is on another host.

        The result is never in the place of ``x``: a request that is sent again would scan it again.
        """
        buffers, out, options = self._buffers, request.out, request.options
        x = buffers.hold(request.x)
        segments = None if request.segments is None else buffers.hold(request.segments)
        if x is None or (request.segments is not None and segments is None):
            return None
        target = out
        if out is None or buffers.place(out) is None or _overlaps(out, x, segments):
            target = buffers.empty(request.shape, request.dtype)
        if target is None:
            return None
        places = {"x": buffers.place(x), "out": buffers.place(target)}
        if segments is not None:
            places["segments"] = buffers.place(segments)
        self._post(options, json=places)
        if out is not None:
            if target is not out:
                out[...] = target
            return out
        return target if x is request.x else target.copy()

    def _post(self, params: dict[str, Any], **body: Any) -> Answer:
        return self._request("POST", "/v1/scans", params=params, timeout=self._timeout, **body)


def _overlaps(out: NDArray[Any], *inputs: NDArray[Any] | None) -> bool:
    return any(x is not None and np.may_share_memory(out, x) for x in inputs)
