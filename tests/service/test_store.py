"""The queue of file jobs: nothing is lost, nothing runs twice, whatever ends the process."""

import contextlib
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest

from distscan.service.errors import KeyReusedError, ServiceError, StoreError, StoreLostError
from distscan.service.protocol import ENDED
from distscan.service.store import Store
from support.services import serving, values

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "state")
    yield store
    store.close()


def request(number=0):
    return {"inputs": [f"{number}.npy"], "op": "sum", "initial": None}


def test_a_job_from_its_beginning_to_its_end(store, tmp_path):
    """In a folder that this user alone can read."""
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    start = time.time()
    job = store.add(request())
    assert (job.state, job.started, job.ended, job.report) == ("queued", None, None, None)
    assert start <= job.created <= time.time()
    started = store.start()
    assert (started.number, started.state) == (job.number, "running")
    assert store.start() is None
    store.end(job.number, "done", report={"total": 3})
    ended = store.get(job.number)
    assert (ended.state, ended.report, ended.error) == ("done", {"total": 3}, None)
    assert ended.created <= ended.started <= ended.ended <= time.time()
    assert ended.request == request()


def test_first_in_first_out(store):
    numbers = [store.add(request(i)).number for i in range(5)]
    assert store.count_queued() == 5
    assert [record.number for record in store.newest()] == numbers[::-1]
    assert [record.number for record in store.newest(2, before=numbers[3])] == numbers[2:0:-1]
    assert store.cancel(numbers[1])
    for number in (numbers[0], *numbers[2:]):
        assert store.start().number == number
    assert not store.cancel(numbers[0])
    assert store.count_queued() == 0
    assert store.get(numbers[1]).state == "cancelled"
    assert store.get(1000) is None


def test_a_key_is_one_job(store):
    """However often it comes, and whatever became of the job."""
    job = store.add(request(1), "a key")
    assert store.add(request(1), "a key") == job
    other_inputs = request(1) | {"inputs": [*request(1)["inputs"], "x.npy"]}
    for other in (request(2), other_inputs):
        with pytest.raises(KeyReusedError, match="the key 'a key' is that of job 1"):
            store.add(other, "a key")
    store.start()
    store.end(job.number, "failed", error={"type": "InputError", "message": "no file"})
    repeated = store.add(request(1), "a key")
    assert (repeated.number, repeated.state, repeated.error["message"]) == (1, "failed", "no file")
    assert store.add(request(1)).number != store.add(request(1)).number  # no key
    assert store.count_queued() == 2


def test_jobs_end_once(store):
    """A job that has ended stays as it is."""
    number = store.add(request()).number
    for state in ENDED:
        with pytest.raises(KeyError, match="job 1 is not running"):
            store.end(number, state)
    store.start()
    store.end(number, "cancelled")
    for state in ENDED:
        with pytest.raises(KeyError):
            store.end(number, state)


def test_another_version(tmp_path):
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="of another version of distscan: 99"):
        Store(tmp_path)
    (tmp_path / "jobs.sqlite").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        Store(tmp_path)


