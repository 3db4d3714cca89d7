"""A service of several ranks: what clients send comes back scanned, whatever else they do."""

import threading
import time
import zipfile
from io import BytesIO

import httpx
import numpy as np
import pytest

from distscan.core.errors import InputError
from distscan.service import app
from distscan.service.client import Job
from distscan.service.errors import (
    CancelledJobError,
    ForbiddenError,
    KeyReusedError,
    NotFoundError,
    ProtocolError,
    TooLargeError,
)
from support.services import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
BODY = 1 << 25  # bytes of an array at most


@pytest.fixture(scope="module", params=[1, 3], ids=["1-rank", "3-ranks"])
def service(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    with serving(folder, request.param, "--body", str(BODY), "--queue", "3") as made:
        yield made


@pytest.fixture
def client(service):
    with service.client() as made:
        yield made


def post(service, url, **given):
    """A request as curl sends it."""
    transport = httpx.HTTPTransport(uds=service.address)
    with httpx.Client(transport=transport, base_url="http://any", timeout=60) as made:
        return made.post(url, **given)


# ---- arrays --------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("given", FORMS, ids=str)
@pytest.mark.parametrize("n", [0, 1, 1000, 200_000, 1_000_000])
def test_arrays(n, given, client, rng):
    """Small ones by one rank, large ones by all."""
    x = rng.integers(-1000, 1000, n)
    y = client.scan(x, **given)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, wanted(x, given))


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


@pytest.mark.parametrize("n", [10, 300_000])
def test_errors_are_those_of_scan(n, client):
    x = np.ones(n)
    with pytest.raises(ValueError, match="axis 3 is out of bounds"):
        client.scan(x, axis=3)
    with pytest.raises(TypeError, match="bitwise_or"):
        client.scan(x, "bitwise_or")
    with pytest.raises(ValueError, match="unknown op 'none'"):
        client.scan(x, "none")
    with pytest.raises(TypeError, match="operators that have a name"):
        client.scan(x, np.hypot)
    with pytest.raises(TypeError, match=r"dtype|int32"):
        client.scan(x, dtype="M8[s]")


