"""The service over HTTP: requests in, JSON and arrays out.

::

    GET    /v1                    what this service is
    POST   /v1/scans?op=sum&...   an array in the format .npy; the answer is its scan, likewise
    POST   /v1/jobs               a file job, as JSON; the answer is its number
    GET    /v1/jobs               the newest jobs
    GET    /v1/jobs/7?wait=10     one job; waits for its end, at most so many seconds
    DELETE /v1/jobs/7             cancel it
    GET    /healthz               whether jobs are taken
"""

import asyncio
import hmac
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..version import __version__
from . import arrays, errors, protocol, requests
from .dispatch import Dispatcher, Progress
from .errors import ForbiddenError, ProtocolError, TooLargeError, UnauthorizedError
from .requests import Paths
from .store import Record

_log = logging.getLogger("distscan.service")
SMALL = 1 << 20  # bytes of an array that rank 0 scans alone: to wake the others takes longer
_PIECE = 1 << 20  # bytes of an answer that are sent at a time
_KEY = 200  # characters of a key at most
_LONGEST = 60.0  # seconds that a request may wait for the end of a job


class Limits(NamedTuple):
    """What the service takes, and from whom."""

    body: int  # bytes of an array
    folder: Path  # in memory, for arrays on their way
    token: str | None = None  # that a client must bring; None: the socket's mode says who may


