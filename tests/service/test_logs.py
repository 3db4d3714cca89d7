"""The logs of a service on stderr: jobs, refusals and faults, as text and as JSON."""

import asyncio
import contextlib
import fcntl
import json
import logging
import re
import socket
import sys
import threading
from datetime import datetime, timezone

import httpx
import numpy as np
import pytest
from mpi4py import MPI
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from distscan.binding import bind
from distscan.job.job import FileJob
from distscan.service import dispatch, monitoring
from distscan.service.arrays import Scanner
from distscan.service.dispatch import Dispatcher, Wakeup, job_to_json
from distscan.service.errors import StoreError
from distscan.service.monitoring import JsonLines, Metrics, TextLines
from distscan.service.requests import Guard
from distscan.service.store import Store
from support.service_logs import lines_of, wanted
from support.services import TOKEN, long_file, npy, over_tcp, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]

# ---- jobs ----------------------------------------------------------------------------------------


def test_jobs(tmp_path, rng):
    """Submitted, begun, ended: each once, in this order; arrays are not there."""
    np.save(tmp_path / "x.npy", rng.integers(0, 9, 1000))
    with serving(tmp_path, 2, "--log-format", "json") as service:
        with service.client() as client:
            for _ in range(2):
                client.submit(tmp_path / "x.npy", op="max", key="once").wait(30)
            wrong = client.submit(tmp_path / "x.npy", force=True, axis=3)
            with pytest.raises(ValueError, match="axis"):
                wrong.wait(30)
            client.scan(np.arange(1000))
            with pytest.raises(Exception, match="none of the folders"):
                client.submit("/etc/x.npy")
        assert service.end() == 0
    lines = [line for line in lines_of(service, "json") if "job" in line]
    assert [(line["job"], line["state"]) for line in lines] == [
        *((1, "queued"), (1, "running"), (1, "done")),
        *((wrong.number, "queued"), (wrong.number, "running"), (wrong.number, "failed")),
    ]
    assert {line["level"] for line in lines} == {"INFO"}
    assert [line["op"] for line in lines] == ["max"] * 3 + ["sum"] * 3
    assert lines[0]["message"] == (
        f"job 1 was submitted: max of {tmp_path}/x.npy into {tmp_path}/x.scan.npy"
    )
    assert re.fullmatch(
        r"job 1 begins [\d.e-]+ s after its submission, attempt 1", lines[1]["message"]
    )
    assert lines[1]["attempt"] == 1
    assert re.fullmatch(r"job 1 is done after [\d.e-]+ s", lines[2]["message"])
    assert 0 <= lines[2]["seconds"] < 30
    assert re.search(r"has failed after [\d.e-]+ s: .*Error: .*axis", lines[5]["message"])
    assert "axis" in lines[5]["reason"]
    others = [line for line in lines_of(service, "json") if "job" not in line]
    assert [line["client"] for line in others] == ["a client of this user"]


@pytest.mark.parametrize("level", ["debug", "warning"])
def test_levels_of_a_service(level, tmp_path, rng):
    np.save(tmp_path / "x.npy", rng.integers(0, 9, 1000))
    given = ["--log-format", "json", "--log-level", level]
    with serving(tmp_path, 1, *given) as service:
        with service.client() as client:
            client.submit(tmp_path / "x.npy").wait(30)
            client.scan(np.arange(1000), "max")
            client.scan(np.arange(300_000))
            with pytest.raises(Exception, match="none of the folders"):
                client.submit("/etc/x.npy")
        assert service.end() == 0
    lines = lines_of(service, "json")
    levels = {line["level"] for line in lines}
    assert levels == ({"DEBUG", "INFO", "WARNING"} if level == "debug" else {"WARNING"})
    assert {line["logger"] for line in lines} == {"distscan.service"}  # none of the server
    arrays = [line for line in lines if "way" in line]
    if level == "debug":
        ways = [(line["op"], line["way"], line["bytes"]) for line in arrays]
        assert ways == [("max", "body", 8128), ("sum", "shared", 2_400_000)]
        assert re.fullmatch(r"max of an array of 8128 bytes, body: 0\.\d+ s", arrays[0]["message"])
    else:
        assert arrays == []


# ---- refusals ------------------------------------------------------------------------------------

WRONG = "a-wrong-token-nobody-may-read"
REFUSED = {  # the path, and why; what a request must have for that
    "no-token": ("/v1/jobs", 401, "no token", {"headers": {"authorization": ""}}),
    "wrong-token": (
        "/v1/jobs", 401, "a wrong token", {"headers": {"authorization": f"Bearer {WRONG}"}}),
    "protocol": ("/v1/scans", 426, "protocol 99", {"headers": {"distscan-protocol": "99"}}),
    "path": (
        "/v1/jobs", 403, r"/etc/x\ny.npy is in none of the folders",
        {"json": {"inputs": ["/etc/x\ny.npy"], "output": "/etc/y.npy"}}),
    "long-json": ("/v1/jobs", 413, "more than 1048576 bytes", {"content": b" " * (2 << 20)}),
    "long-array": ("/v1/scans", 413, "more than 4000000 bytes", {"content": bytes(5_000_000)}),
    "long-buffer": ("/v1/buffers", 413, "more than 4000000 bytes", {"json": {"bytes": 1 << 40}}),
    "no-memory": (
        "/v1/scans", 429, "all memory for arrays is in use", {"content": npy(np.zeros(200_000))}),
}  # fmt: skip