def test_threads(store):
    """Jobs that several threads add and start at once: each is started once."""
    started, lock = [], threading.Lock()

    def add(i):
        for j in range(20):
            store.add(request(j), f"{j}")

    def start():
        end = time.monotonic() + 20
        while len(started) < 20 and time.monotonic() < end:
            if record := store.start():
                with lock:
                    started.append(record.number)

    threads = [threading.Thread(target=add, args=(i,)) for i in range(3)]
    threads += [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == sorted(record.number for record in store.newest())
    assert len(started) == 20


def test_a_full_disk(tmp_path):
    """A job that cannot be written is not there; earlier jobs stay."""
    code = """
import resource, sys
from pathlib import Path
from distscan.service.errors import StoreError
from distscan.service.store import Store
store = Store(Path(sys.argv[1]))
for i in range(3):
    store.add({"number": i})
size = sum(path.stat().st_size for path in Path(sys.argv[1]).iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20000, size + 20000))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
count = 3
try:
    for i in range(3, 100000):
        store.add({"number": i, "text": "x" * 1000})
        count += 1
except StoreError as error:
    print(count, len(store.newest(100000)), error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    count, rows, *text = ran.stdout.split()
    assert count == rows
    assert "cannot be stored" in " ".join(text)
    store = Store(tmp_path)
    assert [record.number for record in store.newest(10**6)] == [*range(int(count), 0, -1)]
    store.close()


WORK = """
import sys
from pathlib import Path
from distscan.service.store import Store
store = Store(Path(sys.argv[1]))
for record in store.running_jobs():
    store.end(record.number, "failed")
i = 0
while True:
    i += 1
    record = store.add({"number": i})
    print("added", record.number, flush=True)
    record = store.start()
    print("started", record.number, flush=True)
    store.end(record.number, "done", report={"total": record.number})
    print("done", record.number, flush=True)
"""


def test_kills(tmp_path, rng):
    """``kill -9`` at any moment: printed changes are there, and each job is done once."""
    output = []
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", WORK, tmp_path], stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.1)))
        os.kill(process.pid, signal.SIGKILL)
        output += [line.split() for line in process.stdout if line.endswith("\n")]
        process.stdout.close()
        process.wait()
    store = Store(tmp_path)
    records = {record.number: record for record in store.newest(10**6)}
    assert sorted(records) == [*range(1, len(records) + 1)]
    for change, number, *_ in output:
        assert int(number) in records
        assert change != "done" or records[int(number)].state == "done"
    states = Counter(record.state for record in records.values())
    assert states["queued"] <= 8  # a kill leaves one at most
    assert states["failed"] + states["running"] <= 8
    ended = [int(number) for change, number, *_ in output if change == "done"]
    assert len(ended) == len(set(ended))
    for record in records.values():
        assert record.state != "done" or record.report == {"total": record.number}
    store.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_folder_of_another_version(version, tmp_path):
    """Version 1 had no attempts, version 2 all inputs in one column."""
    several = request(2) | {"inputs": ["a.npy", "\udcff.npy", "c.npy"]}
    with contextlib.closing(Store(tmp_path)) as store:
        store.add(request(1))
        store.add({}, "a key")
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as db:
        db.execute("UPDATE jobs SET request = ? WHERE number = 2", (json.dumps(several),))
        for column in ("input_count", "inputs", *["attempts"] * (version == 1)):
            db.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()
    for _ in range(2):
        with contextlib.closing(Store(tmp_path)) as store:
            assert (store.get(1).request, store.get(2).request) == (request(1), several)
            assert [(job.input_count, job.attempts) for job in store.newest()] == [(3, 0), (1, 0)]
            assert store.add(several, "a key").number == 2
    with contextlib.closing(Store(tmp_path)) as store:
        assert store.start().attempts == 1


# ---- a file that is gone -------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["jobs.sqlite"], ["jobs.sqlite", "jobs.sqlite-wal"]])
def test_a_file_that_is_removed(names, store, tmp_path, caplog):
    """It is written again: no job is lost, and no number comes again."""
    for i in range(3):
        store.add(request(i), f"key {i}")
    store.start()
    highest = 3
    for i in range(4, 7):
        changes = store.changes
        for name in names:
            (tmp_path / "state" / name).unlink()
        assert store.add(request(1), "key 1").number == 2
        before, highest = highest, store.add(request(i)).number
        assert highest > before
        assert store.changes > changes
    assert "was removed while the service uses it; it is written again" in caplog.text
    assert not (tmp_path / "state/jobs.sqlite.new").exists()
    before = store.newest()
    store.close()
    store.__init__(tmp_path / "state")  # the fixture closes it
    assert store.newest() == before
    assert [job.state for job in before] == ["queued"] * 5 + ["running"]


def removed(folder):
    shutil.rmtree(folder)


def replaced(folder):
    (folder / "other").write_bytes((folder / "jobs.sqlite").read_bytes())
    (folder / "other").rename(folder / "jobs.sqlite")


def cut(folder):
    os.truncate(folder / "jobs.sqlite", 0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [(removed, "removed with its folder"), (replaced, "replaced by"), (cut, "cut short")],
)
def test_a_file_that_is_lost(fault, message, store, tmp_path):
    """Nothing is taken, also if the file looks right; numbers go on after the highest."""
    for i in range(3):
        store.add(request(i))
    fault(tmp_path / "state")
    for call in (store.check, store.newest, store.start, lambda: store.add(request(4))):
        with pytest.raises(StoreLostError, match=f"jobs.sqlite was {message}"):
            call()
    store.close()
    store.__init__(tmp_path / "state")
    assert store.add(request(4)).number == (1 if fault is removed else 4)


def test_a_service_whose_file_is_lost(tmp_path):
    """It says so, and goes on with arrays."""
    np.save(tmp_path / "x.npy", np.arange(10))
    with serving(tmp_path) as service, service.client() as client:
        client.submit(tmp_path / "x.npy").wait(30)
        (tmp_path / "state/jobs.sqlite").unlink()
        job = client.submit(tmp_path / "x.npy", force=True)
        assert (job.number, job.wait(30)["total"]) == (2, 45)
        assert client.request("GET", "/healthz").json() == {"status": "ok"}
        replaced(tmp_path / "state")
        for call in (client.jobs, lambda: client.submit(tmp_path / "x.npy", force=True)):
            with pytest.raises(StoreLostError, match="was replaced by another file"):
                call()
        metrics = values(client.request("GET", "/metrics").content.decode())
        assert math.isnan(metrics["distscan_jobs_queued",])
        assert metrics["distscan_jobs_running",] == 0
        with pytest.raises(ServiceError, match="answers 503"):
            client.request("GET", "/healthz")
        assert list(client.scan([1, 2])) == [1, 3]
        assert service.end() == 0
    assert "it is written again" in "".join(service.output)
