"""The requests for file jobs: to submit one, to list them, to wait for one, to cancel it."""

import asyncio
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from . import guard, protocol, requests
from .changes import Changes
from .dispatch import Dispatcher, Progress
from .guard import Guard, Json
from .requests import Paths
from .store import Record

_KEY = 200  # characters of a key at most
_LONGEST = 60.0  # seconds that a request may wait for the end of a job


class Jobs:
    """The routes of file jobs."""

    def __init__(self, dispatcher: Dispatcher, paths: Paths, changes: Changes) -> None:
        self._dispatcher, self._paths, self._changes = dispatcher, paths, changes

    def routes(self, checked: Guard) -> list[Route]:
        """Return the routes, each with its checks."""
        return [
            Route("/v1/jobs", checked(self.submit), methods=["POST"]),
            Route("/v1/jobs", checked(self.newest)),
            Route("/v1/jobs/{number:int}", checked(self.job)),
            Route("/v1/jobs/{number:int}", checked(self.cancel), methods=["DELETE"]),
        ]

    async def submit(self, request: Request) -> Response:
        """Queue a file job."""
        job = requests.job_of(await guard.json_of(request), self._paths)
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY:
            raise ValueError(f"a key has 1 to {_KEY} characters")
        record = await run_in_threadpool(self._dispatcher.submit, job, key)
        return Json(to_json(record, None), 202)

    async def newest(self, request: Request) -> Response:
        """List jobs, the newest first."""
        most = min(max(requests.number(request.query_params, "most", 100), 0), 1000)
        before = requests.number(request.query_params, "before", 1 << 62)
        records = await run_in_threadpool(self._dispatcher.newest, most, before)
        return Json({"jobs": [to_json(record, None) for record in records]})

    async def job(self, request: Request) -> Response:
        """Return a job; with ``wait``, at its end or after so many seconds."""
        number, now = request.path_params["number"], asyncio.get_running_loop().time
        end = now() + min(requests.seconds(request.query_params, "wait"), _LONGEST)
        with self._changes.watched() as changed:
            while True:
                changed.clear()
                record, progress = await run_in_threadpool(self._dispatcher.get, number)
                left = end - now()
                if record.state in protocol.ENDED or left <= 0:
                    return Json(to_json(record, progress))
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)

    async def cancel(self, request: Request) -> Response:
        """Cancel a job."""
        number = request.path_params["number"]
        return Json(to_json(await run_in_threadpool(self._dispatcher.cancel, number), None))


def to_json(record: Record, progress: Progress | None) -> dict[str, Any]:
    """Return a job as clients see it."""
    found = record._asdict()
    found["progress"] = None if progress is None else progress._asdict()
    return found
