"""The logs of a service on stderr, and its metrics as Prometheus reads them."""

import asyncio
import contextlib
import fcntl
import inspect
import json
import logging
import re
import sys
import threading
import time
from datetime import datetime, timezone
from unittest.mock import MagicMock

import httpx
import numpy as np
import pytest
from mpi4py import MPI
from prometheus_client.parser import text_string_to_metric_families as families
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from distscan.binding import bind
from distscan.service import monitoring
from distscan.service.app import App
from distscan.service.arrays import Scanner
from distscan.service.errors import StoreError
from distscan.service.monitoring import JsonLines, Metrics, TextLines
from distscan.service.requests import Guard, Names
from support.services import (
    TOKEN,
    http_client,
    lines_of,
    log_line,
    long_file,
    npy,
    over_tcp,
    serving,
    values,
    wait_until,
)

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


# ---- refusals ------------------------------------------------------------------------------------

WRONG = "a-wrong-token-nobody-may-read"
LONG = "/" + 300_000 * "x"
REFUSED = {  # method and path, status, reason; the rest of the request
    "no-token": ("POST /v1/jobs", 401, "no token", {"headers": {"authorization": ""}}),
    "wrong-token": (
        "POST /v1/jobs", 401, "a wrong token", {"headers": {"authorization": f"Bearer {WRONG}"}}),
    "token-in-url": (
        "GET /v1", 401, "a wrong token",
        {"params": {"token": WRONG}, "headers": {"authorization": WRONG}}),
    "by-a-proxy": (
        "GET /metrics", 401, "a wrong token",
        {"headers": {"authorization": "no", "x-forwarded-for": "198.51.100.7"}}),
    "host": ("GET /v1", 403, "this service is not '['", {"headers": {"host": "["}}),
    "host-no-route": ("GET /none", 403, "this service is not '['", {"headers": {"host": "["}}),
    "origin": (
        "GET /v1/jobs", 403, "a page of 'https://c.example.org' may not",
        {"headers": {"authorization": "wrong", "origin": "https://c.example.org"}}),
    "site": (
        "GET /v1/jobs", 403, "a page of another site may not",
        {"headers": {"authorization": "wrong", "sec-fetch-site": "cross-site"}}),
    "protocol": (
        "POST /v1/scans", 426, "install the same version on both sides",
        {"headers": {"distscan-protocol": "99"}}),
    "path": (
        "POST /v1/jobs", 403, "/etc/x\ny.npy is in none of the folders",
        {"json": {"inputs": ["/etc/x\ny.npy"], "output": "/etc/y.npy"}}),
    "long-path": ("POST /v1/jobs", 403, "xxx...", {"json": {"inputs": [LONG], "output": LONG}}),
    "long-json": ("POST /v1/jobs", 413, "more than 1048576 bytes", {"content": b" " * (2 << 20)}),
    "long-array": ("POST /v1/scans", 413, "more than 4000000 bytes", {"content": bytes(5_000_000)}),
    "long-buffer": (
        "POST /v1/buffers", 413, "more than 4000000 bytes", {"json": {"bytes": 1 << 40}}),
    "no-memory": (
        "POST /v1/scans", 429, "all memory for arrays is in use",
        {"content": npy(np.zeros(200_000))}),
}  # fmt: skip


