"""What a service and its client refuse: arguments, paths, options, bodies, protocols."""

import json
import os
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core.errors import InputError
from distscan.job.formats import npy as npy_format
from distscan.service import arrays, errors, protocol
from distscan.service.errors import ForbiddenError, ProtocolError, TooLargeError
from support.services import npy, post

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]

# ---- the client refuses what ``distscan.scan`` refuses, by the same exception --------------------

WRONG = {
    "axis-3": {"axis": 3},
    "axis-huge": {"axis": -(10**30)},
    "axis-text": {"axis": "0"},
    "axis-bool": {"axis": True},
    "axis-tuple": {"axis": (0, 1)},
    "op-unknown": {"op": "none"},
    "op-None": {"op": None},
    "op-unary": {"op": np.sin},
    "op-type": {"op": "bitwise_or"},
    "dtype-unknown": {"dtype": "nonsense"},
    "dtype-date": {"dtype": "M8[s]"},
    "dtype-object": {"dtype": object},
    "initial-text": {"initial": "abc"},
    "initial-bytes": {"initial": b"3"},
    "initial-object": {"initial": object},
    "initial-array": {"initial": [1, 2]},
    "initial-complex": {"initial": 1j},
    "initial-range": {"initial": 300, "dtype": "i1"},
    "initial-digits": {"initial": 10**5000, "dtype": "i8"},
    "initial-float": {"initial": 1.5, "dtype": "i8"},
    "initial-nan": {"initial": float("nan"), "dtype": "i8"},
    "out-shape": {"out": np.empty(3)},
    "out-list": {"out": [1.0, 2.0]},
    "out-type": {"out": np.empty(12, "M8[s]")},
    "out-read-only": {"out": np.broadcast_to(0.0, 12)},
    "segments-shape": {"segments": np.zeros(3, bool)},
    "segments-axis": {"segments": np.zeros((3, 4), bool), "axis": 0},
    "segments-object": {"segments": np.full(12, None)},
    "strategy": {"strategy": "none"},
    "scan-add": {"strategy": "scan-add", "segments": np.zeros(12, bool)},
    "x-None": {"x": None},
    "x-text": {"x": ["a", "b"]},
    "x-object": {"x": [2**70]},
    "x-date": {"x": np.zeros(3, "M8[s]")},
    "x-ragged": {"x": [[1], [1, 2]]},
    "x-structure": {"x": np.zeros(3, "i4,f8")},
    "x-masked": {"x": np.ma.masked_less(np.arange(5), 3)},
}
RIGHT = {
    "bool": {"initial": True, "dtype": "i8"},
    "float": {"initial": np.float32(0.1)},
    "number-0d": {"initial": np.array(7)},
    "scalar": {"x": 3.0},
    "scalar-axis": {"x": np.array(3.0), "axis": 0},
    "index": {"axis": np.int8(-1)},
    "truth": {"exclusive": "no", "reverse": 0},
    "long-double": {"x": np.arange(3, dtype=np.longdouble), "initial": np.longdouble(1) / 4},
    "list": {"x": []},
}


def raised(scan, given):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - compared with another one
        scan(**({"x": np.arange(12.0).reshape(3, 4)} | given))
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case, client):
    assert raised(client.scan, WRONG[case]) == raised(distscan.scan, WRONG[case])


@pytest.mark.parametrize("case", RIGHT)
def test_right(case, client):
    given = {"x": np.arange(12.0).reshape(3, 4)} | RIGHT[case]
    y, wanted = client.scan(**given), distscan.scan(**given)
    assert (type(y), y.dtype) == (type(wanted), wanted.dtype)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("op", [MPI.SUM, MPI.BXOR, np.multiply, np.logical_or, "min"])
def test_names_of_operators(op, client):
    """As ``distscan.scan`` takes them: names, NumPy's ufuncs, MPI's ops."""
    x = np.array([3, 1, 0, 4])
    np.testing.assert_array_equal(client.scan(x, op), distscan.scan(x, op))


def test_what_a_service_does_not_take(client):
    with pytest.raises(TypeError, match="operators that have a name, not hypot"):
        client.scan([1.0, 2.0], np.hypot)
    with pytest.raises(TypeError, match=r"op must be a name, .* not the function <lambda>; wrap"):
        client.scan([1.0, 2.0], lambda a, b: a + b)
    with pytest.raises(TypeError, match="an initial of 8 bytes"):
        client.scan(np.ones(3, np.longdouble), initial=np.longdouble(1) / 3)


@pytest.mark.parametrize("given", [{"axis": 3}, {"op": "none"}, {"strategy": "none"}])
def test_errors_that_the_service_finds(given, client):
    """Other clients leave the checks to it."""

    def scan(x, **params):
        client.request("POST", "/v1/scans", params=params, content=npy(x))

    assert raised(scan, given) == raised(distscan.scan, given)


@pytest.mark.parametrize("kind", [*errors._KINDS.values()])
def test_on_the_wire(kind):
    """Every exception that a service sends is raised as it is."""
    received = errors.from_json(errors.to_json(kind("no such axis")))
    assert (type(received), str(received)) == (kind, "no such axis")


# ---- requests ------------------------------------------------------------------------------------


