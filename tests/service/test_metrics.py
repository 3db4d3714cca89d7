"""What a service counts and measures, as Prometheus reads it."""

import asyncio
import contextlib
import inspect
import math
import threading
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import httpx
import pytest
from mpi4py import MPI
from prometheus_client.parser import text_string_to_metric_families as families

from distscan.binding import bind
from distscan.job.job import FileJob
from distscan.job.report import PHASES
from distscan.service.app import App
from distscan.service.arrays import Scanner
from distscan.service.dispatch import Dispatcher, Wakeup, job_to_json
from distscan.service.errors import StoreError
from distscan.service.monitoring import Metrics
from distscan.service.requests import Names
from distscan.service.store import Record, Store
from support.expositions import series, values

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
FACTS = {"version": "1", "ranks": 2, "backend": "cpu", "device": 'a "device"\n'}
GPU = "distscan_gpu_memory_used_bytes", "distscan_gpu_memory_size_bytes"


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
    return Record(number=1, state=state, input_count=1, **times, **facts)


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
        job = FileJob.parse((tmp_path / "x.npy",), tmp_path / "y.npy", state=tmp_path / "state")
        store.add(job_to_json(job))  # it changes what it reads, so it is not run again
        store.start()
    metrics, comm = watched(), MPI.COMM_SELF
    scanner = Scanner(comm, bind(comm, "cpu", str))
    with contextlib.closing(Store(tmp_path, metrics.job_changed)) as store:
        Dispatcher(comm, Wakeup(comm), store, scanner, most=1)
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


def test_the_token():
    """Metrics tell what others do: they need it."""
    metrics = watched()

    async def talk():
        async with talking(application(metrics, token="a token of some length")) as client:
            return await client.get("/metrics")

    assert asyncio.run(talk()).status_code == 401
    assert of(metrics)["distscan_http_refusals_total", ("reason", "UnauthorizedError")] == 1
