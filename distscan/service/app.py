"""The service over HTTP: requests in, JSON and arrays out.

::

    GET    /v1                    a description of this service
    GET    /v1/openapi.json       this protocol, in full
    POST   /v1/scans?op=sum&...   an array as a .npy file; the answer is its scan, as one, too
    POST   /v1/buffers            memory that the service shares with a client on its host
    POST   /v1/jobs               a file job, as JSON; the answer is its number
    GET    /v1/jobs               the newest jobs
    GET    /v1/jobs/7?wait=10     one job; waits for its end, at most 10 seconds
    DELETE /v1/jobs/7             cancel it
    GET    /v1/events             updates, as server-sent events
    GET    /v1/activity?after=9   times of jobs on each rank, scans of arrays, samples of the load
    GET    /metrics               counts and times, for Prometheus
    GET    /healthz               whether jobs are taken
    GET    /                      a page for browsers, and its files in /page/
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from ..job.progress import Progress
from ..version import __version__
from . import protocol, requests
from .dispatch import Dispatcher
from .errors import BusyError, StoreError
from .monitoring import MEDIA_TYPE, Metrics, RequestCounter
from .requests import Guard, Json, Names, OriginFilter, Paths, StreamedAnswer
from .scans import Scans
from .store import Record


class App:
    """The routes, over one dispatcher."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        scans: Scans,
        paths: Paths,
        token: str | None,
        *,
        facts: dict[str, Any],
        metrics: Metrics,
        names: Names,
    ) -> None:
        """``facts`` describe the service; ``names`` are those by which clients may call it."""
        self._dispatcher, self._scans, self._metrics = dispatcher, scans, metrics
        self._about = {"version": __version__, "protocol": protocol.VERSION, **facts}
        guard, changes = Guard(token, metrics), Changes()
        #: The clients that follow the service: their streams must end before the server does.
        self.events = Events(dispatcher, changes, self._about)
        dispatcher.listeners.append(changes.notify)
        routes = [
            Route("/v1", guard(self.about)),
            Route("/v1/openapi.json", guard(_openapi)),
            *scans.routes(guard),
            *Jobs(dispatcher, paths, changes).routes(guard),
            Route("/v1/events", guard(self.events.events)),
            Route("/v1/activity", guard(self.activity)),
            Route("/metrics", guard(self.metrics)),
            Route("/healthz", self.health),
            *_page_routes(),
        ]
        self.asgi = Starlette(
            routes=routes,
            middleware=[
                Middleware(RequestCounter, metrics, routes),
                Middleware(OriginFilter, guard, names),
            ],
            # A number in a path may have more digits than Python takes: a ValueError.
            exception_handlers={404: _no_route, 405: _no_route, ValueError: _no_route},
        )

    async def about(self, request: Request) -> Response:
        """Describe this service."""
        return Json(self._about)

    async def activity(self, request: Request) -> Response:
        """Return what the service has done of late."""
        last = requests.number(request.query_params, "after", 0)

        def answer() -> Json:
            waiting = {"arrays_waiting": self._scans.waiting}
            return Json(self._dispatcher.activity.after(last) | waiting)

        return await run_in_threadpool(answer)

    async def metrics(self, request: Request) -> Response:
        """Return counts and times. Some are read from the disk, so not in the event loop."""
        text = await run_in_threadpool(self._metrics.text)
        return Response(text, media_type=MEDIA_TYPE)

    async def health(self, request: Request) -> Response:
        """Say whether jobs are taken."""
        status = "ending" if self._dispatcher.stopping else "ok"
        try:
            await run_in_threadpool(self._dispatcher.store.check)
        except StoreError:
            status = "lost"
        return Json({"status": status}, 200 if status == "ok" else 503)


_DOCUMENT = Path(__file__).with_name("openapi.json").read_bytes()


async def _openapi(request: Request) -> Response:
    """Return the description of the protocol."""
    return Response(_DOCUMENT, media_type="application/json")


async def _no_route(request: Request, error: Exception) -> Response:
    text = f"{request.method} {request.url.path} is not of protocol {protocol.VERSION}"
    status = getattr(error, "status_code", 404)
    return Json({"error": {"type": "NotFoundError", "message": text}}, status)


# ---- the page for browsers: static files, which hold no data, so they need no token --------------

