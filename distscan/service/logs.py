"""What a service says of itself, on stderr: lines of text, or one JSON object a line.

::

    2026-01-01T00:00:00.000Z distscan: INFO: job 7 is done after 1.234 s

    {"job": 7, "op": "sum", "state": "done", "seconds": 1.234, "time": "2026-01-01T00:00:00.000Z",
     "level": "INFO", "logger": "distscan.service", "message": "job 7 is done after 1.234 s"}
"""

import json
import logging
import textwrap
from datetime import datetime, timezone
from typing import Any

from .store import Record

FORMS = ("text", "json")
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_ENDS = {"done": "is done", "failed": "has failed", "cancelled": "was cancelled"}
_LONGEST = 1000  # characters of what clients say
_log = logging.getLogger("distscan.service")
_OWN = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime"}


def begin(form: str, level: str) -> None:
    """Log in a form of ``FORMS`` from a level of ``LEVELS`` on; of other packages, warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(Json() if form == "json" else Text())
    logging.basicConfig(handlers=[handler], level=max(LEVELS[level], logging.WARNING))
    logging.getLogger("distscan").setLevel(LEVELS[level])


class Text(logging.Formatter):
    r"""A line for a message; the lines of an exception are indented, so that none looks like one.

    >>> made = logging.makeLogRecord({"levelname": "INFO", "msg": "a\nb", "created": 0.5})
    >>> print(Text().format(made))
    1970-01-01T00:00:00.500Z distscan: INFO: a\nb
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s distscan: %(levelname)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a message."""
        return _utc(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return the lines of an exception."""
        lines = super().formatException(ei).split("\n")
        return textwrap.indent("\n".join(escaped(line) for line in lines), "    ")


class Json(logging.Formatter):
    """An object for a message, with the fields that ``extra=`` gives; an exception is a field.

    >>> made = logging.makeLogRecord({"levelname": "INFO", "msg": "job %s", "args": (7,), "job": 7})
    >>> found = json.loads(Json().format(made))
    >>> found["job"], found["level"], found["message"]
    (7, 'INFO', 'job 7')
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object: one line of ASCII."""
        found = {name: value for name, value in vars(record).items() if name not in _OWN}
        found["time"] = _utc(record.created)
        found |= {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _plain(value) for name, value in found.items()})


def _utc(seconds: float) -> str:
    """Return a time in seconds since 1970 as ISO 8601 has it, in UTC.

    >>> _utc(1767225600.0625)
    '2026-01-01T00:00:00.062Z'
    """
    when = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z"


def _plain(value: Any) -> Any:
    """Return a value that JSON has. It has no bytes that are no text: they become escapes."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def escaped(text: str) -> str:
    r"""Return a text in one line; characters that are not printed become escapes.

    >>> print(escaped("é\n\udcff"))
    é\n\udcff
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def cut(text: str) -> str:
    """Return a text, or its beginning: clients may name files of a MiB."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def job_changed(record: Record) -> None:
    """Log that a job was submitted, begins, or has ended."""
    begun = record.started or record.ended or 0.0  # one that was cancelled may not have begun
    facts: dict[str, Any] = {"job": record.number, "op": record.request["op"]}
    if record.state == "queued":
        what = f"was submitted: {_named(record.request, record.input_count)}"
    elif record.state == "running":
        facts |= {"attempt": record.attempts, "seconds": round(begun - record.created, 3)}
        what = f"begins {facts['seconds']} s after its submission, attempt {record.attempts}"
    else:
        facts["seconds"] = round((record.ended or begun) - begun, 3)
        what = f"{_ENDS[record.state]} after {facts['seconds']} s"
        if record.error is not None:
            facts["reason"] = cut(f"{record.error['type']}: {record.error['message']}")
            what += f": {facts['reason']}"
    _log.info("job %s %s", record.number, what, extra=facts | {"state": record.state})


def _named(request: dict[str, Any], count: int) -> str:
    """Return what a job does, in short.

    >>> _named({"op": "sum", "inputs": ["/a.npy"], "output": "/c.npy"}, 2)
    'sum of /a.npy and 1 more into /c.npy'
    """
    first, others = request["inputs"][0], count - 1
    more = f" and {others} more" if others else ""
    return f"{request['op']} of {cut(first)}{more} into {cut(request['output'])}"