@pytest.fixture(scope="module", params=monitoring.LOG_FORMS)
def logged(request, tmp_path_factory):
    """A service over TCP that logs warnings in each form, and a connection to it."""
    folder = tmp_path_factory.mktemp("logs")
    options = [*over_tcp(folder), "--body", "4000000", "--memory", "2097152"]
    options += ["--log-format", request.param, "--log-level", "warning"]
    with (
        serving(folder, 1, *options) as service,
        httpx.Client(
            base_url=service.address, headers={"authorization": f"Bearer {TOKEN}"}
        ) as http,
    ):
        service.form = request.param
        job = {"inputs": [str(folder / "none.npy")], "output": str(folder / "y.npy")}
        number = http.post("/v1/jobs", json=job).json()["number"]
        assert http.get(f"/v1/jobs/{number}?wait=30").json()["state"] == "failed"
        yield service, http
        assert {line["level"] for line in lines_of(service, request.param)} == {"WARNING"}
        secrets = [text for text in service.output if TOKEN in text or WRONG in text]
        assert secrets == []


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, logged):
    """A line has client, request and reason, but neither the token nor a MiB of a client's."""
    (service, http), (request, status, why, arguments) = logged, REFUSED[case]
    method, path = request.split()
    with contextlib.ExitStack() as stack:
        if case == "no-memory":
            buffer = http.post("/v1/buffers", json={"bytes": 1 << 20}).json()
            fcntl.flock(stack.enter_context(open(buffer["path"])), fcntl.LOCK_EX)
        answer = http.request(method, path, **arguments)
    assert answer.status_code == status
    reason = why if service.form == "json" else why.replace("\n", r"\n")
    line = log_line(service, service.form, "WARNING", f"{request} by 127.0.0.1:", reason)
    assert re.search(r"by 127\.0\.0\.1:\d+ was refused: ", line["message"])
    if service.form == "json":
        assert re.fullmatch(r"127\.0\.0\.1:\d+", line["client"])  # not the one that it names
        assert line.get("forwarded_for") == arguments.get("headers", {}).get("x-forwarded-for")
        assert (line["method"], line["path"], line["status"]) == (method, path, status)
        assert why in line["reason"]
        assert datetime.fromisoformat(line["time"].replace("Z", "+00:00")) <= datetime.now(
            timezone.utc
        )
    assert not any(secret in answer.text for secret in (TOKEN, WRONG))
    assert max(map(len, service.output)) < 4000


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ZeroDivisionError("in the depths"), 500),
        (StoreError("the disk is full"), 507),
        (ValueError("wrong"), 400),
        (ClientDisconnect(), 400),
    ],
)
def test_faults(error, status, caplog):
    """Those of the service are logged, with their place."""

    async def fails(request):
        raise error

    async def talk():
        asgi = Starlette(routes=[Route("/v1/jobs/{number:int}", Guard(None, Metrics())(fails))])
        transport = httpx.ASGITransport(asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://any") as http:
            return (await http.get("/v1/jobs/7")).status_code

    assert asyncio.run(talk()) == status
    assert [record.levelname for record in caplog.records] == ["ERROR"] * (status >= 500)
    for record in caplog.records:
        line = json.loads(JsonLines().format(record))
        assert re.fullmatch(f"GET /v1/jobs/7 by .* has failed: {error}", line["message"])
        assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/jobs/7", status)
        assert line["exception"].endswith(f"{type(error).__name__}: {error}")
        assert "in fails" in line["exception"]


# ---- the forms of a line -------------------------------------------------------------------------

ODD = 'a\nb\rc\x1b[31m\u2028\udcff "q" é'


def record(message, *arguments, level="WARNING", exc_info=None, **fields):
    facts = {"msg": message, "args": arguments, "levelname": level, "exc_info": exc_info}
    return logging.makeLogRecord(facts | {"name": "distscan.service"} | fields)


def raised(message):
    """Return ``exc_info`` of an exception of this message."""
    try:
        raise ZeroDivisionError(message)
    except ZeroDivisionError:
        return sys.exc_info()


def test_text():
    """No line of an exception looks like a line of the log, whatever a client has sent."""
    trace = raised("x\ndistscan: INFO: job 1\x1b")
    text = TextLines().format(record("%s is no file", ODD, created=1767225600.0625, exc_info=trace))
    first, second, *lines = text.split("\n")
    shown = r'a\nb\rc\x1b[31m\u2028\udcff "q" é'
    assert first == f"2026-01-01T00:00:00.062Z distscan: WARNING: {shown} is no file"
    assert second == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in lines)
    assert "ZeroDivisionError: x" in text
    assert "\x1b" not in text


