"""The events that a service sends to the clients that follow it."""

import asyncio
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from distscan.service import app
from distscan.service.app import Changes, Events, Updates
from distscan.service.dispatch import Progress
from distscan.service.errors import StoreError
from distscan.service.store import Store
from support.services import following, is_job, long_file, read_until, serving

pytestmark = [pytest.mark.timeout(60), pytest.mark.one_rank]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    np.save(folder / "x.npy", np.arange(1000))
    long_file(folder)
    with serving(folder) as service:
        yield service


def submit(client, service, name="x.npy", **options):
    return client.submit(service.folder / name, service.folder / "y.npy", force=True, **options)


# ---- the stream ----------------------------------------------------------------------------------


def test_a_job_from_its_beginning_to_its_end(service):
    with service.client() as client, following(service) as stream:
        name, milliseconds, _ = next(stream)
        assert (name, milliseconds > 0) == ("retry", True)
        name, snapshot, number = next(stream)
        assert (name, number) == ("snapshot", 1)
        assert snapshot["about"] == client.about()
        assert abs(snapshot["now"] - time.time()) < 10
        assert (snapshot["status"], snapshot["queued"]) == ("ok", 0)
        job = submit(client, service)
        seen = read_until(stream, is_job(job.number, "done"))
        assert seen[-1][1] == job.refresh()
        states = [data["state"] for name, data in seen if name == "job"]
        assert states == sorted(states, key=["queued", "running", "done"].index)


def test_progress(service):
    """At most some four times a second; then the job ends, here since it is cancelled."""
    with service.client() as client, following(service) as stream:
        job, begun = submit(client, service, "long.npy", threads=1), time.monotonic()
        read_until(stream, lambda name, data: name == "progress" and data["progress"]["done"] > 0)
        job.cancel()
        seen = read_until(stream, is_job(job.number, "cancelled"))
        assert len(seen) <= 5 * (time.monotonic() - begun) + 5
        assert {data["number"] for name, data in seen if name == "progress"} <= {job.number}
        shares = [data["progress"]["share"] for name, data in seen if name == "progress"]
        assert shares == sorted(shares)
        assert all(0 <= share <= 1 for share in shares)


def test_the_queue(service):
    """How many jobs wait is said beside the jobs."""
    with service.client() as client, following(service) as stream:
        runs = submit(client, service, "long.npy")
        waits = submit(client, service)
        read_until(stream, lambda name, data: name == "service" and data["queued"] == 1)
        with following(service) as late:
            snapshot = read_until(late, lambda name, data: name == "snapshot")[-1][1]
        jobs = {job["number"]: job for job in snapshot["jobs"]}
        assert jobs[waits.number]["state"] == "queued"
        assert jobs[runs.number]["state"] == "running"
        assert jobs[runs.number]["progress"] is not None
        assert [*jobs] == sorted(jobs, reverse=True)
        waits.cancel()
        read_until(stream, is_job(waits.number, "cancelled"))
        runs.cancel()
        read_until(stream, is_job(runs.number, "cancelled"))


@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
def test_the_end_waits_for_no_client(read, tmp_path):
    """The stream ends; the end of the last job comes before that."""
    np.save(tmp_path / "x.npy", np.arange(1000))
    with serving(tmp_path) as service, following(service) as stream:
        if read:
            read_until(stream, lambda name, data: name == "snapshot")
        with service.client() as client:
            submit(client, service).wait(30)
        begun = time.monotonic()
        assert service.end() == 0
        assert time.monotonic() - begun < 3
        if read:
            seen = list(stream)
            assert ("job", "done") in [(name, data.get("state")) for name, data, _ in seen]
            assert seen[-1][1]["status"] == "ending"


# ---- the changes since the last events -----------------------------------------------------------


@pytest.fixture
def dispatcher(tmp_path):
    """The jobs of a service that runs none."""
    store = Store(tmp_path)
    yield SimpleNamespace(store=store, current_job=None, stopping=False)
    store.close()


