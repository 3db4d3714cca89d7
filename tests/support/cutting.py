"""A proxy in front of a service that loses answers: the service has done what it was asked for."""

import socket
import threading
from contextlib import ExitStack, contextmanager, suppress


class Cutter:
    """Hands requests on to a service's socket, and answers back; the next ``lose`` are lost."""

    def __init__(self, path, behind):
        self.address, self._behind, self.lose, self.lost = str(path), behind, 0, 0
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.address)
        self._server.listen()
        self._lines, self._threads = ExitStack(), []
        self._start(self._accept)

    def _start(self, work, *given):
        self._threads.append(threading.Thread(target=work, args=given))
        self._threads[-1].start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.socket(socket.AF_UNIX)
                for line in (near, far):
                    self._lines.callback(line.close)
                    self._lines.callback(end, line)
                far.connect(self._behind)
                self._start(self._hand_on, near, far, False)
                self._start(self._hand_on, far, near, True)

    def _hand_on(self, source, target, answers):
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if answers and self.lose > 0:
                    self.lose, self.lost = self.lose - 1, self.lost + 1
                    break
                target.sendall(piece)
        end(source)
        end(target)

    def close(self):
        end(self._server)
        self._threads[0].join()
        self._server.close()
        self._lines.close()
        for thread in self._threads:
            thread.join()


def end(line):
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(service):
    """Run such a proxy during a ``with`` block."""
    made = Cutter(service.folder / "cut", service.address)
    try:
        yield made
    finally:
        made.close()
        (service.folder / "cut").unlink()
