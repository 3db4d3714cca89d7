"""The client for asyncio: arrays, jobs, tasks that are cancelled, other processes."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import distscan
from distscan.service.errors import CancelledJobError, NoAnswerError, NotFoundError, ServiceError
from support.display import rows
from support.processes import ended, forked
from support.services import LARGE, long_file, serving, stopped

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.one_rank,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
AT_ONCE = 16  # requests of a client


def run(service, work, **options):
    """Run ``work(client)`` in an event loop of its own."""

    async def main():
        async with distscan.connect_async(service.address, **options) as client:
            return await work(client)

    return asyncio.run(main())


# ---- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, LARGE])
def test_scans(n, service, rng):
    """With the arguments of ``distscan.scan``, and its exceptions."""
    x, flags = rng.integers(-1000, 1000, (n, 2)), rng.random(2 * n) < 0.1

    async def work(client):
        shared = await client.empty(x.shape, x.dtype)
        shared[...] = x
        for form in (
            *({"op": np.multiply, "dtype": "u1", "axis": 1}, {"segments": flags}),
            {"exclusive": True, "initial": 5, "reverse": True},
            {"op": "fsum", "window": (-10, 11)},
        ):
            expected = distscan.scan(x, **form)
            for array in (x, shared):
                y = await client.scan(array, **form)
                assert y.dtype == expected.dtype
                np.testing.assert_array_equal(y, expected)
        out = np.empty(2 * n, "f4")
        assert await client.scan(x, out=out) is out
        np.testing.assert_array_equal(out, distscan.scan(x, out=np.empty(2 * n, "f4")))
        with pytest.raises(np.exceptions.AxisError, match="axis 3 is out of bounds"):
            await client.scan(x, axis=3)
        assert (await client.about())["ranks"] == service.ranks
        assert repr(client) == f"<AsyncClient of {service.address}>"

    run(service, work)


def test_the_loop_goes_on(service):
    """While an array is converted or copied, other tasks run."""
    begun, went = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, *arguments, **more):
            begun.set()
            assert went.wait(10)  # the loop has run meanwhile
            return np.arange(3)

    async def work(client):
        scanning = asyncio.create_task(client.scan(Slow()))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        went.set()
        assert list(await scanning) == [0, 1, 3]

    run(service, work)


# ---- file jobs -----------------------------------------------------------------------------------


def test_jobs(service, rng):
    x = rng.integers(0, 9, 5000)
    np.save(service.folder / "x.npy", x)
    source = service.folder / "x.npy"

    async def work(client):
        job = await client.submit(source, op="max", force=True)
        report = await job.wait(30)
        result = await job.result(30)
        assert (result._asdict(), result.total) == (report, x.max())
        assert (await job.state(), await job.progress()) == ("done", None)
        assert [each.number for each in await client.jobs(1)] == [job.number]
        same_job = await client.job(job.number)
        assert repr(same_job) == f"<AsyncJob {job.number}: done>"
        assert rows(same_job._repr_html_())["state"] == "done"
        assert [record["state"] async for record in same_job.updates()] == ["done"]
        with pytest.raises(NotFoundError):
            await client.job(12345)
        failed = await client.submit(source, key="a", force=True, dtype="M8[s]")
        with pytest.raises(TypeError):
            await failed.wait(30)

    run(service, work)


def test_a_job_that_runs(service, capsys, rng):
    """Fifty waits for it do not block a scan, nor does each take a thread; all end with it."""
    x = rng.integers(0, 1000, LARGE)

    async def work(client):
        job = await client.submit(long_file(service.folder), force=True)
        with pytest.raises(TimeoutError, match=r"is (queued|running) after 0 s"):
            await job.wait(0)
        before = threading.active_count()
        waits = [asyncio.create_task(job.wait()) for _ in range(48)]
        waits += [asyncio.create_task(job.result()), asyncio.create_task(job.wait(progress=True))]
        async for record in job.updates():
            if progress := record["progress"]:
                assert 0 <= progress["done"] <= progress["size"]
                assert await job.progress() is None or (await job.state()) in ("running", "done")
                break
        for _ in range(5):
            np.testing.assert_array_equal(await client.scan(x[:10]), x[:10].cumsum())
            np.testing.assert_array_equal(await client.scan(x), x.cumsum())
        assert not any(wait.done() for wait in waits)  # the job has not ended meanwhile
        assert threading.active_count() <= before + AT_ONCE
        assert await job.cancel()
        ends = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(each) for each in ends} == {CancelledJobError}
        assert not await job.cancel()  # it had ended

    run(service, work)
    assert "job " in capsys.readouterr().err
    (service.folder / "long.npy").unlink()


# ---- tasks that are cancelled --------------------------------------------------------------------


@pytest.fixture(scope="module")
def lone(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("service")) as service:
        yield service


async def end_of_threads(client):
    """Wait until no thread waits for an answer."""
    await asyncio.wait_for(asyncio.to_thread(client._threads.shutdown), 10)
    client._threads = ThreadPoolExecutor()


@pytest.mark.parametrize("n", [10, LARGE])
def test_a_scan_that_is_cancelled(n, lone, rng):
    """It ends at once, although the service says nothing; its memory is not used again."""
    x, others = rng.integers(0, 1000, n), rng.integers(0, 1000, (5, LARGE))

    async def work(client):
        shared = await client.empty(n, int)
        shared[...] = x
        for _ in range(3):
            await client.scan(x)
        with stopped(lone):
            tasks = [asyncio.create_task(client.scan(each)) for each in (x, shared)]
            await asyncio.sleep(0.3)
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()
            ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
            assert {type(each) for each in ends} == {asyncio.CancelledError}
            await end_of_threads(client)
            assert not client._client._arrays._buffers._idle
        results = await asyncio.gather(*map(client.scan, others))
        np.testing.assert_array_equal(results, others.cumsum(axis=1))
        np.testing.assert_array_equal(await client.scan(shared), x.cumsum())
        np.testing.assert_array_equal(shared, x)

    run(lone, work)


def test_no_service(tmp_path):
    """A scan ends after its patience, or, between two tries, if it is cancelled."""

    async def work():
        async with distscan.connect_async(tmp_path / "none", patience=0.1) as client:
            with pytest.raises(ServiceError, match="no service answers on"):
                await client.scan([1, 2])
        async with distscan.connect_async(tmp_path / "none", patience=60) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.scan([1, 2]), 0.3)
            await end_of_threads(client)

    asyncio.run(work())


def test_cancelled_scans_take_no_threads(lone):
    """More than a client has threads: the next request is sent all the same, and has its limit."""

    async def work(client):
        with stopped(lone):
            for _ in range(2):
                waits = [asyncio.wait_for(client.scan([1, 2]), 0.3) for _ in range(AT_ONCE)]
                ends = await asyncio.gather(*waits, return_exceptions=True)
                assert {type(each) for each in ends} == {asyncio.TimeoutError}
            with pytest.raises(NoAnswerError, match=r"said nothing for 0\.5 s"):
                await client.scan([1, 2])
        assert list(await asyncio.wait_for(client.scan([1, 2]), 20)) == [1, 3]

    run(lone, work, patience=0.1, timeout=0.5)


def test_a_wait_that_is_cancelled(lone):
    np.save(lone.folder / "x.npy", np.ones(10))

    async def work(client):
        job = await client.submit(lone.folder / "x.npy", force=True)
        with stopped(lone):
            start = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(job.wait(), 0.3)
            assert time.monotonic() - start < 5
            await end_of_threads(client)
        assert (await job.wait(30))["elements"] == 10  # it went on

    run(lone, work)


# ---- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, LARGE])
def test_a_forked_process(n, service):
    """It has an event loop, threads and a connection of its own."""

    async def scans(client, seed):
        numbers = np.random.default_rng(seed)
        for _ in range(30):
            x = numbers.integers(0, 1000, n)
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
