"""Objects of stores, by URL: as input, in ranges of bytes, and as output, which rank 0 uploads."""

import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from distscan import InputError, OutputError, scan_file
from distscan.core.form import bounds
from distscan.job import check, job, output, plan
from distscan.job.formats import files, remote, storage
from distscan.job.formats.interface import REMOTE_READERS, Location, Url
from distscan.service import client, requests
from support.jobs import raises, refuse
from support.processes import python

fsspec = pytest.importorskip("fsspec", reason="no fsspec")

from support import stores  # noqa: E402

STORES = "local", "plain", "bucket"
FORMS = [
    {},
    {"reverse": True, "exclusive": True},
    {"axis": 0, "check": True},
    {"axis": 1, "reverse": True, "check": True},
    {"op": "fsum"},
    {"op": "max", "check": True, "reverse": True},
]


@pytest.fixture
def place(comm, folder, monkeypatch):
    """A folder for part files that all ranks share, and none of another test's."""
    if comm.rank == 0:
        (folder / "temporary").mkdir()
        (folder / "objects").mkdir()
    comm.Barrier()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    stores.Bucket.requests.clear()
    return folder / "objects"


@pytest.fixture(params=STORES)
def store(request, place):
    """The URL of the folder, in one store after the other."""
    return f"{request.param}://{place}"


@pytest.fixture
def bucket(place):
    return f"bucket://{place}"


@pytest.fixture
def write(comm, place):
    """Write an object that every rank then sees."""

    def write(name, x):
        if comm.rank == 0:
            np.save(place / name, x) if name.endswith(".npy") else x.tofile(place / name)
        comm.Barrier()

    return write


@pytest.fixture
def same(comm):
    """Compare an object with an array; then ranks go on together."""

    def same(path, wanted):
        np.testing.assert_array_equal(np.load(path), wanted)
        comm.Barrier()

    return same


def left(place):
    """What a job has left beside its objects: part files, uploads."""
    hidden = [path for path in place.iterdir() if path.name.startswith(".")]
    return hidden + [path for path in (place.parent / "temporary").rglob("*") if path.is_file()]


def scanned(x, op="sum", axis=None, *, reverse=False, exclusive=False):
    ufunc = {"sum": np.add, "fsum": np.add, "max": np.maximum}[op]
    y = x.ravel() if axis is None else np.moveaxis(x, axis, 0)
    y = ufunc.accumulate(y[::-1] if reverse else y, 0)
    if exclusive:
        y = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
    y = y[::-1] if reverse else y
    return y if axis is None else np.moveaxis(y, 0, axis)


# ---- jobs that read and write objects ------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_jobs(form, store, place, write, same, comm, rng, monkeypatch):
    """In small chunks and requests, of types of both byte orders."""
    monkeypatch.setattr(plan, "CPU_CHUNK", int(rng.integers(300, 5000)))
    monkeypatch.setattr(remote, "_REQUEST", int(rng.integers(100, 3000)))
    code = ">f8" if form.get("op") == "fsum" else rng.choice(["<i8", ">i8", "<f8"])
    x = rng.integers(-99, 99, (int(rng.integers(1, 200)), int(rng.integers(1, 40)))).astype(code)
    write("x.npy", x)
    threads = int(rng.integers(1, 4))
    report = scan_file(f"{store}/x.npy", f"{store}/y.npy", backend="cpu", threads=threads, **form)
    form = {name: value for name, value in form.items() if name != "check"}
    same(place / "y.npy", scanned(x, **form))
    scheme = store.partition(":")[0]
    assert (report.elements, report.output) == (x.size, f"{store}/y.npy")
    assert (report.bounds["read"], report.bounds["upload"]) == (scheme, f"{scheme}, by rank 0")
    assert report.bytes["upload"] == (place / "y.npy").stat().st_size
    assert not left(place)
    comm.Barrier()


