"""The metrics of a service, as Prometheus reads them."""

import asyncio
import inspect
import threading
import time
from unittest.mock import MagicMock

import httpx
import numpy as np
import pytest
from mpi4py import MPI
from prometheus_client.parser import text_string_to_metric_families as families

from distscan.binding import bind
from distscan.job.report import PHASES
from distscan.service.app import App
from distscan.service.arrays import Scanner
from distscan.service.monitoring import Metrics
from distscan.service.requests import Names
from support.services import http_client, npy, serving, values

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


def series(method, route, status):
    """The name of a counter of requests."""
    labels = ("method", method), ("route", route), ("status", str(status))
    return "distscan_http_requests_total", *labels


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("metrics"), 2, "--body", "40000000") as service:
        yield service


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
    folder = service.folder
    np.save(folder / "x.npy", rng.integers(0, 9, 100_000))
    np.lib.format.open_memmap(folder / "long.npy", "w+", "f8", (1 << 27,))

    def work():
        with service.client() as client:
            client.submit(folder / "x.npy", force=True, key="once").wait(30)
            client.submit(folder / "x.npy", force=True, key="once").wait(30)
            with pytest.raises(ValueError, match="axis"):
                client.submit(folder / "x.npy", force=True, axis=3).wait(30)
            runs = client.submit(folder / "long.npy", force=True)
            waits = client.submit(folder / "x.npy", force=True)
            end = time.monotonic() + 30
            while True:
                state = values(http.get("/metrics").text)
                if state["distscan_jobs_running",] and state["distscan_jobs_queued",] == 1:
                    break
                assert time.monotonic() < end
            waits.cancel()
            runs.cancel()
            while client.job(runs.number).state == "running":
                assert time.monotonic() < end

    more = grown(http, work)
    ended = {key[1][1]: value for key, value in more.items() if "jobs_ended" in key[0]}
    assert ended == {"done": 1, "failed": 1, "cancelled": 2}
    assert more["distscan_job_wait_seconds_count",] == 3
    assert more["distscan_job_run_seconds_count",] == 3
    assert more["distscan_job_read_bytes_total",] >= 800_000
    assert more["distscan_job_written_bytes_total",] == 800_000
    phases = {key[1][1]: value for key, value in more.items() if "phase_seconds" in key[0]}
    assert {"read", "scan", "write", "all"} <= phases.keys() <= {*PHASES}
    assert 0 < phases["all"] < 30
    state = values(http.get("/metrics").text)
    assert state["distscan_jobs_running",] == state["distscan_jobs_queued",] == 0


def test_requests(http, tmp_path):
    """By route and status; those that were refused, by the reason."""

    def work():
        for number in (7000, 8000):
            http.get(f"/v1/jobs/{number}")
        http.delete("/v1/jobs/9000")
        http.get("/v1", headers={"distscan-protocol": "99"})
        inputs = [str(tmp_path / "x.npy")]
        http.post("/v1/jobs", json={"inputs": inputs, "output": str(tmp_path / "y.npy")})
        http.get("/nothing")

    more = grown(http, work)
    counted = {key: value for key, value in more.items() if "_http_" in key[0]}
    assert counted == {
        series("GET", "/v1/jobs/{number}", 404): 2,
        series("DELETE", "/v1/jobs/{number}", 404): 1,
        series("GET", "/v1", 426): 1,
        series("POST", "/v1/jobs", 403): 1,
        series("GET", "none", 404): 1,
        series("GET", "/metrics", 200): 1,
        ("distscan_http_refusals_total", ("reason", "ProtocolError")): 1,
        ("distscan_http_refusals_total", ("reason", "ForbiddenError")): 1,
    }


def test_what_it_is(service, http):
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


def test_paths_and_methods_that_clients_invent(http):
    """They are no new series."""

    def work():
        for i in range(20):
            http.get(f"/none/{i}")
            http.get(f"/v1/jobs/{'9' * 5000}{i}")
            http.request(f"ODD{i}", "/v1")
            http.get(f"/metrics?{i}")

    counted = {key: more for key, more in grown(http, work).items() if "requests" in key[0]}
    assert counted == {
        series("GET", "none", 404): 40,
        series("other", "/v1", 405): 20,
        series("GET", "/metrics", 200): 21,
    }


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
