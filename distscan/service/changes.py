"""Requests that wait until something changes: a job has begun, goes on, or has ended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Changes:
    """Wakes requests, which are in the thread of the event loop; any thread may tell."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = set[asyncio.Event]()

    @contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set at each change; the request clears it."""
        self._loop, changed = asyncio.get_running_loop(), asyncio.Event()
        self._waiting.add(changed)
        try:
            yield changed
        finally:
            self._waiting.discard(changed)

    def tell(self) -> None:
        """Wake the requests that wait."""
        if self._loop is not None and self._waiting:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for each in self._waiting:
            each.set()
