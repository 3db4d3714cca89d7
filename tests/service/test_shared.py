"""Arrays in memory that a service shares with its clients."""

import fcntl
import gc
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import distscan
from distscan.service.errors import BusyError, TooLargeError
from support.services import BODY, LARGE, ROOT, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


def in_buffer(client, array):
    return client._arrays._buffers.place(array) is not None


@pytest.mark.parametrize("form", [{}, {"exclusive": True, "reverse": True, "initial": 5}])
@pytest.mark.parametrize(
    ("segmented", "axis"), [(False, None), (False, 0), (False, 1), (True, None)]
)
@pytest.mark.parametrize("n", [1, 40, 700])
def test_as_scan(n, segmented, axis, form, client, rng):
    """With arrays of ``empty`` and ordinary ones, in all places that they can be."""
    x = rng.integers(-1000, 1000, (n, 500))
    flags = rng.random(x.size) < 0.01 if segmented else None
    given = form | {"axis": axis, "segments": flags}
    wanted = distscan.scan(x, **given)
    mine = client.empty(x.shape, x.dtype)
    mine[...] = x
    assert in_buffer(client, mine)
    for array in (x, mine, np.asfortranarray(x), mine[::-1][::-1], x.astype(">i8")):
        y = client.scan(array, **given)
        np.testing.assert_array_equal(y, wanted)
        assert y.dtype == wanted.dtype
        assert in_buffer(client, y) == in_buffer(client, array)
    for out in (np.full_like(wanted, -7), client.empty(wanted.shape, wanted.dtype)):
        for array in (x, mine):
            out[...] = -7
            assert client.scan(array, out=out, **given) is out
            np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(mine, x)  # as it was
    if wanted.shape == mine.shape:
        client.scan(mine, out=mine, **given)
        np.testing.assert_array_equal(mine, wanted)


TYPES = [("sum", "?"), ("prod", "b"), ("max", "H"), ("logical_or", "<f4"), ("logaddexp", ">f8"),
         ("bitwise_xor", "?"), ("sum", "e"), ("prod", "F"), ("max", ">f8"), ("logical_or", "b"),
         ("logaddexp", "<f4"), ("bitwise_xor", "H"), ("sum", "F")]  # fmt: skip


@pytest.mark.parametrize(("op", "code"), TYPES)
def test_types(op, code, client, rng):
    """Those of ``distscan.scan``."""
    x = rng.integers(0, 2 + (code != "?"), 1_100_000).astype(code)
    for dtype in (None, "f8", "i4", "c8") if op == "sum" and code != "F" else (None,):
        y, wanted = client.scan(x, op, dtype=dtype), distscan.scan(x, op, dtype=dtype)
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("code", ["<f4", "F"])
def test_types_that_an_operator_does_not_take(code, client):
    with pytest.raises(TypeError, match="bitwise_xor"):
        client.scan(np.ones(LARGE, code), "bitwise_xor")


def test_views_of_empty_arrays(client, rng):
    whole = client.empty(2 * LARGE)
    whole[...] = rng.random(2 * LARGE)
    for view in (whole[LARGE:], whole[::2], whole.reshape(2, -1)[1], whole[3:-3], whole[:0]):
        np.testing.assert_allclose(client.scan(view), view.cumsum(), rtol=1e-9)
    a, b = whole[:LARGE], whole[LARGE:]
    wanted = a.cumsum()
    assert client.scan(a, out=b) is b
    np.testing.assert_allclose(b, wanted, rtol=1e-9)


def test_results_stay(client, rng):
    """No buffer is used again as long as an array is in it."""
    kept = []
    for i in range(6):
        x = client.empty(LARGE, int)
        x[...] = rng.integers(0, 9, LARGE)
        kept.append((x, x.copy(), client.scan(x)))
        if i % 2:
            client.scan(rng.random(LARGE + i))
    for x, copy, y in kept:
        np.testing.assert_array_equal(x, copy)
        np.testing.assert_array_equal(y, copy.cumsum())
    addresses = {x.ctypes.data for x, _, _ in kept} | {y.ctypes.data for _, _, y in kept}
    assert len(addresses) == 12
    del x, y, copy, kept
    gc.collect()
    x = client.empty(LARGE, int)
    assert x.ctypes.data in addresses  # a used one: its pages are there


def test_an_array_outlives_its_client(service, rng):
    with service.client() as client:
        x = client.empty(LARGE)
        x[...] = rng.random(LARGE)
        y = client.scan(x)
    del client
    gc.collect()
    with service.client() as other:
        for _ in range(4):
            other.scan(rng.random(LARGE))
    np.testing.assert_allclose(y, x.cumsum(), rtol=1e-9)


