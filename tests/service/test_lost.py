"""Clients of a service that is lost for a while: answers, connections, the whole service."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from distscan.service.client import Client, JobHandle
from distscan.service.errors import NoAnswerError, ServiceError, StoppedError
from distscan.service.transport import Answer, Stop
from support.cutting import cutting
from support.forked import ended, forked
from support.services import LARGE, TOKEN, long_file, npy, over_tcp, serving, stop

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
        yield service


@contextmanager
def stopped(service):
    """A service that neither works nor ends, for the ``with`` block."""
    (pid,) = service.ranks_of()
    stop(pid)
    try:
        yield lambda: os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)


def jobs_of(service):
    with service.client() as client:
        return len(client.jobs(1000))


# ---- answers that are lost -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, LARGE])
def test_scans_whose_answers_are_lost(n, lone, rng):
    with cutting(lone) as cutter, Client(cutter.address, None, 10.0) as client:
        for cutter.lose in (1, 3, 1, 3):
            x = rng.integers(0, 1000, n)
            np.testing.assert_array_equal(client.scan(x), x.cumsum())
        assert cutter.lost == 8


@pytest.mark.parametrize("n", [10, LARGE])
def test_scans_in_place_whose_answers_are_lost(n, lone, rng):
    """``x`` is not the array that the service writes to, or the second try would scan it again."""
    with cutting(lone) as cutter, Client(cutter.address, None, 10.0) as client:
        for x in (np.empty(n, int), client.empty(n, int)):
            x[...] = rng.integers(0, 1000, n)
            wanted, cutter.lose = x.cumsum(), 2
            assert client.scan(x, out=x) is x
            np.testing.assert_array_equal(x, wanted)
            assert cutter.lose == 0


def test_a_job_whose_answer_is_lost_is_one_job(lone):
    np.save(lone.folder / "x.npy", np.ones(10))
    before = jobs_of(lone)
    with cutting(lone) as cutter, Client(cutter.address, None, 10.0) as client:
        cutter.lose = 3
        job = client.submit(lone.folder / "x.npy", force=True)
        assert (cutter.lost, jobs_of(lone)) == (3, before + 1)
        cutter.lose = 3
        assert job.wait(30)["elements"] == 10
        assert cutter.lost == 6


def test_answers_that_are_always_lost(lone):
    with cutting(lone) as cutter, Client(cutter.address, None, 0.5) as client:
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
        job, reports = client.submit(long_file(tmp_path)), []
        waiting = threading.Thread(target=lambda: reports.append(job.wait(60)))
        waiting.start()
        while client.job(job.number).state == "queued":
            time.sleep(0.005)
        service.end(signal.SIGKILL)
        assert waiting.is_alive()
        service.start()
        waiting.join()
        assert reports[0]["elements"] == 1 << 27
        assert client.job(job.number).refresh()["attempts"] == 2
        service.end(signal.SIGKILL)


def test_tries_are_spread(tmp_path, monkeypatch):
    """Clients that were refused at once do not come again at once."""
    pauses = []
    monkeypatch.setattr(Stop, "sleep", lambda stop, pause: pauses.append(pause))
    for _ in range(20):
        with Client(tmp_path / "none", None, 60.0) as client:
            answers = iter([*8 * [Answer(429, b"{}")], Answer(200, b"{}")])
            monkeypatch.setattr(client._http, "request", lambda *_, a=answers, **given: next(a))
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
    monkeypatch.setattr("distscan.service.client.SILENCE", 0.2)
    np.save(lone.folder / "x.npy", np.ones(10))
    with lone.client(patience=0.1) as client:
        job = client.submit(lone.folder / "x.npy", force=True)
        with stopped(lone), pytest.raises(NoAnswerError, match=r"said nothing for 0\.7 s"):
            job.wait()
        assert job.wait(30)["elements"] == 10


def test_a_wait_goes_on_with_the_service(lone, monkeypatch):
    monkeypatch.setattr("distscan.service.client.SILENCE", 0.2)
    np.save(lone.folder / "x.npy", np.ones(10))
    with lone.client(patience=20) as client:
        job = client.submit(lone.folder / "x.npy", force=True)
        with stopped(lone) as go_on:
            timer = threading.Timer(2, go_on)
            timer.start()
            assert job.wait(30)["elements"] == 10
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
    while not any(each._socket for each in list(client._http._busy)):
        time.sleep(0.01)
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


def test_other_requests_have_a_limit(lone, monkeypatch):
    with lone.client(patience=0.1, timeout=7) as client:
        with stopped(lone), pytest.raises(NoAnswerError):
            client.request("GET", "/v1", timeout=0.3)
        job, limits = JobHandle(client.request, {"number": 1}), []
        monkeypatch.setattr(client._http, "request", lambda *_, **given: noted(limits, given))
        client.about()
        client.empty(LARGE)
        job.refresh(wait=60)
        client.scan([1, 2])
    assert limits == [30, 30, 90, 7]


def noted(limits, given):
    """Note the limit of a request, and answer it."""
    limits.append(given["timeout"])
    place = {"path": "/dev/null", "bytes": 1, "device": 0, "inode": 0}
    return Answer(200, npy(np.zeros(2)) if "content" in given else json.dumps(place).encode())


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
