"""The signals that end a service."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Each ends the service. Launchers hand SIGUSR1 on to the ranks; at SIGTERM, mpirun of Open MPI and
# srun kill them.
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def ending(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` when a signal comes that ends the service.

    The system may deliver a signal to any thread. Python's handler would then wait until the main
    thread wakes. So the signal is written to a socket, which a thread of its own reads.
    """
    written, read = socket.socketpair()

    def wait() -> None:
        while read.recv(1):
            stop()

    thread = threading.Thread(target=wait)
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
