"""``GET /v1/events``: what happens in a service, as server-sent events.

::

    retry: 2000

    id: 1
    event: snapshot
    data: {"about": {...}, "now": 1767225600.0, "status": "ok", "queued": 3, "jobs": [...]}

    id: 2
    event: progress
    data: {"number": 7, "progress": {"phase": "scan", "done": 1048576, "size": 4194304}}

    : the service is there

Each connection begins with a snapshot, so a client that connects again has missed nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from . import guard
from .answers import Streamed
from .changes import Changes
from .dispatch import Dispatcher
from .errors import BusyError, StoreError
from .guard import Guard
from .news import News

_log = logging.getLogger("distscan.service")
_MOST = 100  # clients at a time
_PAUSE = 0.25  # seconds between two looks at what has changed
_HEARTBEAT = 15.0  # seconds after which a client without news hears that the service is there
_RETRY = 2000  # milliseconds after which a client may come back
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nor may nginx keep it back


class Events:
    """The clients that follow what happens."""

    def __init__(self, dispatcher: Dispatcher, changes: Changes, about: dict[str, Any]) -> None:
        """``about`` is what the service says of itself."""
        self._dispatcher, self._changes, self._about = dispatcher, changes, about
        self._clients, self._ended = 0, False

    def routes(self, checked: Guard) -> list[Route]:
        """Return the route, with its checks."""
        return [Route("/v1/events", checked(self.events))]

    def end(self) -> None:
        """Tell the last news, and let the clients go; any thread may call this."""
        self._ended = True
        self._changes.tell()

    async def events(self, request: Request) -> Response:
        """Tell a client what happens, until it goes or the service ends."""
        if self._clients >= _MOST:
            raise BusyError(f"{_MOST} clients follow this service already; try again later")
        self._clients += 1
        held = ExitStack()
        held.callback(self._leave)
        changed = held.enter_context(self._changes.watched())
        return Streamed(
            self._stream(changed), held, headers=_HEADERS, media_type="text/event-stream"
        )

    def _leave(self) -> None:
        self._clients -= 1

    async def _stream(self, changed: asyncio.Event) -> AsyncIterator[bytes]:
        """Yield the events. The next ones are looked for when the client has taken the last."""
        news, number, ended = News(self._dispatcher, self._about), 0, False
        yield f"retry: {_RETRY}\n\n".encode()
        while not ended:
            changed.clear()
            ended = self._ended
            try:
                events = await run_in_threadpool(told, news)
            except StoreError as error:
                _log.warning("a client that follows the service must come again: %s", error)
                return
            for name, data in events:
                number += 1
                yield f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode()
            if not ended:
                await asyncio.sleep(_PAUSE)
                while not await _set(changed, _HEARTBEAT):
                    yield b": the service is there\n\n"


def told(news: News) -> list[tuple[str, str]]:
    """Return the news of a client: names of events, and their data as JSON."""
    return [(name, guard.dumps(data)) for name, data in news.events()]


async def _set(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set; return False if it is not after so many seconds."""
    with suppress(TimeoutError, asyncio.TimeoutError):
        return await asyncio.wait_for(event.wait(), seconds)
    return False
