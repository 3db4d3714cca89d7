"""The logs of a service, on stderr, and its metrics, for Prometheus.

Logs are lines of text, or one JSON object a line::

    2026-01-01T00:00:00.000Z distscan: INFO: job 7 is done after 1.234 s

    {"job": 7, "op": "sum", "state": "done", "seconds": 1.234, "time": "2026-01-01T00:00:00.000Z",
     "level": "INFO", "logger": "distscan.service", "message": "job 7 is done after 1.234 s"}
"""

import json
import logging
import textwrap
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import errors, protocol
from .store import Record

LOG_FORMS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
_JOB_ENDS = {"done": "is done", "failed": "has failed", "cancelled": "was cancelled"}
_LONGEST_TEXT = 1000  # characters of a text of a client
_log = logging.getLogger("distscan.service")
_PLAIN_FIELDS = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime"}


def begin_logs(form: str, level: str) -> None:
    """Log in one of ``LOG_FORMS``, from one of ``LOG_LEVELS`` on. Other packages log warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    number = getattr(logging, level.upper())
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING))
    logging.getLogger("distscan").setLevel(number)


class TextLines(logging.Formatter):
    r"""A line for a message; the lines of an exception are indented, so that none looks like one.

    >>> record = logging.makeLogRecord({"levelname": "INFO", "msg": "a\nb", "created": 0.5})
    >>> print(TextLines().format(record))
    1970-01-01T00:00:00.500Z distscan: INFO: a\nb
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s distscan: %(levelname)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a message."""
        return _utc(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = escape(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return the lines of an exception."""
        lines = super().formatException(ei).split("\n")
        return textwrap.indent("\n".join(escape(line) for line in lines), "    ")


class JsonLines(logging.Formatter):
    """An object for a message, with the fields that ``extra=`` gives; an exception is a field.

    >>> record = logging.makeLogRecord({"levelname": "INFO", "msg": "job 7", "job": 7})
    >>> line = json.loads(JsonLines().format(record))
    >>> line["job"], line["level"], line["message"]
    (7, 'INFO', 'job 7')
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object: one line of ASCII."""
        fields = {name: value for name, value in vars(record).items() if name not in _PLAIN_FIELDS}
        fields["time"] = _utc(record.created)
        fields |= {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _plain(value) for name, value in fields.items()})


def _utc(seconds: float) -> str:
    """Return a time in seconds since 1970 as ISO 8601 has it, in UTC.

    >>> _utc(1767225600.0625)
    '2026-01-01T00:00:00.062Z'
    """
    when = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z"


