"""A service of several ranks: file jobs, from the queue to the report."""

import time

import numpy as np
import pytest

from distscan.core.errors import InputError
from distscan.service.errors import CancelledJobError, JobEndedError, KeyReusedError, NotFoundError
from support.services import post

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


def test_a_file_job(service, client, rng):
    x = rng.normal(size=50_000)
    np.save(service.folder / "x.npy", x)
    job = client.submit(service.folder / "x.npy", op="max", reverse=True, check=True, force=True)
    report = job.wait(30)
    y = np.load(service.folder / "x.scan.npy")
    np.testing.assert_array_equal(y, np.maximum.accumulate(x[::-1])[::-1])
    assert (report["elements"], report["ranks"]) == (x.size, service.ranks)
    assert (report["op"], report["total"]) == ("max", x.max())
    assert job.state == "done"
    assert job.progress() is None
    assert [each.number for each in client.jobs(1)] == [job.number]
    assert client.job(job.number).wait() == report


def test_a_job_that_fails(service, client):
    """Its client gets the exception; the next job runs."""
    np.save(service.folder / "x.npy", np.ones(10))
    (service.folder / "kept.npy").write_bytes(b"kept")
    for name, output, message in (
        ("none.npy", None, "No such file"),
        ("kept.npy", service.folder / "z.npy", "not a .npy file"),
    ):
        with pytest.raises(InputError, match=message):
            client.submit(service.folder / name, output).wait(30)
    with pytest.raises(ValueError, match="exists; force=True replaces it"):
        client.submit(service.folder / "x.npy", service.folder / "kept.npy").wait(30)
    assert (service.folder / "kept.npy").read_bytes() == b"kept"
    client.submit(service.folder / "x.npy", force=True).wait(30)


def test_a_total_that_json_has_not(service, client):
    np.save(service.folder / "x.npy", np.array([1, np.nan]))
    assert client.submit(service.folder / "x.npy", force=True).wait(30)["total"] == "nan"


def test_a_key_is_one_job(service, client):
    np.save(service.folder / "x.npy", np.ones(10))
    first = client.submit(service.folder / "x.npy", key="once", force=True)
    first.wait(30)
    again = client.submit(service.folder / "x.npy", key="once", force=True)
    assert (again.number, again.state) == (first.number, "done")
    with pytest.raises(KeyReusedError, match="the key 'once' is that of job"):
        client.submit(service.folder / "x.npy", op="max", key="once")


def test_cancelled(service, client):
    """A job that runs ends at its next chunk; one that waits does not begin."""
    long = service.folder / "long.npy"
    np.lib.format.open_memmap(long, "w+", "f8", (1 << 27,))
    np.save(service.folder / "x.npy", np.ones(10))
    runs = client.submit(long, force=True)
    waits = client.submit(service.folder / "x.npy", service.folder / "never.npy")
    assert waits.cancel()
    assert runs.cancel()
    with pytest.raises(CancelledJobError):
        waits.wait(60)
    with pytest.raises(CancelledJobError):
        runs.wait(60)
    assert not (service.folder / "never.npy").exists()
    assert not (service.folder / "long.scan.npy").exists()
    done = client.submit(service.folder / "x.npy", force=True)
    done.wait(30)
    for ended, state in ((waits, "cancelled"), (runs, "cancelled"), (done, "done")):
        assert not ended.cancel()
        assert ended.state == state
        with pytest.raises(JobEndedError, match=f"job {ended.number} had ended: {state}"):
            client.request("DELETE", f"/v1/jobs/{ended.number}")
    assert [path for path in service.folder.iterdir() if path.name.endswith(".part")] == []
    client.submit(service.folder / "x.npy", force=True).wait(30)
    long.unlink()


def test_progress(service, client):
    """While a job runs, its phase and bytes are known; small arrays need not wait for it."""
    long = service.folder / "long.npy"
    np.lib.format.open_memmap(long, "w+", "f8", (1 << 26,))
    job, seen = client.submit(long, force=True), []
    for record in job.updates():
        if record["progress"]:
            seen.append((record["progress"]["done"], record["progress"]["size"]))
            assert list(client.scan([1, 2])) == [1, 3]
    assert job.wait()["elements"] == 1 << 26
    assert all(0 <= done <= size for done, size in seen)
    long.unlink()


def test_jobs_that_do_not_exist(client):
    with pytest.raises(NotFoundError, match="there is no job 12345"):
        client.job(12345)
    with pytest.raises(NotFoundError):
        client.request("DELETE", "/v1/jobs/12345")


def test_a_queue_that_is_full(service, client):
    """Jobs beyond it are refused, and nothing is lost."""
    long = service.folder / "long.npy"
    np.lib.format.open_memmap(long, "w+", "f8", (1 << 27,))
    jobs = [client.submit(long, force=True)]
    while jobs[0].state == "queued":
        time.sleep(0.01)
    jobs += [client.submit(long, service.folder / f"{i}.npy") for i in range(3)]
    answer = post(
        service, "/v1/jobs", json={"inputs": [str(long)], "output": str(service.folder / "y.npy")}
    )
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "BusyError")
    assert "3 jobs wait already" in answer.json()["error"]["message"]
    for job in reversed(jobs):
        job.cancel()
    for job in jobs:
        with pytest.raises(CancelledJobError):
            job.wait(60)
    long.unlink()
