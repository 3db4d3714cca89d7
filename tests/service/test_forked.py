"""A process that is forked has its parent's client, and its own connection and shared memory."""

import copy
import gc
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support.forked import ended, forked
from support.services import LARGE

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.one_rank,
    # Python warns since a test's process has threads; no lock of these is used here.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
TIMES = 50


@pytest.mark.parametrize("n", [10, LARGE])
def test_parent_and_child_at_once(n, client, rng):
    """On one socket, each could read the other's answer; in one buffer, the other's array."""
    client.scan(rng.random(n))  # leaves a connection, and buffers

    def work(seed):
        mine = np.random.default_rng(seed)
        for i in range(TIMES):
            x = mine.integers(0, 1000, n + i)
            np.testing.assert_array_equal(client.scan(x), x.cumsum())

    children = [forked(lambda seed=seed: work(seed)) for seed in (1, 2)]
    work(3)
    assert [ended(child) for child in children] == [0, 0]


def test_arrays_of_before(client, rng):
    """An array in shared memory stays as it is in the child when its parent has dropped it."""
    x = client.empty(LARGE, int)
    x[...] = rng.integers(0, 9, LARGE)
    kept, wanted, ready, go = [x, client.scan(x)], x.cumsum(), os.pipe(), os.pipe()

    def work():
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        x, y = kept
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(x.cumsum(), wanted)
        np.testing.assert_array_equal(client.scan(x), wanted)
        out = np.empty_like(y)
        assert client.scan(x, out=out, reverse=True) is out
        np.testing.assert_array_equal(out, x[::-1].cumsum()[::-1])

    child = forked(work)
    os.read(ready[0], 1)
    del x
    kept.clear()
    gc.collect()
    others = [client.empty(LARGE, int) for _ in range(5)]
    for other in others:
        other[...] = -1
    os.write(go[1], b"1")
    assert ended(child) == 0
    for end in (*ready, *go):
        os.close(end)


def test_jobs_of_before(service, client):
    np.save(service.folder / "x.npy", np.ones(10))
    job = client.submit(service.folder / "x.npy", force=True)

    def work():
        assert job.wait(30)["elements"] == 10
        assert client.submit(service.folder / "x.npy", force=True).wait(30)["elements"] == 10

    child = forked(work)
    assert job.wait(30)["elements"] == 10
    assert ended(child) == 0


def test_a_child_of_a_child(client):
    def work(depth):
        child = forked(lambda: work(depth - 1)) if depth else None
        for _ in range(10):
            np.testing.assert_array_equal(client.scan(np.arange(LARGE)), np.arange(LARGE).cumsum())
        assert child is None or ended(child) == 0

    work(2)


def test_a_child_that_closes(client):
    """It closes what it has; a request of its parent goes on."""
    x = np.arange(LARGE)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(5):
            scan = pool.submit(lambda: [client.scan(x) for _ in range(5)])
            assert ended(forked(client.close)) == 0
            for y in scan.result(60):
                np.testing.assert_array_equal(y, x.cumsum())


def test_no_copies(client):
    """A copy in another process would need the token, which is not written anywhere."""
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="connect in each process"):
            copied(client)