def test_bodies_that_are_no_array(service):
    archive, pickled = BytesIO(), BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.npy", b"none")
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    whole = BytesIO()
    np.save(whole, np.arange(1 << 19))
    for body in (
        *(b"", b"none", archive.getvalue(), pickled.getvalue(), whole.getvalue()[:1000]),
        *(b"\0" * (1 << 21), whole.getvalue()[: 1 << 21], b"\x93NUMPY" * (1 << 20)),
    ):
        answer = post(service, "/v1/scans", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "InputError", answer.text


def test_a_body_that_is_too_large(service, client):
    x = np.zeros(BODY // 8)
    with pytest.raises(TooLargeError, match=f"more than {BODY} bytes"):
        client.scan(x)

    def pieces():
        for _ in range(40):
            yield bytes(1 << 20)

    assert post(service, "/v1/scans", content=pieces()).status_code == 413
    assert list(client.scan([1, 2])) == [1, 3]


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


# ---- file jobs -----------------------------------------------------------------------------------


def test_a_file_job(service, client, rng):
    x = rng.normal(size=50_000)
    np.save(service.folder / "x.npy", x)
    job = client.submit(service.folder / "x.npy", op="max", reverse=True, check=True, force=True)
    report = job.wait(30)
    y = np.load(service.folder / "x.scan.npy")
    np.testing.assert_array_equal(y, np.maximum.accumulate(x[::-1])[::-1])
    assert (report["elements"], report["ranks"]) == (x.size, service.ranks)
    assert (report["op"], report["total"]) == ("max", x.max())
    assert job.state == "done"
    assert job.progress() is None
    assert [each.number for each in client.jobs(1)] == [job.number]
    assert client.job(job.number).wait() == report


def test_a_job_that_fails(service, client):
    """Its client gets the exception; the next job runs."""
    np.save(service.folder / "x.npy", np.ones(10))
    (service.folder / "kept.npy").write_bytes(b"kept")
    for name, output, message in (
        ("none.npy", None, "No such file"),
        ("kept.npy", service.folder / "z.npy", "not a .npy file"),
    ):
        with pytest.raises(InputError, match=message):
            client.submit(service.folder / name, output).wait(30)
    with pytest.raises(ValueError, match="exists; --force replaces it"):
        client.submit(service.folder / "x.npy", service.folder / "kept.npy").wait(30)
    assert (service.folder / "kept.npy").read_bytes() == b"kept"
    client.submit(service.folder / "x.npy", force=True).wait(30)


def test_a_total_that_json_has_not(service, client):
    np.save(service.folder / "x.npy", np.array([1, np.nan]))
    assert client.submit(service.folder / "x.npy", force=True).wait(30)["total"] == "nan"


def test_a_key_is_one_job(service, client):
    np.save(service.folder / "x.npy", np.ones(10))
    first = client.submit(service.folder / "x.npy", key="once", force=True)
    first.wait(30)
    again = client.submit(service.folder / "x.npy", key="once", force=True)
    assert (again.number, again.state) == (first.number, "done")
    with pytest.raises(KeyReusedError, match="the key 'once' is that of job"):
        client.submit(service.folder / "x.npy", op="max", key="once")


def test_cancelled(service, client):
    """A job that runs ends at its next chunk; one that waits does not begin."""
    long = service.folder / "long.npy"
    np.lib.format.open_memmap(long, "w+", "f8", (1 << 27,))
    np.save(service.folder / "x.npy", np.ones(10))
    runs = client.submit(long, force=True)
    waits = client.submit(service.folder / "x.npy", service.folder / "never.npy")
    waits.cancel()
    runs.cancel()
    with pytest.raises(CancelledJobError):
        waits.wait(60)
    with pytest.raises(CancelledJobError):
        runs.wait(60)
    assert not (service.folder / "never.npy").exists()
    assert not (service.folder / "long.scan.npy").exists()
    runs.cancel()  # again: nothing happens
    assert runs.state == "cancelled"
    assert [path for path in service.folder.iterdir() if path.name.endswith(".part")] == []
    client.submit(service.folder / "x.npy", force=True).wait(30)
    long.unlink()


def test_progress(service, client):
    """While a job runs, its phase and bytes are known; small arrays need not wait for it."""
    long = service.folder / "long.npy"
    np.lib.format.open_memmap(long, "w+", "f8", (1 << 26,))
    job, seen = client.submit(long, force=True), []
    for record in job.updates():
        if record["progress"]:
            seen.append((record["progress"]["done"], record["progress"]["size"]))
            assert list(client.scan([1, 2])) == [1, 3]
    assert job.wait()["elements"] == 1 << 26
    assert all(0 <= done <= size for done, size in seen)
    long.unlink()


def test_jobs_that_do_not_exist(client):
    with pytest.raises(NotFoundError, match="there is no job 12345"):
        client.job(12345)
    with pytest.raises(NotFoundError):
        client.request("DELETE", "/v1/jobs/12345")


# ---- what is refused -----------------------------------------------------------------------------


def test_paths_outside(service, client, tmp_path):
    """Also by links, and by relative parts."""
    np.save(tmp_path / "secret.npy", np.ones(3))
    (service.folder / "link.npy").unlink(missing_ok=True)
    (service.folder / "link.npy").symlink_to(tmp_path / "secret.npy")
    (service.folder / "way").unlink(missing_ok=True)
    (service.folder / "way").symlink_to(tmp_path)
    np.save(service.folder / "x.npy", np.ones(3))
    inside, out = service.folder / "x.npy", service.folder / "y.npy"
    for source, target in (
        (tmp_path / "secret.npy", out),
        (service.folder / "link.npy", out),
        (service.folder / "way/secret.npy", out),
        (f"{service.folder}/../{tmp_path.name}/secret.npy", out),
        (inside, tmp_path / "y.npy"),
        (inside, service.folder / "way/y.npy"),
        ("/etc/passwd", out),
    ):
        with pytest.raises(ForbiddenError, match="in none of the folders"):
            client.submit(source, target)
    for name in ("segments", "state", "trace"):
        with pytest.raises(ForbiddenError, match="in none of the folders"):
            client.submit(inside, out, **{name: tmp_path / "y.npy"})
    assert not out.exists()
    end = time.monotonic() + 10  # mpirun may hand the lines on late
    while not any("was refused" in text and "secret.npy" in text for text in service.said):
        assert time.monotonic() < end, service.said
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"op": "os:system"}, "unknown op"),
        ({"op": ["sum"]}, "unknown op"),
        ({"no": 1}, "unknown options: no"),
        ({"inputs": []}, "inputs is a list"),
        ({"inputs": "x.npy"}, "inputs is a list"),
        ({"inputs": ["x.npy"]}, "is relative"),
        ({"inputs": [7]}, "a path is text"),
        ({"inputs": ["/x\0y"]}, "a path is text"),
        ({"output": None}, "a path is text"),
        ({"force": 1}, "force is true or false"),
        ({"axis": "0"}, "axis is a whole number"),
        ({"axis": True}, "axis is a whole number"),
        ({"initial": [1]}, "initial is a number"),
        ({"memory": 0}, "memory is a number of bytes"),
        ({"shape": 3}, "shape is a list"),
        ({"shape": [-1]}, "shape is a list"),
        ({"dtype": 8}, "dtype is text"),
        ({"strategy": "none"}, "unknown strategy"),
    ],
    ids=str,
)
def test_requests_that_are_wrong(asked, message, service):
    right = {"inputs": [str(service.folder / "x.npy")], "output": str(service.folder / "y.npy")}
    answer = post(service, "/v1/jobs", json=right | asked)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_urls_that_are_wrong(service, client):
    """Numbers beyond all jobs, or none at all."""
    for url in ("/v1/jobs?most=x", "/v1/jobs?before=1.5", "/v1/jobs/1?wait=-1",
                "/v1/jobs/1?wait=nan", f"/v1/jobs/{1 << 70}"):  # fmt: skip
        with pytest.raises((TypeError, ValueError, OverflowError)):
            client.request("GET", url)
    assert client.request("GET", "/v1/jobs?most=-5").json() == {"jobs": []}
    for url in ("?axis=x", "?exclusive=1", "?none=1", "?initial=x"):
        with pytest.raises((TypeError, ValueError)):
            client.request("POST", f"/v1/scans{url}", content=npy(np.ones(3)))
    for key in ("", "k" * 201):
        answer = post(service, "/v1/jobs", json={}, headers={"idempotency-key": key})
        assert answer.status_code == 400