@pytest.fixture(scope="module", params=monitoring.LOG_FORMS)
def logged(request, tmp_path_factory):
    """A service over TCP that logs in each form, and a connection to it."""
    folder = tmp_path_factory.mktemp("logs")
    options = [*over_tcp(folder), "--queue", "1", "--body", "4000000"]
    options += ["--memory", "2097152", "--log-format", request.param]
    with (
        serving(folder, 1, *options) as service,
        httpx.Client(
            base_url=service.address, headers={"authorization": f"Bearer {TOKEN}"}
        ) as http,
    ):
        service.form = request.param
        yield service, http
        secrets = [text for text in service.said if TOKEN in text or WRONG in text]
        assert secrets == []


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, logged):
    """Each says who, what and why, and not the token."""
    (service, http), (path, status, why, given) = logged, REFUSED[case]
    with contextlib.ExitStack() as held:
        if case == "no-memory":
            found = http.post("/v1/buffers", json={"bytes": 1 << 20}).json()
            fcntl.flock(held.enter_context(open(found["path"])), fcntl.LOCK_EX)
        answer = http.post(path, **given)
    assert answer.status_code == status
    if service.form == "json":
        why = why.replace(r"\n", "\n")
    line = wanted(service, service.form, "WARNING", f"POST {path} by 127.0.0.1:", why)
    assert re.search(r"by 127\.0\.0\.1:\d+ was refused: ", line["message"])
    if service.form == "json":
        assert re.fullmatch(r"127\.0\.0\.1:\d+", line["client"])
        assert (line["method"], line["path"], line["status"]) == ("POST", path, status)
        assert why in line["reason"]
        assert datetime.fromisoformat(line["time"].replace("Z", "+00:00")) <= datetime.now(
            timezone.utc
        )
    assert not any(secret in text for text in service.said for secret in (TOKEN, WRONG))
    assert not any(secret in answer.text for secret in (TOKEN, WRONG))


def test_a_queue_that_is_full(logged):
    (service, http), folder = logged, logged[0].folder
    job = {"inputs": [str(long_file(folder))], "output": str(folder / "y.npy"), "force": True}
    numbers, answer = [], None
    while answer is None or answer.status_code == 202:  # one runs, one waits
        assert len(numbers) < 4
        answer = http.post("/v1/jobs", json=job)
        numbers.append(answer.json().get("number"))
    assert answer.status_code == 429
    assert numbers.pop() is None
    wanted(service, service.form, "WARNING", "POST /v1/jobs by 127.0.0.1:", "jobs wait already")
    for number in numbers[::-1]:
        http.delete(f"/v1/jobs/{number}")
        wanted(service, service.form, "INFO", f"job {number} was cancelled after")


def test_whom_a_proxy_speaks_for(logged):
    """The address that a client names is not taken for its own."""
    service, http = logged
    head = {"authorization": "no", "x-forwarded-for": "198.51.100.7"}
    assert http.get("/metrics", headers=head).status_code == 401
    line = wanted(service, service.form, "WARNING", "GET /metrics by 127.0.0.1:")
    assert line.get("forwarded_for", "198.51.100.7") == "198.51.100.7"
    assert service.form == "text" or "forwarded_for" in line


def test_a_token_in_the_url(logged):
    """What is behind the path is not logged."""
    service, http = logged
    answer = http.get(f"/v1?token={WRONG}", headers={"authorization": WRONG})
    assert answer.status_code == 401
    wanted(service, service.form, "WARNING", "GET /v1 by 127.0.0.1:", "a wrong token")


def test_a_reason_of_a_mib(logged):
    service, http = logged
    path = "/" + "x" * 300_000
    job = {"inputs": [path], "output": path}
    assert http.post("/v1/jobs", json=job).status_code == 403
    wanted(service, service.form, "WARNING", "POST /v1/jobs", "xxx...")
    assert max(map(len, service.said)) < 4000


@pytest.mark.parametrize("line", ["GET /v1", "GET /none"])
def test_a_host_that_is_no_name(line, logged):
    """The request is refused and logged all the same."""
    service, http = logged
    with socket.create_connection((http.base_url.host, http.base_url.port), 10) as talk:
        talk.sendall(f"{line} HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: talk.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 403 ")
    wanted(service, service.form, "WARNING", f"{line} by 127.0.0.1:", "this service is not '['")


