"""What a service tells those who follow it: server-sent events, read line by line."""

import json
from contextlib import contextmanager

from support.services import http_client


@contextmanager
def following(service):
    """Follow a service; yield an iterator of (event, data), where "comment" is one, too."""
    with http_client(service) as http, http.stream("GET", "/v1/events") as answer:
        answer.raise_for_status()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer.iter_lines())


def events(lines):
    """The events of some lines."""
    fields = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            yield fields["event"], json.loads(fields["data"]), int(fields["id"])
        elif "" in fields:
            yield "comment", fields[""], None
        elif "retry" in fields:
            yield "retry", int(fields["retry"]), None
        fields = {}


def until(stream, is_last):
    """Read events until one is wanted; return all that were read."""
    seen = []
    for name, data, _ in stream:
        seen.append((name, data))
        if is_last(name, data):
            return seen
    raise AssertionError(f"the stream ended before; it said {seen}")


def is_job(number, state):
    """Whether an event says that a job is in a state."""
    return lambda name, data: name == "job" and (data["number"], data["state"]) == (number, state)
