"""Jobs that a service could not end: the next one goes on, or says why not."""

import contextlib
import signal
import time

import numpy as np
import pytest
from mpi4py import MPI

from distscan.binding import bind
from distscan.job import output
from distscan.job.job import FileJob
from distscan.service import dispatch
from distscan.service.arrays import Scanner
from distscan.service.dispatch import Dispatcher, Wakeup, job_to_json
from distscan.service.errors import CancelledJobError
from distscan.service.store import Store
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
N = dispatch._RESUMED // 8


@pytest.fixture
def large(tmp_path, rng):
    """A file so large that a job notes its chunks."""
    x = rng.integers(-1000, 1000, N)
    np.save(tmp_path / "x.npy", x)
    return x


def begin(client, folder):
    """Submit a slow job to two ranks, and wait until both have noted chunks that are written."""
    job = client.submit(folder / "x.npy", folder / "y.npy", memory=1 << 19)
    part = output.resumable(folder / "y.npy")
    end = time.monotonic() + 60
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
    """With as many ranks behind the last chunk, with others from the beginning."""
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
        assert (report["bytes"]["write"] < 8 * N) == (ranks == 2)
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


@pytest.fixture
def interrupted(tmp_path):
    """What becomes of a job that was running when a service crashed, so many times."""

    def made(crashes=1, **options):
        np.save(tmp_path / "x.npy", np.arange(10))
        given = {"inputs": (tmp_path / "x.npy",), "output": tmp_path / "y.npy"} | options
        number, comm = None, MPI.COMM_SELF
        for _ in range(crashes + 1):
            store = Store(tmp_path / "state")
            scanner, lines = Scanner(comm, bind(comm, "cpu", str)), Wakeup(comm)
            Dispatcher(comm, lines, store, scanner, most=9)
            if number is None:
                number = store.add(job_to_json(FileJob.parse(**given))).number
            store.start()
            record = store.get(number)
            store.close()
        return record

    return made


def test_it_runs_again(interrupted):
    record = interrupted()
    assert (record.state, record.attempts) == ("running", 2)


def test_not_if_the_output_is_there(interrupted, tmp_path):
    (tmp_path / "y.npy").write_text("another's")
    record = interrupted()
    assert record.state == "failed"
    assert "whole if it is there" in record.error["message"]
    assert interrupted(force=True).state == "running"


def test_not_if_it_changes_what_it_reads(interrupted, tmp_path):
    assert interrupted(state=tmp_path / "s.json").state == "failed"
    assert interrupted(output=tmp_path / "x.npy", force=True).state == "failed"
    segments = {"segments": tmp_path / "s.npy", "output": tmp_path / "s.npy", "force": True}
    assert interrupted(**segments).state == "failed"


def test_not_without_end(interrupted):
    """A job that crashes the service is given up."""
    assert interrupted(2).attempts == 3
    assert interrupted(3).state == "failed"


def test_a_job_that_the_ranks_cannot_read(tmp_path):
    """Another version may have stored it. It has failed, and the service goes on."""
    np.save(tmp_path / "x.npy", np.arange(10))
    job = job_to_json(FileJob.parse((tmp_path / "x.npy",), tmp_path / "y.npy"))
    with contextlib.closing(Store(tmp_path / "state")) as store:
        store.add(job | {"dtype": "no type"})
        store.add(job)
    with serving(tmp_path, 2) as service, service.client() as client:
        with pytest.raises(TypeError, match="'no type' is not understood"):
            client.job(1).wait(30)
        assert client.job(2).wait(30)["total"] == 45
        assert service.end() == 0