def test_ranks_read_ranges_of_their_own(bucket, place, write, same, comm, rng, monkeypatch):
    """Each byte of the array is read once, by one rank."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 5000)
    monkeypatch.setattr(remote, "_HEAD", 256)
    x = rng.integers(-99, 99, 40_003)
    write("x.npy", x)
    scan_file(f"{bucket}/x.npy", place.parent / "y.npy", backend="cpu", threads=3)
    same(place.parent / "y.npy", x.cumsum())
    ranks = comm.allgather(stores.Bucket.requests)
    assert all(requests.count((0, 256)) == 1 for requests in ranks)  # the header
    ranges = sorted(set(itertools.chain(*ranks)) - {(0, 256)})
    assert len(ranges) == sum(len(requests) - 1 for requests in ranks)
    assert (ranges[0][0], ranges[-1][1]) == (128, 128 + x.nbytes)
    assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]
    assert max(end - start for start, end in ranges) <= 5000
    comm.Barrier()


def test_large_requests_are_cut(bucket, write, comm, monkeypatch):
    monkeypatch.setattr(remote, "_REQUEST", 1000)
    write("x.raw", np.arange(5000, dtype="u1"))
    read = remote.Store(Url(f"{bucket}/x.raw")).bytes(10, 4567)
    assert read == np.arange(5000, dtype="u1").tobytes()[10:4567]
    assert sorted(stores.Bucket.requests) == [
        (low, min(low + 1000, 4567)) for low in range(10, 4567, 1000)
    ]
    comm.Barrier()


def test_requests_at_the_same_time(bucket, place, write, same, comm, monkeypatch):
    """One thread is enough for several: they wait for the network."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 4000)
    waiting, most = [], []

    async def wait(_):
        waiting.append(1)
        most.append(len(waiting))
        await asyncio.sleep(0.02)
        waiting.pop()

    write("x.npy", np.arange(40_003))
    monkeypatch.setattr(stores.Bucket, "wait", wait)
    scan_file(f"{bucket}/x.npy", f"{bucket}/y.npy", threads=1, backend="cpu")
    assert 2 < max(most) <= REMOTE_READERS
    same(place / "y.npy", np.arange(40_003).cumsum())


