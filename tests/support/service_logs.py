"""The lines that a service has logged, in either form."""

import json
import re
import time


def lines_of(service, form):
    """What a service has logged: objects, or (level, message) as objects."""
    texts = [text for text in service.said if "listen on" not in text]
    if service.ranks > 1:  # mpirun may have something to say
        texts = [text for text in texts if text.startswith("{") or "Z distscan: " in text]
    if form == "json":
        return [json.loads(text) for text in texts]
    line = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z distscan: ([A-Z]+): (.*)\n")
    found = [line.fullmatch(text) for text in texts]
    assert all(found), texts
    return [{"level": each[1], "message": each[2]} for each in found]


def wanted(service, form, level, *texts):
    """The first line of a level that has these texts, as soon as it is there."""
    end = time.monotonic() + 10
    while True:
        for line in lines_of(service, form):
            if line["level"] == level and all(text in line["message"] for text in texts):
                return line
        assert time.monotonic() < end, (level, texts, service.said)
        time.sleep(0.02)