def _plain(value: Any) -> Any:
    """Return a value that JSON has. Bytes that are no text become escapes."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def escape(text: str) -> str:
    r"""Return a text in one line; characters that are not printed become escapes.

    >>> print(escape("é\n\udcff"))
    é\n\udcff
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str) -> str:
    """Return a text, or the beginning of a long one: clients may send names of a MiB."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def log_job(record: Record) -> None:
    """Log that a job was submitted, begins, or has ended."""
    start = record.started or record.ended or 0.0  # one that was cancelled may not have begun
    facts: dict[str, Any] = {"job": record.number, "op": record.request["op"]}
    if record.state == "queued":
        event = f"was submitted: {_job_text(record.request, record.input_count)}"
    elif record.state == "running":
        facts |= {"attempt": record.attempts, "seconds": round(start - record.created, 3)}
        event = f"begins {facts['seconds']} s after its submission, attempt {record.attempts}"
    else:
        facts["seconds"] = round((record.ended or start) - start, 3)
        event = f"{_JOB_ENDS[record.state]} after {facts['seconds']} s"
        if record.error is not None:
            facts["reason"] = shorten(f"{record.error['type']}: {record.error['message']}")
            event += f": {facts['reason']}"
    _log.info("job %s %s", record.number, event, extra=facts | {"state": record.state})


def _job_text(request: dict[str, Any], count: int) -> str:
    """Return a description of a job in one line.

    >>> _job_text({"op": "sum", "inputs": ["/a.npy"], "output": "/c.npy"}, 2)
    'sum of /a.npy and 1 more into /c.npy'
    """
    first, others = request["inputs"][0], count - 1
    more = f" and {others} more" if others else ""
    return f"{request['op']} of {shorten(first)}{more} into {shorten(request['output'])}"


# ---- metrics: the answer to ``GET /metrics`` -----------------------------------------------------

# Counters and histograms grow when something happens. Gauges are read for each answer.

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WAYS = ("body", "shared")  # of arrays
_SCAN = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_JOB = (0.01, 0.1, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400)  # seconds
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

# Else each counter has a second series: when it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of a service, in a registry of their own. Any thread may call all methods."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._options: dict[str, Any] = {"namespace": "distscan", "registry": self._registry}
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._make_jobs()
        self._make_scans()
        self._requests = self._counter(
            "http_requests", "Requests that were answered.", "method", "route", "status"
        )
        self._refusals = self._counter(
            "http_refusals", "Requests that were refused, by the type of their error.", "reason"
        )
        for kind in errors.REFUSALS:
            self._refusals.labels(kind.__name__)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    # ---- file jobs -------------------------------------------------------------------------------

    def _make_jobs(self) -> None:
        self._jobs = self._counter("jobs_ended", "File jobs that have ended.", "state")
        for state in protocol.ENDED:
            self._jobs.labels(state)
        self._wait_seconds = self._histogram(
            "job_wait_seconds", "Time from a file job's submission to its beginning.", _JOB
        )
        self._run_seconds = self._histogram(
            "job_run_seconds", "Time from a file job's beginning to its end.", _JOB
        )
        self._phases = self._counter(
            "job_phase_seconds",
            "Time of the slowest rank in each phase, of file jobs that are done. Phases overlap; "
            '"all" is the whole job.',
            "phase",
        )
        self._read_bytes = self._counter("job_read_bytes", "Bytes read by file jobs that are done.")
        self._written_bytes = self._counter(
            "job_written_bytes", "Bytes written by file jobs that are done."
        )

    def count_job(self, record: Record) -> None:
        """Count a job if it has ended."""
        if record.ended is None:
            return
        self._jobs.labels(record.state).inc()
        if record.started is not None:  # else it was cancelled while it waited
            self._wait_seconds.observe(max(record.started - record.created, 0.0))
            self._run_seconds.observe(max(record.ended - record.started, 0.0))
        if record.report is not None:
            for phase, seconds in record.report["seconds"].items():
                self._phases.labels(phase).inc(seconds)
            self._read_bytes.inc(record.report["bytes"]["read"])
            self._written_bytes.inc(record.report["bytes"]["write"])

    # ---- arrays ----------------------------------------------------------------------------------

    def _make_scans(self) -> None:
        seconds = self._histogram(
            "scan_seconds",
            "Time of an array's scan, from the head of its request until the answer is ready. The "
            "array was in the body, or in memory that is shared with its client.",
            _SCAN,
            "way",
        )
        inputs = self._counter("scan_input_bytes", "Bytes of arrays that were scanned.", "way")
        outputs = self._counter("scan_output_bytes", "Bytes of the results of these scans.", "way")
        self._scans = {
            way: (seconds.labels(way), inputs.labels(way), outputs.labels(way)) for way in _WAYS
        }
        self._failures = self._counter(
            "scans_failed", "Scans of arrays that have failed, or were refused.", "type"
        )

    def count_scan(self, way: str, seconds: float, input_size: int, output_size: int) -> None:
        """Count a scan. ``way`` is one of ``_WAYS``; the sizes are bytes."""
        histogram, inputs, outputs = self._scans[way]
        histogram.observe(seconds)
        inputs.inc(input_size)
        outputs.inc(output_size)

    def count_failed_scan(self, error: Exception) -> None:
        """Count the scan of an array that has ended in an exception."""
        self._failures.labels(errors.to_json(error)["type"]).inc()

    # ---- requests --------------------------------------------------------------------------------

    def count_answer(self, method: str, route: str, status: int) -> None:
        """Count an answer. Methods that HTTP does not have are one: clients may invent many."""
        self._requests.labels(method if method in _METHODS else "other", route, status).inc()

    def count_refusal(self, error: Exception) -> None:
        """Count a refusal, one of ``errors.REFUSALS``."""
        self._refusals.labels(type(error).__name__).inc()

    # ---- gauges ----------------------------------------------------------------------------------

    def watch(
        self,
        facts: Mapping[str, object],
        *,
        queued: Callable[[], int],
        running: Callable[[], bool],
        waiting: Callable[[], int],
        buffers: Callable[[], int],
        limit: int,
        gpu: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Set the facts of the service, and the functions that read its state for each answer.

        ``queued`` and ``waiting`` count file jobs, and large arrays that wait for their turn or
        have it; ``running`` says whether a file job runs. ``buffers`` are the bytes of the buffers
        for arrays, at most ``limit``; ``gpu`` returns the bytes of a GPU's memory that are in use,
        and all bytes.
        """
        named = {name: str(fact) for name, fact in facts.items()}
        Info("distscan", "What this service is.", registry=self._registry).info(named)
        self._gauge("jobs_queued", "File jobs that wait.", queued)
        self._gauge("jobs_running", "File jobs that run: 0 or 1.", running)
        self._gauge(
            "scans_waiting", "Large arrays that wait for their turn, with the one that has it.",
            waiting,
        )  # fmt: skip
        self._gauge(
            "buffers_used_bytes", "Bytes of all buffers for arrays, also of free ones.", buffers
        )
        self._gauge("buffers_limit_bytes", "The most bytes of these buffers.", lambda: limit)
        if gpu is not None:
            of = "of the memory of the GPU of rank 0"
            self._gauge("gpu_memory_used_bytes", f"Bytes {of} that any process uses.",
                        lambda: gpu()[0])  # fmt: skip
            self._gauge("gpu_memory_size_bytes", f"All bytes {of}.", lambda: gpu()[1])

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, **self._options).set_function(lambda: _value_or_nan(value))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, **self._options)

    def _histogram(
        self, name: str, text: str, bounds: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=bounds, **self._options)


def _value_or_nan(value: Callable[[], float]) -> float:
    """Return a value, or NaN if it cannot be read: a full disk must not hide the other metrics."""
    try:
        return value()
    except RuntimeError:  # StoreError, CUDARuntimeError
        return float("nan")


class RequestCounter:
    """Counts the answers of an application by route, such as ``/v1/jobs/{number}``.

    The paths themselves would be as many series as clients like.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Iterable[BaseRoute]) -> None:
        self._app, self._metrics = app, metrics
        self._templates: dict[Any, str] = {
            route.endpoint: route.path_format for route in routes if isinstance(route, Route)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count it when its answer begins."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = self._templates.get(scope.get("endpoint"), "none")
                self._metrics.count_answer(scope["method"], route, message["status"])
            await send(message)

        await self._app(scope, receive, sent)