@pytest.mark.parametrize("reverse", [False, True])
def test_checks_read_ahead(reverse, bucket, place, write, same, comm, monkeypatch):
    """Their pieces are small ones, and a request is slow."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 4000)
    monkeypatch.setattr(check, "PIECE", 400)
    write("x.npy", np.arange(40_003))
    counts = []
    for checks in (False, True):
        stores.Bucket.requests.clear()
        options = {"reverse": reverse, "check": checks, "force": True, "backend": "cpu"}
        scan_file(f"{bucket}/x.npy", f"{bucket}/y.npy", **options)
        counts.append(len(stores.Bucket.requests))
    low, high = bounds(40_003, comm.size, comm.rank)
    reads = 8 * (high - low) / (4 * 4000 - 400)  # bytes of runs that begin within a piece
    assert counts[1] - counts[0] <= (1 + (comm.size > 1)) * (reads + 1)
    same(place / "y.npy", scanned(np.arange(40_003), reverse=reverse))


@pytest.mark.parametrize("shape", [None, (150, 20)])
def test_raw(shape, store, place, write, same, rng):
    x = rng.integers(-99, 99, 3000).astype("<i2")
    write("x.bin", x)
    axis = None if shape is None else 0
    options = {"raw": "<i2", "shape": shape, "axis": axis, "backend": "cpu", "check": True}
    scan_file(f"{store}/x.bin", f"{store}/y.npy", **options)
    same(place / "y.npy", x.reshape(shape or -1).cumsum(axis))


def test_segments_and_several_inputs(store, place, write, same, rng):
    """Files and objects are one array; keys are another object."""
    x, keys = rng.integers(-9, 9, 900), np.arange(900) // 7
    for name, part in (("a.npy", x[:300]), ("b.npy", x[300:]), ("keys.npy", keys)):
        write(name, part)
    options = {"segments": f"{store}/keys.npy", "backend": "cpu"}
    scan_file([place / "a.npy", f"{store}/b.npy"], f"{store}/y.npy", **options)
    same(place / "y.npy", np.concatenate([x[keys == key].cumsum() for key in np.unique(keys)]))


@pytest.mark.parametrize("memory", [1, 20_000, 1 << 20])
def test_little_memory(memory, store, place, write, same, rng):
    x = rng.integers(-99, 99, 300 if memory == 1 else 100_003)
    write("x.npy", x)
    scan_file(f"{store}/x.npy", f"{store}/y.npy", memory=memory, backend="cpu", check=True)
    same(place / "y.npy", x.cumsum())


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_few_elements(shape, store, place, write, same, comm):
    write("x.npy", np.ones(shape))
    scan_file(f"{store}/x.npy", f"{store}/y.npy", backend="cpu")
    same(place / "y.npy", np.ones(shape).cumsum())


def test_fortran_order(store, place, write, same, rng):
    """It is scanned along an axis; to flatten it would take a request for each element."""
    x = np.asfortranarray(rng.integers(-99, 99, (30, 40)))
    write("x.npy", x)
    scan_file(f"{store}/x.npy", f"{store}/y.npy", axis=0, backend="cpu", check=True)
    same(place / "y.npy", x.cumsum(0))
    with pytest.raises(InputError, match="Fortran order, which is flattened from a file only"):
        scan_file(f"{store}/x.npy", f"{store}/z.npy", backend="cpu")
    assert not (place / "z.npy").exists()
    assert not left(place)


def test_names(run, store, place, write, same, comm):
    """The default output is beside the input; with --each, -o is a folder."""
    for name in ("a.npy", "b.npy"):
        write(name, np.arange(5))
    assert run(f"{store}/a.npy", "--backend", "cpu", "--quiet")[0] == 0
    same(place / "a.scan.npy", [0, 1, 3, 6, 10])
    inputs = [f"{store}/a.npy", f"{store}/b.npy"]
    arguments = [*inputs, "--each", "-o", store, "--backend", "cpu", "--quiet", "--force"]
    assert run(*arguments)[0] == 0
    same(place / "b.scan.npy", [0, 1, 3, 6, 10])


@pytest.mark.one_rank
def test_memory_of_the_process(rng):
    x, fs = rng.integers(-9, 9, 1000), fsspec.filesystem("memory")
    with fs.open("/a/x.npy", "wb") as file:
        np.save(file, x)
    scan_file("memory://a/x.npy", "memory://a/y.npy", backend="cpu", check=True)
    with fs.open("/a/y.npy") as file:
        np.testing.assert_array_equal(np.load(file), x.cumsum())
    fs.rm("/a", recursive=True)


def test_progress(bucket, place, write, comm, monkeypatch):
    """The bytes of the upload are shown."""
    monkeypatch.setattr(stores.Bucket, "piece", lambda _: 1000)
    monkeypatch.setattr(remote, "_PERIOD", 0.005)
    write("x.npy", np.arange(30_000))
    lines = []
    scan_file(
        f"{bucket}/x.npy",
        f"{bucket}/y.npy",
        backend="cpu",
        progress=lambda *line: lines.append(line),
    )
    done = [done for phase, done, size in lines if phase == "upload" and size == 240_128]
    assert (len(done) > 1) == (comm.rank == 0)
    assert done == sorted(done)
    comm.Barrier()


# ---- outputs that exist, and uploads that fail ---------------------------------------------------


def test_an_existing_output(store, place, write, same, comm, monkeypatch):
    """It is refused before any work, and replaced with ``force``; so is one that appears later."""
    write("x.npy", np.arange(5))
    write("y.npy", np.zeros(3))
    with monkeypatch.context() as patch:
        patch.setattr(output, "create", None)  # no work has begun
        with pytest.raises(OutputError, match=rf"{store}/y.npy exists; force=True replaces it"):
            scan_file(f"{store}/x.npy", f"{store}/y.npy", backend="cpu")
    same(place / "y.npy", np.zeros(3))
    scan_file(f"{store}/x.npy", f"{store}/y.npy", backend="cpu", force=True)
    same(place / "y.npy", [0, 1, 3, 6, 10])
    finish = output.publish_all

    def publish(*arguments):
        np.save(place / "z.npy", np.ones(2))
        finish(*arguments)

    monkeypatch.setattr(output, "publish_all", publish)
    with pytest.raises(OutputError, match=r"z.npy was created meanwhile"):
        scan_file(f"{store}/x.npy", f"{store}/z.npy", backend="cpu")
    same(place / "z.npy", np.ones(2))
    assert not left(place)
    comm.Barrier()


def test_an_output_that_appears_during_the_upload(bucket, place, write, same, monkeypatch):
    """A store that can refuse to replace it does so."""
    write("x.npy", np.arange(5))
    monkeypatch.setattr(remote.Store, "info_or_none", lambda _: None)
    write("y.npy", np.ones(2))
    with pytest.raises(OutputError, match=r"y.npy was created meanwhile"):
        scan_file(place / "x.npy", f"{bucket}/y.npy", backend="cpu")
    same(place / "y.npy", np.ones(2))

    def move(*_, **__):
        raise FileExistsError

    monkeypatch.setattr(fsspec.get_filesystem_class("local"), "mv", move)
    with pytest.raises(OutputError, match=r"y.npy was created meanwhile"):
        scan_file(place / "x.npy", f"local://{place}/y.npy", backend="cpu")
    same(place / "y.npy", np.ones(2))
    assert not left(place)


def fail_at(number, fault):
    """A method of a store that fails at its call of this number."""
    calls = []

    def piece(_):
        calls.append(1)
        if len(calls) > number:
            raise fault
        return 1000

    return piece


def failing(monkeypatch, fault=None):
    """Uploads to all stores fail, after some bytes."""
    fault = OSError(5, "the network is down") if fault is None else fault
    monkeypatch.setattr(stores.Bucket, "piece", fail_at(4, fault))

    def copy(self, path, to, **_):
        Path(to).write_bytes(Path(path).read_bytes()[:99])
        raise fault

    monkeypatch.setattr(stores.Plain, "put_file", copy)
    monkeypatch.setattr(fsspec.get_filesystem_class("local"), "put_file", copy)


@pytest.mark.parametrize("old", [False, True])
def test_an_upload_that_fails(old, run, store, place, write, comm, monkeypatch):
    """Neither a part of the object is there, nor the trace; an old object stays where it can."""
    write("x.npy", np.arange(2000))
    if old:
        write("y.npy", np.ones(2))
    failing(monkeypatch)
    monkeypatch.setattr(output, "publish", None)  # the trace comes after the upload
    arguments = ["--backend", "cpu", "--quiet", "--trace", "t.json", "--state", "state"]
    status, _, err = run(f"{store}/x.npy", "-o", f"{store}/y.npy", "--force", *arguments)
    assert (status, err.count("\n")) == (1, 1)
    assert err.endswith(f"cannot write {store}/y.npy: [Errno 5] the network is down\n")
    assert (place / "y.npy").exists() == (old and not store.startswith("plain"))
    assert not (place.parent / "t.json").exists()
    assert not (place.parent / "state").exists()
    assert not left(place)
    comm.Barrier()


def test_a_state_that_cannot_be_published(store, place, write, comm, monkeypatch):
    """The uploaded object disappears with it."""
    write("x.npy", np.arange(2000))
    monkeypatch.setattr(output, "publish", raises(5))
    with pytest.raises(OSError, match="Input/output error"):
        scan_file(f"{store}/x.npy", f"{store}/y.npy", backend="cpu", state=place.parent / "state")
    assert not (place / "y.npy").exists()
    assert not left(place)
    comm.Barrier()


def test_an_upload_that_is_interrupted(bucket, place, write, comm, monkeypatch):
    """It does not go on behind its caller."""
    monkeypatch.setattr(stores.Bucket, "piece", lambda _: 100)
    monkeypatch.setattr(remote, "_PERIOD", 0.005)
    write("x.npy", np.arange(2000))

    def stop(phase, done, size):
        if phase == "upload" and done > 0:
            raise ValueError("enough")

    with pytest.raises((ValueError, OSError), match="enough"):
        scan_file(f"{bucket}/x.npy", f"{bucket}/y.npy", backend="cpu", progress=stop)
    loop = fsspec.asyn.get_loop()
    done = fsspec.asyn.sync(loop, wait_for_others)
    assert done == 0
    assert [path.name for path in place.iterdir()] == ["x.npy"]
    comm.Barrier()


async def wait_for_others():
    """Return the number of calls that are still at work in a while."""
    await asyncio.sleep(0.05)
    return sum("_put_file" in repr(task) for task in asyncio.all_tasks())


def test_resumed(store, place, write, same, comm, monkeypatch):
    """A job whose upload has failed is finished by the next one, which only uploads."""
    write("x.npy", np.arange(2000))
    options = {"backend": "cpu", "resume": True}
    with monkeypatch.context() as patch:
        failing(patch)
        with pytest.raises(OSError, match="the network is down"):
            scan_file(f"{store}/x.npy", f"{store}/y.npy", **options)
    part = output.resumable(output.stand_in(Url(f"{store}/y.npy")))
    assert np.load(part)[-1] == np.arange(2000).sum()
    assert not (place / "y.npy").exists()
    comm.Barrier()
    for writer in (storage.Writer, storage.MappedWriter):
        monkeypatch.setattr(writer, "__call__", raises(5))
    scan_file(f"{store}/x.npy", f"{store}/y.npy", **options)
    same(place / "y.npy", np.arange(2000).cumsum())
    assert not left(place)
    comm.Barrier()


KILLED = """
import os, sys, tempfile
from support import stores
from distscan import scan_file
tempfile.tempdir = sys.argv[1]
if sys.argv[4] == "kill":
    stores.Bucket.piece = lambda _: os.kill(os.getpid(), 9)