# ---- faults --------------------------------------------------------------------------------------


def answered(error):
    """The status of the answer to a request that meets an exception."""

    async def fails(request):
        raise error

    async def talk():
        asgi = Starlette(routes=[Route("/v1/jobs/{number:int}", Guard(None, Metrics())(fails))])
        transport = httpx.ASGITransport(asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://any") as http:
            return (await http.get("/v1/jobs/7")).status_code

    return asyncio.run(talk())


def test_an_unexpected_exception(caplog):
    assert answered(ZeroDivisionError("in the depths")) == 500
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    found = json.loads(monitoring.JsonLines().format(record))
    assert re.fullmatch("GET /v1/jobs/7 by .* has failed: in the depths", found["message"])
    assert (found["method"], found["path"], found["status"]) == ("GET", "/v1/jobs/7", 500)
    assert found["exception"].endswith("ZeroDivisionError: in the depths")
    assert "in fails" in found["exception"]


def test_a_disk_that_is_full(caplog):
    assert answered(StoreError("the disk is full")) == 507
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("error", [ValueError("wrong"), ClientDisconnect()])
def test_faults_of_a_client(error, caplog):
    assert answered(error) == 400
    assert caplog.records == []


@pytest.mark.parametrize("error", [ZeroDivisionError("in the depths"), ValueError("axis 3")])
def test_a_job_that_meets_a_fault(error, tmp_path, monkeypatch, caplog):
    """It has failed; if nobody has thought of the exception, the log has its place."""

    def lead(*given):
        raise error

    monkeypatch.setattr(dispatch, "run_job", lead)
    caplog.set_level(logging.INFO, "distscan")
    comm = MPI.COMM_SELF
    scanner = Scanner(comm, bind(comm, "cpu", str))
    ended = threading.Event()

    def note(record):
        monitoring.log_job(record)
        if record.ended is not None:
            ended.set()

    with contextlib.closing(Store(tmp_path / "state", note)) as store:
        dispatcher = Dispatcher(comm, Wakeup(comm), store, scanner, most=1)
        dispatcher.submit(
            job_to_json(FileJob.parse((tmp_path / "x.npy",), tmp_path / "y.npy")), None
        )
        thread = threading.Thread(target=dispatcher.run)
        thread.start()
        assert ended.wait(20)
        dispatcher.stop(0)
        thread.join()
    faults = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "job 1 has failed after" in caplog.text
    if isinstance(error, ValueError):
        assert faults == []
    else:
        found = json.loads(monitoring.JsonLines().format(*faults))
        assert (found["job"], found["op"]) == (1, "sum")
        assert found["exception"].endswith("ZeroDivisionError: in the depths")


# ---- the forms of a line -------------------------------------------------------------------------

ODD = 'a\nb\rc\x1b[31m\u2028\udcff "q" é'


def record(message, *arguments, level="WARNING", exc_info=None, **fields):
    facts = {"msg": message, "args": arguments, "levelname": level, "exc_info": exc_info}
    return logging.makeLogRecord(facts | {"name": "distscan.service"} | fields)


def raised(message):
    """What ``exc_info`` is for an exception of this message."""
    try:
        raise ZeroDivisionError(message)
    except ZeroDivisionError:
        return sys.exc_info()


def test_text():
    line = TextLines().format(record("%s was refused", "a client", created=1767225600.0625))
    assert line == "2026-01-01T00:00:00.062Z distscan: WARNING: a client was refused"
    line = TextLines().format(record("%s is no file", ODD, created=0))
    shown = r'a\nb\rc\x1b[31m\u2028\udcff "q" é'
    assert line == f"1970-01-01T00:00:00.000Z distscan: WARNING: {shown} is no file"


def test_an_exception_as_text():
    """No line of it looks like a line of the log, whatever a client has sent."""
    text = TextLines().format(record("fault", exc_info=raised("x\ndistscan: INFO: job 1\x1b")))
    first, *more = text.split("\n")
    assert first.endswith("Z distscan: WARNING: fault")
    assert more[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in more)
    assert r"ZeroDivisionError: x" in text
    assert "\x1b" not in text


def test_json():
    """One line; a field ``time`` or ``logger`` does not replace those of the log."""
    fields = {"job": 7, "seconds": 0.25, "op": "sum", "odd": ODD, "path": FileJob, "none": None}
    fields |= {"time": "no", "logger": "no", "exc_info": raised("x\ny")}
    line = JsonLines().format(record("%s is no file", ODD, created=1767225600.0625, **fields))
    assert line.isascii()
    assert line.isprintable()
    logged = json.loads(line)
    assert json.dumps(logged, ensure_ascii=False).encode()  # there are no halves of characters
    trace = logged.pop("exception")
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("ZeroDivisionError: x\ny")
    shown = ODD.replace("\udcff", r"\udcff")
    assert logged == {
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
