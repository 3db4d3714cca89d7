"""The lock of a plan: one use at a time."""

import os
import threading
import weakref


class PlanLock:
    """A lock that threads hold in a ``with`` block while they use a plan.

    RuntimeError is raised if the plan is ``closed``, and if the thread itself is already using the
    plan: in a signal's handler, or in a function that the plan calls, such as an operator's. So it
    is in a forked process, if another thread was using the plan: its memory is in an unknown state.
    """

    def __init__(self) -> None:
        self.closed, self._lost = False, False
        #: The thread that uses the plan; None if there is none.
        self._user: int | None = None
        self._lock = threading.RLock()
        _every.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        fault = ""
        if self.closed:
            fault = "this plan is closed"
        elif self._lost:
            fault = "another thread was using this plan when the process was forked: make a new one"
        elif self._user is not None:
            fault = (
                "this plan is in use by this thread: neither a signal's handler nor an operator's "
                "function can use it"
            )
        if fault:
            self._lock.release()
            raise RuntimeError(fault)
        self._user = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._user = None
        self._lock.release()

    def begin_in_child(self) -> None:
        """Let go of a lock that another thread held: it is not there after a fork."""
        if self._user != threading.get_ident():
            self._lost, self._user = self._lost or self._user is not None, None
            self._lock = threading.RLock()


_every = weakref.WeakSet[PlanLock]()


def _in_child() -> None:
    for lock in list(_every):
        lock.begin_in_child()


os.register_at_fork(after_in_child=_in_child)
