"""The client for asyncio: tasks that are cancelled, services that are lost, other processes."""

import asyncio
import copy
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import distscan
from distscan.service import client_async
from distscan.service.errors import NoAnswerError, ServiceError
from support.async_clients import LARGE, long_file, run
from support.cutting import cutting
from support.forked import ended, forked
from support.services import serving, stop

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.one_rank,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


# ---- tasks that are cancelled --------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path):
    """A service that can be stopped, and goes on."""
    with serving(tmp_path) as made:
        (pid,) = made.ranks_of()
        yield made, lambda: stop(pid), lambda: os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGCONT)


async def end_of_threads(client):
    """Wait until no thread waits for an answer."""
    await asyncio.wait_for(asyncio.to_thread(client._threads.shutdown), 10)
    client._threads = ThreadPoolExecutor()


@pytest.mark.parametrize("n", [10, LARGE])
def test_a_scan_that_is_cancelled(n, stopped, rng):
    """It ends at once, although the service says nothing; its memory is not used again."""
    service, stop, go_on = stopped
    x, others = rng.integers(0, 1000, n), rng.integers(0, 1000, (5, LARGE))

    async def work(client):
        mine = await client.empty(n, int)
        mine[...] = x
        for _ in range(3):
            await client.scan(x)
        stop()
        tasks = [asyncio.create_task(client.scan(each)) for each in (x, mine)]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert {type(each) for each in found} == {asyncio.CancelledError}
        await end_of_threads(client)
        assert not client._client._arrays._buffers._idle
        go_on()
        results = await asyncio.gather(*map(client.scan, others))
        np.testing.assert_array_equal(results, others.cumsum(axis=1))
        np.testing.assert_array_equal(await client.scan(mine), x.cumsum())
        np.testing.assert_array_equal(mine, x)

    run(service, work)


def test_a_scan_that_is_cancelled_between_tries(tmp_path):
    async def work():
        async with distscan.connect_async(tmp_path / "none", patience=60) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.scan([1, 2]), 0.3)
            await end_of_threads(client)

    asyncio.run(work())


def test_cancelled_scans_take_no_threads(stopped):
    """More than a client has threads: the next request is sent all the same."""
    service, stop, go_on = stopped

    async def work(client):
        stop()
        for _ in range(2):
            waits = [
                asyncio.wait_for(client.scan([1, 2]), 0.3) for _ in range(client_async._AT_ONCE)
            ]
            found = await asyncio.gather(*waits, return_exceptions=True)
            assert {type(each) for each in found} == {asyncio.TimeoutError}
        go_on()
        assert list(await asyncio.wait_for(client.scan([1, 2]), 20)) == [1, 3]

    run(service, work)


def test_a_wait_that_is_cancelled(stopped):
    service, stop, go_on = stopped
    np.save(service.folder / "x.npy", np.ones(10))

    async def work(client):
        job = await client.submit(service.folder / "x.npy")
        stop()
        begun = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(job.wait(), 0.3)
        assert time.monotonic() - begun < 5
        await end_of_threads(client)
        go_on()
        assert (await job.wait(30))["elements"] == 10  # it went on

    run(service, work)


def test_limits(stopped):
    service, stop, go_on = stopped

    async def work(client):
        stop()
        with pytest.raises(NoAnswerError, match=r"said nothing for 0\.3 s"):
            await client.scan([1, 2])
        with pytest.raises(NoAnswerError):
            await client._run(client._client.request, "GET", "/v1", timeout=0.2)
        go_on()
        assert list(await client.scan([1, 2])) == [1, 3]

    run(service, work, patience=0.1, timeout=0.3)


# ---- a service that is lost for a while ----------------------------------------------------------


def test_answers_that_are_lost(service, rng):
    np.save(service.folder / "x.npy", np.ones(10))

    async def work(client):
        before = len(await client.jobs(1000))
        cutter.lose = 3
        job = await client.submit(service.folder / "x.npy", force=True)
        assert len(await client.jobs(1000)) == before + 1
        cutter.lose = 2
        assert (await job.wait(30))["elements"] == 10
        for n in (10, LARGE):
            cutter.lose = 2
            x = rng.integers(0, 1000, n)
            np.testing.assert_array_equal(await client.scan(x), x.cumsum())
        assert cutter.lost == 9

    with cutting(service) as cutter:
        run(cutter, work)


def test_a_service_that_is_started_again(tmp_path, rng):
    x = rng.integers(0, 1000, LARGE)
    with serving(tmp_path) as service:

        async def work(client):
            job = await client.submit(long_file(tmp_path))
            waiting = asyncio.create_task(job.wait(60))
            await client.scan(x)
            while await job.state() == "queued":
                await asyncio.sleep(0.005)
            service.end(signal.SIGKILL)
            await asyncio.to_thread(service.start)
            np.testing.assert_array_equal(await client.scan(x), x.cumsum())
            assert (await waiting)["elements"] == 1 << 27

        run(service, work, patience=30)
        service.end(signal.SIGKILL)


def test_no_service(tmp_path):
    async def work():
        async with distscan.connect_async(tmp_path / "none", patience=0.1) as client:
            with pytest.raises(ServiceError, match="no service answers on"):
                await client.scan([1, 2])

    asyncio.run(work())


# ---- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, LARGE])
def test_a_forked_process(n, service):
    """It has an event loop, threads and a connection of its own."""

    async def scans(client, seed):
        mine = np.random.default_rng(seed)
        for _ in range(30):
            x = mine.integers(0, 1000, n)
            np.testing.assert_array_equal(await client.scan(x), x.cumsum())

    async def work(client):
        await scans(client, 1)
        child = forked(lambda: asyncio.run(scans(client, 2)))
        await scans(client, 3)
        assert ended(child) == 0

    run(service, work)


def test_several_event_loops(service):
    """One after the other, and at once in threads: a client belongs to none of them."""
    client, wrong = distscan.connect_async(service.address), []

    async def work():
        for _ in range(5):
            x = np.arange(LARGE)
            if not np.array_equal(await client.scan(x), x.cumsum()):
                wrong.append(x)

    for _ in range(2):
        threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(2)]
        for thread in threads:
            thread.start()
        asyncio.run(work())
        for thread in threads:
            thread.join()
    asyncio.run(client.aclose())
    assert wrong == []


def test_no_copies(service):
    async def work(client):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="connect in each process"):
                copied(client)
        assert repr(client) == f"<AsyncClient of {service.address}>"

    run(service, work)