# The page takes nothing from elsewhere, and no other page may show it.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
_PAGE_HEADERS = {
    "cache-control": "no-store",  # or a browser might mix files of two versions
    "content-security-policy": _PAGE_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _PageFiles(StaticFiles):
    """Files, with the headers that protect the page."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return the answer for a file that is there."""
        answer = super().file_response(*args, **options)
        answer.headers.update(_PAGE_HEADERS)
        return answer


def _page_routes() -> list[BaseRoute]:
    """Return the routes of the page: ``/``, and the files of the folder ``page``."""
    # An installer may have made links of the files.
    files = _PageFiles(directory=Path(__file__).with_name("page"), follow_symlink=True)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    async def icon(request: Request) -> Response:  # which browsers ask for beside any answer
        return await files.get_response("icon.svg", request.scope)

    return [Route("/", index), Route("/favicon.ico", icon), Mount("/page", files)]


# ---- requests that wait until a job has begun, goes on, or has ended -----------------------------


class Changes:
    """Wakes requests, which are in the thread of the event loop; any thread may notify."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = set[asyncio.Event]()

    @contextmanager
    def watch(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set at each change; the request clears it."""
        self._loop, changed = asyncio.get_running_loop(), asyncio.Event()
        self._waiting.add(changed)
        try:
            yield changed
        finally:
            self._waiting.discard(changed)

    def notify(self) -> None:
        """Wake the requests that wait."""
        if self._loop is not None and self._waiting:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()


# ---- file jobs: to submit one, to list them, to wait for one, to cancel it -----------------------

_LONGEST_KEY = 200  # characters of a key at most
_LOOKUPS = 4  # requests whose paths are looked up at a time
_LONGEST_WAIT = 60.0  # seconds that a request may wait for the end of a job


class Jobs:
    """The routes of file jobs."""

    def __init__(self, dispatcher: Dispatcher, paths: Paths, changes: Changes) -> None:
        self._dispatcher, self._paths, self._changes = dispatcher, paths, changes
        # A disk that does not answer must not take the threads of all other requests.
        self._lookups = CapacityLimiter(_LOOKUPS)

    def routes(self, guard: Guard) -> list[Route]:
        """Return the routes, each with its checks."""
        return [
            Route("/v1/jobs", guard(self.submit), methods=["POST"]),
            Route("/v1/jobs", guard(self.newest)),
            Route("/v1/jobs/{number:int}", guard(self.job)),
            Route("/v1/jobs/{number:int}", guard(self.cancel), methods=["DELETE"]),
        ]

    async def submit(self, request: Request) -> Response:
        """Queue a file job."""
        body = await requests.json_of(request)
        job = await to_thread.run_sync(requests.job_of, body, self._paths, limiter=self._lookups)
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _LONGEST_KEY:
            raise ValueError(f"a key has 1 to {_LONGEST_KEY} characters")
        record = await run_in_threadpool(self._dispatcher.submit, job, key)
        return Json(record_json(record, None), 202)

    async def newest(self, request: Request) -> Response:
        """List jobs, the newest first."""
        limit = min(max(requests.number(request.query_params, "most", 100), 0), 1000)
        before = requests.number(request.query_params, "before", 1 << 62)

        def answer() -> Json:
            records = self._dispatcher.store.newest(limit, before)
            return Json({"jobs": [record_json(record, None) for record in records]})

        return await run_in_threadpool(answer)

    async def job(self, request: Request) -> Response:
        """Return a job; with ``wait``, when it has ended or these seconds have passed."""
        number, now = request.path_params["number"], asyncio.get_running_loop().time
        end = now() + min(requests.seconds(request.query_params, "wait"), _LONGEST_WAIT)
        with self._changes.watch() as changed:
            while True:
                changed.clear()
                record = await run_in_threadpool(self._dispatcher.store.summary, number)
                seconds = end - now()
                if record is None or record.state in protocol.ENDED or seconds <= 0:
                    break
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), seconds)
        return Json(record_json(*await run_in_threadpool(self._dispatcher.get, number)))

    async def cancel(self, request: Request) -> Response:
        """Cancel a job."""
        number = request.path_params["number"]
        return Json(record_json(await run_in_threadpool(self._dispatcher.cancel, number), None))


def record_json(record: Record, progress: Progress | None) -> dict[str, Any]:
    """Return a job as clients see it: with all its inputs, or in lists with the first of them."""
    fields = record._asdict()
    fields["progress"] = None if progress is None else progress._asdict()
    return fields


# ---- updates: the changes since the last events of a client --------------------------------------

#     snapshot    the service, and its jobs: first, and again if a client has missed too much
#     job         a job that is new, or in another state
#     progress    how far the running job is
#     service     how many jobs wait, and whether jobs are taken
#
# No event waits for its client: updates are made from the present state when they are sent.

_SNAPSHOT_ENDED = 100  # jobs of a snapshot that have ended: the newest
_SNAPSHOT_OPEN = 1000  # jobs of a snapshot that have not: the oldest
_MOST_EVENTS = 100  # events of jobs at a time; more become a snapshot
Event = tuple[str, dict[str, Any]]