def test_json():
    """One line; a field ``time`` or ``logger`` does not replace those of the log."""
    fields = {"job": 7, "seconds": 0.25, "op": "sum", "odd": ODD, "path": Metrics, "none": None}
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
        "path": str(Metrics),
        "none": None,
    }


# ---- metrics -------------------------------------------------------------------------------------


def series(method, route, status):
    """The name of a counter of requests."""
    labels = ("method", method), ("route", route), ("status", str(status))
    return "distscan_http_requests_total", *labels


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    options = ["--body", "40000000", "--log-format", "json", "--log-level", "debug"]
    with serving(tmp_path_factory.mktemp("metrics"), 2, *options) as service:
        yield service
        assert {line["logger"] for line in lines_of(service, "json")} == {"distscan.service"}


@pytest.fixture
def http(service):
    with http_client(service) as http:
        yield http


def grown(http, work):
    """The metrics that grow while ``work`` is done, and by how much."""
    before = values(http.get("/metrics").text)
    work()
    after = values(http.get("/metrics").text)
    changed = {key: after[key] - before.get(key, 0) for key in after}
    return {key: more for key, more in changed.items() if more and key[0].startswith("distscan")}


def test_arrays(service, http, rng):
    """Small and large ones over the wire, and in shared memory."""
    small, large = rng.integers(0, 9, 1000), rng.integers(0, 9, 300_000)
    sizes = [len(npy(x)) for x in (small, small, large)]

    def work():
        for x in (small, small, large):
            assert http.post("/v1/scans", content=npy(x)).status_code == 200
        with service.client() as client:
            client.scan(large, segments=large == 0)

    more = grown(http, work)
    assert more["distscan_scan_seconds_count", ("way", "body")] == 3
    assert more["distscan_scan_seconds_count", ("way", "shared")] == 1
    assert more["distscan_scan_input_bytes_total", ("way", "body")] == sum(sizes)
    assert more["distscan_scan_output_bytes_total", ("way", "body")] == sum(sizes)
    assert more["distscan_scan_input_bytes_total", ("way", "shared")] == 9 * large.size
    assert more["distscan_scan_output_bytes_total", ("way", "shared")] == large.nbytes
    assert 0 < more["distscan_scan_seconds_sum", ("way", "body")] < 30
    assert more[series("POST", "/v1/scans", 200)] == 3
    assert more[series("POST", "/v1/scans", 204)] == 1
    state = values(http.get("/metrics").text)
    assert state["distscan_buffers_limit_bytes",] > state["distscan_buffers_used_bytes",] > 1 << 20
    assert state["distscan_scans_waiting",] == 0
    for way, size in (("body", sizes[0]), ("shared", 9 * large.size)):
        message = f"sum of an array of {size} bytes, {way}: "
        line = log_line(service, "json", "DEBUG", message)
        assert re.fullmatch(rf"{message}\d\.\d+ s", line["message"])
        assert (line["op"], line["way"], line["bytes"]) == ("sum", way, size)


def test_arrays_that_fail(http):
    def work():
        for url, body in (
            ("/v1/scans?op=none", npy(np.ones(3))),
            ("/v1/scans?axis=3", npy(np.ones(3))),
            ("/v1/scans?op=bitwise_or", npy(np.ones(3))),
            ("/v1/scans", b"none"),
            ("/v1/scans", bytes(41_000_000)),
        ):
            assert http.post(url, content=body).status_code >= 400

    more = grown(http, work)
    failed = {key[1][1]: value for key, value in more.items() if "scans_failed" in key[0]}
    kinds = ["ValueError", "AxisError", "TypeError", "InputError", "TooLargeError"]
    assert failed == dict.fromkeys(kinds, 1)
    assert more["distscan_http_refusals_total", ("reason", "TooLargeError")] == 1
    assert ("distscan_scan_seconds_count", ("way", "body")) not in more


