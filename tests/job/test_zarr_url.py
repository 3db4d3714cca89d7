"""Zarr stores by URL: as input, and as output that all ranks write in place."""

import errno
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from distscan import InputError, OutputError, scan_file
from distscan.job import formats, job, output, plan, restart
from distscan.job.formats import zarr_url
from distscan.job.formats.interface import Layout, Url
from support.jobs import raises
from support.processes import python

zarr = pytest.importorskip("zarr", reason="no zarr")
xarray = pytest.importorskip("xarray", reason="no xarray")
fsspec = pytest.importorskip("fsspec", reason="no fsspec")

from support import stores  # noqa: E402

pytestmark = [  # of consolidation
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
VERSIONS = pytest.mark.parametrize("version", [2, 3])
DOCUMENTS = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}


@pytest.fixture
def place(comm, folder, monkeypatch):
    """A folder for stores; part files are in a folder that all ranks share, of this test alone."""
    if comm.rank == 0:
        (folder / "temporary").mkdir()
        (folder / "objects").mkdir()
    comm.Barrier()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    return folder / "objects"


@pytest.fixture(params=["local", "bucket"])
def store(request, place):
    """The URL of the folder, in one store after the other."""
    return f"{request.param}://{place}"


@pytest.fixture
def bucket(place):
    return f"bucket://{place}"


@pytest.fixture
def write(comm, place):
    """Write an array, or what a function writes, as a store that every rank then sees."""

    def write(store, x, /, **options):
        if comm.rank == 0 and callable(x):
            x(place / store)
        elif comm.rank == 0:
            zarr.create_array(place / store, data=x, **options)
        comm.Barrier()

    return write


@pytest.fixture
def same(comm, place):
    """Compare an array, or nothing, with what is there; then ranks go on together."""

    def same(name, want):
        *store, member = name.rpartition("::") if "::" in name else (name, "", "")
        found = zarr.open(place / store[0], mode="r")
        np.testing.assert_array_equal(found[member] if member else found, want)
        assert not [path for path in place.rglob("*") if path.name.startswith(".distscan")]
        assert not parts(place)
        comm.Barrier()

    return same


def parts(place):
    """The files of jobs in the folder for part files."""
    return [path for path in (place.parent / "temporary").rglob("*") if path.is_file()]