class Updates:
    """The events for one client; one thread at a time calls its methods."""

    def __init__(self, dispatcher: Dispatcher, about: dict[str, Any]) -> None:
        """``about`` is the answer to ``GET /v1``."""
        self._dispatcher, self._store, self._about = dispatcher, dispatcher.store, about
        # The state that the client knows.
        self._changes = -1  # the store's count
        self._newest = 0  # the newest job
        self._open = dict[int, str]()  # the states of jobs that have not ended
        self._current_job: tuple[int, Progress] | None = None
        self._service = dict[str, Any]()

    def events(self) -> list[Event]:
        """Return the events since the last call: at first a snapshot."""
        first, changes = self._changes < 0, self._store.changes
        previous, self._current_job = self._current_job, self._dispatcher.current_job
        numbers = [] if changes == self._changes else self._changed()
        service, self._service = self._service, self._state()
        self._changes = changes
        if first or len(numbers) > _MOST_EVENTS:
            return [("snapshot", self._snapshot())]
        events = [("job", job) for job in self._jobs(numbers)]
        if self._current_job is not None and self._current_job != previous:
            number, progress = self._current_job
            if number not in numbers:
                events.append(("progress", {"number": number, "progress": progress._asdict()}))
        if self._service != service:
            events.append(("service", self._service))
        return events

    def _changed(self) -> list[int]:
        """Return the numbers of jobs that are new, or in another state."""
        new = self._store.numbers_after(self._newest, _MOST_EVENTS + 1)
        before, self._open = self._open, self._store.open_states()
        self._newest = max([self._newest, *new])
        open_numbers = before.keys() | self._open.keys()
        return sorted({*new} | {n for n in open_numbers if before.get(n) != self._open.get(n)})

    def _snapshot(self) -> dict[str, Any]:
        """Return the service and its jobs, the newest first."""
        ended, waiting = self._store.newest_ended(_SNAPSHOT_ENDED), sorted(self._open)
        self._newest = max([self._newest, *ended, *waiting[-1:]])
        jobs = self._jobs(sorted({*ended, *waiting[:_SNAPSHOT_OPEN]}, reverse=True))
        return {"about": self._about, "now": time(), **self._service, "jobs": jobs}

    def _state(self) -> dict[str, Any]:
        """Return whether jobs are taken, and how many wait."""
        queued = sum(state == "queued" for state in self._open.values())
        return {"status": "ending" if self._dispatcher.stopping else "ok", "queued": queued}

    def _jobs(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Return jobs as clients see them."""
        running, progress = self._current_job or (None, None)
        records = [self._store.summary(number) for number in numbers]
        return [
            record_json(record, progress if record.number == running else None)
            for record in records
            if record is not None
        ]


# ---- ``GET /v1/events``: updates as server-sent events -------------------------------------------

#     retry: 2000
#
#     id: 1
#     event: snapshot
#     data: {"about": {...}, "now": 1767225600.0, "status": "ok", "queued": 3, "jobs": [...]}
#
#     id: 2
#     event: progress
#     data: {"number": 7, "progress": {"phase": "scan", "done": 1024, "size": 4096, "share": 0.25}}
#
#     : the service is there
#
# Each connection begins with a snapshot, so a client that connects again has missed nothing.

_log = logging.getLogger("distscan.service")
_CLIENTS = 100  # clients at a time
_PAUSE = 0.25  # seconds between two updates
_HEARTBEAT = 15.0  # seconds without updates after which a comment is sent
_RETRY = 2000  # milliseconds after which a client may come back
# Nor may nginx keep it back.
_EVENT_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Events:
    """The clients that follow the service."""

    def __init__(self, dispatcher: Dispatcher, changes: Changes, about: dict[str, Any]) -> None:
        """``about`` is the answer to ``GET /v1``."""
        self._dispatcher, self._changes, self._about = dispatcher, changes, about
        self._clients, self._ended = 0, False

    def end(self) -> None:
        """Send the last updates, and end all streams; any thread may call this."""
        self._ended = True
        self._changes.notify()

    async def events(self, request: Request) -> Response:
        """Send events to a client until it goes or the service ends."""
        if self._clients >= _CLIENTS:
            raise BusyError(f"{_CLIENTS} clients follow this service already; try again later")
        self._clients += 1
        stack = ExitStack()
        stack.callback(self._leave)
        changed = stack.enter_context(self._changes.watch())
        return StreamedAnswer(
            self._stream(changed), stack, headers=_EVENT_HEADERS, media_type="text/event-stream"
        )

    def _leave(self) -> None:
        self._clients -= 1

    async def _stream(self, changed: asyncio.Event) -> AsyncIterator[bytes]:
        """Yield the events. The next ones are looked for when the client has taken the last."""
        updates, number, ended = Updates(self._dispatcher, self._about), 0, False
        yield f"retry: {_RETRY}\n\n".encode()
        while not ended:
            changed.clear()
            ended = self._ended
            try:
                events = await run_in_threadpool(_event_texts, updates)
            except StoreError as error:
                _log.warning("a client that follows the service must come again: %s", error)
                return
            for name, data in events:
                number += 1
                yield f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode()
            if not ended:
                await asyncio.sleep(_PAUSE)
                while not await _wait_for(changed, _HEARTBEAT):
                    yield b": the service is there\n\n"


def _event_texts(updates: Updates) -> list[tuple[str, str]]:
    """Return the next events of a client: their names, and their data as JSON."""
    return [(name, requests.dumps(data)) for name, data in updates.events()]


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, at most some seconds; return whether it is."""
    with suppress(TimeoutError, asyncio.TimeoutError):
        return await asyncio.wait_for(event.wait(), seconds)
    return False