def test_file_jobs(service, http, rng):
    """They are counted, and logged as they are submitted, begin and end: each once, in order."""
    folder, seconds, jobs = service.folder, {}, []
    np.save(folder / "x.npy", rng.integers(0, 9, 100_000))

    def state_of(name):
        return values(http.get("/metrics").text)[f"distscan_jobs_{name}",]

    def work():
        with service.client() as client:
            for _ in range(2):
                job = client.submit(folder / "x.npy", op="max", force=True, key="once")
                seconds.update(job.wait(30)["seconds"])
            failed = client.submit(folder / "x.npy", force=True, axis=3)
            with pytest.raises(ValueError, match="axis"):
                failed.wait(30)
            runs = client.submit(long_file(folder), force=True)
            waits = client.submit(folder / "x.npy", force=True)
            wait_until(lambda: state_of("running") == state_of("queued") == 1)
            waits.cancel()
            runs.cancel()
            wait_until(lambda: runs.state != "running")
            jobs.extend(each.number for each in (job, failed, runs, waits))

    more = grown(http, work)
    ended = {key[1][1]: value for key, value in more.items() if "jobs_ended" in key[0]}
    assert ended == {"done": 1, "failed": 1, "cancelled": 2}
    assert more["distscan_job_wait_seconds_count",] == 3
    assert more["distscan_job_run_seconds_count",] == 3
    assert more["distscan_job_read_bytes_total",] >= 800_000
    assert more["distscan_job_written_bytes_total",] == 800_000
    phases = {key[1][1]: value for key, value in more.items() if "phase_seconds" in key[0]}
    assert phases == pytest.approx({name: value for name, value in seconds.items() if value})
    assert 0 < phases["all"] < 30
    assert state_of("running") == state_of("queued") == 0
    done, failed, runs, waits = jobs
    log_line(service, "json", "INFO", f"job {runs} was cancelled after ")
    lines = {number: [] for number in jobs}
    for line in lines_of(service, "json"):
        if line.get("job") in lines:
            lines[line["job"]].append(line)
            assert (line["level"], line["op"]) == ("INFO", "max" if line["job"] == done else "sum")
    assert {number: [line["state"] for line in lines[number]] for number in jobs} == {
        done: ["queued", "running", "done"],
        failed: ["queued", "running", "failed"],
        runs: ["queued", "running", "cancelled"],
        waits: ["queued", "cancelled"],
    }
    for line, message in zip(
        lines[done],
        (
            re.escape(f"was submitted: max of {folder}/x.npy into {folder}/x.scan.npy"),
            r"begins [\d.e-]+ s after its submission, attempt 1",
            r"is done after [\d.e-]+ s",
        ),
        strict=True,
    ):
        assert re.fullmatch(f"job {done} {message}", line["message"])
    assert lines[done][1]["attempt"] == 1
    assert 0 <= lines[done][2]["seconds"] < 30
    assert re.search(r"has failed after [\d.e-]+ s: .*Error: .*axis", lines[failed][2]["message"])
    assert "axis" in lines[failed][2]["reason"]
    assert re.fullmatch(rf"job {runs} was cancelled after [\d.e-]+ s", lines[runs][2]["message"])


