"""What a service of two ranks counts: before and after requests that are known."""

import time
from io import BytesIO

import httpx
import numpy as np
import pytest

from distscan.job.report import PHASES
from support.expositions import series, values
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


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
