"""One use of a plan at a time."""

import threading


class Turns:
    """Lets threads use a plan one after the other, each in a ``with`` block of its own.

    A use inside another of the same thread, which only a signal's handler can make, is refused;
    and so is any use once it is ``closed``.
    """

    def __init__(self) -> None:
        self.closed = False
        self._lock, self._busy = threading.RLock(), False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._busy or self.closed:
            self._lock.release()
            if self.closed:
                raise RuntimeError("this plan is closed")
            raise RuntimeError("this plan is in use by this thread, which a signal has interrupted")
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False
        self._lock.release()
