"""A file job, as its client sees it."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, cast

from . import errors, protocol
from .errors import CancelledJobError
from .transport import Answer

_WAIT = 0.5  # seconds of one request that waits for a job
Request = Callable[..., Answer]


class Job:
    """A file job of a service."""

    def __init__(self, request: Request, record: dict[str, Any]) -> None:
        """``request`` sends a request: method, URL, and what else it has."""
        self._request, self._record = request, record

    def __repr__(self) -> str:
        return f"<Job {self.number}: {self._record['state']}>"

    @property
    def number(self) -> int:
        """The number by which the service knows it."""
        return int(self._record["number"])

    @property
    def state(self) -> str:
        """Its state now: "queued", "running", "done", "failed" or "cancelled"."""
        return str(self.refresh()["state"])

    def progress(self) -> tuple[str, int, int] | None:
        """Return its phase, the bytes that are done, and all bytes; None if it does not run."""
        found = self.refresh()["progress"]
        return None if found is None else (found["phase"], found["done"], found["size"])

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for its end, and return its report.

        Raises what the job has raised, ``CancelledJobError`` if it was cancelled, TimeoutError
        if it has not ended after ``timeout`` seconds.
        """
        end = None if timeout is None else monotonic() + timeout
        for record in self.updates(end):
            if record["state"] in protocol.ENDED:
                return self._result()
        raise TimeoutError(f"job {self.number} is {self._record['state']} after {timeout} s")

    def updates(self, end: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield what the service says of the job, now and then until it has ended."""
        while True:
            left = _WAIT if end is None else max(0.0, min(_WAIT, end - monotonic()))
            yield self.refresh(wait=left)
            if self._record["state"] in protocol.ENDED or (end is not None and monotonic() >= end):
                return

    def cancel(self) -> None:
        """Cancel it: at once if it waits, at its next chunk if it runs."""
        self._record = self._request("DELETE", f"/v1/jobs/{self.number}").json()

    def refresh(self, wait: float = 0) -> dict[str, Any]:
        """Ask the service what it knows of the job; wait up to so many seconds for its end."""
        url = f"/v1/jobs/{self.number}"
        self._record = self._request("GET", url, params={"wait": wait}).json()
        return self._record

    def _result(self) -> dict[str, Any]:
        if self._record["state"] == "cancelled":
            raise CancelledJobError(f"job {self.number} was cancelled")
        if self._record["state"] == "failed":
            raise errors.from_json(self._record["error"])
        return cast("dict[str, Any]", self._record["report"])
