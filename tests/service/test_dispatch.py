"""Rank 0's queue, without HTTP: what comes first, what is cancelled, and a disk that is full."""

import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from distscan.binding import bind
from distscan.job.job import FileJob
from distscan.service.arrays import Scanner, Task
from distscan.service.dispatch import Dispatcher, Wakeup, job_to_json
from distscan.service.errors import BusyError, StoreError
from distscan.service.store import Store
from support import buffers

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]


@pytest.fixture
def made(tmp_path):
    store = Store(tmp_path / "state")
    comm = MPI.COMM_SELF
    scanner = Scanner(comm, bind(comm, "cpu", str))
    yield Dispatcher(comm, Wakeup(comm), store, scanner, most=100, backend="cpu")
    store.close()


def job(folder, i=0):
    np.save(folder / f"{i}.npy", np.arange(10 + i))
    return job_to_json(FileJob.parse((folder / f"{i}.npy",), folder / f"{i}.scan.npy"))


@pytest.fixture
def task(tmp_path):
    """A function that returns the scan of an array from one buffer into another."""
    made = []

    def task(i=0):
        for name, x in (("x", np.arange(10 + i)), ("y", np.full(10 + i, -7))):
            made.append(buffers.put(tmp_path / f"{name}{i}", x))
        return Task(made[-2][1], made[-1][1], None, {"op": "sum"})

    yield task
    for buffer, _ in made:
        buffer.close()


@contextmanager
def running(dispatcher):
    thread = threading.Thread(target=dispatcher.run)
    thread.start()
    try:
        yield
    finally:
        dispatcher.stop(0)
        thread.join()


def test_arrays_and_files(made, task, tmp_path):
    records = [made.submit(job(tmp_path, i), None) for i in range(3)]
    arrays = [made.scan(task(i)) for i in range(3, 6)]
    ended = threading.Semaphore(0)
    made.listeners.append(ended.release)
    with running(made):
        assert [array.result(20) for array in arrays] == [None] * 3
        while not all(made.get(record.number)[0].state == "done" for record in records):
            assert ended.acquire(timeout=20)
    for i in range(6):
        path = tmp_path / (f"{i}.scan.npy" if i < 3 else f"y{i}")
        y = np.load(path) if i < 3 else np.fromfile(path, int)
        np.testing.assert_array_equal(y, np.arange(10 + i).cumsum())


def test_arrays_whose_client_is_gone(made, task, tmp_path):
    """They are left out; the next one runs."""
    gone, stays = made.scan(task(1)), made.scan(task(2))
    assert gone.cancel()
    with running(made):
        assert stays.result(20) is None
    assert set(np.fromfile(tmp_path / "y1", int)) == {-7}
    assert np.fromfile(tmp_path / "y2", int)[-1] == np.arange(12).sum()


def test_an_array_does_not_wait_for_a_file_job(made, task, tmp_path):
    """Rank 0 alone scans it then."""
    asked, submitted = [], made.submit(job(tmp_path), None)
    # It is called first when the job begins.
    made.listeners.append(lambda: asked or asked.append(made.scan(task(1))))
    with running(made):
        end = time.monotonic() + 20
        while made.get(submitted.number)[0].state != "done" and time.monotonic() < end:
            time.sleep(0.01)
    assert asked[0] is None
    assert made.get(submitted.number)[0].state == "done"


def test_the_end(made, task, tmp_path):
    """Arrays that wait are refused, files that wait stay in the store."""
    record, array = made.submit(job(tmp_path, 1), None), made.scan(task(2))
    made.stop(0)
    made.run()
    with pytest.raises(BusyError, match="the service ends"):
        array.result(1)
    with pytest.raises(BusyError, match="the service ends"):
        made.scan(task(3))
    with pytest.raises(BusyError, match="the service ends"):
        made.submit(job(tmp_path, 3), None)
    assert made.get(record.number)[0].state == "queued"
    assert made.stopping


def test_a_disk_that_is_full_for_a_while(made, tmp_path, monkeypatch):
    """The job's end is noted when it can be; none is begun before that."""
    record, full = made.submit(job(tmp_path), None), threading.Event()
    right, tries = Store.end, []

    def end(store, *given, **facts):
        tries.append(given)
        if len(tries) == 1:
            raise StoreError("the jobs cannot be stored: the disk is full")
        right(store, *given, **facts)
        full.set()

    monkeypatch.setattr(Store, "end", end)
    with running(made):
        assert full.wait(20)
    assert made.get(record.number)[0].state == "done"
    assert len(tries) == 2
    assert Path(tmp_path / "0.scan.npy").exists()


def test_old_jobs_are_forgotten(made, tmp_path):
    """Those that ended long ago, and no others."""
    store, now = made.store, time.time()
    made._keep = 60
    for i, ended in enumerate((now - 61, now - 59, None)):
        number = store.add(job(tmp_path, i)).number
        if ended is not None:
            store.start()
            store.end(number, "failed")
            store._db.execute("UPDATE jobs SET ended = ? WHERE number = ?", (ended, number))
    with running(made):
        end = time.monotonic() + 20
        while made.get(3)[0].state != "done" and time.monotonic() < end:
            time.sleep(0.01)
    assert [record.number for record in store.newest()] == [3, 2]
