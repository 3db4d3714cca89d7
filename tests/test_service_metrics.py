"""What a service counts and measures, as Prometheus reads it."""

import asyncio
import contextlib
import inspect
import math
import threading
import time
from io import BytesIO
from types import SimpleNamespace
from unittest.mock import MagicMock

import httpx
import numpy as np
import pytest
from mpi4py import MPI
from prometheus_client.parser import text_string_to_metric_families as families

from distscan.binding import bind
from distscan.job.job import Job
from distscan.job.timeline import PHASES
from distscan.service import work
from distscan.service.app import App
from distscan.service.arrays import Scanner
from distscan.service.dispatch import Dispatcher
from distscan.service.errors import StoreError
from distscan.service.lines import Lines
from distscan.service.metrics import Metrics
from distscan.service.origin import Names
from distscan.service.store import Record, Store
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
FACTS = {"version": "1", "ranks": 2, "backend": "cpu", "device": 'a "device"\n'}
GPU = "distscan_gpu_memory_used_bytes", "distscan_gpu_memory_size_bytes"


def values(text):
    """The samples of an exposition: by name, with the labels that it has."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families(text)
        for sample in family.samples
    }


def watched(**given):
    """Metrics whose gauges read constants."""
    made = Metrics()
    state = {"queued": lambda: 3, "running": lambda: True, "waiting": lambda: 2}
    made.watch(FACTS, **(state | {"buffers": lambda: 1 << 20, "limit": 1 << 30} | given))
    return made


def of(metrics):
    return values(metrics.text().decode())


def record(state, started=2.0, report=None):
    times = {"created": 1.5, "started": started, "ended": 10.0}
    facts = {"key": None, "request": {}, "report": report, "error": None, "attempts": 1}
    return Record(number=1, state=state, **times, **facts)


# ---- the metrics alone ---------------------------------------------------------------------------


def test_names_and_help():
    """Names have their units; each metric says what it is."""
    metrics = watched(gpu=lambda: (1, 2))
    metrics.scan_failed(ValueError("no"))
    metrics.answered("GET", "/v1", 200)
    metrics.job_changed(record("done", report=dict.fromkeys(
        ("seconds", "bytes"), dict.fromkeys(PHASES, 1))))  # fmt: skip
    found = list(families(metrics.text().decode()))
    assert len({family.name for family in found}) == len(found)
    for family in found:
        assert family.documentation
        assert family.samples
        assert family.type != "unknown"
        assert family.name.startswith(("distscan", "process_", "python_"))
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
    assert not any(name.endswith("_created") for name, *_ in of(metrics))


def test_what_the_service_is():
    found = of(watched())
    labels = {name: str(value) for name, value in FACTS.items()}
    assert found[("distscan_info", *sorted(labels.items()))] == 1
    assert time.time() - found[("process_start_time_seconds",)] < 24 * 3600


def test_two_services_of_a_process():
    """Each has its own."""
    one, other = watched(), watched()
    one.scanned("body", 0.1, 8, 16)
    taken = "distscan_scan_input_bytes_total", ("way", "body")
    assert (of(one)[taken], of(other)[taken]) == (8, 0)


def test_ends_of_jobs():
    metrics = watched()
    report = {"seconds": {"read": 0.5, "all": 8.0}, "bytes": {"read": 80, "write": 160}}
    for each in (
        record("done", report=report), record("failed"), record("cancelled", started=None),
    ):  # fmt: skip
        metrics.job_changed(each)
    for state in ("queued", "running"):
        metrics.job_changed(record(state)._replace(ended=None))
    found = of(metrics)
    for state in ("done", "failed", "cancelled"):
        assert found["distscan_jobs_ended_total", ("state", state)] == 1
    assert found["distscan_job_wait_seconds_sum",] == 2 * 0.5
    assert found["distscan_job_run_seconds_sum",] == 2 * 8.0
    assert found["distscan_job_run_seconds_count",] == 2  # one was cancelled while it waited
    assert found["distscan_job_phase_seconds_total", ("phase", "read")] == 0.5
    assert found["distscan_job_phase_seconds_total", ("phase", "all")] == 8
    assert found["distscan_job_read_bytes_total",] == 80
    assert found["distscan_job_written_bytes_total",] == 160


def test_what_is_read_when_somebody_asks():
    used = iter([5, 6])
    metrics = watched(queued=lambda: next(used))
    assert of(metrics)["distscan_jobs_queued",] == 5
    found = of(metrics)
    assert found["distscan_jobs_queued",] == 6
    assert found["distscan_jobs_running",] == 1
    assert found["distscan_scans_waiting",] == 2
    assert found["distscan_buffers_used_bytes",] == 1 << 20
    assert found["distscan_buffers_limit_bytes",] == 1 << 30


def test_a_disk_that_is_full():
    """What is known without the jobs is answered."""

    def queued():
        raise StoreError("the disk is full")

    found = of(watched(queued=queued))
    assert math.isnan(found["distscan_jobs_queued",])
    assert found["distscan_jobs_running",] == 1


def test_jobs_that_a_crash_has_ended(tmp_path):
    """They fail before the service listens, and count."""
    with contextlib.closing(Store(tmp_path)) as store:
        job = Job((tmp_path / "x.npy",), tmp_path / "y.npy", state=tmp_path / "state")
        store.add(work.to_json(job))  # it changes what it reads, so it is not run again
        store.start()
    metrics, comm = watched(), MPI.COMM_SELF
    scanner = Scanner(comm, bind(comm, "cpu", str))
    with contextlib.closing(Store(tmp_path, metrics.job_changed)) as store:
        Dispatcher(comm, Lines(comm), store, scanner, most=1)
        assert store.get(1).state == "failed"
    assert of(metrics)["distscan_jobs_ended_total", ("state", "failed")] == 1


# ---- the memory of a GPU -------------------------------------------------------------------------


def test_the_memory_of_a_gpu():
    found = of(watched(gpu=lambda: (3 << 30, 80 << 30)))
    assert [found[name,] for name in GPU] == [3 << 30, 80 << 30]
    assert not any((name,) in of(watched()) for name in GPU)


def test_the_gpu_that_is_asked(monkeypatch):
    """That of rank 0, whichever is current in the thread that asks."""
    cupy, asked = pytest.importorskip("cupy"), []
    from distscan.cuda import memory

    @contextlib.contextmanager
    def device(number):
        asked.append(number)
        yield
        asked.append("before")

    monkeypatch.setattr(cupy.cuda, "Device", device)
    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (20, 80), raising=False)
    monkeypatch.setattr(memory, "current_gpu", lambda: 3)
    scanner = Scanner(MPI.COMM_SELF, SimpleNamespace(memory=memory))
    assert scanner.gpu_memory() == (60, 80)
    assert asked == [3, "before"]


@pytest.mark.gpu
def test_the_memory_of_a_real_gpu():
    import cupy

    scanner = Scanner(MPI.COMM_SELF, bind(MPI.COMM_SELF, "cuda", str))
    before, size = scanner.gpu_memory()
    held = cupy.cuda.runtime.malloc(1 << 28)
    assert scanner.gpu_memory() == (pytest.approx(before + (1 << 28), abs=1 << 27), size)
    cupy.cuda.runtime.free(held)
    assert 0 < before < size


# ---- the routes, with stand-ins ------------------------------------------------------------------


def application(metrics, token=None, **given):
    """An application whose other parts are not used."""
    scans = MagicMock(routes=lambda checked: [])
    names = inspect.signature(App).parameters
    parts = {name: MagicMock() for name in names} | {"facts": {}, "token": token, "scans": scans}
    parts |= {"metrics": metrics, "names": Names(over_tcp=False)}
    return App(**(parts | given)).asgi


def talking(asgi):
    return httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://any")


def test_others_are_answered_while_the_disk_is_slow():
    """The jobs are counted in another thread than that of the event loop."""
    asked, answered = threading.Event(), threading.Event()

    def queued():
        asked.set()
        return 7 if answered.wait(20) else -1

    async def talk():
        dispatcher = MagicMock(stopping=False)
        async with talking(application(watched(queued=queued), dispatcher=dispatcher)) as client:
            slow = asyncio.create_task(client.get("/metrics"))
            while not asked.is_set():
                await asyncio.sleep(0.001)
            assert (await client.get("/healthz")).status_code == 200
            answered.set()
            return await slow

    answer = asyncio.run(talk())
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert values(answer.text)["distscan_jobs_queued",] == 7


def test_paths_and_methods_that_clients_invent():
    """They are no new series."""
    metrics = watched()

    async def talk():
        async with talking(application(metrics)) as client:
            for i in range(20):
                await client.get(f"/none/{i}")
                await client.get(f"/v1/jobs/{'9' * 5000}{i}")
                await client.request(f"ODD{i}", "/v1")
                await client.get(f"/metrics?{i}")

    asyncio.run(talk())
    counted = {key: value for key, value in of(metrics).items() if "requests" in key[0]}
    assert counted == {
        series("GET", "none", 404): 40,
        series("other", "/v1", 405): 20,
        series("GET", "/metrics", 200): 20,
    }


def series(method, route, status):
    """The name of a counter of requests."""
    labels = ("method", method), ("route", route), ("status", str(status))
    return "distscan_http_requests_total", *labels


def test_the_token():
    """Metrics tell what others do: they need it."""
    metrics = watched()

    async def talk():
        async with talking(application(metrics, token="a token of some length")) as client:
            return await client.get("/metrics")

    assert asyncio.run(talk()).status_code == 401
    assert of(metrics)["distscan_http_refusals_total", ("reason", "UnauthorizedError")] == 1


# ---- a service -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("metrics"), 2, "--body", "40000000") as made:
        yield made


@pytest.fixture
def http(service):
    transport = httpx.HTTPTransport(uds=service.address)
    with httpx.Client(transport=transport, base_url="http://any", timeout=60) as made:
        yield made


def grown(http, work):
    """What has grown while ``work`` was done, by how much."""
    before = values(http.get("/metrics").text)
    work()
    after = values(http.get("/metrics").text)
    changed = {key: after[key] - before.get(key, 0) for key in after}
    return {key: more for key, more in changed.items() if more and key[0].startswith("distscan")}


def npy(x):
    made = BytesIO()
    np.save(made, x)
    return made.getvalue()


def test_arrays(service, http, rng):
    """Small and large ones over the wire, and in shared memory."""
    small, large = rng.integers(0, 9, 1000), rng.integers(0, 9, 300_000)
    sizes = [len(npy(x)) for x in (small, small, large)]

    def work():
        for x in (small, small, large):
            assert http.post("/v1/scans", content=npy(x)).status_code == 200
        with service.client() as client:
            client.scan(large, segments=large == 0)

    found = grown(http, work)
    assert found["distscan_scan_seconds_count", ("way", "body")] == 3
    assert found["distscan_scan_seconds_count", ("way", "shared")] == 1
    assert found["distscan_scan_input_bytes_total", ("way", "body")] == sum(sizes)
    assert found["distscan_scan_output_bytes_total", ("way", "body")] == sum(sizes)
    assert found["distscan_scan_input_bytes_total", ("way", "shared")] == 9 * large.size
    assert found["distscan_scan_output_bytes_total", ("way", "shared")] == large.nbytes
    assert 0 < found["distscan_scan_seconds_sum", ("way", "body")] < 30
    assert found[series("POST", "/v1/scans", 200)] == 3
    assert found[series("POST", "/v1/scans", 204)] == 1
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

    found = grown(http, work)
    failed = {key[1][1]: more for key, more in found.items() if "scans_failed" in key[0]}
    kinds = ["ValueError", "AxisError", "TypeError", "InputError", "TooLargeError"]
    assert failed == dict.fromkeys(kinds, 1)
    assert found["distscan_http_refusals_total", ("reason", "TooLargeError")] == 1
    assert ("distscan_scan_seconds_count", ("way", "body")) not in found


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

    found = grown(http, work)
    ended = {key[1][1]: more for key, more in found.items() if "jobs_ended" in key[0]}
    assert ended == {"done": 1, "failed": 1, "cancelled": 2}
    assert found["distscan_job_wait_seconds_count",] == 3
    assert found["distscan_job_run_seconds_count",] == 3
    assert found["distscan_job_read_bytes_total",] >= 800_000
    assert found["distscan_job_written_bytes_total",] == 800_000
    phases = {key[1][1]: more for key, more in found.items() if "phase_seconds" in key[0]}
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

    found = grown(http, work)
    counted = {key: more for key, more in found.items() if "_http_" in key[0]}
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