def objects(folder):
    """The keys of all objects in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def at_puts(monkeypatch, function):
    """``function(path)`` is called before an object is written into a store."""

    def write(self, path, value, **_):
        function(path)
        Path(path).write_bytes(value)

    at_step(monkeypatch, "write", function)
    monkeypatch.setattr(fsspec.get_filesystem_class("local"), "pipe_file", write)


def at_step(monkeypatch, step, function):
    """``function(path)`` is called before an object of a bucket is read, written, or removed."""
    real = stores.Bucket.at

    def at(self, name, path):
        return (name == step and function(path)) or real(self, name, path)

    monkeypatch.setattr(stores.Bucket, "at", at)


@contextmanager
def failing(monkeypatch, number, only=lambda path: True):
    """Writes of objects fail, from the one of this number on; a claim is no chunk."""
    turns = itertools.count()

    def fail(path):
        if ".distscan-" not in path and only(path) and next(turns) >= number:
            raise OSError(errno.EIO, "the network is down")

    with monkeypatch.context() as patch:
        at_puts(patch, fail)
        yield


# ---- jobs ----------------------------------------------------------------------------------------

FORMS = [
    {"axis": 0},
    {"axis": 1, "reverse": True},
    {"axis": 0, "exclusive": True, "memory": 100_000},
    {},
    {"op": "fsum", "axis": 0},
]


def scanned(x, op="sum", axis=None, *, reverse=False, exclusive=False):
    y = x.ravel() if axis is None else np.moveaxis(x, axis, 0)
    y = np.add.accumulate(y[::-1] if reverse else y, 0)
    y = np.concatenate([np.zeros_like(y[:1]), y[:-1]]) if exclusive else y
    y = y[::-1] if reverse else y
    return y if axis is None else np.moveaxis(y, 0, axis)


@VERSIONS
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_jobs(form, version, store, write, same, comm, rng):
    """Of one array, in chunks and in shards, whose keys have either separator."""
    x = comm.bcast(rng.integers(-99, 99, (70, 41)).astype("f8"))
    name = rng.choice(["v2", "default"]) if version == 3 else "v2"
    options = {"shards": (16, 10)} if version == 3 and rng.integers(2) else {}
    encoding = {"name": str(name), "separator": str(rng.choice([".", "/"]))}
    options |= {"chunks": (8, 5), "zarr_format": version, "chunk_key_encoding": encoding}
    write("x.zarr", x, **options)
    checks = form.get("op") != "fsum"
    report = scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu", check=checks, **form)
    scheme = store.partition(":")[0]
    assert (report.bounds["read"], report.bounds["write"]) == (scheme, scheme)
    assert (report.bounds["upload"], report.seconds["upload"]) == ("", 0)
    same("y.zarr", scanned(x, **{key: form[key] for key in form if key != "memory"}))


@VERSIONS
def test_xarray(version, store, place, write, comm, rng):
    """Coordinates, dimensions, attributes and chunks are those of the input."""
    x, lat = comm.bcast((rng.integers(-9, 9, (20, 5, 7)), rng.random((5, 7))))
    data = xarray.Dataset(
        {"rain": (("time", "y", "x"), x, {"units": "mm"})},
        coords={"time": np.arange(20), "y": np.arange(5.0), "lat": (("y", "x"), lat)},
        attrs={"title": "a test"},
    )
    options = {"zarr_format": version, "encoding": {"rain": {"chunks": (6, 2, 3)}}}
    write("x.zarr", lambda path: data.to_zarr(path, **options))
    scan_file(f"{store}/x.zarr", f"{store}/y.zarr/", axis=0, backend="cpu")
    with xarray.open_zarr(place / "y.zarr", consolidated=True) as found:
        xarray.testing.assert_identical(found.compute(), data.assign(rain=data.rain.cumsum("time")))
        assert found.rain.encoding["chunks"] == (6, 2, 3)
    comm.Barrier()


def test_other_formats(store, place, write, same, comm, rng, monkeypatch):
    """A store of a file, and a file of a store; a rank may have no chunk."""
    x = comm.bcast(rng.integers(-9, 9, 900))
    if comm.rank == 0:
        np.save(place / "x.npy", x)
    comm.Barrier()
    scan_file(f"{store}/x.npy", f"{store}/y.zarr::a/b", backend="cpu")
    same("y.zarr::a/b", x.cumsum())
    scan_file(f"{store}/y.zarr::/a/b", f"{store}/z.npy", backend="cpu", check=True)
    np.testing.assert_array_equal(np.load(place / "z.npy"), x.cumsum().cumsum())
    comm.Barrier()


def test_segments_and_several_inputs(store, write, same, comm, rng):
    x, keys = comm.bcast((rng.integers(-9, 9, 700), np.arange(700) // 9))

    def several(path):
        group = zarr.create_group(path)
        group.create_array("x", data=x, chunks=(50,))
        group.create_array("keys", data=keys, chunks=(64,))

    write("x.zarr", several)
    given = f"{store}/x.zarr"
    scan_file(f"{given}::x", f"{store}/y.zarr", segments=f"{given}::keys", backend="cpu")
    same("y.zarr::x", np.concatenate([x[keys == key].cumsum() for key in np.unique(keys)]))
    scan_file([f"{given}::x", f"{given}::x"], f"{store}/z.zarr::z", backend="cpu")
    same("z.zarr::z", np.tile(x, 2).cumsum())


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_few_elements(shape, store, write, same):
    write("x.zarr", np.ones(shape))
    axis = 0 if len(shape) > 1 else None
    scan_file(f"{store}/x.zarr", f"{store}/y.zarr", axis=axis, backend="cpu")
    same("y.zarr", np.ones(shape).cumsum(axis).reshape(shape))


def test_chunks_that_are_not_stored(store, place, write, same, comm):
    """They have the fill value: of the input, and of the output."""
    x = np.zeros((60, 4), "i8")
    x[40:] = 1
    write("x.zarr", x, chunks=(10, 4))
    scan_file(f"{store}/x.zarr", f"{store}/y.zarr", axis=0, backend="cpu")
    same("y.zarr", x.cumsum(0))
    assert objects(place / "y.zarr") == {"zarr.json", "c/4/0", "c/5/0"}
    comm.Barrier()


@pytest.mark.one_rank
def test_memory_of_the_process(rng):
    x = rng.integers(-9, 9, (30, 4))
    zarr.create_array("memory://a/x.zarr", data=x, chunks=(7, 2))
    scan_file("memory://a/x.zarr", "memory://a/y.zarr", axis=0, backend="cpu", check=True)
    np.testing.assert_array_equal(zarr.open("memory://a/y.zarr"), x.cumsum(0))
    fsspec.filesystem("memory").rm("/a", recursive=True)


@VERSIONS
def test_order_of_objects(version, store, place, write, same, comm, monkeypatch):
    """Ranks write each chunk once, rank 0 the documents after all of them, the root's last."""
    x = np.arange(700.0).reshape(70, 10)
    write("x.zarr", x, name="g/x", chunks=(8, 3), zarr_format=version)
    before, root, puts = [], place / "y.zarr", []

    def look(path):
        puts.append(str(Path(path).relative_to(root)))
        if Path(path).name in DOCUMENTS:
            before.append(objects(root))

    with monkeypatch.context() as patch:
        at_puts(patch, look)
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", axis=0, backend="cpu")
    written = objects(root)
    same("y.zarr::g/x", x.cumsum(0))
    ranks = comm.allgather([key for key in puts if not key.startswith(".distscan-")])
    chunks = {key for key in written if Path(key).name not in DOCUMENTS}
    assert len(chunks) == 36
    assert sorted(key for keys in ranks for key in keys) == sorted(written)  # none of them twice
    assert all(len(chunks & set(keys)) >= 9 for keys in ranks)
    documents = [key for key in ranks[0] if key not in chunks]
    assert set(documents) == written - chunks
    assert documents[-1] == {2: ".zmetadata", 3: "zarr.json"}[version]
    assert all("/" not in key for key in documents[-{2: 3, 3: 1}[version] :])
    assert all(chunks < seen for seen in before)
    assert len(before) == (len(documents) if comm.rank == 0 else 0)


