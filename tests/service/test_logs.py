"""What a service says on stderr: what becomes of jobs, and faults."""

import asyncio
import contextlib
import json
import logging
import re
import signal
import threading
import time

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
from distscan.service.monitoring import Metrics
from distscan.service.requests import Guard
from distscan.service.store import Store
from support.service_logs import lines_of, wanted
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]

# ---- the life of jobs ----------------------------------------------------------------------------


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


@pytest.mark.parametrize("level", ["debug", "warning", "error"])
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
    shown = {"debug": {"DEBUG", "INFO", "WARNING"}, "warning": {"WARNING"}, "error": set()}
    assert levels == shown[level]
    arrays = [line for line in lines if "way" in line]
    if level == "debug":
        ways = [(line["op"], line["way"], line["bytes"]) for line in arrays]
        assert ways == [("max", "body", 8128), ("sum", "shared", 2_400_000)]
        assert re.fullmatch(r"max of an array of 8128 bytes, body: 0\.\d+ s", arrays[0]["message"])
    else:
        assert arrays == []


def test_a_job_that_was_killed(tmp_path, rng):
    """Its next attempt says that it is one."""
    np.lib.format.open_memmap(tmp_path / "long.npy", "w+", "f8", (1 << 27,))
    with serving(tmp_path, 1, "--log-format", "json") as service:
        with service.client() as client:
            job = client.submit(tmp_path / "long.npy")
            while job.refresh()["state"] == "queued":
                time.sleep(0.005)
        service.end(signal.SIGKILL)
        service.start()
        again = wanted(service, "json", "WARNING", "job 1 was interrupted; it is queued again")
        assert again["job"] == 1
        line = wanted(service, "json", "INFO", "job 1 begins", "attempt 2")
        assert line["attempt"] == 2
        with service.client() as client:
            client.job(job.number).cancel()
        wanted(service, "json", "INFO", "job 1 was cancelled")
        assert service.end() == 0


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
def test_what_is_the_fault_of_a_client(error, caplog):
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
