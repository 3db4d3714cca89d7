"""Signals that raise wait until a collective call has ended: no rank leaves one half way."""

import signal
import threading
from collections import deque
from types import CodeType, FrameType
from typing import Any

__all__ = ["SIGNALS", "calls", "defer", "deliver", "getsignal", "later", "seen"]

try:  # signal.getsignal makes enumerations of its results, which takes ten times as long
    from _signal import getsignal  # type: ignore[import-not-found]
except ImportError:  # another Python than CPython
    from signal import getsignal

# What people, batch systems and timers send, as far as Python can handle it.
SIGNALS = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU"),
    )
    if hasattr(signal, name)
)
#: Signals that came inside a collective call.
later: deque[int] = deque()


class _Handler:
    """A handler in front of another, which it calls at once outside collective calls."""

    def __init__(self, behind: Any) -> None:
        self.__wrapped__ = behind

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if _in_a_call(frame):
            return later.append(number)
        return self.__wrapped__(number, frame)


#: The code of functions inside of which signals wait, while their local ``ended`` is not True.
calls: set[CodeType] = set()


def defer() -> None:
    """Put a handler in front of each handler in Python that has none yet; in the main thread."""
    handlers = tuple(map(getsignal, SIGNALS))
    # No handler runs in another thread, so none disturbs a call there.
    if handlers == seen[0] or threading.get_ident() != threading.main_thread().ident:
        return
    for number, handler in zip(SIGNALS, handlers, strict=True):
        if callable(handler) and type(handler) is not _Handler:
            signal.signal(number, _Handler(handler))
    seen[0] = tuple(map(getsignal, SIGNALS))


#: The handlers when ``defer`` looked last.
seen: list[tuple[Any, ...]] = [()]


def _in_a_call(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in calls and not frame.f_locals.get("ended", False):
            return True
        frame = frame.f_back
    return False


def deliver(frame: FrameType) -> None:
    """Send what has waited, at the end of the outermost call of the main thread."""
    if threading.get_ident() == threading.main_thread().ident and not _in_a_call(frame.f_back):
        while later:
            signal.raise_signal(later.popleft())
