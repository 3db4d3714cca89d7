"""``fsum`` by a service: arrays and file jobs."""

import asyncio
from io import BytesIO

import numpy as np
import pytest

import distscan
from distscan.service import commands
from support.exact import same, scanned
from support.patterns import finite_bits
from support.services import post

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_rank]
FORMS = [{}, {"exclusive": True, "reverse": True, "initial": 0.1}, {"dtype": "float32"}]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(0,), (501,), (31, 17)])
def test_arrays(shape, form, client, rng):
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
def test_windows(n, client, rng):
    """Small arrays, and large ones in shared memory."""
    x = rng.integers(-(2**20), 2**20, n) / 2.0**10
    y = client.scan(x, "fsum", window=(-10, 11))
    assert same(y, np.cumsum(x))  # of this grid, plain sums are exact, too
    with pytest.raises(ValueError, match=r"x needs window=\(.*beyond window=\(-9, 11\)"):
        client.scan(x, "fsum", window=(-9, 11))


def test_types(client):
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
def test_refusals(op, options, text, client):
    """As ``scan`` raises them, before anything is sent."""
    x = np.ones(3)
    for scan in (client.scan, distscan.scan):
        with pytest.raises((TypeError, ValueError), match=text):
            scan(x, op, **options)


def test_what_other_clients_may_send(service):
    for asked, text in (
        (f"op=fsum&initial={1 << 1024}", "initial is an integer of 1025 bits; fsum takes"),
        ("op=fsum&window=1", "window is two integers"),
        ("op=fsum&window=a,b", "window is two whole numbers such as -10,11"),
        ("op=max&window=0,1", "window= goes with op='fsum', not 'max'"),
    ):
        answer = post(service, f"/v1/scans?{asked}", content=npy(np.ones(3)))
        assert answer.status_code == 400
        assert text in answer.json()["error"]["message"]


def npy(x):
    """The bytes of a file."""
    file = BytesIO()
    np.save(file, x)
    return file.getvalue()


async def scanned_by(address, x):
    async with distscan.connect_async(address) as made:
        return await made.scan(x, "fsum", window=(-10, 11))


def test_by_the_client_of_asyncio(service, rng):
    x = rng.integers(-9, 9, 100) / 4
    assert same(asyncio.run(scanned_by(service.address, x)), np.cumsum(x))


def test_a_file_job(service, client, rng):
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


def test_the_command(service):
    """``submit`` takes what the command line of jobs takes."""
    np.save(service.folder / "x.npy", np.ones(9))
    given = ["--op", "fsum", "--window", "-2", "5", "--force", "--quiet"]
    where = ["--address", service.address]
    assert commands.main("submit", [str(service.folder / "x.npy"), *given, *where]) == 0
    assert same(np.load(service.folder / "x.scan.npy"), np.arange(1.0, 10.0))
