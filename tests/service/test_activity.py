"""What a service has done of late: times of jobs on each rank, scans of arrays, samples."""

import mmap
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from distscan import InputError
from distscan.job.report import Timeline, close_gaps
from distscan.service.activity import Activity, ArrayScan, most_intervals, private_memory
from support.services import LARGE, http_client, serving, wait_until

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]
RANKS = 2


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("activity")
    np.save(folder / "x.npy", np.arange(1_000_000))
    with serving(folder, RANKS) as service:
        yield service


@pytest.fixture
def http(service):
    with http_client(service) as made:
        yield made


def activity(http, after=0):
    return http.get("/v1/activity", params={"after": after}).json()


# ---- of a service --------------------------------------------------------------------------------


def test_jobs(service, http):
    """Each rank has its phases, inside the time of the job."""
    before = activity(http)["last"]
    with service.client() as client:
        job = client.submit(service.folder / "x.npy", service.folder / "y.npy", force=True)
        job.wait(30)
        record = job.refresh()
    (times,) = activity(http, before)["jobs"]
    assert (times["number"], len(times["ranks"])) == (job.number, RANKS)
    for rank in times["ranks"]:
        assert rank.keys() >= {"start", "read", "reduce", "exscan", "scan", "write"}
        for low, high in (each for all in rank.values() for each in all):
            assert 0 <= low <= high
            assert record["started"] - 0.1 <= times["begin"] + low
            assert times["begin"] + high <= record["ended"] + 0.1
        assert rank["read"][0][0] < rank["write"][-1][1]


def test_a_job_that_fails(service, http):
    """Its times are there, too; nothing runs then."""
    before = activity(http)["last"]
    with service.client() as client:
        job = client.submit(service.folder / "none.npy", service.folder / "y.npy")
        with pytest.raises(InputError):
            job.wait(30)
    after = activity(http, before)
    assert [times["number"] for times in after["jobs"]] == [job.number]
    assert after["running"] is None


def test_the_job_that_runs(service, http):
    """The times of rank 0, as they are now; those of all ranks when it was cancelled."""
    np.lib.format.open_memmap(service.folder / "long.npy", "w+", np.longdouble, (1 << 26,))
    with service.client() as client:
        job = client.submit(
            service.folder / "long.npy", service.folder / "z.npy", op="logaddexp", threads=1
        )
        wait_until(lambda: (activity(http)["running"] or {}).get("number") == job.number)
        wait_until(lambda: "scan" in activity(http)["running"]["ranks"][0], 50)
        assert len(activity(http)["running"]["ranks"]) == 1
        job.cancel()
        wait_until(lambda: job.refresh()["state"] == "cancelled")
    assert [len(each["ranks"]) for each in activity(http)["jobs"] if each["number"] == job.number] \
        == [RANKS]  # fmt: skip


def test_scans(service, http):
    """Those that are done and those that have failed, by both ways."""
    before = activity(http)["last"]
    with service.client() as client:
        client.scan(np.ones((2, 3), "f4"), "max")
        client.scan(np.ones(LARGE))
    assert http.post("/v1/scans?op=none", content=b"x").status_code == 400
    scans = activity(http, before)["scans"]
    assert [(one["op"], one["way"], one["elements"], one["dtype"], one["error"]) for one in scans] \
        == [("max", "body", 6, "float32", None), ("sum", "shared", LARGE, "float64", None),
            ("none", "body", None, None, "ValueError")]  # fmt: skip
    assert all(abs(one["begin"] - time.time()) < 20 and 0 < one["seconds"] < 20 for one in scans)


def test_samples(service, http):
    """Every two seconds: the bytes of arrays, and the memory of the ranks."""
    before = activity(http)["last"]
    with service.client() as client:
        client.scan(np.ones(LARGE))
    busy = lambda: [each for each in activity(http, before)["samples"] if each["arrays"]]  # noqa: E731
    wait_until(busy)
    sample = busy()[0]
    assert 1e5 < sample["arrays"] < 1e9
    assert 1 << 23 < sample["memory"] < 1 << 34
    assert sample["gpu"] is None


