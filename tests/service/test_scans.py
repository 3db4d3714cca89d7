"""A service of several ranks: the arrays that clients send come back scanned."""

import threading
import zipfile
from io import BytesIO

import numpy as np
import pytest

from distscan.service import protocol
from distscan.service.errors import TooLargeError
from support.services import BODY, post

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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [0, 1, 1000, 200_000, 1_000_000])
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


@pytest.mark.parametrize("n", [10, 300_000])
def test_errors_are_those_of_scan(n, client):
    x = np.ones(n)
    with pytest.raises(ValueError, match="axis 3 is out of bounds"):
        client.scan(x, axis=3)
    with pytest.raises(TypeError, match="bitwise_or"):
        client.scan(x, "bitwise_or")
    with pytest.raises(ValueError, match=r"unknown op.* 'none'"):
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
    text = str({"descr": "|b1", "fortran_order": False, "shape": ((1 << 63) - 1,)}).encode()
    huge = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    for body in (
        *(huge, huge + bytes(1 << 21)),
        *(b"", b"none", archive.getvalue(), pickled.getvalue(), whole.getvalue()[:1000]),
        *(b"\0" * (1 << 21), whole.getvalue()[: 1 << 21], b"\x93NUMPY" * (1 << 20)),
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
    x, body = rng.integers(0, 1000, n), BytesIO()
    np.save(body, x)
    whole = body.getvalue()
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
    found = client.about()
    assert (found["protocol"], found["ranks"]) == (protocol.VERSION, service.ranks)
    assert found["backend"] == "cpu"
    assert client.jobs() == []  # file jobs: arrays are none
    assert client.request("GET", "/healthz").json() == {"status": "ok"}