def names(updates):
    """The events, each by its name, and the number of its job if it has one."""
    return [(name, data["number"]) if "number" in data else name for name, data in updates.events()]


def test_news(dispatcher, monkeypatch):
    """Changes that the client does not know; a job that ended between two looks comes once."""
    store, updates = dispatcher.store, Updates(dispatcher, {})
    assert names(updates) == ["snapshot"]
    assert names(updates) == []
    store.add({"op": "sum"})
    store.add({"op": "sum"})
    assert names(updates) == [("job", 1), ("job", 2), "service"]
    dispatcher.current_job = store.start().number, Progress()
    assert names(updates) == [("job", 1), "service"]
    with monkeypatch.context() as patch:
        patch.setattr(store, "open_states", None)  # progress does not read the store
        for nbytes in (1, 2):
            dispatcher.current_job = 1, Progress("scan", nbytes, 2)
            assert names(updates) == [("progress", 1)]
            assert names(updates) == []
    store.end(1, "done", report={})
    dispatcher.current_job = store.start().number, Progress()
    store.add({"op": "max"})
    store.cancel(3)
    assert names(updates) == [("job", 1), ("job", 2), ("job", 3), "service"]
    dispatcher.stopping = True
    assert updates.events() == [("service", {"status": "ending", "queued": 0})]
    store.queue_again(2)
    dispatcher.current_job = None
    assert names(updates) == [("job", 2), "service"]


def test_a_client_that_comes_late(dispatcher):
    """It gets a snapshot; of many jobs, those that matter."""
    store, updates = dispatcher.store, Updates(dispatcher, {})
    updates.events()
    for _ in range(10):
        store.cancel(store.add({}).number)
    waits = store.add({}).number
    for _ in range(110):
        store.cancel(store.add({}).number)
    ((name, snapshot),) = updates.events()
    assert name == "snapshot"
    numbers = [job["number"] for job in snapshot["jobs"]]
    assert numbers == [*range(121, 21, -1), waits]
    assert names(updates) == []
    store.cancel(waits)
    assert names(updates) == [("job", waits), "service"]


# ---- clients that are slow, and disks that are broken --------------------------------------------


async def first(stream, number):
    return [(await anext(stream)).decode() for _ in range(number)]


def test_the_heartbeat(dispatcher, monkeypatch):
    monkeypatch.setattr(app, "_HEARTBEAT", 0.01)
    events = Events(dispatcher, Changes(), {})
    stream = events._stream(asyncio.Event())
    retry, snapshot, *beats = asyncio.run(first(stream, 4))
    assert (retry, beats) == ("retry: 2000\n\n", 2 * [": the service is there\n\n"])
    assert snapshot.startswith("id: 1\nevent: snapshot\ndata: {")


def test_a_slow_client(dispatcher):
    """Events are not stored for it: when it reads again, it gets the present state."""
    events, store = Events(dispatcher, Changes(), {}), dispatcher.store

    async def read():
        changed = asyncio.Event()
        stream = events._stream(changed)
        await first(stream, 2)
        for number in range(1, 121):
            store.cancel(store.add({}).number)
            dispatcher.current_job = number, Progress("scan", number, 1000)
            changed.set()
        await asyncio.sleep(0.05)
        return await first(stream, 1)

    (text,) = asyncio.run(read())
    assert text.startswith("id: 2\nevent: snapshot\n")
    assert len(json.loads(text.split("data: ")[1])["jobs"]) == 100


def test_a_broken_disk(dispatcher, monkeypatch, caplog):
    """The stream ends; the client comes again."""

    def broken(number):
        raise StoreError("disk I/O error")

    dispatcher.store.add({})
    monkeypatch.setattr(dispatcher.store, "summary", broken)
    events = Events(dispatcher, Changes(), {})

    async def read():
        return [text async for text in events._stream(asyncio.Event())]

    assert asyncio.run(read()) == [b"retry: 2000\n\n"]
    assert "disk I/O error" in caplog.text
