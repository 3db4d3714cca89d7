"""The requests for scans of arrays, and for memory that the service shares with clients.

::

    small     body -> memory -> rank 0 -> body
    large     body -> buffer -> rank 0, or all ranks -> buffer -> body
    shared              buffer -> rank 0, or all ranks -> buffer
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import ExitStack
from time import perf_counter, time
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..core import dtypes
from ..core.form import Extents
from ..fsum.request import result_type
from ..job.formats import npy
from . import arrays, errors, requests
from .activity import ArrayScan
from .arrays import SMALL, Buffer, Place, Pool, Scanner, Task
from .dispatch import Dispatcher
from .errors import BusyError
from .monitoring import Metrics
from .requests import Guard, Json, ScanQuery, StreamedAnswer, too_large

_log = logging.getLogger("distscan.service")
_PIECE = 1 << 20  # bytes of an answer that are sent at a time
_NPY = "application/x-npy"
_LONGEST_NAME = 40  # characters of an operator's name, which may be wrong


class _Moved(NamedTuple):
    """The array that a scan has read, and the bytes that it has read and written."""

    elements: int
    dtype: str
    input: int  # bytes
    output: int  # bytes


class Limits(NamedTuple):
    """The limits of arrays that the service accepts."""

    body: int  # bytes of an array
    waiting: int  # large arrays that may wait


class Scans:
    """The routes of arrays."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        scanner: Scanner,
        pool: Pool,
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self._dispatcher, self._scanner, self._pool = dispatcher, scanner, pool
        self._limits, self._metrics, self._turn = limits, metrics, asyncio.Lock()
        #: Large arrays that wait for their turn, with the one that has it.
        self.waiting = 0

    def routes(self, guard: Guard) -> list[Route]:
        """Return the routes, each with its checks."""
        return [
            Route("/v1/scans", guard(self.scan), methods=["POST"]),
            Route("/v1/buffers", guard(self.buffer), methods=["POST"]),
        ]

    async def buffer(self, request: Request) -> Response:
        """Give a client on this host memory that it shares with the service."""
        size = requests.size_of(await requests.json_of(request))
        if size > self._limits.body:
            raise too_large(self._limits.body)
        return Json(await run_in_threadpool(self._pool.offer, size), 201)

    async def scan(self, request: Request) -> Response:
        """Scan the array of the body; if the body is JSON, an array in a buffer."""
        media_type = request.headers.get("content-type", "")
        way: Literal["body", "shared"] = (
            "shared" if media_type.startswith("application/json") else "body"
        )
        op = request.query_params.get("op", "sum")[:_LONGEST_NAME]
        scan = ArrayScan(time(), 0.0, op, way, None, None, None)
        start, activity = perf_counter(), self._dispatcher.activity
        try:
            query = requests.scan_of(request.query_params)
            if way == "shared":
                answer, moved = await self._answer_shared(request, query)
            else:
                answer, moved = await self._answer_body(request, query)
        except ClientDisconnect:
            raise
        except Exception as error:
            self._metrics.count_failed_scan(error)
            kind, seconds = errors.to_json(error)["type"], perf_counter() - start
            activity.add_scan(scan._replace(seconds=seconds, error=kind))
            raise
        seconds = perf_counter() - start
        self._metrics.count_scan(way, seconds, moved.input, moved.output)
        activity.count("arrays", moved.input)
        activity.add_scan(
            scan._replace(seconds=seconds, elements=moved.elements, dtype=moved.dtype)
        )
        facts = {"op": op, "way": way, "seconds": seconds, "bytes": moved.input}
        _log.debug("%(op)s of an array of %(bytes)s bytes, %(way)s: %(seconds).6f s", facts,
                   extra=facts)  # fmt: skip
        return answer

    async def _answer_shared(self, request: Request, query: ScanQuery) -> tuple[Response, _Moved]:
        """Answer a request for a scan in buffers."""
        with ExitStack() as stack:
            task = requests.task_of(await requests.json_of(request), query.arguments)
            moved = await self._scan_shared(task, stack)
        return Response(status_code=204), moved

    async def _answer_body(self, request: Request, query: ScanQuery) -> tuple[Response, _Moved]:
        """Answer a request with an array in its body."""
        with ExitStack() as stack:
            body, buffer = await self._receive(request, stack)
            if buffer is None:
                content, x = await run_in_threadpool(self._scan_small, body, query)
                moved = _Moved(x.size, str(x.dtype), len(body), len(content))
                return Response(content, media_type=_NPY), moved
            x, size, pieces = await self._scan_large(body, buffer, query, stack)
            length, resources = {"content-length": str(size)}, stack.pop_all()
        answer = StreamedAnswer(_pieces(pieces), resources, headers=length, media_type=_NPY)
        return answer, _Moved(x.size, str(x.dtype), len(body), size)

    async def _receive(
        self, request: Request, stack: ExitStack
    ) -> tuple[memoryview, Buffer | None]:
        """Receive the body: a small one in memory of its own, a larger one in a buffer."""
        limit, length = self._limits.body, int(request.headers.get("content-length", 0))
        if length > limit:
            raise too_large(limit)
        head, size, stream = bytearray(), 0, request.stream()
        async for piece in stream:
            head += piece
            if len(head) > SMALL:
                break
        else:
            return memoryview(head), None
        buffer, memory = await self._reserve(max(length, 2 * SMALL), stack)
        memory[: len(head)], size = head, len(head)
        async for piece in stream:
            end = size + len(piece)
            if end > limit:
                raise too_large(limit)
            if end > len(memory):  # a request in chunks does not say its size
                buffer, memory = await self._reserve(2 * end, stack, memory[:size])
            memory[size:end], size = piece, end
        return memory[:size], buffer

    async def _reserve(
        self, size: int, stack: ExitStack, content: bytes | memoryview = b""
    ) -> tuple[Buffer, memoryview]:
        """Return a buffer for this request, and its memory, which begins with some bytes."""

        def reserve() -> tuple[Buffer, memoryview]:
            buffer = stack.enter_context(self._pool.reserve(size))
            memory = self._scanner.maps.bytes(str(buffer.path))
            memory[: len(content)] = np.frombuffer(content, np.uint8)  # without the GIL
            return buffer, memory.data

        return await run_in_threadpool(reserve)

    def _scan_small(self, body: memoryview, query: ScanQuery) -> tuple[bytes, NDArray[Any]]:
        """Scan the array of a body; return the result as a file, and the array."""
        x, segments, _ = _parse(body, query.has_segments)
        out = np.empty(*_result_of(x, query))
        self._scanner.scan_by_one(x, out, segments, query.arguments)
        return npy.header_of(out.dtype, out.shape) + out.tobytes(), x

    async def _scan_large(
        self, body: memoryview, buffer: Buffer, query: ScanQuery, stack: ExitStack
    ) -> tuple[NDArray[Any], int, list[memoryview]]:
        """Scan the array in a buffer into another one.

        Return the array, and the size and the parts of the result's file.
        """
        x, segments, ends = _parse(body, query.has_segments)
        shape, dtype = _result_of(x, query)
        head, nbytes = npy.header_of(dtype, shape), math.prod(shape) * dtype.itemsize
        result, _ = await self._reserve(nbytes, stack)
        target = Place(str(result.path), 0, dtype.str, shape)
        path, places = str(buffer.path), list[Place]()
        for array, end in zip((x, segments), ends, strict=True):
            if array is not None and array.flags.c_contiguous:
                places.append(Place(path, end - array.nbytes, array.dtype.str, array.shape))
        task = None
        if len(places) == 1 + query.has_segments:  # none is in Fortran order
            flags = places[1] if query.has_segments else None
            task = Task(places[0], target, flags, query.arguments)
        out = await run_in_threadpool(self._scanner.maps.array, target)
        await self._take_turn(x, out, segments, query.arguments, task)
        return x, len(head) + nbytes, [memoryview(head), out.reshape(-1).view(np.uint8).data]

    async def _scan_shared(self, task: Task, stack: ExitStack) -> _Moved:
        """Scan an array in a client's buffer into another one, or the same."""
        stack.enter_context(self._pool.use(task.out.path, write=True))
        read = {place.path for place in (task.x, task.segments) if place is not None}
        for path in read - {task.out.path}:
            stack.enter_context(self._pool.use(path))

        def map_arrays() -> list[Any]:
            places = task.x, task.out, task.segments
            return [None if place is None else self._scanner.maps.array(place) for place in places]

        x, out, segments = await run_in_threadpool(map_arrays)
        await self._take_turn(x, out, segments, task.options, task)
        nbytes = x.nbytes + (0 if segments is None else segments.nbytes)
        return _Moved(x.size, str(x.dtype), nbytes, out.nbytes)

    async def _take_turn(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        segments: NDArray[Any] | None,
        options: dict[str, Any],
        task: Task | None,
    ) -> None:
        """Scan an array; large ones one after the other, since each has all cores or GPUs."""
        if x.nbytes <= SMALL:
            await run_in_threadpool(self._scanner.scan_by_one, x, out, segments, options)
            return
        if self.waiting >= self._limits.waiting:
            raise BusyError(f"{self.waiting} arrays wait already; try again later")
        self.waiting += 1
        try:
            async with self._turn:
                all_ranks = None
                if task is not None and self._scanner.needs_all(x):
                    all_ranks = await run_in_threadpool(self._dispatcher.scan, task)
                if all_ranks is not None:
                    await asyncio.wrap_future(all_ranks)
                else:
                    await run_in_threadpool(self._scanner.scan_by_one, x, out, segments, options)
        finally:
            self.waiting -= 1


def _parse(body: memoryview, has_segments: bool) -> tuple[Any, Any, tuple[int, int]]:
    """Return the array of a body, the flags or keys that follow it, and the end byte of each."""
    x, end = arrays.parse(body)
    segments, more = arrays.parse(body[end:]) if has_segments else (None, 0)
    return x, segments, (end, end + more)


def _result_of(x: NDArray[Any], query: ScanQuery) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the type of a scan's result. Without an axis it is flat, as in NumPy."""
    options = query.options
    shape = Extents.of(x.shape, options.axis).result_shape
    if options.op == "fsum":
        return shape, result_type(x.dtype, query.out, options.dtype)
    return shape, dtypes.resolve(options.op, x.dtype, options.dtype, query.out).out


async def _pieces(parts: list[memoryview]) -> AsyncIterator[bytes]:
    """Yield the parts of an answer in pieces."""
    for part in parts:
        for low in range(0, len(part), _PIECE):
            yield bytes(part[low : low + _PIECE])
