"""The requests for scans of arrays."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from . import arrays, requests
from .dispatch import Dispatcher
from .guard import Guard, too_large

SMALL = 1 << 20  # bytes of an array that rank 0 scans alone: to wake the others takes longer
_PIECE = 1 << 20  # bytes of an answer that are sent at a time
_NPY = "application/x-npy"


class Limits(NamedTuple):
    """What the service takes."""

    body: int  # bytes of an array
    folder: Path  # in memory, for arrays on their way


class Scans:
    """The routes of arrays."""

    def __init__(self, dispatcher: Dispatcher, limits: Limits) -> None:
        self._dispatcher, self._limits = dispatcher, limits

    def routes(self, checked: Guard) -> list[Route]:
        """Return the routes, each with its checks."""
        return [Route("/v1/scans", checked(self.scan), methods=["POST"])]

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
            raise too_large(most)
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
                    raise too_large(most)
                file.write(piece)
        return None


async def _pieces(path: Path, held: ExitStack) -> AsyncIterator[bytes]:
    """Yield a file in pieces, and let go of it."""
    with held, path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
