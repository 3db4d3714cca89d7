"""The client of a service for asyncio: ``Client``, whose requests wait in threads."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, NoReturn, TypeVar

from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..job.report import Report
from .client import Bar, Client, FilePath, JobHandle, connect, is_over, outcome
from .transport import Stop, current_stop

_AT_ONCE = 16  # requests of a client; a wait for a job is one now and then
_SOONEST, _LATEST = 0.02, 0.5  # seconds between two looks at a job
T = TypeVar("T")


def connect_async(
    address: FilePath | None = None,
    *,
    token: str | None = None,
    patience: float = 10.0,
    timeout: float | None = 600.0,
) -> "AsyncClient":
    """Return a client of a service for asyncio: its methods are those of ``connect``, to await.

    Requests wait in threads of the client's own. Waits for jobs take none. A task that is cancelled
    ends at once, and so does its request; jobs go on.

    Parameters
    ----------
    address, token, patience, timeout
        As in ``connect``.

    Returns
    -------
    AsyncClient
        ``await client.scan(x)`` scans an array, ``await client.submit(...)`` queues a file job.

    Raises
    ------
    ServiceError, NoAnswerError
        As ``connect``.

    Examples
    --------
    >>> async def main():
    ...     async with distscan.connect_async() as client:
    ...         job = await client.submit("input.npy")
    ...         print(await client.scan([3, 1, 4]))
    ...         await job.wait()
    >>> asyncio.run(main())  # doctest: +SKIP
    [3 4 8]
    """
    return AsyncClient(connect(address, token=token, patience=patience, timeout=timeout))


class AsyncJobHandle:
    """A file job of a service: ``JobHandle`` with coroutines."""

    def __init__(self, job: JobHandle, run: Callable[..., Any]) -> None:
        """``run`` awaits a call in a thread."""
        self._job, self._run = job, run

    def __repr__(self) -> str:
        return f"<Async{repr(self._job)[1:]}"

    def _repr_html_(self) -> str:
        return self._job._table()  # a request would hold up the event loop

    @property
    def number(self) -> int:
        """The number of the job in the service."""
        return self._job.number

    async def state(self) -> str:
        """Return the state now: "queued", "running", "done", "failed" or "cancelled"."""
        return str((await self._run(self._job.refresh))["state"])

    async def progress(self) -> tuple[str, int, int] | None:
        """Return the phase, the bytes that are done, and all bytes; None unless the job runs."""
        progress: tuple[str, int, int] | None = await self._run(self._job.progress)
        return progress

    async def wait(self, timeout: float | None = None, *, progress: bool = False) -> dict[str, Any]:
        """Wait for the end of the job, as ``JobHandle.wait`` does; it outlives a cancelled wait."""
        end, record = None if timeout is None else monotonic() + timeout, dict[str, Any]()
        with Bar(self.number) if progress else nullcontext() as bar:
            async for record in self.updates(end):
                if bar is not None:
                    bar.show(record)
        return outcome(record, timeout)

    async def result(self, timeout: float | None = None) -> Report:
        """Wait for the end of the job, and return its report, as ``JobHandle.result`` does."""
        return Report(**await self.wait(timeout))

    async def updates(self, end: float | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield the record of the job, as ``JobHandle.updates`` does. No thread waits."""
        pause = _SOONEST
        while True:
            record = await self._run(self._job.refresh)
            yield record
            if is_over(record, end):
                return
            seconds = pause if end is None else max(0.0, min(pause, end - monotonic()))
            await asyncio.sleep(seconds)
            pause = min(2 * pause, _LATEST)

    async def cancel(self) -> bool:
        """Cancel the job, as ``JobHandle.cancel`` does; return False if it had ended."""
        return bool(await self._run(self._job.cancel))


class AsyncClient:
    """A connection to a service: see ``distscan.connect_async``.

    Tasks may share it, also those of several event loops.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._start_threads()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.address}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled: connect in each process")

    def _start_threads(self) -> None:
        self._threads, self._process = ThreadPoolExecutor(_AT_ONCE, "distscan"), os.getpid()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; jobs go on. Requests that are not answered yet end."""
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def address(self) -> str:
        """The service's socket or URL."""
        return self._client.address

    async def about(self) -> dict[str, Any]:
        """Return a description of the service, as ``Client.about`` does."""
        return await self._run(self._client.about)

    async def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
        """Return a new array in memory that the service shares, as ``Client.empty`` does."""
        return await self._run(self._client.empty, shape, dtype)

    async def scan(self, x: ArrayLike, op: Any = "sum", **options: Any) -> NDArray[Any]:
        """Scan an array by the ranks of the service; the arguments are those of ``Client.scan``.

        The arrays must stay as they are until the scan has ended. If the task is cancelled, it ends
        at once, but ``out`` may be written to for a while: use it for nothing else.
        """
        return await self._run(self._client.scan, x, op, **options)

    async def submit(
        self,
        input: FilePath | Sequence[FilePath],
        output: FilePath | None = None,
        op: Any = "sum",
        *,
        key: str | None = None,
        **options: Any,
    ) -> AsyncJobHandle:
        """Queue a file job, as ``Client.submit`` does."""
        job = await self._run(self._client.submit, input, output, op, key=key, **options)
        return AsyncJobHandle(job, self._run)

    async def job(self, number: int) -> AsyncJobHandle:
        """Return a job by its number."""
        return AsyncJobHandle(await self._run(self._client.job, number), self._run)

    async def jobs(self, most: int = 20) -> list[AsyncJobHandle]:
        """Return the newest jobs, the newest first."""
        return [AsyncJobHandle(job, self._run) for job in await self._run(self._client.jobs, most)]

    async def _run(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function in a thread; if this task is cancelled, its request ends."""
        if self._process != os.getpid():  # it was forked: the threads are its parent's
            self._start_threads()
        stop, context = Stop(), copy_context()
        context.run(current_stop.set, stop)
        call = partial(context.run, function, *arguments, **options)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except asyncio.CancelledError:
            stop.set()
            raise