def npy(x):
    made = BytesIO()
    np.save(made, x)
    return made.getvalue()


def test_what_is_no_json(service):
    for body in (b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000):
        answer = post(service, "/v1/jobs", content=body)
        assert answer.status_code == 400, body[:10]
    assert post(service, "/v1/jobs", content=b" " * (2 << 20)).status_code == 413


def test_routes_that_do_not_exist(service):
    assert post(service, "/v2/jobs").status_code == 404
    assert "POST /v1 is not of protocol 1" in post(service, "/v1").json()["error"]["message"]


def test_a_client_of_another_protocol(client):
    client._http.headers["distscan-protocol"] = "99"
    with pytest.raises(ProtocolError, match="install the same version on both sides"):
        client.scan([1])


def test_a_queue_that_is_full(service, client):
    """Jobs beyond it are refused, and nothing is lost."""
    long = service.folder / "long.npy"
    np.lib.format.open_memmap(long, "w+", "f8", (1 << 27,))
    jobs = [client.submit(long, force=True)]
    while jobs[0].state == "queued":
        time.sleep(0.01)
    jobs += [client.submit(long, service.folder / f"{i}.npy") for i in range(3)]
    answer = post(
        service, "/v1/jobs", json={"inputs": [str(long)], "output": str(service.folder / "y.npy")}
    )
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "BusyError")
    assert "3 jobs wait already" in answer.json()["error"]["message"]
    for job in reversed(jobs):
        job.cancel()
    for job in jobs:
        with pytest.raises(CancelledJobError):
            job.wait(60)
    long.unlink()


def test_what_it_says_of_itself(service, client):
    found = client.about()
    assert (found["protocol"], found["ranks"]) == (app.PROTOCOL, service.ranks)
    assert found["backend"] == "cpu"
    assert isinstance(client.jobs()[0], Job) or client.jobs() == []
    assert client.request("GET", "/healthz").json() == {"status": "ok"}
