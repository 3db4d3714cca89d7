"""Arrays that clients send, or share with the service, come back scanned."""

import asyncio
import fcntl
import gc
import signal
import subprocess
import sys
import threading
import time
import zipfile
from io import BytesIO

import numpy as np
import pytest

import distscan
from distscan.service import commands, protocol
from distscan.service.errors import BusyError, TooLargeError
from support.exact import same, scanned
from support.patterns import finite_bits
from support.services import BODY, LARGE, ROOT, npy, post, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]


FORMS = [
    {},
    {"exclusive": True},
    {"reverse": True},
    {"initial": 3},
    {"exclusive": True, "reverse": True, "initial": 5},
]


def wanted(x, given):
    """NumPy's scan of a flat array."""
    first = [given.get("initial", 0)]
    step = -1 if given.get("reverse") else 1
    sums = np.concatenate([first, x.ravel()[::step]]).cumsum()
    return (sums[:-1] if given.get("exclusive") else sums[1:])[::step]


@pytest.mark.parametrize(
    ("n", "form"),
    [(0, FORMS[1]), (1, FORMS[4]), *((1000, form) for form in FORMS),
     (200_000, FORMS[0]), *((1_000_000, form) for form in FORMS[1:])],
)  # fmt: skip
def test_arrays(n, form, client, rng):
    """Small ones by one rank, large ones by all."""
    x = rng.integers(-1000, 1000, n)
    y = client.scan(x, **form)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, wanted(x, form))


@pytest.mark.parametrize("shape", [(30, 40), (700, 500)])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_axes(axis, shape, client, rng):
    x = rng.integers(-1000, 1000, shape)
    for order in "CF":
        given = np.asarray(x, order=order)
        np.testing.assert_array_equal(client.scan(given, axis=axis), x.cumsum(axis=axis))


@pytest.mark.parametrize("code", ["?", "b", "<f4", ">f8", "H", "D"])
@pytest.mark.parametrize("n", [100, 300_000])
def test_types(n, code, client, rng):
    x = rng.integers(0, 2, n).astype(code)
    y = client.scan(x)
    np.testing.assert_array_equal(y, x.cumsum())
    assert y.dtype == x.cumsum().dtype
    assert client.scan(x, "max").dtype == x.dtype.newbyteorder("=")
    assert client.scan(x, np.add, dtype="f8" if code != "D" else "D").dtype.kind in "fc"


