"""Clients of a service that is lost for a while, and clients in processes that are forked."""

import copy
import gc
import inspect
import os
import pickle
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import distscan
from distscan.service.errors import NoAnswerError, ServiceError, StoppedError
from support.display import rows
from support.processes import ended, forked
from support.services import (
    LARGE,
    TOKEN,
    cutting,
    long_file,
    npy,
    over_tcp,
    serving,
    stopped,
    wait_until,
)

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.one_rank,
    # Python warns since a test's process has threads; no lock of these is used here.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def lone(tmp_path_factory):
    """A service for all tests that leave it as it was."""
    with serving(tmp_path_factory.mktemp("service")) as service:
        np.save(service.folder / "x.npy", np.ones(10))
        yield service


# ---- answers that are lost -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, LARGE])
def test_scans_whose_answers_are_lost(n, lone, rng):
    """In place, the service does not write to ``x``, or the second try would scan it again."""
    with cutting(lone) as cutter, distscan.connect(cutter.address) as client:
        for lost in (1, 3):
            for x in (np.empty(n, int), client.empty(n, int)):
                for out in (None, x):
                    x[...] = rng.integers(0, 1000, n)
                    expected, cutter.lose = x.cumsum(), lost
                    np.testing.assert_array_equal(client.scan(x, out=out), expected)
                    assert cutter.lose == 0
        np.testing.assert_array_equal(x, expected)
        assert cutter.lost == 16


def test_a_job_whose_answer_is_lost_is_one_job(lone):
    with cutting(lone) as cutter, distscan.connect(cutter.address) as client:
        before, cutter.lose = client.jobs(1000), 3
        job = client.submit(lone.folder / "x.npy", force=True)
        assert (cutter.lost, len(client.jobs(1000))) == (3, len(before) + 1)
        cutter.lose = 3
        assert job.wait(30)["elements"] == 10
        assert cutter.lost == 6


def test_answers_that_are_always_lost(lone):
    with cutting(lone) as cutter, distscan.connect(cutter.address, patience=0.5) as client:
        cutter.lose = 10**9
        start = time.monotonic()
        with pytest.raises(ServiceError, match="no service answers"):
            client.scan([1, 2])
        assert time.monotonic() - start < 10
        cutter.lose = 0
        assert list(client.scan([1, 2])) == [1, 3]


# ---- a service that is started again -------------------------------------------------------------


def test_a_service_that_is_started_again(tmp_path):
    """A client that waits for a job waits on, and gets the report of the next service."""
    with serving(tmp_path) as service, service.client(patience=30) as client:
        job, reports = client.submit(long_file(tmp_path, 1 << 26)), []
        waiting = threading.Thread(target=lambda: reports.append(job.wait(60)))
        waiting.start()
        wait_until(lambda: client.job(job.number).state != "queued")
        service.end(signal.SIGKILL)
        assert waiting.is_alive()
        service.start()
        waiting.join()
        assert reports[0]["elements"] == 1 << 26
        assert client.job(job.number).refresh()["attempts"] == 2
        service.end(signal.SIGKILL)


def test_tries_are_spread(tmp_path, monkeypatch):
    """Clients that were refused at once do not come again at once."""
    pauses = []
    monkeypatch.setattr(
        "distscan.service.transport.Stop.sleep", lambda _, pause: pauses.append(pause)
    )
    for _ in range(20):
        with distscan.connect(tmp_path / "none", patience=60) as client:
            answers = (SimpleNamespace(status=status, json=dict) for status in [*8 * [429], 200])
            client._http.request = lambda *_, a=answers, **options: next(a)
            client.about()
    for i, most in enumerate((0.05, 0.1, 0.2, 0.5, *4 * [1])):
        assert most / 2 <= min(pauses[i::8]) < max(pauses[i::8]) <= most


# ---- a service that says nothing -----------------------------------------------------------------


@pytest.mark.parametrize("n", [10, LARGE])
def test_a_scan_ends_if_the_service_is_stopped(n, lone, rng):
    x = rng.integers(0, 1000, n)
    with lone.client(patience=0.1, timeout=0.5) as client:
        client.scan(x)
        with stopped(lone) as go_on:
            with pytest.raises(NoAnswerError, match=r"said nothing for 0\.5 s") as caught:
                client.scan(x)
            assert isinstance(caught.value, TimeoutError)
            go_on()
            np.testing.assert_array_equal(client.scan(x), x.cumsum())


def test_a_scan_may_take_long(lone):
    """Without a limit, it waits until the service goes on."""
    with lone.client(patience=0.1) as client, stopped(lone) as go_on:
        timer = threading.Timer(1, go_on)
        timer.start()
        assert list(client.scan([1, 2])) == [1, 3]
        timer.join()


def test_a_wait_ends_if_the_service_is_stopped(lone, monkeypatch):
    """Or goes on with the service, if that is patient enough."""
    monkeypatch.setattr("distscan.service.client.SILENCE", 0.2)
    with lone.client(patience=0.1) as client:
        job = client.submit(lone.folder / "x.npy", force=True)
        with stopped(lone), pytest.raises(NoAnswerError, match=r"said nothing for 0\.7 s"):
            job.wait()
        assert job.wait(30)["elements"] == 10
    with lone.client(patience=20) as client, stopped(lone) as go_on:
        timer = threading.Timer(2, go_on)
        timer.start()
        assert client.job(job.number).wait(30)["elements"] == 10
        timer.join()


def scan_in_thread(client, results):
    """Begin a scan in another thread, on a service that is stopped; wait until it is sent."""

    def scan():
        try:
            results.append(list(client.scan([1, 2])))
        except ServiceError as error:
            results.append(error)

    thread = threading.Thread(target=scan)
    thread.start()
    wait_until(lambda: any(each._socket for each in list(client._http._busy)))
    time.sleep(0.1)
    return thread


