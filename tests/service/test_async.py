"""The client for asyncio: the same answers, and many waits at once."""

import asyncio
import threading

import numpy as np
import pytest

import distscan
from distscan.job.report import Report
from distscan.service import client_async
from distscan.service.errors import CancelledJobError, NotFoundError
from support.async_clients import LARGE, long_file, run

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.one_rank,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_buffer(client, array):
    return client._client._arrays._buffers.place(array) is not None


# ---- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 10, LARGE])
def test_scans(n, service, rng):
    x, flags = rng.integers(-1000, 1000, (n, 2)), rng.random(2 * n) < 0.1

    async def work(client):
        for form in (
            *({}, {"op": "max"}, {"op": np.multiply, "dtype": "u1"}, {"axis": 1}, {"axis": 0}),
            *({"exclusive": True, "initial": 5, "reverse": True}, {"segments": flags}),
        ):
            y, wanted = await client.scan(x, **form), distscan.scan(x, **form)
            assert y.dtype == wanted.dtype
            np.testing.assert_array_equal(y, wanted)
        out = np.empty(2 * n, "f4")
        assert await client.scan(x, out=out) is out
        np.testing.assert_array_equal(out, distscan.scan(x, out=np.empty(2 * n, "f4")))
        for wrong in ({"axis": 3}, {"op": "none"}, {"initial": "x"}):
            with pytest.raises((ValueError, TypeError)) as mine:
                await client.scan(x, **wrong)
            with pytest.raises((ValueError, TypeError)) as other:
                distscan.scan(x, **wrong)
            assert (mine.type, str(mine.value)) == (other.type, str(other.value))

    run(service, work)


def test_empty_arrays(service, rng):
    async def work(client):
        x = await client.empty((3, LARGE), "i8")
        x[...] = rng.integers(0, 9, x.shape)
        y = await client.scan(x, axis=1)
        assert in_buffer(client, x)
        assert in_buffer(client, y)
        np.testing.assert_array_equal(y, x.cumsum(axis=1))
        assert (await client.about())["ranks"] == service.ranks

    run(service, work)


def test_many_scans_at_once(service, rng):
    arrays = [rng.integers(0, 1000, int(n)) for n in rng.integers(0, LARGE, 60)]

    async def work(client):
        return await asyncio.gather(*map(client.scan, arrays))

    for x, y in zip(arrays, run(service, work, patience=60), strict=True):
        np.testing.assert_array_equal(y, x.cumsum())


def test_the_loop_goes_on(service):
    """While an array is converted or copied, other tasks run."""
    begun, went = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, *given, **more):
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
        found = await job.result(30)
        assert isinstance(found, Report)
        assert (found._asdict(), found.total) == (report, x.max())
        assert (await job.state(), await job.progress()) == ("done", None)
        assert [each.number for each in await client.jobs(1)] == [job.number]
        again = await client.job(job.number)
        assert repr(again) == f"<AsyncJob {job.number}: done>"
        assert [record["state"] async for record in again.updates()] == ["done"]
        with pytest.raises(NotFoundError):
            await client.job(12345)
        failed = await client.submit(source, key="a", force=True, dtype="M8[s]")
        with pytest.raises(TypeError):
            await failed.wait(30)

    run(service, work)


def test_a_job_that_runs(service, capsys):
    async def work(client):
        job, seen = await client.submit(long_file(service.folder), force=True), set()
        with pytest.raises(TimeoutError, match=r"is (queued|running) after 0 s"):
            await job.wait(0)
        showing = asyncio.create_task(job.wait(progress=True))
        async for record in job.updates():
            if record["progress"]:
                seen.add(record["progress"]["phase"])
                assert await job.progress() is None or (await job.state()) in ("running", "done")
                break
        assert await job.cancel()
        for waits in (job.wait(60), job.result(60), showing):
            with pytest.raises(CancelledJobError):
                await waits
        assert not await job.cancel()  # it had ended
        assert len(seen) == 1

    run(service, work)
    assert "job " in capsys.readouterr().err
    (service.folder / "long.npy").unlink()


def test_fifty_waits_do_not_block_a_scan(service, rng):
    """Nor does each take a thread."""
    x = rng.integers(0, 1000, LARGE)

    async def work(client):
        job = await client.submit(long_file(service.folder), force=True)
        before = threading.active_count()
        waits = [asyncio.create_task(job.wait()) for _ in range(50)]
        for _ in range(5):
            np.testing.assert_array_equal(await client.scan(x[:10]), x[:10].cumsum())
            np.testing.assert_array_equal(await client.scan(x), x.cumsum())
        assert not any(each.done() for each in waits)  # the job has not ended meanwhile
        assert threading.active_count() <= before + client_async._AT_ONCE
        await job.cancel()
        found = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(each) for each in found} == {CancelledJobError}

    run(service, work)
    (service.folder / "long.npy").unlink()
