"""The service over HTTP: requests in, JSON and arrays out.

::

    GET    /v1                    what this service is
    GET    /v1/openapi.json       this protocol, in full
    POST   /v1/scans?op=sum&...   an array in the format .npy; the answer is its scan, likewise
    POST   /v1/buffers            memory that the service shares with a client on its host
    POST   /v1/jobs               a file job, as JSON; the answer is its number
    GET    /v1/jobs               the newest jobs
    GET    /v1/jobs/7?wait=10     one job; waits for its end, at most so many seconds
    DELETE /v1/jobs/7             cancel it
    GET    /v1/events             what happens, as server-sent events
    GET    /metrics               counts and times, for Prometheus
    GET    /healthz               whether jobs are taken
    GET    /                      a page for browsers, and its files in /page/
"""

from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..version import __version__
from . import protocol, website
from .changes import Changes
from .dispatch import Dispatcher
from .errors import StoreError
from .events import Events
from .guard import Guard, Json
from .jobs import Jobs
from .metrics import MEDIA_TYPE, Counted, Metrics
from .origin import Names, Protected
from .requests import Paths
from .scans import Scans


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
        """``facts`` say what this service is, ``names`` how clients may call it."""
        self._dispatcher, self._metrics = dispatcher, metrics
        self._about = {"version": __version__, "protocol": protocol.VERSION, **facts}
        checked, changes = Guard(token, metrics), Changes()
        #: The clients that follow what happens: they must be let go before the server ends.
        self.events = Events(dispatcher, changes, self._about)
        dispatcher.listeners.append(changes.tell)
        routes = [
            Route("/v1", checked(self.about)),
            Route("/v1/openapi.json", checked(_openapi)),
            *scans.routes(checked),
            *Jobs(dispatcher, paths, changes).routes(checked),
            *self.events.routes(checked),
            Route("/metrics", checked(self.metrics)),
            Route("/healthz", self.health),
            *website.routes(),
        ]
        self.asgi = Starlette(
            routes=routes,
            middleware=[
                Middleware(Counted, metrics, routes),
                Middleware(Protected, checked, names),
            ],
            # A number in a path may have more digits than Python takes: a ValueError.
            exception_handlers={404: _no_route, 405: _no_route, ValueError: _no_route},
        )

    async def about(self, request: Request) -> Response:
        """Say what this service is."""
        return Json(self._about)

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
