"""How a service ends, by signals and by kills; and how the next one goes on with its jobs."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from distscan.job import output
from distscan.job.job import FileJob
from distscan.service import dispatch
from distscan.service.dispatch import job_to_json
from distscan.service.errors import CancelledJobError, ServiceError
from distscan.service.store import Store
from support.service_logs import wanted
from support.services import long_file, serving, values

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
ranks = pytest.mark.parametrize("ranks", [1, 3], ids=["1-rank", "3-ranks"])


def in_memory(service):
    """The folders in memory of all services that the test has started."""
    folders = Path("/dev/shm").glob(f"distscan-{os.getuid()}-*")
    return [path for path in folders if int(path.name.split("-")[2]) in service.pids]


def gone(service):
    """No rank is left, soon."""
    end = time.monotonic() + 10
    while service.ranks_of() and time.monotonic() < end:
        time.sleep(0.05)
    return service.ranks_of() == []


def ask_again(client, url):
    """Ask until the answer is an exception: Python calls a signal's handler between two lines."""
    while client.request("GET", url):
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "ranks"),
    [(signal.SIGTERM, 1), (signal.SIGTERM, 3), (signal.SIGINT, 3), (signal.SIGHUP, 1)],
)
def test_the_running_job_ends_first(number, ranks, tmp_path):
    """New ones are refused meanwhile; those that wait run when the service is back."""
    with serving(tmp_path, ranks) as service:
        client, source = service.client(patience=0.1), long_file(tmp_path, 1 << 26)
        runs = client.submit(source)
        waits = client.submit(source, tmp_path / "later.npy")
        while client.job(runs.number).state == "queued":
            time.sleep(0.005)
        for pid in service.ranks_of():
            os.kill(pid, number)
        with pytest.raises(ServiceError):  # 503, or it has ended already
            ask_again(client, "/healthz")
        with pytest.raises(ServiceError):
            client.submit(source, tmp_path / "refused.npy")
        assert service.wait(60) == 0
        assert (tmp_path / "long.scan.npy").exists()
        assert not (tmp_path / "later.npy").exists()
        assert not (tmp_path / "socket").exists()
        assert gone(service)
        client.close()
        service.start()
        with service.client() as client:
            assert client.job(runs.number).wait()["elements"] == 1 << 26
            assert client.job(waits.number).wait(60)["elements"] == 1 << 26
        assert service.end() == 0
    assert (tmp_path / "later.npy").exists()


def test_a_job_that_takes_longer_than_the_grace(tmp_path):
    with serving(tmp_path, 1, "--grace", "0") as service:
        client = service.client()
        job = client.submit(long_file(tmp_path))
        while client.job(job.number).state == "queued":
            time.sleep(0.005)
        assert service.end() == 0
        client.close()
        assert not (tmp_path / "long.scan.npy").exists()
        service.start()
        with service.client() as client:
            assert client.job(job.number).wait(60)["elements"] == 1 << 27
            assert client.job(job.number).refresh()["attempts"] == 1
        assert service.end() == 0
    assert {path.name for path in tmp_path.iterdir()} == {"long.npy", "long.scan.npy", "state"}


@ranks
def test_killed(ranks, tmp_path):
    """All jobs run; nothing half is there; the log says so."""
    with serving(tmp_path, ranks, "--log-format", "json") as service:
        client, source = service.client(), long_file(tmp_path, 1 << 26)
        runs = client.submit(source)
        waits = client.submit(source, tmp_path / "later.npy")
        while client.job(runs.number).state == "queued":
            time.sleep(0.005)
        service.end(signal.SIGKILL)
        client.close()
        assert gone(service)
        assert not (tmp_path / "later.npy").exists()
        service.start()  # where the socket of the dead service is
        message = f"job {runs.number} was interrupted; it is queued again"
        assert wanted(service, "json", "WARNING", message)["job"] == runs.number
        line = wanted(service, "json", "INFO", f"job {runs.number} begins", "attempt 2")
        assert line["attempt"] == 2
        with service.client() as client:
            for job in (runs, waits):
                assert client.job(job.number).wait(60)["elements"] == 1 << 26
            assert client.job(runs.number).refresh()["attempts"] == 2
        assert len(in_memory(service)) == 1
        assert service.end() == 0
        assert in_memory(service) == []
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"long.npy", "long.scan.npy", "later.npy", "state"}


def test_a_rank_that_is_killed_ends_the_service(tmp_path):
    """``mpirun`` ends with it, so that a supervisor starts it again."""
    with serving(tmp_path, 3) as service:
        assert len(service.ranks_of()) == 3
        os.kill(max(service.ranks_of()), signal.SIGKILL)
        assert service.wait(30) != 0
        assert gone(service)


