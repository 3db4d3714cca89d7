"""Signals that raise wait until a collective call has ended: no rank leaves one half way."""

import functools
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, ParamSpec, TypeVar, cast

try:  # signal.getsignal makes enumerations of its results, which takes ten times as long
    from _signal import getsignal  # type: ignore[import-not-found]
except ImportError:  # another Python than CPython
    from signal import getsignal

P = ParamSpec("P")
R = TypeVar("R")

# What people, batch systems and timers send, as far as Python can handle it.
_SIGNALS = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU"),
    )
    if hasattr(signal, name)
)
_later: deque[int] = deque()  # signals that came inside a collective call


class _Handler:
    """A handler in front of another, which it calls at once outside collective calls."""

    def __init__(self, behind: Any) -> None:
        self.__wrapped__ = behind

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if _in_a_call(frame):
            return _later.append(number)
        return self.__wrapped__(number, frame)


def collective(function: Callable[P, R]) -> Callable[P, R]:
    """Make signals wait from the first line of ``function`` to its end, once ``defer`` was called.

    Python runs handlers between two lines of the main thread, whichever thread the system gave the
    signal to. One that raises there would take this rank out of a call that the others are in. To
    block signals around each call would leave the call's own first and last lines open. So handlers
    stay in place, and look for the frame of this function.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        ended = False
        try:
            return function(*args, **options)
        finally:
            ended = not ended  # from here on signals do not wait
            if _later:
                _deliver(sys._getframe())

    _calls.add(cast(FunctionType, call).__code__)
    return call


_calls: set[CodeType] = set()  # of ``call``: one, however many functions there are


def defer() -> None:
    """Put a handler in front of each handler in Python that has none yet; in the main thread."""
    handlers = tuple(map(getsignal, _SIGNALS))
    # No handler runs in another thread, so none disturbs a call there.
    if handlers == _seen[0] or threading.get_ident() != threading.main_thread().ident:
        return
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        if callable(handler) and type(handler) is not _Handler:
            signal.signal(number, _Handler(handler))
    _seen[0] = tuple(map(getsignal, _SIGNALS))


_seen: list[tuple[Any, ...]] = [()]  # the handlers when ``defer`` looked last


def _in_a_call(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _calls and not frame.f_locals.get("ended", False):
            return True
        frame = frame.f_back
    return False


def _deliver(frame: FrameType) -> None:
    """Send what has waited, at the end of the outermost call of the main thread."""
    if threading.get_ident() == threading.main_thread().ident and not _in_a_call(frame.f_back):
        while _later:
            signal.raise_signal(_later.popleft())