scan_file(sys.argv[2], sys.argv[3], backend="cpu", resume=True)
"""


@pytest.mark.one_rank
def test_killed_while_it_uploads(bucket, place, write, same):
    write("x.npy", np.arange(2000))
    arguments = tempfile.tempdir, f"{bucket}/x.npy", f"{bucket}/y.npy"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    for how, status in (("kill", -signal.SIGKILL), ("go on", 0)):
        ended = python(KILLED, *arguments, how, PYTHONPATH=path)
        assert ended.returncode == status, ended.stderr
        assert (place / "y.npy").exists() == (how == "go on")
    same(place / "y.npy", np.arange(2000).cumsum())


# ---- objects that change -------------------------------------------------------------------------


def at_work(monkeypatch, comm, change):
    """Rank 0 calls ``change`` when all ranks have inspected the input, and none has read it."""
    decide = job._budget

    def budget(*arguments, **named):
        comm.Barrier()
        if comm.rank == 0:
            change()
        comm.Barrier()
        return decide(*arguments, **named)

    monkeypatch.setattr(job, "_budget", budget)


CHANGES = {
    "other elements": lambda path: np.save(path, np.arange(1, 5001)),
    "longer": lambda path: np.save(path, np.arange(5001)),
    "shorter": lambda path: np.save(path, np.arange(99)),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_object(change, store, place, write, comm, monkeypatch):
    write("x.npy", np.arange(5000))
    at_work(monkeypatch, comm, lambda: CHANGES[change](place / "x.npy"))
    with pytest.raises(InputError) as caught:
        scan_file(f"{store}/x.npy", f"{store}/y.npy", backend="cpu")
    message = {"gone": "no such object", "shorter": "shorter|changed"}.get(change, "was changed")
    assert caught.match(f"{store}/x.npy.*({message})|({message})")
    assert not (place / "y.npy").exists()
    assert not left(place)
    comm.Barrier()


def test_a_change_that_leaves_size_and_time(place, write, comm, monkeypatch):
    """A store without tags: the beginning and the end of the object are compared."""
    write("x.npy", np.arange(5000))
    status = (place / "x.npy").stat()

    def change():
        np.save(place / "x.npy", np.arange(1, 5001))
        os.utime(place / "x.npy", ns=(status.st_atime_ns, status.st_mtime_ns))

    at_work(monkeypatch, comm, change)
    with pytest.raises(InputError, match=r"x.npy was changed while it was read"):
        scan_file(f"plain://{place}/x.npy", f"plain://{place}/y.npy", backend="cpu")


def test_ranks_see_different_objects(bucket, write, comm, monkeypatch):
    write("x.npy", np.arange(5000))
    monkeypatch.setattr(stores.Bucket, "tag", lambda *_: f"{comm.rank}")
    if comm.size == 1:
        scan_file(f"{bucket}/x.npy", f"{bucket}/y.npy", backend="cpu")
        return
    with pytest.raises(ValueError, match=r"the content of bucket:.*x\.npy"):
        scan_file(f"{bucket}/x.npy", f"{bucket}/y.npy", backend="cpu")


# ---- what is refused -----------------------------------------------------------------------------

REFUSED = {
    "no object": (["STORE/none.npy"], "cannot read STORE/none.npy: there is no such object"),
    "a folder": (["STORE"], "STORE is a folder"),
    "text": (["STORE/text.npy"], "STORE/text.npy is not a .npy file: it is text"),
    "cut off": (["STORE/cut.npy"], "STORE/cut.npy is truncated: 4128 of 8128 bytes"),
    "raw": (["STORE/x.npy", "--raw", "--dtype", "f8,i4", "--op", "support.operators:COMPOSE"],
            "no multiple of"),
    "another format": (["STORE/x.h5::/a"], "by URL are .npy, raw and .zarr: copy it to a file"),
    "an unknown store": (["unheard-of://x.npy"], "Protocol not known: unheard-of"),
    "a trace": (["STORE/x.npy", "--trace", "s3://b/t"], "it must be a file, not the URL s3://b/t"),
    "a state": (["STORE/x.npy", "--state", "s3://b/t"], "it must be a file, not the URL s3://b/t"),
    "output of another format": (
        ["STORE/x.npy", "-o", "STORE/y.h5"], "by URL are .npy, raw and .zarr: copy it to a file"),
    "HTTP as output": (["STORE/x.npy", "-o", "http://host/y.npy"], "is read, not written"),
    "a folder as output": (["STORE/x.npy", "-o", "STORE"], "STORE is a folder; name an object"),
    "the input as output": (["STORE/x.npy", "-o", "STORE/x.npy"], "STORE/x.npy exists; --force"),
    "two roles": (
        ["STORE/x.npy", "STORE/x.scan.npy", "--each"],
        "STORE/x.scan.npy is the output and an input"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, run, store, place, write, comm):
    arguments, message = REFUSED[case]
    write("x.npy", np.arange(1000))
    if comm.rank == 0:
        (place / "text.npy").write_text("1,2,3")
        (place / "cut.npy").write_bytes((place / "x.npy").read_bytes()[:4128])
    comm.Barrier()
    before = sorted(place.iterdir())
    given = [text.replace("STORE", store) for text in arguments]
    status, out, err = run(*given, "--backend", "cpu")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message.replace("STORE", store) in err
    assert sorted(place.iterdir()) == before
    assert not left(place)
    comm.Barrier()


def test_no_folder(run, place, write, comm):
    write("x.npy", np.arange(5))
    for scheme, name in (("local", f"folder {place}/none"), ("bucket", "bucket none")):
        target = f"local://{place}/none/y.npy" if scheme == "local" else "bucket://none/y.npy"
        status, _, err = run(str(place / "x.npy"), "-o", target, "--backend", "cpu")
        assert (status, err.count("\n")) == (2, 1)
        assert f"there is no {name}" in err


def test_missing_packages(run, place, write, monkeypatch):
    """The message says what to install."""
    from fsspec.registry import known_implementations

    write("x.npy", np.arange(5))
    missing = {"class": "no_such_package.FileSystem", "err": "Install it"}
    monkeypatch.setitem(known_implementations, "absent", missing)
    _, _, err = run("absent://b/x.npy")
    assert "cannot read absent://b/x.npy: Install it: pip install no_such_package" in err
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    for arguments in (["local:///x.npy"], [str(place / "x.npy"), "-o", "local:///y.npy"]):
        status, _, err = run(*arguments, "--backend", "cpu")
        assert (status, err.count("\n")) == (2, 1)
        assert "fsspec is missing: pip install 'distscan[remote]'" in err


def test_a_folder_of_another(place, write, comm):
    """A link in the place of the folder for part files is not followed."""
    write("x.npy", np.arange(5))
    if comm.rank == 0:
        (place / "elsewhere").mkdir()
        folder = place.parent / "temporary" / f"distscan-{os.getuid()}"
        folder.symlink_to(place / "elsewhere")
    comm.Barrier()
    with pytest.raises(OutputError, match="TMPDIR"):
        scan_file(place / "x.npy", f"local://{place}/y.npy", backend="cpu")
    assert not list((place / "elsewhere").iterdir())
    comm.Barrier()


def test_part_files_are_private(place, write, comm, monkeypatch):
    write("x.npy", np.arange(5))
    modes, real = [], output.publish_all

    def publish(files, show):
        modes.append(files[0].part.parent.stat().st_mode & 0o777)
        real(files, show)

    monkeypatch.setattr(output, "publish_all", publish)
    scan_file(place / "x.npy", f"local://{place}/y.npy", backend="cpu")
    assert modes == [0o700] * (comm.rank == 0)


def test_a_full_disk_for_part_files(run, bucket, write, monkeypatch):
    """The part file is named, too: it is where its user does not look."""
    write("x.npy", np.arange(5))
    refuse(monkeypatch, "write", 28)
    _, _, err = run(f"{bucket}/x.npy", "-o", f"{bucket}/y.npy", "--backend", "cpu", "--quiet")
    assert err.count("\n") == 1
    part = output.stand_in(Url(f"{bucket}/y.npy")).parent
    assert f"cannot write {part}/." in err
    assert err.endswith(f".part, the part file of {bucket}/y.npy: No space left on device\n")


def test_a_folder_that_ranks_do_not_share(bucket, write, comm, monkeypatch):
    write("x.npy", np.arange(5))
    if comm.rank == comm.size - 1:

        def see(file):
            raise OutputError(f"{file.path.parent} is not as rank 0 sees it")

        monkeypatch.setattr(files.File, "check_shared", see)
    with pytest.raises(OutputError, match=f"sees it.*: TMPDIR names the folder for {bucket}/y"):
        scan_file(f"{bucket}/x.npy", f"{bucket}/y.npy", backend="cpu")
    comm.Barrier()


@pytest.mark.one_rank
def test_services_take_files(tmp_path):
    with pytest.raises(
        ValueError, match="a path of a service must be a file, not the URL s3://b/x"
    ):
        requests.Paths([tmp_path]).locate("s3://b/x.npy")
    for paths in (("s3://b/x.npy", "y.npy"), ("x.npy", "s3://b/y.npy"), ("s3://b/x.npy", None)):
        with pytest.raises(ValueError, match="put must be a file, not the URL s3://b/"):
            client._job_request(*paths, "sum", None, {})
    request = client._job_request("file:///a/x.h5::/b", None, "sum", None, {})
    assert request["json"]["inputs"] == ["/a/x.h5::/b"]
    assert request["json"]["output"] == "/a/x.scan.h5"


# ---- HTTP ----------------------------------------------------------------------------------------


@pytest.fixture
def server(comm, place):
    pytest.importorskip("aiohttp", reason="no aiohttp")

    def serve(**options):
        serving = stores.http(place, **options)
        entered.append(serving if comm.rank == 0 else None)
        return comm.bcast(serving.__enter__() if comm.rank == 0 else None)

    entered = []
    yield serve
    comm.Barrier()
    for serving in filter(None, entered):
        serving.__exit__(None, None, None)


def test_http(run, server, place, write, same, rng, monkeypatch):
    monkeypatch.setattr(remote, "_REQUEST", 3000)
    x, url = rng.integers(-99, 99, 5000), server()
    write("x.npy", x)
    scan_file(f"{url}/x.npy?version=1", place / "y.npy", backend="cpu", check=True)
    same(place / "y.npy", x.cumsum())
    for arguments, message in (
        (
            [f"{url}/none.npy"],
            f"cannot read {url}/none.npy: there is no such object, or bucket (404",
        ),
        (["http://127.0.0.1:9/x.npy"], "Cannot connect to host 127.0.0.1:9"),
        ([f"{url}/x.npy"], f"{url}/x.scan.npy: a server of HTTP is read, not written"),
    ):
        status, _, err = run(*arguments, "--backend", "cpu")
        assert (status, err.count("\n")) == (2, 1)
        assert message in err


def test_http_without_ranges(server, place, write):
    """All bytes come, whatever was asked for."""
    url = server(ranges=False)
    write("x.npy", np.arange(50_000))
    with pytest.raises(InputError, match=r"x.npy is on a server that sends no ranges"):
        scan_file(f"{url}/x.npy", place / "y.npy", backend="cpu")


# ---- S3 itself, where its packages are installed -------------------------------------------------


s3 = pytest.fixture(stores.s3)


@pytest.mark.filterwarnings("default")
def test_s3(run, s3, place, write, comm, rng):
    x = rng.integers(-99, 99, 30_000)
    write("x.npy", x)
    assert run(str(place / "x.npy"), "-o", f"{s3}/y.npy", "--backend", "cpu", "--quiet")[0] == 0
    arguments = ["--backend", "cpu", "--json", "--quiet", "--check", "--reverse"]
    status, out, err = run(f"{s3}/y.npy", *arguments)
    assert status == 0, err
    assert json.loads(out)["output"] == f"{s3}/y.scan.npy"
    with fsspec.filesystem("s3").open(f"{s3}/y.scan.npy") as file:
        np.testing.assert_array_equal(np.load(file), scanned(x.cumsum(), reverse=True))
    for arguments, message in (
        ([f"{s3}/y.npy"], "exists; --force"),
        ([f"{s3}/none.npy"], "there is no such object"),
        ([f"{s3}/y.npy", "-o", "s3://nobody/y.npy"], "there is no bucket nobody"),
    ):
        status, _, err = run(*arguments, "--backend", "cpu")
        assert (status, err.count("\n")) == (2, 1)
        assert message in err
    comm.Barrier()


# ---- URLs ----------------------------------------------------------------------------------------


@pytest.mark.one_rank
def test_urls():
    for text, name, suffix in (
        ("s3://b/a//x.npy", "x.npy", ".npy"),
        ("S3://b/x.NPY", "x.NPY", ".NPY"),
        ("https://h/x.npy?a=b/c#d", "x.npy", ".npy"),
        ("gs://b/x?y.bin", "x?y.bin", ".bin"),
        ("memory://x", "x", ""),
    ):
        path, member = Location.parse(text)
        assert isinstance(path, Url)
        assert (str(path), path.name, path.suffix, member) == (text, name, suffix, "")
    assert Location.parse("s3://b/x.h5::/a/b") == Location(Url("s3://b/x.h5"), "/a/b")
    for text in ("x.npy", "/a/x.npy", "./s3://b/x.npy", "a/b://c", "s3:/b/x.npy", "://x", "C://"):
        assert Location.parse(text) == Location(Path(text))
    assert Location.parse("file:///a/x.h5::b") == Location(Path("/a/x.h5"), "b")
