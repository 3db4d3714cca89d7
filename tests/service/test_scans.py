"""Arrays that clients send, or share with the service, come back scanned."""

import fcntl
import gc
import signal
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest

import distscan
from distscan.service.errors import BusyError, TooLargeError
from support.cases import pairs
from support.exact import finite_bits, same, scanned
from support.services import BODY, LARGE, ROOT, npy, post, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


def in_buffer(array):
    """Whether an array is in memory that the service shares."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array is not None


def shared(client, x):
    """Return a copy of an array in memory that the service shares."""
    array = client.empty(x.shape, x.dtype)
    array[...] = x
    assert in_buffer(array)
    return array


def is_scan(case):
    """Whether there is such a scan, and whether it takes less than seconds."""
    axis_is_there = case["axis"] != 1 or len(case["shape"]) == 2
    is_fast = case["op"] == "sum" or np.prod(case["shape"]) <= 20_000
    return axis_is_there and is_fast and not (case["segmented"] and case["axis"] is not None)


@pairs(
    op=["sum", "fsum"],
    shape=[(0,), (1,), (1000,), (1_000_000,), (40, 500), (700, 500)],
    axis=[None, 0, 1, -1],
    segmented=[False, True],
    form=[{}, {"exclusive": True}, {"reverse": True}, {"initial": 3}, {"dtype": "f4"},
          {"exclusive": True, "reverse": True, "initial": 5}],
    allowed=is_scan,
)  # fmt: skip
def test_as_scan(op, shape, axis, segmented, form, client, rng):
    """In the body and in shared memory, with arrays in all places that they can be."""
    size = int(np.prod(shape))
    x = rng.integers(-9, 9, shape)
    if op == "fsum":
        x = finite_bits(rng, "f8", size).reshape(shape)
        x[rng.random(shape) < 0.01] = np.inf
    options = form | {"axis": axis, "segments": rng.random(size) < 0.01 if segmented else None}
    expected = distscan.scan(x, op, **options)
    array_in_buffer = shared(client, x)
    for array in (
        x,
        array_in_buffer,
        np.asfortranarray(x),
        array_in_buffer[::-1][::-1],
        x.astype(x.dtype.newbyteorder()),
    ):
        y = client.scan(array, op, **options)
        assert same(y, expected)
        assert in_buffer(y) == in_buffer(array)
    options.pop("dtype", None)  # the type of ``out`` is that of the result
    for out in (np.full_like(expected, -7), client.empty(expected.shape, expected.dtype)):
        for array in (x, array_in_buffer):
            out[...] = -7
            assert client.scan(array, op, out=out, **options) is out
            assert same(out, expected)
    np.testing.assert_array_equal(array_in_buffer, x)  # as it was
    if (expected.shape, expected.dtype) == (array_in_buffer.shape, array_in_buffer.dtype):
        client.scan(array_in_buffer, op, out=array_in_buffer, **options)
        assert same(array_in_buffer, expected)


TYPES = [("sum", "?"), ("prod", "b"), ("max", "H"), ("logical_or", "<f4"), ("logaddexp", ">f8"),
         ("bitwise_xor", "?"), ("sum", "e"), ("prod", "F"), ("max", ">f8"), ("logical_or", "b"),
         ("logaddexp", "<f4"), ("bitwise_xor", "H"), ("sum", "F"), ("max", "?"), ("sum", "b"),
         ("sum", "D"), ("fsum", "i4"), ("fsum", "F")]  # fmt: skip


@pytest.mark.parametrize(("op", "code"), TYPES)
@pytest.mark.parametrize("n", [100, 1_100_000])
def test_types(n, op, code, client, rng):
    """Those of ``distscan.scan``."""
    x = rng.integers(0, 2 + (code != "?"), n).astype(code)
    for dtype in (None, "f8", "i4", "c8") if op == "sum" and code not in "FD" else (None,):
        y, expected = client.scan(x, op, dtype=dtype), distscan.scan(x, op, dtype=dtype)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)


def test_bodies_that_are_no_array(service):
    archive, pickled = BytesIO(), BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.npy", b"none")
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    whole = npy(np.arange(1 << 19))

    def headed(descr, shape):
        text = str({"descr": descr, "fortran_order": False, "shape": shape}).encode()
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)

    huge = headed("|b1", ((1 << 63) - 1,))
    for body in (
        *(
            headed(descr, shape)
            for descr in ([], "<i8", "|V0", "|O")
            for shape in ((-1,), (2, -1), (-1, -1))
        ),
        *(huge, huge + bytes(1 << 21)),
        *(b"", b"none", archive.getvalue(), pickled.getvalue(), whole[:1000]),
        *(b"\0" * (1 << 21), whole[: 1 << 21], b"\x93NUMPY" * (1 << 20)),
    ):
        answer = post(service, "/v1/scans", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "InputError", answer.text


def test_a_body_that_is_too_large(service, client):
    x = np.zeros(BODY // 8 + 1)
    with pytest.raises(TooLargeError, match=f"more than {BODY} bytes"):
        client.scan(x)

    def pieces():
        for _ in range(40):
            yield bytes(1 << 20)

    assert post(service, "/v1/scans", content=pieces()).status_code == 413
    assert list(client.scan([1, 2])) == [1, 3]


@pytest.mark.parametrize("n", [100, 300_000, 1_500_000])
def test_a_body_in_chunks(n, service, rng):
    """It does not say how long it is."""
    x = rng.integers(0, 1000, n)
    whole = npy(x)
    pieces = (whole[low : low + 70_001] for low in range(0, len(whole), 70_001))
    answer = post(service, "/v1/scans", content=pieces)
    np.testing.assert_array_equal(np.load(BytesIO(answer.content)), x.cumsum())


def test_many_clients_at_once(service, rng):
    """Each gets its own array back, also where it is in shared memory."""
    wrong, arrays = [], [rng.integers(0, 1000, int(n)) for n in rng.integers(0, 300_000, 24)]

    def work(some):
        with service.client(patience=60) as client:
            for x in some:
                for _ in range(3):
                    for array in (x, shared(client, x)):
                        if not np.array_equal(client.scan(array), x.cumsum()):
                            wrong.append(x.size)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [arrays[i::8] for i in range(8)]))
    assert wrong == []


def test_a_client_that_goes_in_mid_upload(service, client):
    def pieces():
        yield bytes(1 << 21)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        post(service, "/v1/scans", content=pieces())
    assert list(client.scan([1, 2])) == [1, 3]


def test_about(service, client):
    about, jobs = client.about(), [job.number for job in client.jobs()]
    assert (about["protocol"], about["ranks"], about["nodes"]) == (1, service.ranks, 1)
    assert about["backend"] == "cpu"
    host = about["placement"][0]["host"]
    assert about["placement"] == service.ranks * [{"host": host, "device": about["device"]}]
    client.scan([1, 2])
    assert [job.number for job in client.jobs()] == jobs  # arrays are no file jobs
    assert client.request("GET", "/healthz").json() == {"status": "ok"}


# ---- fsum ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1000, 300_000])
def test_fsum_windows(n, client, rng):
    """Small arrays, and large ones in shared memory."""
    x = rng.integers(-(2**20), 2**20, n) / 2.0**10
    y = client.scan(x, "fsum", window=(-10, 11))
    assert same(y, np.cumsum(x))  # of this grid, plain sums are exact, too
    with pytest.raises(ValueError, match=r"x needs window=\(.*beyond window=\(-9, 11\)"):
        client.scan(x, "fsum", window=(-9, 11))


def test_fsum_of_a_file(service, client, rng):
    x = finite_bits(rng, "float64", 5000)
    np.save(service.folder / "x.npy", x)
    report = client.submit(service.folder / "x.npy", op="fsum", reverse=True, force=True).wait(60)
    want = scanned(x, "float64", reverse=True)
    assert same(np.load(service.folder / "x.scan.npy"), want)
    assert report["op"] == "fsum"
    assert float(report["total"]) == want[0]  # JSON has infinity as text
    np.save(service.folder / "x.npy", np.ones(9))
    options = {"op": "fsum", "force": True}
    client.submit(service.folder / "x.npy", window=(0, 1), **options).wait(60)
    assert same(np.load(service.folder / "x.scan.npy"), np.arange(1.0, 10.0))
    with pytest.raises(ValueError, match=r"the input needs window=\(0, 1\), beyond"):
        client.submit(service.folder / "x.npy", window=(1, 3), **options).wait(60)
    with pytest.raises(ValueError, match="state does not take fsum"):
        client.submit(service.folder / "x.npy", state=service.folder / "s", **options).wait(60)
    with pytest.raises(ValueError, match="window= goes with op='fsum', not 'max'"):
        client.submit(service.folder / "x.npy", op="max", window=(0, 1))


# ---- arrays in shared memory ---------------------------------------------------------------------


def test_views_of_empty_arrays(client, rng):
    array = client.empty(2 * LARGE)
    array[...] = rng.random(2 * LARGE)
    for view in (array[LARGE:], array[::2], array.reshape(2, -1)[1], array[3:-3], array[:0]):
        np.testing.assert_allclose(client.scan(view), view.cumsum(), rtol=1e-9)
    a, b = array[:LARGE], array[LARGE:]
    expected = a.cumsum()
    assert client.scan(a, out=b) is b
    np.testing.assert_allclose(b, expected, rtol=1e-9)


def test_results_stay(client, rng):
    """No buffer is used again as long as an array is in it."""
    arrays = []
    for i in range(6):
        x = shared(client, rng.integers(0, 9, LARGE))
        arrays.append((x, x.copy(), client.scan(x)))
        if i % 2:
            client.scan(rng.random(LARGE + i))
    for x, copy, y in arrays:
        np.testing.assert_array_equal(x, copy)
        np.testing.assert_array_equal(y, copy.cumsum())
    addresses = {x.ctypes.data for x, _, _ in arrays} | {y.ctypes.data for _, _, y in arrays}
    assert len(addresses) == 12
    del x, y, copy, arrays
    gc.collect()
    x = client.empty(LARGE, int)
    assert x.ctypes.data in addresses  # a used one: its pages are there


def test_an_array_outlives_its_client(service, rng):
    with service.client() as client:
        x = shared(client, rng.random(LARGE))
        y = client.scan(x)
    del client
    gc.collect()
    with service.client() as other:
        for _ in range(4):
            other.scan(rng.random(LARGE))
    np.testing.assert_allclose(y, x.cumsum(), rtol=1e-9)


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
    x, flags = rng.random(LARGE), rng.random(LARGE) < 0.1
    for options in ({}, {"op": "max", "out": np.empty(LARGE, "f4")}, {"segments": flags}):
        np.testing.assert_array_equal(client.scan(x, **options), distscan.scan(x, **options))
    assert not in_buffer(client.empty(LARGE))


def test_a_client_that_changes_the_size_of_its_buffers(service, client, rng):
    """It cannot: the service would end by SIGBUS. Its arrays are scanned as before."""
    x = shared(client, rng.random(LARGE))
    expected = x.cumsum()
    place = client._arrays._buffers.place(x)
    with open(place["path"], "r+b") as file:
        for size in (0, 4096, 1 << 30):
            with pytest.raises(PermissionError):
                file.truncate(size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    np.testing.assert_allclose(client.scan(x), expected, rtol=1e-9)
    assert service.process.poll() is None


def test_a_client_that_is_killed(service, client):
    """Its buffers are free again."""
    program = (
        "import distscan, sys, time\n"
        f"client = distscan.connect({service.address!r})\n"
        f"x = [client.empty({BODY // 8}) for _ in range(3)]\n"
        "print(*(f.path for f in client._arrays._buffers._buffers.values()), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        paths = process.stdout.readline().split()
        process.kill()
    assert len(paths) == 3
    end, seen = time.monotonic() + 30, set()
    while not seen >= set(paths) and time.monotonic() < end:  # promised for a second
        options = [client.empty(BODY // 8) for _ in range(4)]
        seen |= {each.path for each in client._arrays._buffers._buffers.values()}
        del options
        time.sleep(0.2)
    assert seen >= set(paths)


def test_after_the_service_has_ended(tmp_path, rng):
    """Arrays in buffers of the service of before are scanned by the next one."""
    with serving(tmp_path) as service, service.client(patience=20) as client:
        x = shared(client, rng.random(LARGE))
        y = client.scan(x)
        service.end(signal.SIGKILL)
        service.start()
        z = client.scan(x)
        assert not in_buffer(z)
        for each in (y, z, client.scan(x.copy())):
            np.testing.assert_allclose(each, x.cumsum(), rtol=1e-9)
        client.scan(x, out=x)
        np.testing.assert_array_equal(x, z)


def test_all_memory_is_in_use(tmp_path, rng):
    with serving(tmp_path, 1, "--memory", str(1 << 24)) as service:
        with service.client(patience=0.5) as client:
            arrays = [client.empty(1 << 20) for _ in range(2)]
            with pytest.raises(BusyError, match="all memory for arrays is in use"):
                client.scan(rng.random(LARGE))
            with pytest.raises(TooLargeError):
                client.empty(1 << 25)
            assert list(client.scan([1, 2])) == [1, 3]
            del arrays
            gc.collect()
        with service.client() as client:
            x = rng.random(LARGE)
            np.testing.assert_allclose(client.scan(x), x.cumsum(), rtol=1e-9)
        service.end()