def test_bodies_that_are_no_array(service):
    archive, pickled = BytesIO(), BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.npy", b"none")
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    whole = npy(np.arange(1 << 19))
    text = str({"descr": "|b1", "fortran_order": False, "shape": ((1 << 63) - 1,)}).encode()
    huge = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    for body in (
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
    """Each gets its own array back."""
    wrong, arrays = [], [rng.integers(0, 1000, int(n)) for n in rng.integers(0, 300_000, 24)]

    def work(some):
        with service.client(patience=60) as client:
            for x in some:
                for _ in range(5):
                    if not np.array_equal(client.scan(x), x.cumsum()):
                        wrong.append(x.size)

    threads = [threading.Thread(target=work, args=(arrays[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_client_that_goes_in_mid_upload(service, client):
    def pieces():
        yield bytes(1 << 21)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        post(service, "/v1/scans", content=pieces())
    assert list(client.scan([1, 2])) == [1, 3]


def test_what_it_says_of_itself(service, client):
    about, jobs = client.about(), [job.number for job in client.jobs()]
    assert (about["protocol"], about["ranks"]) == (protocol.VERSION, service.ranks)
    assert about["backend"] == "cpu"
    client.scan([1, 2])
    assert [job.number for job in client.jobs()] == jobs  # arrays are no file jobs
    assert client.request("GET", "/healthz").json() == {"status": "ok"}


# ---- fsum ----------------------------------------------------------------------------------------

EXACT_FORMS = [{}, {"exclusive": True, "reverse": True, "initial": 0.1}, {"dtype": "float32"}]


@pytest.mark.parametrize("form", EXACT_FORMS)
@pytest.mark.parametrize("shape", [(0,), (501,), (31, 17)])
def test_fsum(shape, form, client, rng):
    x = finite_bits(rng, "float64", int(np.prod(shape))).reshape(shape)
    x[rng.random(shape) < 0.01] = np.inf
    heads = rng.random(x.size) < 0.1
    heads[:1] = True
    name = form.get("dtype", "float64")
    options = {key: value for key, value in form.items() if key != "dtype"}
    want = scanned(x, name, **options)
    assert same(client.scan(x, "fsum", **form), want)
    out = np.full(want.shape, np.nan, want.dtype)
    assert client.scan(x, "fsum", out=out, **options) is out
    assert same(out, want)
    want = scanned(x, name, heads=heads, **options)
    assert same(client.scan(x, "fsum", segments=heads, **form), want)
    if x.ndim > 1:
        for axis in (0, 1):
            want = scanned(x, name, axis=axis, **options)
            assert same(client.scan(x, "fsum", axis=axis, **form), want)


@pytest.mark.parametrize("n", [1000, 300_000])
def test_fsum_windows(n, client, rng):
    """Small arrays, and large ones in shared memory."""
    x = rng.integers(-(2**20), 2**20, n) / 2.0**10
    y = client.scan(x, "fsum", window=(-10, 11))
    assert same(y, np.cumsum(x))  # of this grid, plain sums are exact, too
    with pytest.raises(ValueError, match=r"x needs window=\(.*beyond window=\(-9, 11\)"):
        client.scan(x, "fsum", window=(-9, 11))


def test_fsum_types(client):
    x = np.arange(100, dtype="i4")
    assert same(client.scan(x, "fsum"), np.cumsum(x).astype("f8"))
    assert same(client.scan(x.astype("c8"), "fsum"), np.cumsum(x).astype("c8"))


@pytest.mark.parametrize(
    ("op", "options", "text"),
    [
        ("fsum", {"strategy": "scan-add"}, "'scan-add' adds to rounded results"),
        ("fsum", {"dtype": "int64"}, "dtype is int64; fsum rounds to floats"),
        ("fsum", {"window": (3, 1)}, "low must be below high"),
        ("fsum", {"window": 5}, "window is two integers"),
        ("fsum", {"initial": 1j}, "initial is complex128; the result is float64"),
        ("fsum", {"initial": 1 << 1024}, "initial is an integer of 1025 bits; fsum takes"),
        ("sum", {"window": (0, 1)}, "window= goes with op='fsum', not 'sum'"),
    ],
)
def test_fsum_refusals(op, options, text, client):
    """As ``scan`` raises them, before anything is sent."""
    x = np.ones(3)
    for scan in (client.scan, distscan.scan):
        with pytest.raises((TypeError, ValueError), match=text):
            scan(x, op, **options)


def test_fsum_of_other_clients(service):
    for asked, text in (
        (f"op=fsum&initial={1 << 1024}", "initial is an integer of 1025 bits; fsum takes"),
        ("op=fsum&window=1", "window is two integers"),
        ("op=fsum&window=a,b", "window is two whole numbers such as -10,11"),
        ("op=max&window=0,1", "window= goes with op='fsum', not 'max'"),
    ):
        answer = post(service, f"/v1/scans?{asked}", content=npy(np.ones(3)))
        assert answer.status_code == 400
        assert text in answer.json()["error"]["message"]


def test_fsum_by_the_client_of_asyncio(service, rng):
    async def scan(x):
        async with distscan.connect_async(service.address) as client:
            return await client.scan(x, "fsum", window=(-10, 11))

    x = rng.integers(-9, 9, 100) / 4
    assert same(asyncio.run(scan(x)), np.cumsum(x))


def test_fsum_of_a_file(service, client, rng):
    x = finite_bits(rng, "float64", 5000)
    np.save(service.folder / "x.npy", x)
    report = client.submit(service.folder / "x.npy", op="fsum", reverse=True, force=True).wait(60)
    want = scanned(x, "float64", reverse=True)
    assert same(np.load(service.folder / "x.scan.npy"), want)
    assert report["op"] == "fsum"
    assert float(report["total"]) == want[0]  # JSON has infinity as text
    np.save(service.folder / "x.npy", np.ones(9))
    given = {"op": "fsum", "force": True}
    client.submit(service.folder / "x.npy", window=(0, 1), **given).wait(60)
    assert same(np.load(service.folder / "x.scan.npy"), np.arange(1.0, 10.0))
    with pytest.raises(ValueError, match=r"the input needs window=\(0, 1\), beyond"):
        client.submit(service.folder / "x.npy", window=(1, 3), **given).wait(60)
    with pytest.raises(ValueError, match="state does not take fsum"):
        client.submit(service.folder / "x.npy", state=service.folder / "s", **given).wait(60)
    with pytest.raises(ValueError, match="window= goes with op='fsum', not 'max'"):
        client.submit(service.folder / "x.npy", op="max", window=(0, 1))


def test_fsum_by_the_command(service):
    """``submit`` takes what the command line of jobs takes."""
    np.save(service.folder / "x.npy", np.ones(9))
    given = ["--op", "fsum", "--window", "-2", "5", "--force", "--quiet"]
    where = ["--address", service.address]
    assert commands.main("submit", [str(service.folder / "x.npy"), *given, *where]) == 0
    assert same(np.load(service.folder / "x.scan.npy"), np.arange(1.0, 10.0))


# ---- arrays in shared memory ---------------------------------------------------------------------


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
def test_types_in_buffers(op, code, client, rng):
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