# ---- what is kept --------------------------------------------------------------------------------


def clock_of(intervals):
    return SimpleNamespace(intervals=lambda: intervals)


def test_after():
    """An entry comes once to who names the last number."""
    made = Activity()
    made.add_job(7, [{"read": [(10.0, 11.5)]}, {"read": [(10.5, 12.0)]}])
    first = made.after(0)
    assert first["jobs"] == [
        {"number": 7, "begin": 10.0, "ranks": [{"read": [[0, 1.5]]}, {"read": [[0.5, 2]]}]}
    ]
    assert made.after(first["last"])["jobs"] == []
    made.add_scan(ArrayScan(1.0, 0.5, "sum", "body", 3, "int64", None))
    then = made.after(first["last"])
    assert (then["jobs"], len(then["scans"]), then["last"] > first["last"]) == ([], 1, True)
    with made.running(8, clock_of({"read": [(20.0, 21.0)]})):
        assert made.after(0)["running"]["ranks"] == [{"read": [[0, 1]]}]
    assert made.after(0)["running"] is None


def test_it_is_bounded():
    """The newest are kept, and always the last job."""
    made = Activity()
    for i in range(1000):
        made.add_job(i, [{"read": [(0.0, 1.0)]}])
        made.add_scan(ArrayScan(1.0, 0.5, "sum", "body", i, "int64", None))
        made.sample(i, None)
    kept = made.after(0)
    assert [len(kept[name]) for name in ("jobs", "scans", "samples")] == [200, 200, 1000]
    assert (kept["jobs"][-1]["number"], kept["scans"][-1]["elements"]) == (999, 999)
    many = [{"read": [(0.0, 1.0)] * 30_000}, {"read": [(0.0, 1.0)] * 30_000}]
    made.add_job(1000, many)
    assert [job["number"] for job in made.after(0)["jobs"]] == [1000]


def test_samples_are_rates():
    made = Activity()
    made.count("jobs", 500)
    time.sleep(0.1)
    made.sample(9, 5)
    made.sample(9, 5)
    first, second = made.after(0)["samples"]
    assert 500 < first["jobs"] <= 5000
    assert (first["memory"], first["gpu"], second["jobs"]) == (9, 5, 0)


def test_many_ranks_keep_fewer_intervals():
    assert most_intervals(8) == 64
    assert [ranks * most_intervals(ranks) <= 4096 for ranks in (1, 8, 64, 256, 2000)] == [True] * 5


def test_private_memory():
    """Of processes that are there; the others count as none."""
    own = private_memory([os.getpid()])
    assert own > 1 << 20
    assert private_memory([1 << 30]) == 0
    with mmap.mmap(-1, 1 << 26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(bytes(1 << 26))
        assert private_memory([os.getpid()]) - own > 1 << 25


def test_intervals_of_a_rank():
    """A phase of many threads is one interval; a long job has few."""
    clock = Timeline()
    with clock("read"), clock("read"), clock("write"):
        pass
    for _ in range(1000):
        with clock("scan"):
            pass
    intervals = clock.intervals()
    assert [len(intervals[phase]) for phase in ("read", "write")] == [1, 1]
    assert 1 < len(intervals["scan"]) <= 64
    assert len(clock.intervals(5)["scan"]) <= 5
    ends = [moment for each in intervals["scan"] for moment in each]
    assert ends == sorted(ends)
    assert abs(ends[-1] - time.time()) < 5


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_close_gaps(most):
    """The longest gaps stay; what is covered never becomes less."""
    intervals = [(0, 1), (2, 3), (10, 11), (11.5, 12), (100, 101)]
    closed = close_gaps(intervals, most)
    assert len(closed) == min(most, 5)
    assert (closed[0][0], closed[-1][1]) == (0, 101)
    assert all(any(b <= low and high <= e for b, e in closed) for low, high in intervals)
    assert most != 3 or closed == [(0, 3), (10, 12), (100, 101)]