@ranks
def test_idle_ranks_sleep(ranks, tmp_path):
    """Under one hundredth of a core each."""
    with serving(tmp_path, ranks) as service:
        with service.client() as client:
            client.scan(np.arange(300_000))

        def used():
            ticks = os.sysconf("SC_CLK_TCK")
            seconds = {}
            for pid in service.ranks_of():
                with open(f"/proc/{pid}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                seconds[pid] = (int(fields[11]) + int(fields[12])) / ticks
            return seconds

        before = used()
        assert len(before) == ranks
        time.sleep(6)
        after = used()
        assert max(after[pid] - before[pid] for pid in before) < 0.07  # ticks of 0.01


def test_a_signal_to_another_thread(tmp_path):
    """The system may deliver a signal to any thread; the main thread sleeps meanwhile."""
    tgkill = ctypes.CDLL(None, use_errno=True).tgkill
    with serving(tmp_path) as service:
        with service.client() as client:
            client.about()
        pid = service.process.pid
        others = {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()} - {pid}
        assert tgkill(pid, max(others), signal.SIGTERM) == 0
        assert service.wait(20) == 0


# ---- recovery ------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path, rng):
    """A file so large that a job notes its chunks."""
    x = rng.integers(-1000, 1000, dispatch._RESUMED // 8)
    np.save(tmp_path / "x.npy", x)
    return x


def begin(client, folder):
    """Submit a job of some seconds to two ranks; wait until both have noted chunks."""
    part, end = output.resumable(folder / "y.npy"), time.monotonic() + 60
    job = client.submit(folder / "x.npy", folder / "y.npy", memory=1 << 16)
    while sum(map(has_written, output.journals(part))) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    return job.number


def has_written(path):
    with contextlib.suppress(FileNotFoundError):  # a new journal gets its name
        return path.suffix != ".new" and '"scanned": 0,' not in path.read_text()
    return False


@pytest.mark.parametrize("ranks", [2, 1])
def test_the_next_service_goes_on(ranks, large, tmp_path):
    """With as many ranks after the last chunk, with others from the beginning."""
    with serving(tmp_path, 2) as service:
        with service.client() as client:
            number = begin(client, tmp_path)
            service.end(signal.SIGKILL)
        assert not (tmp_path / "y.npy").exists()
        service.ranks = ranks
        service.start()
        with service.client() as client:
            report = client.job(number).wait(60)
            assert client.job(number).refresh()["attempts"] == 2
        assert (report["bytes"]["write"] < large.nbytes) == (ranks == 2)
        assert service.end() == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy", mmap_mode="r"), large.cumsum())
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "y.npy", "state"}


def test_a_job_that_is_cancelled_leaves_nothing(large, tmp_path):
    with serving(tmp_path, 2) as service, service.client() as client:
        number = begin(client, tmp_path)
        client.job(number).cancel()
        with pytest.raises(CancelledJobError):
            client.job(number).wait(60)
        assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "state", "socket"}


def test_jobs_that_were_running_when_a_service_crashed(tmp_path):
    """They run again, unless that could change what they read or replace; but not without end."""
    np.save(tmp_path / "x.npy", np.arange(10))
    (tmp_path / "there.npy").write_text("of another program")

    def job(name, crashes=1, **options):
        request = job_to_json(FileJob.parse((tmp_path / "x.npy",), tmp_path / name, **options))
        number = store.add(request).number
        for i in range(crashes):
            store.start()
            if i < crashes - 1:
                store.queue_again(number)
        return number

    with contextlib.closing(Store(tmp_path / "state")) as store:
        again = job("y.npy"), job("there.npy", force=True), job("z.npy", crashes=2)
        fails = (
            *(job("w.npy", crashes=3), job("x.scan.npy", state=tmp_path / "s.json")),
            *(job("x.npy", force=True), job("s.npy", segments=tmp_path / "s.npy", force=True)),
        )
        (tmp_path / "late.npy").write_text("of another program")
        fails += (job("late.npy"),)
        unreadable = store.add(
            job_to_json(FileJob.parse((tmp_path / "x.npy",), tmp_path / "v.npy"))
            | {"dtype": "no type"}
        ).number
    with serving(tmp_path, 2) as service, service.client() as client:
        failed = values(client.request("GET", "/metrics").content.decode())
        assert failed["distscan_jobs_ended_total", ("state", "failed")] >= len(fails)
        for number in fails:
            with pytest.raises(ServiceError, match="the output is whole if it is there"):
                client.job(number).wait(30)
        for number, attempts in zip(again, (2, 2, 3), strict=True):
            assert client.job(number).wait(30)["total"] == 45
            assert client.job(number).refresh()["attempts"] == attempts
        with pytest.raises(TypeError, match="'no type' is not understood"):
            client.job(unreadable).wait(30)  # another version may have stored it
        assert service.end() == 0
    assert (tmp_path / "late.npy").read_text() == "of another program"
