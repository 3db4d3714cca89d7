"""The forms of what a service says on stderr: lines of text, and objects of JSON."""

import json
import logging
import subprocess
import sys
from datetime import datetime, timezone

import pytest

from distscan.job.job import FileJob
from distscan.service.monitoring import LOG_LEVELS, JsonLines, TextLines

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]
ODD = 'a\nb\rc\x1b[31m\u2028\udcff "q" é'


def made(message, *given, level="WARNING", exc_info=None, **fields):
    facts = {"msg": message, "args": given, "levelname": level, "exc_info": exc_info}
    return logging.makeLogRecord(facts | {"name": "distscan.service"} | fields)


def raised(message):
    """What ``exc_info`` is for an exception of this message."""
    try:
        raise ZeroDivisionError(message)
    except ZeroDivisionError:
        return sys.exc_info()


def test_text():
    line = TextLines().format(made("%s was refused", "a client", created=1767225600.0625))
    assert line == "2026-01-01T00:00:00.062Z distscan: WARNING: a client was refused"
    line = TextLines().format(made("%s is no file", ODD, created=0))
    shown = r'a\nb\rc\x1b[31m\u2028\udcff "q" é'
    assert line == f"1970-01-01T00:00:00.000Z distscan: WARNING: {shown} is no file"


def test_an_exception_as_text():
    """No line of it looks like a line of the log, whatever a client has sent."""
    text = TextLines().format(made("fault", exc_info=raised("x\ndistscan: INFO: job 1\x1b")))
    first, *more = text.split("\n")
    assert first.endswith("Z distscan: WARNING: fault")
    assert more[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in more)
    assert r"ZeroDivisionError: x" in text
    assert "\x1b" not in text


def test_json():
    record = made("%s is no file", ODD, job=7, seconds=0.25, op="sum", odd=ODD, path=FileJob,
                  none=None, created=1767225600.0625)  # fmt: skip
    line = JsonLines().format(record)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert json.dumps(found, ensure_ascii=False).encode()  # there are no halves of characters
    shown = ODD.replace("\udcff", r"\udcff")
    assert found == {
        "time": "2026-01-01T00:00:00.062Z",
        "level": "WARNING",
        "logger": "distscan.service",
        "message": f"{shown} is no file",
        "job": 7,
        "seconds": 0.25,
        "op": "sum",
        "odd": shown,
        "path": str(FileJob),
        "none": None,
    }


def test_an_exception_as_json():
    line = JsonLines().format(made("fault", exc_info=raised("x\ny")))
    assert "\n" not in line
    found = json.loads(line)
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert found["exception"].endswith("ZeroDivisionError: x\ny")


def test_fields_that_have_the_names_of_others():
    found = json.loads(JsonLines().format(made("right", level="INFO", time="no", logger="no")))
    assert (found["logger"], found["message"]) == ("distscan.service", "right")
    assert datetime.fromisoformat(found["time"].replace("Z", "+00:00")).tzinfo == timezone.utc


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_levels(level):
    """Of other packages, such as the server, at most warnings are shown."""
    code = f"""
import logging
from distscan.service import monitoring
monitoring.begin_logs("json", "{level}")
for name in ("distscan.service", "uvicorn.error"):
    for number in monitoring.LOG_LEVELS.values():
        logging.getLogger(name).log(number, "said")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                         check=True)  # fmt: skip
    assert ran.stdout == ""
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    said = {name: [line["level"].lower() for line in lines if line["logger"] == name]
            for name in ("distscan.service", "uvicorn.error")}  # fmt: skip
    names = list(LOG_LEVELS)
    assert said["distscan.service"] == names[names.index(level) :]
    assert said["uvicorn.error"] == names[max(names.index(level), 2) :]
