"""The requests for file jobs: to submit one, to list them, to wait for one, to cancel it."""

import asyncio
from contextlib import suppress
from typing import Any

from anyio import CapacityLimiter, to_thread
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
_LOOKUPS = 4  # requests whose paths are looked up at a time
_LONGEST = 60.0  # seconds that a request may wait for the end of a job


class Jobs:
    """The routes of file jobs."""

    def __init__(self, dispatcher: Dispatcher, paths: Paths, changes: Changes) -> None:
        self._dispatcher, self._paths, self._changes = dispatcher, paths, changes
        # A disk that does not answer must not take the threads of all other requests.
        self._lookups = CapacityLimiter(_LOOKUPS)

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
        asked = await guard.json_of(request)
        job = await to_thread.run_sync(requests.job_of, asked, self._paths, limiter=self._lookups)
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY:
            raise ValueError(f"a key has 1 to {_KEY} characters")
        record = await run_in_threadpool(self._dispatcher.submit, job, key)
        return Json(to_json(record, None), 202)

    async def newest(self, request: Request) -> Response:
        """List jobs, the newest first."""
        most = min(max(requests.number(request.query_params, "most", 100), 0), 1000)
        before = requests.number(request.query_params, "before", 1 << 62)

        def answer() -> Json:
            records = self._dispatcher.newest(most, before)
            return Json({"jobs": [to_json(record, None) for record in records]})

        return await run_in_threadpool(answer)

    async def job(self, request: Request) -> Response:
        """Return a job; with ``wait``, at its end or after so many seconds."""
        number, now = request.path_params["number"], asyncio.get_running_loop().time
        end = now() + min(requests.seconds(request.query_params, "wait"), _LONGEST)
        with self._changes.watched() as changed:
            while True:
                changed.clear()
                record = await run_in_threadpool(self._dispatcher.store.summary, number)
                left = end - now()
                if record is None or record.state in protocol.ENDED or left <= 0:
                    break
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
        return Json(to_json(*await run_in_threadpool(self._dispatcher.get, number)))

    async def cancel(self, request: Request) -> Response:
        """Cancel a job."""
        number = request.path_params["number"]
        return Json(to_json(await run_in_threadpool(self._dispatcher.cancel, number), None))


def to_json(record: Record, progress: Progress | None) -> dict[str, Any]:
    """Return a job as clients see it: with all its inputs, or in lists with the first of them."""
    found = record._asdict()
    found["progress"] = None if progress is None else progress._asdict()
    return found
