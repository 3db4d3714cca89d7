"""Signals that arrive in a collective call are deferred to its end: no rank leaves it half way.

Long calls have local steps between their exchanges in which a signal may raise. These steps are
``interruptible``.
"""

import functools
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, ParamSpec, TypeVar, cast

try:  # signal.getsignal converts its results to enumerations, which takes ten times as long
    from _signal import getsignal as getsignal  # type: ignore[import-not-found] # noqa: PLC0414
except ImportError:  # not CPython
    from signal import getsignal as getsignal  # noqa: PLC0414 - for the other modules

# The signals that people, batch systems and timers send, and Python can handle.
SIGNALS = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU"),
    )
    if hasattr(signal, name)
)
#: The signals that arrived inside a collective call.
deferred: deque[int] = deque()


class _Handler:
    """A handler that wraps another: it defers the signal inside collective calls."""

    def __init__(self, wrapped: Any) -> None:
        self.__wrapped__ = wrapped

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if not _in_a_call(frame):
            return self.__wrapped__(number, frame)
        if number not in deferred:  # the system keeps one of each kind, too
            deferred.append(number)
        return None


#: The code of functions that defer signals, as long as their local variable ``ended`` is not True.
calls: set[CodeType] = set()
#: The code of functions inside these in which signals are not deferred.
_interruptible: set[CodeType] = set()

P = ParamSpec("P")
R = TypeVar("R")


def uninterruptible(function: Callable[P, R]) -> Callable[P, R]:
    """Defer signals from the first line of ``function`` to its end, if there are several ranks.

    Python runs signal handlers between two lines of the main thread, whichever thread received the
    signal. A handler that raises would take this rank out of a call that the other ranks are in.
    To block signals inside the call would not protect its first and last lines. So the handlers
    stay in place, and look for the frame of this function.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        ended = False
        try:
            return function(*args, **options)
        finally:
            ended = not ended  # from here on signals are not deferred
            if deferred:
                deliver(sys._getframe().f_back)

    calls.add(cast(FunctionType, call).__code__)
    return call


def interruptible(function: Callable[P, R]) -> Callable[P, R]:
    """Do not defer signals inside ``function``, a local step of a collective call.

    Signals that were deferred before are raised at its beginning.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        if deferred:
            deliver(sys._getframe())
        return function(*args, **options)

    _interruptible.add(cast(FunctionType, call).__code__)
    return call


def defer() -> None:
    """Wrap each signal handler that is a Python function; works in the main thread only."""
    handlers = tuple(map(getsignal, SIGNALS))
    # Handlers run in the main thread only, so they do not disturb calls in other threads.
    if handlers == latest_handlers[0] or threading.get_ident() != threading.main_thread().ident:
        return
    for number, handler in zip(SIGNALS, handlers, strict=True):
        if callable(handler) and type(handler) is not _Handler:
            signal.signal(number, _Handler(handler))
    latest_handlers[0] = tuple(map(getsignal, SIGNALS))


#: The handlers after the last ``defer``.
latest_handlers: list[tuple[Any, ...]] = [()]


def _in_a_call(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _interruptible:
        if frame.f_code in calls and not frame.f_locals.get("ended", False):
            return True
        frame = frame.f_back
    return False


def deliver(frame: FrameType | None) -> None:
    """Raise the deferred signals in the main thread, if none of these frames defers them."""
    if threading.get_ident() == threading.main_thread().ident and not _in_a_call(frame):
        _raise_all()


def _raise_all() -> None:
    """Raise all deferred signals, even if the handler of one raises."""
    if deferred:
        try:
            signal.raise_signal(deferred.popleft())
        finally:
            _raise_all()