# ---- what is there already -----------------------------------------------------------------------


def fill(path, *names):
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("precious")


OTHERS = {
    "a group": (["zarr.json"], "exists, and is not replaced, not even by force=True"),
    "version 2": ([".zgroup"], "exists, and is not replaced"),
    "an object": (["photo"], "has other objects, such as photo: delete them, or name another"),
    "chunks": (["c/0/1", "c/1/1"], "has other objects, such as c:"),
    "a deep one": (["a/b/zarr.json"], "has other objects, such as a:"),
    "a job": ([".distscan-12", "c/0/1"], "another job writes .*, or was killed: delete it if so"),
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("what", OTHERS)
def test_refused_places(what, force, store, place, write, comm, monkeypatch):
    """Before any work; nothing is changed."""
    names, message = OTHERS[what]
    write("x.zarr", np.arange(90))
    write("y.zarr", lambda path: fill(path, *names))
    monkeypatch.setattr(output, "create", None)  # no work has begun
    for resume in (False, True):
        with pytest.raises(OutputError, match=f"{store}/y.zarr {message}|{message}"):
            scan_file(f"{store}/x.zarr", f"{store}/y.zarr", force=force, resume=resume,
                      backend="cpu")  # fmt: skip
    assert objects(place / "y.zarr") == set(names)
    comm.Barrier()


def test_the_input_as_output(store, write, same):
    write("x.zarr", np.arange(90))
    with pytest.raises(OutputError, match="exists, and is not replaced"):
        scan_file(f"{store}/x.zarr", f"{store}/x.zarr", force=True, backend="cpu")
    same("x.zarr", np.arange(90))


def test_an_object_as_output(store, place, write, comm):
    write("x.zarr", np.arange(90))
    write("y.zarr", lambda path: path.write_text("precious"))
    with pytest.raises(OutputError, match="is an object, and no Zarr store"):
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", force=True, backend="cpu")
    assert (place / "y.zarr").read_text() == "precious"
    comm.Barrier()


def test_two_jobs(store, place, write, comm, monkeypatch):
    """If both have seen nothing, each sees the other's claim."""
    write("x.zarr", np.arange(90))
    monkeypatch.setattr(zarr_url, "check_output", lambda *_: None)
    write("y.zarr", lambda path: fill(path, ".distscan-12"))
    with pytest.raises(OutputError, match="another job writes"):
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu")
    assert objects(place / "y.zarr") == {".distscan-12"}
    assert not parts(place)
    comm.Barrier()


def test_a_store_that_appears_meanwhile(store, place, write, comm, monkeypatch):
    """It stays; the job removes its own chunks, and what it has never written stays."""
    write("x.zarr", np.arange(90), chunks=(9,))
    publish = zarr_url.publish

    def late(part):
        fill(place / "y.zarr", "zarr.json", "c/another")
        publish(part)

    monkeypatch.setattr(zarr_url, "publish", late)
    with pytest.raises(OutputError, match="was created meanwhile by another program"):
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu")
    assert objects(place / "y.zarr") == {"zarr.json", "c/another"}
    assert not parts(place)
    comm.Barrier()


def test_a_claim_that_is_removed_meanwhile(store, place, write, comm, monkeypatch):
    """What is there may be another job's by now: nothing is removed."""
    write("x.zarr", np.arange(90), chunks=(9,))
    publish = zarr_url.publish

    def late(part):
        next((place / "y.zarr").glob(".distscan-*")).unlink()
        publish(part)

    monkeypatch.setattr(zarr_url, "publish", late)
    with pytest.raises(OutputError, match="was removed meanwhile"):
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu")
    assert objects(place / "y.zarr") == {f"c/{i}" for i in range(10)}
    assert not parts(place)
    comm.Barrier()


# ---- jobs that fail, and go on -------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 3])
def test_a_failure_leaves_nothing(number, run, store, place, write, comm, monkeypatch):
    """On the last rank, in the middle."""
    x = np.arange(360 * comm.size).reshape(-1, 10)  # eight chunks for each rank
    write("x.zarr", x, chunks=(9, 5))
    before = objects(place)
    if comm.rank == comm.size - 1:
        with failing(monkeypatch, number):
            status, _, err = run(f"{store}/x.zarr", "--axis=0", "-o", f"{store}/y.zarr", "--quiet",
                                 "--backend=cpu")  # fmt: skip
    else:
        status, _, err = run(f"{store}/x.zarr", "--axis=0", "-o", f"{store}/y.zarr", "--quiet",
                             "--backend=cpu")  # fmt: skip
    assert (status, err.count("\n")) == (1, 1)
    assert f"cannot write {store}/y.zarr: [Errno 5] the network is down" in err
    assert objects(place) == before
    assert not (place / "y.zarr").exists() or store.startswith("bucket")
    assert not parts(place)
    comm.Barrier()


@pytest.mark.parametrize("name", sorted(DOCUMENTS - {".zattrs", ".zarray"}))
def test_a_failure_of_a_document(name, store, place, write, comm, monkeypatch):
    version = 3 if name == "zarr.json" else 2
    write("x.zarr", np.arange(90), name="v", chunks=(9,), zarr_format=version)
    before = objects(place)
    only = lambda path: Path(path).name == name and Path(path).parent == place / "y.zarr"  # noqa: E731
    with (
        failing(monkeypatch, 0, only),
        pytest.raises(OSError, match="the network is down"),
    ):
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu")
    comm.Barrier()
    assert objects(place) == before
    assert not parts(place)
    comm.Barrier()


def test_a_state_that_cannot_be_published(store, place, write, same, comm, monkeypatch):
    """The store disappears with it; with ``resume``, its chunks stay."""
    write("x.zarr", np.arange(90), name="v", chunks=(9,))
    before, options = objects(place), {"backend": "cpu", "state": place.parent / "state"}
    with monkeypatch.context() as patch:
        patch.setattr(output, "publish", raises(5))
        with pytest.raises(OSError, match="Input/output error"):
            scan_file(f"{store}/x.zarr", f"{store}/y.zarr", **options)
        comm.Barrier()
        assert objects(place) == before
        assert not parts(place)
        comm.Barrier()
        with pytest.raises(OSError, match="Input/output error"):
            scan_file(f"{store}/x.zarr", f"{store}/y.zarr", resume=True, **options)
    names = {Path(name).name for name in objects(place / "y.zarr")}
    assert len(names) == 11
    assert not names & DOCUMENTS
    comm.Barrier()
    scan_file(f"{store}/x.zarr", f"{store}/y.zarr", resume=True, **options)
    same("y.zarr::v", np.arange(90).cumsum())


def test_a_store_that_cannot_be_cleaned(bucket, place, write, same, comm, monkeypatch):
    """The part file stays, and the next job removes what was left, and is as any other."""
    write("x.zarr", np.arange(90), chunks=(9,))
    with monkeypatch.context() as patch:
        at_step(patch, "remove", raises(5))
        with failing(patch, 1), pytest.raises(OSError, match="the network is down"):
            scan_file(f"{bucket}/x.zarr", f"{bucket}/y.zarr", backend="cpu")
    comm.Barrier()
    assert objects(place / "y.zarr")
    assert parts(place)
    comm.Barrier()
    scan_file(f"{bucket}/x.zarr", f"{bucket}/y.zarr", backend="cpu")
    same("y.zarr", np.arange(90).cumsum())


@VERSIONS
@pytest.mark.parametrize("axis", [0, None])
def test_resumed(axis, version, store, place, write, same, comm, rng, monkeypatch):
    """Chunks of which there is a record are not written again, and not removed."""
    monkeypatch.setattr(restart, "PERIOD", 0)
    monkeypatch.setattr(restart, "_SHARE", 0)
    monkeypatch.setattr(plan, "CPU_CHUNK", 1)
    monkeypatch.setattr(formats.zarr, "_CHUNK", 400)
    x = comm.bcast(rng.integers(1, 9, (80, 30)))
    write("x.zarr", x, chunks=(4, 10), zarr_format=version)
    options = {"axis": axis, "backend": "cpu", "resume": True, "memory": 60_000}
    with failing(monkeypatch, 9), pytest.raises(OSError, match="the network is down"):
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", **options)
    comm.Barrier()
    first = objects(place / "y.zarr")
    assert [key for key in first if ".distscan-" in key]
    assert not {Path(key).name for key in first} & DOCUMENTS
    comm.Barrier()
    puts = []
    with monkeypatch.context() as patch:
        at_puts(patch, lambda path: puts.append(str(Path(path).relative_to(place / "y.zarr"))))
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", **options)
    again = {key for keys in comm.allgather(puts) for key in keys}
    same("y.zarr", x.cumsum(axis))
    first = {key for key in first if ".distscan-" not in key}
    assert first | again == objects(place / "y.zarr")
    assert first - again
    comm.Barrier()


def stopped(scan, monkeypatch):
    """A job with ``resume`` writes all chunks, and fails before the documents."""
    with monkeypatch.context() as patch:
        patch.setattr(zarr_url, "publish", raises(5))
        with pytest.raises(OSError, match="Input/output error"):
            scan(resume=True)


def test_resumed_where_chunks_were_removed(store, place, write, same, comm, monkeypatch):
    """The journal says that they are there: so the job is refused; without it, it begins anew."""
    write("x.zarr", np.arange(90), chunks=(9,))

    def scan(**options):
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu", **options)

    stopped(scan, monkeypatch)
    if comm.rank == 0:
        shutil.rmtree(place / "y.zarr")
    comm.Barrier()
    with pytest.raises(OutputError, match="was removed; a job without resume=True"):
        scan(resume=True)
    scan()
    same("y.zarr", np.arange(90).cumsum())


def test_without_resume_after_it(store, place, write, same, comm, monkeypatch):
    """The chunks of the killed job are removed first, and no others."""
    write("x.zarr", np.arange(90), chunks=(9,))
    stopped(
        lambda **options: scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu", **options),
        monkeypatch,
    )
    scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu", op="max")
    same("y.zarr", np.arange(90))


KILLED = """
import itertools, os, sys, tempfile
from support import stores
from distscan import scan_file
tempfile.tempdir = sys.argv[1]
turns = itertools.count()
def at(self, step, path):
    if step == "write" and next(turns) == int(sys.argv[4]):
        os.kill(os.getpid(), 9)
    return path
stores.Bucket.at = at
resume = sys.argv[5] == "resume"
scan_file(sys.argv[2], sys.argv[3], backend="cpu", resume=resume)
"""


@pytest.mark.one_rank
@pytest.mark.parametrize("turn", [0, 1, 5, 11])
@pytest.mark.parametrize("resume", ["resume", "anew"])
def test_killed(resume, turn, bucket, place, write, same):
    """At the claim, at a chunk, at the document; then the next job goes on, or begins anew."""
    write("x.zarr", np.arange(90), chunks=(9,))
    arguments = tempfile.tempdir, f"{bucket}/x.zarr", f"{bucket}/y.zarr"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    for number, status in ((turn, -signal.SIGKILL), (99, 0)):
        ended = python(KILLED, *arguments, str(number), resume, PYTHONPATH=path)
        assert ended.returncode == status, ended.stderr
        assert (place / "y.zarr" / "zarr.json").exists() == (number == 99)
    same("y.zarr", np.arange(90).cumsum())


# ---- stores that change, and what is refused -----------------------------------------------------


def test_changed_metadata(store, place, write, comm, monkeypatch):
    write("x.zarr", np.arange(90), name="v", chunks=(9,))
    decide = job._budget

    def budget(*arguments, **named):
        comm.Barrier()
        if comm.rank == 0:
            document = place / "x.zarr" / "v" / "zarr.json"
            document.write_text(json.dumps(json.loads(document.read_text()) | {"attributes": {}}))
        comm.Barrier()
        return decide(*arguments, **named)

    monkeypatch.setattr(job, "_budget", budget)
    with pytest.raises(InputError, match=rf"{store}/x.zarr was changed while it was read"):
        scan_file(f"{store}/x.zarr", f"{store}/y.zarr", backend="cpu")
    assert not (place / "y.zarr").exists() or not objects(place / "y.zarr")
    comm.Barrier()


def test_ranks_see_different_stores(bucket, place, write, comm, monkeypatch):
    """They are compared by their documents."""
    for rank in range(comm.size):
        write(f"{rank}.zarr", np.arange(90), attributes={"rank": rank})
    at_step(monkeypatch, "read", lambda path: path.replace("x.zarr", f"{comm.rank}.zarr"))
    if comm.size == 1:
        scan_file(f"{bucket}/x.zarr", place / "y.npy", backend="cpu")
        return
    with pytest.raises(ValueError, match=r"the content of bucket:.*x\.zarr"):
        scan_file(f"{bucket}/x.zarr", place / "y.npy", backend="cpu")


REFUSED = {
    "no store": (["STORE/none.zarr"], "STORE/none.zarr is no Zarr store: it has no zarr.json"),
    "a folder": (["STORE/photos.zarr"], "STORE/photos.zarr is no Zarr store"),
    "two arrays": (["STORE/x.zarr"], "name one, such as STORE/x.zarr::v"),
    "an unknown name": (["STORE/x.zarr::u"], "there is no STORE/x.zarr::u; arrays: /v, /w"),
    "damaged": (["STORE/damaged.zarr"], "cannot read STORE/damaged.zarr: "),
    "a damaged chunk": (["STORE/chunk.zarr"], "cannot read STORE/chunk.zarr: "),
    "a missing value": (["STORE/x.zarr::w"], "STORE/x.zarr::w has no value at element 2"),
    "HTTP as output": (["STORE/x.zarr::v", "-o", "http://h/y.zarr"], "is read, not written"),
    "memory": (["STORE/x.zarr::v", "-o", "STORE/y.zarr", "--memory=100"], "a tile of the file"),
    "like": (["STORE/x.zarr::v", "-o", "STORE/y.zarr", "--like"], "--like is for outputs of HDF5"),
    "Fortran order": (["STORE/f.npy", "-o", "STORE/y.zarr", "--axis=0"], "has no Fortran order"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, run, store, place, write, comm):
    """In one line, on every rank; nothing is left behind."""
    arguments, message = REFUSED[case]

    def several(path):
        group = zarr.create_group(path)
        group.create_array("v", data=np.arange(90))
        group.create_array("w", data=np.arange(90), attributes={"_FillValue": 2})

    write("x.zarr", several)
    write("photos.zarr", lambda path: fill(path, "a.jpg"))
    write("damaged.zarr", lambda path: fill(path, "zarr.json"))
    write("chunk.zarr", np.arange(90), chunks=(50,))
    if comm.rank == 0:
        fill(place / "chunk.zarr", "c/1")
        np.save(place / "f.npy", np.asfortranarray(np.ones((3, 4))))
    comm.Barrier()
    before = objects(place)
    status, out, err = run(*[each.replace("STORE", store) for each in arguments], "--backend=cpu",
                           "--quiet")  # fmt: skip
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message.replace("STORE", store) in err
    assert objects(place) == before
    assert not parts(place)
    comm.Barrier()


def test_permissions(run, bucket, write, place, monkeypatch):
    write("x.zarr", np.arange(90))
    with monkeypatch.context() as patch:
        at_step(patch, "write", denied)
        arguments = "-o", f"{bucket}/y.zarr", "--backend=cpu", "--quiet"
        status, _, err = run(f"{bucket}/x.zarr", *arguments)
    assert (status, err.count("\n")) == (2, 1)
    assert f"cannot write {bucket}/y.zarr: permission denied (no key)" in err
    at_step(monkeypatch, "read", denied)
    status, _, err = run(f"{bucket}/x.zarr", "--backend=cpu")
    assert (status, err.count("\n")) == (2, 1)
    assert f"cannot read {bucket}/x.zarr: permission denied (no key)" in err
    assert not parts(place)


def denied(*_, **__):
    raise PermissionError("no key")


def test_missing_packages(run, place, write, monkeypatch):
    """The message says what to install."""
    from fsspec.registry import known_implementations

    write("x.zarr", np.arange(90))
    missing = {"class": "no_such_package.FileSystem", "err": "Install it"}
    monkeypatch.setitem(known_implementations, "absent", missing)
    here = str(place / "x.zarr")
    for name, arguments, message in (
        (None, ["absent://b/x.zarr"], "absent://b/x.zarr: Install it: pip install no_such_package"),
        (None, [here, "-o", "absent://b/y.zarr"], "Install it: pip install no_such_package"),
        ("fsspec.core", ["local:///x.zarr"], "fsspec is missing: pip install 'distscan[remote]'"),
        ("fsspec.core", [here, "-o", "local:///y.zarr"], "pip install 'distscan[remote]'"),
        ("zarr", [f"local://{here}"], "zarr needs zarr, which cannot be imported"),
    ):
        with monkeypatch.context() as patch:
            if name is not None:
                patch.setitem(sys.modules, name, None)
            status, _, err = run(*arguments, "--backend=cpu")
        assert (status, err.count("\n")) == (2, 1)
        assert message in err


def test_a_part_file_of_another_folder(place, write, comm):
    """What it says is not believed: anybody may write there."""
    write("x.zarr", np.arange(90), chunks=(9,))
    write("y.zarr", np.arange(90), chunks=(9,))
    if comm.rank == 0:
        fill(place / "y.zarr", ".distscan-12")
        part = place / ".z.zarr.distscan-1.part"
        part.write_text(
            json.dumps({"a Zarr store": [f"local://{place}/y.zarr", ".distscan-12", ""]})
        )
        output.whole_of(part).symlink_to(place / "x.zarr")
        assert zarr_url.Claim.of(part) is not None
        output.remove(part)
        assert not part.exists()
        assert len(objects(place / "y.zarr")) == 12
    comm.Barrier()


@pytest.mark.one_rank
def test_targets_travel(bucket, place, write, tmp_path):
    """Other ranks need no part file: only the URL."""
    import pickle

    part = tmp_path / "part"
    part.touch()
    layout = Layout(np.dtype("f8"), (90, 4), url=Url(f"{bucket}/y.zarr"))
    target = pickle.loads(pickle.dumps(zarr_url.create(part, layout)))
    for path in tmp_path.rglob("*"):
        path.unlink() if path.is_file() else None
    target.check_shared()
    with target.writing() as put:
        put.box(np.ones((90, 4)), (slice(0, 90), slice(0, 4)))
        put.sync()
    with target.reading() as fill:
        elements = np.zeros(7)
        fill(elements, 100)
    assert elements.tolist() == [1] * 7


# ---- HTTP and S3 ---------------------------------------------------------------------------------


def test_http(run, place, write, comm):
    pytest.importorskip("aiohttp", reason="no aiohttp")
    x = np.arange(300).reshape(30, 10)
    write("x.zarr", x, name="v", chunks=(7, 3))
    with stores.http(place) if comm.rank == 0 else nullcontext() as server:
        url = comm.bcast(server)
        scan_file(f"{url}/x.zarr::v", place / "y.npy", axis=0, backend="cpu", check=True)
        np.testing.assert_array_equal(np.load(place / "y.npy"), x.cumsum(0))
        for name, message in (("x.zarr", "by HTTP, ::NAME names it"), ("z.zarr", "is no Zarr")):
            status, _, err = run(f"{url}/{name}", "-o", str(place / "z.npy"), "--backend=cpu")
            assert (status, err.count("\n")) == (2, 1)
            assert message in err
        comm.Barrier()


s3 = pytest.fixture(stores.s3)


@pytest.mark.filterwarnings("default")
def test_s3(run, s3, place, write, comm, rng, monkeypatch):
    x, fs = comm.bcast(rng.integers(-99, 99, (70, 41))), fsspec.filesystem("s3")
    write("x.zarr", x, chunks=(8, 5))
    arguments = ["--backend=cpu", "--quiet", "--axis=0", "--check"]
    assert run(str(place / "x.zarr"), "-o", f"{s3}/y.zarr", *arguments)[0] == 0
    assert run(f"{s3}/y.zarr", *arguments)[0] == 0
    np.testing.assert_array_equal(zarr.open(f"{s3}/y.scan.zarr"), x.cumsum(0).cumsum(0))
    for names, message in (
        ([f"{s3}/y.zarr", "--force"], "exists, and is not replaced"),
        ([f"{s3}/none.zarr"], "is no Zarr store"),
        ([f"{s3}/y.zarr", "-o", "s3://nobody/y.zarr"], "there is no bucket nobody"),
    ):
        status, _, err = run(*names, "--backend=cpu")
        assert (status, err.count("\n")) == (2, 1)
        assert message in err
    monkeypatch.setattr(zarr_url, "publish", raises(5))
    assert run(f"{s3}/y.zarr", "-o", f"{s3}/z.zarr", "--backend=cpu", "--quiet")[0] == 1
    fs.invalidate_cache()
    assert not fs.find(f"{s3}/z.zarr")
    comm.Barrier()
