"""The lock of a plan: one use at a time."""

import threading


class PlanLock:
    """A lock that threads hold in a ``with`` block while they use a plan.

    RuntimeError is raised if the plan is ``closed``, and if the thread itself is already using the
    plan: in a signal's handler, or in a function that the plan calls, such as an operator's.
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
            raise RuntimeError(
                "this plan is in use by this thread: neither a signal's handler nor an operator's "
                "function can use it"
            )
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False
        self._lock.release()
