"""How a thread ends a request for whose answer another thread waits."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from .errors import StoppedError


class Stop:
    """Ends what another thread does: the request for whose answer it waits, and those to come."""

    def __init__(self) -> None:
        self._set, self._lock = threading.Event(), threading.Lock()
        self._line: socket.socket | None = None

    def set(self) -> None:
        """End it: the other thread raises ``StoppedError``, unless the last answer is there."""
        with self._lock:
            self._set.set()
            if self._line is not None:
                with suppress(OSError):  # it is closed already
                    # The method of an encrypted socket would change what the other thread uses.
                    socket.socket.shutdown(self._line, socket.SHUT_RDWR)

    @contextmanager
    def ends(self, line: socket.socket) -> Iterator[None]:
        """Let ``set`` end what comes over a connection, in the ``with`` block."""
        with self._lock:
            self.check()
            self._line = line
        try:
            yield
        finally:
            with self._lock:
                self._line = None

    def check(self) -> None:
        """Raise ``StoppedError`` after ``set``."""
        if self._set.is_set():
            raise StoppedError("the client was closed, or the task that asked was cancelled")

    def sleep(self, seconds: float) -> None:
        """Sleep, at most until ``set``."""
        self._set.wait(seconds)
        self.check()


#: What ends the requests of this context, if anything does.
stop_of_context = ContextVar[Stop | None]("stop_of_context", default=None)
