"""How a service begins and ends: by signals, by kills, by what it is given."""

import ctypes
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from distscan.service.errors import BusyError, ServiceError
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
TOKEN = "0123456789abcdef-a-token"
ranks = pytest.mark.parametrize("ranks", [1, 3], ids=["1-rank", "3-ranks"])


def long_file(folder, gib=0.5):
    """A file whose scan takes long enough to be disturbed."""
    np.lib.format.open_memmap(folder / "long.npy", "w+", "f8", (int(gib * 2**27),))
    return folder / "long.npy"


def in_memory(service):
    """The folders of arrays on their way, of all services that the test has started."""
    found = Path("/dev/shm").glob(f"distscan-{os.getuid()}-*")
    return [path for path in found if int(path.name.split("-")[2]) in service.pids]


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
        client, source = service.client(patience=0.1), long_file(tmp_path)
        runs = client.submit(source)
        waits = client.submit(source, tmp_path / "later.npy")
        while client.job(runs.number).state == "queued":
            time.sleep(0.005)
        for pid in service.ranks_of():
            os.kill(pid, number)
        with pytest.raises(ServiceError):  # 503, or it has ended already
            ask_again(client, "/healthz")
        with pytest.raises((BusyError, ServiceError)):
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
        job = client.submit(long_file(tmp_path, 1))
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
    """All jobs run; nothing half is there."""
    with serving(tmp_path, ranks) as service:
        client, source = service.client(), long_file(tmp_path)
        runs = client.submit(source)
        waits = client.submit(source, tmp_path / "later.npy")
        while client.job(runs.number).state == "queued":
            time.sleep(0.005)
        service.end(signal.SIGKILL)
        client.close()
        assert gone(service)
        assert not (tmp_path / "later.npy").exists()
        service.start()  # where the socket of the dead service is
        with service.client() as client:
            for job in (runs, waits):
                assert client.job(job.number).wait(60)["elements"] == 1 << 26
            assert client.job(runs.number).refresh()["attempts"] == 2
        assert len(in_memory(service)) == 1
        assert service.end() == 0
        assert in_memory(service) == []
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"long.npy", "long.scan.npy", "later.npy", "state"}


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
            found = {}
            for pid in service.ranks_of():
                with open(f"/proc/{pid}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                found[pid] = (int(fields[11]) + int(fields[12])) / ticks
            return found

        before = used()
        assert len(before) == ranks
        time.sleep(3)
        after = used()
        assert max(after[pid] - before[pid] for pid in before) < 0.035  # ticks of 0.01


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