def test_clients_do_not_share_buffers(service, rng):
    wrong = []

    def work(seed):
        mine = np.random.default_rng(seed)
        with service.client(patience=60) as client:
            for _ in range(15):
                x = client.empty(LARGE, int)
                x[...] = mine.integers(0, 9, LARGE)
                if not np.array_equal(client.scan(x), np.cumsum(x)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(int(seed),)) for seed in rng.integers(0, 99, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_threads_write_to_parts_of_one_array(client, rng):
    """One waits for the other, since both write to one buffer."""
    x, out = rng.integers(0, 9, (2, LARGE)), client.empty((2, LARGE), int)
    threads = [threading.Thread(target=lambda i=i: client.scan(x[i], out=out[i])) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(out, x.cumsum(axis=1))


def test_on_another_host(client, rng, monkeypatch):
    """The numbers of the file differ there: arrays travel in the body."""
    ask = client._arrays._buffers._request_buffer
    monkeypatch.setattr(client._arrays._buffers, "_request_buffer", lambda n: ask(n) | {"inode": 1})
    x = rng.random(LARGE)
    assert not in_buffer(client, client.empty(LARGE))
    out = np.empty(LARGE, "f4")
    np.testing.assert_allclose(client.scan(x), x.cumsum(), rtol=1e-9)
    np.testing.assert_array_equal(client.scan(x, "max", out=out), distscan.scan(x, "max", out=out))
    flags = rng.random(LARGE) < 0.1
    np.testing.assert_array_equal(client.scan(x, segments=flags), distscan.scan(x, segments=flags))


def test_a_client_that_changes_the_size_of_its_buffers(service, client, rng):
    """It cannot: the service would end by SIGBUS. Its arrays are scanned as before."""
    x = client.empty(LARGE)
    x[...] = rng.random(LARGE)
    wanted = x.cumsum()
    place = client._arrays._buffers.place(x)
    for size in (0, 4096, 1 << 30):
        with open(place["path"], "r+b") as file, pytest.raises(PermissionError):
            file.truncate(size)
    with open(place["path"], "r+b") as file, pytest.raises(PermissionError):
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    np.testing.assert_allclose(client.scan(x), wanted, rtol=1e-9)
    assert service.process.poll() is None


def test_a_client_that_is_killed(service, client):
    """Its buffers are free again."""
    program = (
        "import distscan, sys, time\n"
        f"client = distscan.connect({service.address!r})\n"
        f"x = [client.empty({BODY // 8}) for _ in range(3)]\n"
        "print(*(f.path for f in client._arrays._buffers._used.values()), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        paths = process.stdout.readline().split()
        process.kill()
    assert len(paths) == 3
    end, found = time.monotonic() + 30, set()
    while not found >= set(paths) and time.monotonic() < end:  # promised for a second
        given = [client.empty(BODY // 8) for _ in range(4)]
        found |= {each.path for each in client._arrays._buffers._used.values()}
        del given
        time.sleep(0.2)
    assert found >= set(paths)


def test_after_the_service_has_ended(tmp_path, rng):
    """Arrays in buffers of the service of before are scanned by the next one."""
    with serving(tmp_path) as service, service.client(patience=20) as client:
        x = client.empty(LARGE)
        x[...] = rng.random(LARGE)
        y = client.scan(x)
        service.end(signal.SIGKILL)
        service.start()
        z = client.scan(x)
        assert not in_buffer(client, z)
        for each in (y, z, client.scan(x.copy())):
            np.testing.assert_allclose(each, x.cumsum(), rtol=1e-9)
        client.scan(x, out=x)
        np.testing.assert_array_equal(x, z)


def test_all_memory_is_in_use(tmp_path, rng):
    with serving(tmp_path, 1, "--memory", str(1 << 24)) as service:
        with service.client(patience=0.5) as client:
            held = [client.empty(1 << 20) for _ in range(2)]
            with pytest.raises(BusyError, match="all memory for arrays is in use"):
                client.scan(rng.random(LARGE))
            with pytest.raises(TooLargeError):
                client.empty(1 << 25)
            assert list(client.scan([1, 2])) == [1, 3]
            del held
            gc.collect()
        with service.client() as client:
            x = rng.random(LARGE)
            np.testing.assert_allclose(client.scan(x), x.cumsum(), rtol=1e-9)
        service.end()