def test_paths_outside(service, client, tmp_path):
    """Also by links, and by relative parts."""
    np.save(tmp_path / "secret.npy", np.ones(3))
    (service.folder / "link.npy").unlink(missing_ok=True)
    (service.folder / "link.npy").symlink_to(tmp_path / "secret.npy")
    (service.folder / "way").unlink(missing_ok=True)
    (service.folder / "way").symlink_to(tmp_path)
    np.save(service.folder / "x.npy", np.ones(3))
    inside, out = service.folder / "x.npy", service.folder / "refused.npy"
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
        ({"initial": 1e999}, "write initial as text: 'inf'"),
        ({"\ud800": 1}, "unknown options: \ud800"),
        ({"inputs": ["\ud800"]}, "\ud800 is relative"),
        ({"memory": 0}, "memory must be an integer of at least 1, not 0"),
        ({"shape": 3}, "shape is a list"),
        ({"shape": [-1]}, "shape is a list"),
        ({"shape": [1] * 65}, "shape has at most 64 axes"),
        ({"shape": [1 << 62, 2, 0]}, "shape has at most 64 axes"),
        ({"threads": 1 << 63}, "threads is a whole number of 63 bits"),
        ({"dtype": 8}, "dtype is text"),
        ({"raw": "(0,)i4"}, "is not understood"),
        ({"strategy": "none"}, "unknown strategy"),
    ],
)
def test_requests_that_are_wrong(asked, message, service):
    right = {"inputs": [str(service.folder / "x.npy")], "output": str(service.folder / "y.npy")}
    answer = post(service, "/v1/jobs", content=json.dumps(right | asked))
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_many_inputs(service, client):
    """Others are answered while their paths are looked up; lists do not have them all."""
    many = [f"{service.folder}/a/{i}.npy" for i in range(4000)]
    asked = {"inputs": many, "output": str(service.folder / "y.npy")}
    with pytest.raises(TooLargeError, match="at most 10000 inputs, not 20000"):
        client.request("POST", "/v1/jobs", json=asked | {"inputs": ["/x.npy"] * 20_000})
    jobs, answers = [], 0
    thread = threading.Thread(
        target=lambda: jobs.append(client.request("POST", "/v1/jobs", json=asked).json())
    )
    thread.start()
    while thread.is_alive():
        client.about()
        answers += 1
    thread.join()
    job = client.job(jobs[0]["number"])
    assert answers > 5
    with pytest.raises(InputError):
        job.wait(60)
    (listed,) = client.request("GET", "/v1/jobs", params={"most": 1}).json()["jobs"]
    assert (listed["number"], listed["input_count"]) == (job.number, 4000)
    assert listed["request"]["inputs"] == many[:1]
    assert job.refresh()["request"]["inputs"] == many


def test_names_that_are_no_text(service, client):
    """Files may have them: a job is answered, done, and listed."""
    source, target = (os.fsdecode(bytes(service.folder / name) + b"\xff") for name in "xy")
    with open(source, "wb") as file:
        np.save(file, np.arange(10))
    job = json.dumps({"inputs": [source], "output": target, "force": True})
    answer = post(service, "/v1/jobs", content=job)
    assert answer.status_code == 202
    assert client.job(answer.json()["number"]).wait(30)["total"] == 45
    assert answer.json()["request"]["output"] == target
    assert client.jobs(1)[0].number == answer.json()["number"]
    assert os.path.exists(target)


def test_urls_that_are_wrong(service, client):
    """Numbers beyond all jobs, or none at all."""
    for url in ("/v1/jobs?most=x", "/v1/jobs?before=1.5", "/v1/jobs/1?wait=-1",
                "/v1/jobs/1?wait=nan", f"/v1/jobs/{1 << 70}"):  # fmt: skip
        with pytest.raises((TypeError, ValueError, OverflowError)):
            client.request("GET", url)
    assert client.request("GET", "/v1/jobs?most=-5").json() == {"jobs": []}
    assert post(service, f"/v1/jobs/{'9' * 5000}").status_code == 404  # Python takes 4300 digits
    for url in ("?axis=x", "?exclusive=1", "?none=1", "?initial=x"):
        with pytest.raises((TypeError, ValueError)):
            client.request("POST", f"/v1/scans{url}", content=npy(np.ones(3)))
    for key in ("", "k" * 201):
        answer = post(service, "/v1/jobs", json={}, headers={"idempotency-key": key})
        assert answer.status_code == 400


def test_what_is_no_json(service):
    for body in (b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000):
        answer = post(service, "/v1/jobs", content=body)
        assert answer.status_code == 400, body[:10]
    assert post(service, "/v1/jobs", content=b" " * (2 << 20)).status_code == 413


def test_routes_that_do_not_exist(service):
    assert post(service, "/v2/jobs").status_code == 404
    assert "POST /v1 is not of protocol 1" in post(service, "/v1").json()["error"]["message"]


def test_a_client_of_another_protocol(client, monkeypatch):
    monkeypatch.setattr(protocol, "VERSION", 99)
    with (
        distscan.connect(client.address) as other,
        pytest.raises(ProtocolError, match="install the same version on both sides"),
    ):
        other.scan([1])


def test_headers_are_read_by_one_thread_at_a_time(monkeypatch):
    """NumPy reads them by Python's parser, in which two threads may disturb each other."""
    read, inside, most = npy_format.format.read_array_header_1_0, [], []

    def watched(*given, **options):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return read(*given, **options)

    monkeypatch.setattr(npy_format.format, "read_array_header_1_0", watched)
    body = memoryview(npy(np.ones(3)))
    threads = [threading.Thread(target=arrays.parse, args=(body,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]