def test_a_client_that_is_closed(lone):
    """Requests of other threads end; there are no new ones."""
    client, results = lone.client(patience=60), []
    with stopped(lone):
        thread = scan_in_thread(client, results)
        client.close()
        thread.join(10)
    assert [type(each) for each in results] == [StoppedError]
    with pytest.raises(StoppedError):
        client.scan([1, 2])


def test_a_forked_process_closes_no_connection_of_its_parent(lone):
    with lone.client(patience=0) as client:
        results = []
        with stopped(lone):
            thread = scan_in_thread(client, results)
            assert ended(forked(client.close)) == 0
            time.sleep(0.1)
        thread.join()
    assert results == [[1, 3]]


def test_other_requests_have_a_limit(lone):
    def answer(*_, timeout, **options):
        limits.append(timeout)
        place = {"path": "/dev/null", "bytes": 1, "device": 0, "inode": 0}
        return SimpleNamespace(status=200, content=npy(np.zeros(2)), json=lambda: place)

    with lone.client(patience=0.1, timeout=7) as client:
        with stopped(lone), pytest.raises(NoAnswerError):
            client.request("GET", "/v1", timeout=0.3)
        job, limits = client.submit(lone.folder / "x.npy", force=True), []
        client._http.request = answer
        client.about()
        client.empty(LARGE)
        job.refresh(wait=60)
        client.scan([1, 2])
    assert limits == [30, 30, 90, 7]


def test_what_a_notebook_shows_of_a_service_that_is_stopped(lone):
    with lone.client(patience=20) as client:
        np.save(lone.folder / "x.npy", np.ones(10))
        job = client.submit(lone.folder / "x.npy", force=True)
        job.wait(30)
        with stopped(lone):
            begin = time.monotonic()
            assert rows(client._repr_html_())["answer"].startswith("none: ")
            assert rows(job._repr_html_())["state"] == "done"
            assert time.monotonic() - begin < 5
    assert rows(client._repr_html_())["answer"].startswith("none: ")  # it is closed
    assert rows(job._repr_html_())["state"] == "done"


def test_a_host_that_has_died_is_noticed(tmp_path):
    with serving(tmp_path, 1, *over_tcp(tmp_path)) as service, service.client(TOKEN) as client:
        client.about()
        option = client._http._spare[-1].sock.getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        names = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        idle, interval, count = (option(socket.IPPROTO_TCP, name) for name in names)
        assert idle + interval * count == 60  # seconds
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        service.end()


# ---- processes that are forked -------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, LARGE])
def test_parent_and_child_at_once(n, client, rng):
    """On one socket, each could read the other's answer; in one buffer, the other's array."""
    client.scan(rng.random(n))  # leaves a connection, and buffers

    def work(seed, depth=0):
        child = forked(lambda: work(seed + 1, depth - 1)) if depth else None
        numbers = np.random.default_rng(seed)
        for i in range(50):
            x = numbers.integers(0, 1000, n + i)
            np.testing.assert_array_equal(client.scan(x), x.cumsum())
        assert child is None or ended(child) == 0

    sibling = forked(lambda: work(1))
    work(2, depth=2)  # a child, and a child of it
    assert ended(sibling) == 0


def test_arrays_of_before(client, rng):
    """An array in shared memory stays as it is in the child when its parent has dropped it."""
    x = client.empty(LARGE, int)
    x[...] = rng.integers(0, 9, LARGE)
    arrays, expected, ready, go = [x, client.scan(x)], x.cumsum(), os.pipe(), os.pipe()

    def work():
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        x, y = arrays
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(x.cumsum(), expected)
        np.testing.assert_array_equal(client.scan(x), expected)
        out = np.empty_like(y)
        assert client.scan(x, out=out, reverse=True) is out
        np.testing.assert_array_equal(out, x[::-1].cumsum()[::-1])

    child = forked(work)
    os.read(ready[0], 1)
    del x
    arrays.clear()
    gc.collect()
    others = [client.empty(LARGE, int) for _ in range(5)]
    for other in others:
        other[...] = -1
    os.write(go[1], b"1")
    assert ended(child) == 0
    for end in (*ready, *go):
        os.close(end)


def test_jobs_of_before(service, client):
    """A child process waits for a job of its parent, and submits one."""
    np.save(service.folder / "x.npy", np.ones(10))
    job = client.submit(service.folder / "x.npy", force=True)

    def work():
        assert job.wait(30)["elements"] == 10
        assert client.submit(service.folder / "x.npy", force=True).wait(30)["elements"] == 10

    child = forked(work)
    assert job.wait(30)["elements"] == 10
    assert ended(child) == 0


def test_a_child_that_closes(client):
    """It closes its copies of the connections; a request of its parent goes on."""
    x = np.arange(LARGE)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(5):
            scan = pool.submit(lambda: [client.scan(x) for _ in range(5)])
            assert ended(forked(client.close)) == 0
            for y in scan.result(60):
                np.testing.assert_array_equal(y, x.cumsum())


@pytest.mark.parametrize("connect", [distscan.connect, distscan.connect_async])
def test_no_copies(connect):
    """A copy in another process would need the token, which is not written anywhere."""
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="connect in each process"):
            copied(connect("none"))


def test_help_has_the_options_of_scan(client):
    ours, theirs = (inspect.signature(f).parameters for f in (client.scan, distscan.scan))
    assert [*ours] == [name for name in theirs if name not in {"comm", "threads"}]