class App:
    """The routes, over one dispatcher."""

    def __init__(self, dispatcher: Dispatcher, paths: Paths, limits: Limits, facts: dict[str, Any]):
        """``facts`` say what this service is."""
        self._dispatcher, self._paths, self._limits, self._facts = dispatcher, paths, limits, facts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = set[asyncio.Event]()
        dispatcher.notify = self._notify
        self.asgi = Starlette(
            routes=[
                Route("/v1", self._checked(self.about)),
                Route("/v1/scans", self._checked(self.scan), methods=["POST"]),
                Route("/v1/jobs", self._checked(self.submit), methods=["POST"]),
                Route("/v1/jobs", self._checked(self.newest)),
                Route("/v1/jobs/{number:int}", self._checked(self.job)),
                Route("/v1/jobs/{number:int}", self._checked(self.cancel), methods=["DELETE"]),
                Route("/healthz", self.health),
            ],
            exception_handlers={404: _no_route, 405: _no_route},
        )

    def _checked(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Answer requests of clients of this protocol; exceptions become answers, too."""

        async def route(request: Request) -> Response:
            self._loop = asyncio.get_running_loop()
            try:
                self._check_token(request)
                spoken = request.headers.get("distscan-protocol", str(protocol.VERSION))
                if spoken != str(protocol.VERSION):
                    raise ProtocolError(
                        f"the client speaks protocol {spoken}, this service {protocol.VERSION} "
                        f"(distscan {__version__}): install the same version on both sides"
                    )
                return await answer(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except Exception as error:
                if isinstance(error, ForbiddenError):
                    _log.warning("%s %s was refused: %s", request.method, request.url.path, error)
                return JSONResponse({"error": errors.to_json(error)}, errors.status(error))

        return route

    def _check_token(self, request: Request) -> None:
        """Refuse a client that does not bring the token."""
        wanted = self._limits.token
        said = request.headers.get("authorization", "")
        if wanted is not None and not hmac.compare_digest(
            said.encode(), f"Bearer {wanted}".encode()
        ):
            who = request.client.host if request.client else "a client"
            _log.warning("%s was refused: %s", who, "a wrong token" if said else "no token")
            raise UnauthorizedError("this service takes requests with its token only")

    def _notify(self) -> None:
        """Wake the requests that wait for a job; any thread calls this."""

        def wake() -> None:
            for each in self._waiting:
                each.set()

        if self._loop is not None and self._waiting:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(wake)

    # ---- routes ----------------------------------------------------------------------------------

    async def about(self, request: Request) -> Response:
        """Say what this service is."""
        return JSONResponse({"version": __version__, "protocol": protocol.VERSION, **self._facts})

    async def health(self, request: Request) -> Response:
        """Say whether jobs are taken."""
        ends = self._dispatcher.stopping
        return JSONResponse({"status": "ending" if ends else "ok"}, 503 if ends else 200)

    async def submit(self, request: Request) -> Response:
        """Queue a file job."""
        try:
            asked = json.loads(await _body(request, 1 << 20))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the request is no JSON: {error}") from None
        job = requests.job_of(asked, self._paths)
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY:
            raise ValueError(f"a key has 1 to {_KEY} characters")
        record = await run_in_threadpool(self._dispatcher.submit, job, key)
        return JSONResponse(_job(record, None), 202)

    async def newest(self, request: Request) -> Response:
        """List jobs, the newest first."""
        most = min(max(requests.number(request.query_params, "most", 100), 0), 1000)
        before = requests.number(request.query_params, "before", 1 << 62)
        records = await run_in_threadpool(self._dispatcher.newest, most, before)
        return JSONResponse({"jobs": [_job(record, None) for record in records]})

    async def job(self, request: Request) -> Response:
        """Return a job; with ``wait``, at its end or after so many seconds."""
        number = request.path_params["number"]
        wait = min(requests.seconds(request.query_params, "wait"), _LONGEST)
        end, changed = asyncio.get_running_loop().time() + wait, asyncio.Event()
        self._waiting.add(changed)
        try:
            while True:
                changed.clear()
                record, progress = await run_in_threadpool(self._dispatcher.get, number)
                left = end - asyncio.get_running_loop().time()
                if record.state in protocol.ENDED or left <= 0:
                    return JSONResponse(_job(record, progress))
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
        finally:
            self._waiting.discard(changed)

    async def cancel(self, request: Request) -> Response:
        """Cancel a job."""
        number = request.path_params["number"]
        return JSONResponse(_job(await run_in_threadpool(self._dispatcher.cancel, number), None))

    async def scan(self, request: Request) -> Response:
        """Scan the array of the request."""
        options = requests.scan_of(request.query_params)
        with ExitStack() as held:
            folder = held.enter_context(tempfile.TemporaryDirectory(dir=self._limits.folder))
            source, target = Path(folder, "x.npy"), Path(folder, "y.npy")
            small = await self._receive(request, source)
            if small is not None:
                made = await run_in_threadpool(arrays.scan_alone, small, options)
                return Response(made, media_type=_NPY)
            job = arrays.job_of(source, target, options)
            await asyncio.wrap_future(self._dispatcher.scan(job))
            source.unlink()
            size, removed = target.stat().st_size, held.pop_all()
        return StreamingResponse(
            _pieces(target, removed), headers={"content-length": str(size)}, media_type=_NPY
        )

    async def _receive(self, request: Request, path: Path) -> bytes | None:
        """Receive the body: return a small one, write a larger one to a file."""
        most, small = self._limits.body, bytearray()
        if int(request.headers.get("content-length", 0)) > most:
            raise _too_large(most)
        stream = request.stream()
        async for piece in stream:
            small += piece
            if len(small) > SMALL:
                break
        else:
            return bytes(small)
        size = len(small)
        with path.open("wb", buffering=0) as file:
            file.write(small)
            async for piece in stream:
                size += len(piece)
                if size > most:
                    raise _too_large(most)
                file.write(piece)
        return None


_NPY = "application/x-npy"


async def _pieces(path: Path, held: ExitStack) -> AsyncIterator[bytes]:
    """Yield a file in pieces, and let go of it."""
    with held, path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


async def _body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"the request has more than {most} bytes, the most that is taken")


async def _no_route(request: Request, error: Exception) -> Response:
    text = f"{request.method} {request.url.path} is not of protocol {protocol.VERSION}"
    status = getattr(error, "status_code", 404)
    return JSONResponse({"error": {"type": "NotFoundError", "message": text}}, status)


def _job(record: Record, progress: Progress | None) -> dict[str, Any]:
    """Return a job as clients see it."""
    found = record._asdict()
    found["progress"] = None if progress is None else progress._asdict()
    return found
