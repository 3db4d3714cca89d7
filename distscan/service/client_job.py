"""A file job, as its client sees it."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from time import monotonic
from typing import Any, cast

from ..job.report import Report
from . import client_progress, errors, protocol
from .errors import CancelledJobError, JobEndedError
from .transport import Answer

_WAIT = 0.5  # seconds of one request that waits for a job
SILENT = 30.0  # seconds after which a service that says nothing is given up, scans apart
Request = Callable[..., Answer]


class Job:
    """A file job of a service. Threads may share it."""

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

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> dict[str, Any]:
        """Wait for its end, and return its report, as a dictionary.

        ``progress`` shows a bar, in a terminal and in a notebook, by tqdm. Ctrl-C ends the wait,
        and the job goes on.

        Raises what the job has raised, ``CancelledJobError`` if it was cancelled, TimeoutError
        if it has not ended after ``timeout`` seconds.
        """
        end = None if timeout is None else monotonic() + timeout
        record = self._record
        with client_progress.Bar(self.number) if progress else nullcontext() as bar:
            for record in self.updates(end):
                if bar is not None:
                    bar.show(record)
        return outcome(record, timeout)

    def result(self, timeout: float | None = None) -> Report:
        """Wait as ``wait`` does, and return what ``distscan.scan_file`` returns.

        ``report.output`` is the path of the output. ``report.total`` is as in JSON: NaN and
        infinities are text, complex numbers pairs.
        """
        return Report(**self.wait(timeout))

    def updates(self, end: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield what the service says of the job, now and then until it has ended.

        ``end`` is a time of ``time.monotonic`` at which this ends, too.
        """
        while True:
            left = _WAIT if end is None else max(0.0, min(_WAIT, end - monotonic()))
            record = self.refresh(wait=left)
            yield record
            if is_over(record, end):
                return

    def cancel(self) -> bool:
        """Cancel it: at once if it waits, at its next chunk if it runs.

        Returns False if it had ended: ``state`` says how. A job that runs may also end before its
        next chunk, after True.
        """
        try:
            self._record = self._request("DELETE", f"/v1/jobs/{self.number}").json()
        except JobEndedError:
            return False
        return True

    def refresh(self, wait: float = 0) -> dict[str, Any]:
        """Ask the service what it knows of the job; wait up to so many seconds for its end."""
        url, given = f"/v1/jobs/{self.number}", {"params": {"wait": wait}}
        record = dict(self._request("GET", url, timeout=wait + SILENT, **given).json())
        self._record = record
        return record


# What a service has said of a job. Those who wait for it keep it: another thread may ask, too.


def is_over(record: dict[str, Any], end: float | None) -> bool:
    """Whether a job has ended, or the time of those who wait for it."""
    return record["state"] in protocol.ENDED or (end is not None and monotonic() >= end)


def outcome(record: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    """Return a job's report, or raise what ``Job.wait`` raises."""
    number, state = record["number"], record["state"]
    if state == "cancelled":
        raise CancelledJobError(f"job {number} was cancelled")
    if state == "failed":
        raise errors.from_json(record["error"])
    if state != "done":
        raise TimeoutError(f"job {number} is {state} after {timeout} s")
    return cast("dict[str, Any]", record["report"])