def test_requests(service, http, tmp_path):
    """By route and status; those that were refused, by the reason."""

    def work():
        for number in (7000, 8000):
            http.get(f"/v1/jobs/{number}")
        http.delete("/v1/jobs/9000")
        http.get("/v1", headers={"distscan-protocol": "99"})
        inputs = [str(tmp_path / "x.npy")]
        http.post("/v1/jobs", json={"inputs": inputs, "output": str(tmp_path / "y.npy")})
        for i in range(20):  # paths and methods that clients invent are no new series
            http.get(f"/none/{i}")
            http.get(f"/v1/jobs/{'9' * 5000}{i}")
            http.request(f"ODD{i}", "/v1")
            http.get(f"/metrics?{i}")

    more = grown(http, work)
    counted = {key: value for key, value in more.items() if "_http_" in key[0]}
    assert counted == {
        series("GET", "/v1/jobs/{number}", 404): 2,
        series("DELETE", "/v1/jobs/{number}", 404): 1,
        series("GET", "/v1", 426): 1,
        series("POST", "/v1/jobs", 403): 1,
        series("GET", "none", 404): 40,
        series("other", "/v1", 405): 20,
        series("GET", "/metrics", 200): 21,
        ("distscan_http_refusals_total", ("reason", "ProtocolError")): 1,
        ("distscan_http_refusals_total", ("reason", "ForbiddenError")): 1,
    }
    line = log_line(
        service, "json", "WARNING", "POST /v1/jobs by a client of this user was refused"
    )
    assert line["client"] == "a client of this user"


def test_facts_of_the_service(service, http):
    """Of two ranks; by a client of the protocol."""
    with service.client() as client:
        about = client.about()
    (labels,) = [
        dict(key[1:]) for key in values(http.get("/metrics").text) if key[0] == "distscan_info"
    ]
    assert labels == {name: str(about[name]) for name in labels}
    assert labels.keys() >= {"version", "ranks", "backend", "device"}
    assert labels["ranks"] == "2"


def test_names_and_help(http):
    """Names have their units; each metric has a description."""
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    metrics = list(families(answer.text))
    assert len({family.name for family in metrics}) == len(metrics)
    for family in metrics:
        assert family.documentation
        assert family.type != "unknown"
        assert family.name.startswith(("distscan", "process_", "python_"))
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert not sample.name.endswith("_created")
    assert time.time() - values(answer.text)["process_start_time_seconds",] < 24 * 3600


# ---- gauges --------------------------------------------------------------------------------------


def watched(**gauges):
    """Metrics with gauges that read constants."""
    metrics = Metrics()
    state = {"queued": lambda: 3, "running": lambda: True, "waiting": lambda: 2}
    metrics.watch({}, **(state | {"buffers": lambda: 1 << 20, "limit": 1 << 30} | gauges))
    return metrics


def test_requests_are_answered_while_the_disk_is_slow():
    """The jobs are counted in another thread than that of the event loop."""
    counting, answered = threading.Event(), threading.Event()

    def queued():
        counting.set()
        return 7 if answered.wait(20) else -1

    parts = {name: MagicMock() for name in inspect.signature(App).parameters}
    parts |= {"scans": MagicMock(routes=lambda checked: []), "facts": {}, "token": None}
    parts |= {"dispatcher": MagicMock(stopping=False), "names": Names(over_tcp=False)}
    app = App(**(parts | {"metrics": watched(queued=queued)})).asgi

    async def talk():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
            slow = asyncio.create_task(client.get("/metrics"))
            while not counting.is_set():
                await asyncio.sleep(0.001)
            assert (await client.get("/healthz")).status_code == 200
            answered.set()
            return await slow

    assert values(asyncio.run(talk()).text)["distscan_jobs_queued",] == 7


def test_the_memory_of_a_gpu():
    names = "distscan_gpu_memory_used_bytes", "distscan_gpu_memory_size_bytes"
    with_gpu = values(watched(gpu=lambda: (3 << 30, 80 << 30)).text().decode())
    assert [with_gpu[name,] for name in names] == [3 << 30, 80 << 30]
    assert not any((name,) in values(watched().text().decode()) for name in names)


@pytest.mark.gpu
def test_the_memory_of_a_real_gpu():
    import cupy

    scanner = Scanner(MPI.COMM_SELF, bind(MPI.COMM_SELF, "cuda", str))
    before, size = scanner.gpu_memory()
    memory = cupy.cuda.runtime.malloc(1 << 28)
    assert scanner.gpu_memory() == (pytest.approx(before + (1 << 28), abs=1 << 27), size)
    cupy.cuda.runtime.free(memory)
    assert 0 < before < size
