"""Arrays that lie in tiles, which jobs read and write as boxes: chunked HDF5, and Zarr."""

import shutil

import numpy as np
import pytest

from distscan import CheckError, scan_file
from distscan.job import plan, shard
from distscan.job.formats.interface import Location
from support.cases import pairs
from support.operators import COMPOSE
from support.reference import wanted

h5py = pytest.importorskip("h5py", reason="no h5py")
zarr = pytest.importorskip("zarr", reason="no zarr")

RANKS = [1, 2, 3, 4]  # numbers of axes
FORMS = [{}, {"reverse": True}, {"exclusive": True}, {"exclusive": True, "reverse": True},
         {"initial": 3}]  # fmt: skip


def hdf5(rng, path, x, chunks):
    filters = [{}, {"compression": "gzip"}, {"shuffle": True}][rng.integers(3)]
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file.create_dataset("x", data=x, chunks=chunks, maxshape=[None] * x.ndim, **filters)
    return f"{path.with_suffix('.h5')}::x"


def store(rng, path, x, chunks, **options):
    """A store of an array, or of a group with one."""
    path = path.with_suffix(".zarr")
    name = [None, "g/x"][rng.integers(2)]
    options = {"compressors": None} if rng.integers(2) else {} | options
    made = zarr.create_array(str(path), name=name, shape=x.shape, dtype=x.dtype, chunks=chunks,
                             overwrite=True, **options)  # fmt: skip
    made[...] = x
    return f"{path}::{name}" if name else str(path)


def version_2(rng, path, x, chunks):
    order = ["C", "F"][rng.integers(2)]
    return store(rng, path, x, chunks, zarr_format=2, order=order)


def shards(rng, path, x, chunks):
    several = tuple(int(chunk * rng.integers(1, 4)) for chunk in chunks)
    return store(rng, path, x, chunks, shards=several)


def plain(rng, path, x, chunks):
    np.save(path.with_suffix(".npy"), x)
    return str(path.with_suffix(".npy"))


INPUTS = {"hdf5": hdf5, "zarr": store, "zarr 2": version_2, "shards": shards, "npy": plain}


def load(location):
    path, member = Location.parse(location)
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return file[member or "data"][...]
    node = zarr.open(str(path), mode="r")
    return (node if hasattr(node, "shape") else node[member])[...]


@pytest.fixture
def made(comm, folder, rng):
    """Write a file on rank 0; return its location, and its elements, the same on every rank."""

    def make(kind, ndim, dtype="i8"):
        location = x = None
        if comm.rank == 0:
            shape = rng.integers(1, [40, 14, 9, 6][:ndim] if ndim > 1 else [400])
            chunks = tuple(int(rng.integers(1, length + 1)) for length in shape)
            x = (
                rng.integers(0, 1 << 63, shape, "u8")
                if dtype == "u8"
                else rng.integers(-99, 99, shape)
            )
            x = x.astype(dtype)
            location = INPUTS[kind](rng, folder / f"x{rng.integers(1 << 30)}", x, chunks)
        return comm.bcast((location, x))

    return make


@pairs(
    kind=list(INPUTS),
    output=[".npy", ".h5", ".zarr"],
    ndim=RANKS,
    axis=[None, 0, 1, 2, -1],
    form=FORMS,
    op=["sum", "max", COMPOSE],
    memory=["none", "small", "large"],
    group_by="kind",
)
def test_boxes(kind, output, ndim, axis, form, op, memory, made, folder, comm, rng, monkeypatch):
    """Any shape in any tiles, at any axis; the result is in tiles, or in order."""
    if axis is not None and not -ndim <= axis < ndim:
        axis = 0
    if op is COMPOSE and (form.get("exclusive") and "initial" not in form):
        form = form | {"initial": 1}
    location, x = made(kind, ndim, "u8" if op is COMPOSE else "i8")
    size = int(rng.integers(1, 3000)) if memory != "large" else 1 << 22
    monkeypatch.setattr(plan, "CPU_CHUNK", comm.bcast(size))
    options = {"memory": 1 << 16} if memory == "small" and output != ".zarr" else {}
    target = f"{folder}/y{comm.bcast(rng.integers(1 << 30))}{output}"
    scan_file(location, target, op=op, axis=axis, backend="cpu", threads=int(rng.integers(1, 4)),
              **form, **options)  # fmt: skip
    source = Location.parse(location).member
    found = load(f"{target}::{source}" if source and output != ".npy" else target)
    np.testing.assert_array_equal(found, wanted(x, op, axis=axis, **form))
    comm.Barrier()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(INPUTS))
@pytest.mark.parametrize("output", [".npy", ".h5", ".zarr"])
def test_boxes_on_gpus(kind, output, made, folder, comm, rng):
    """With ``check``, at every axis, in one chunk and in many."""
    for ndim in (1, 2, 3):
        location, x = made(kind, ndim, "f4")
        for axis, form in ((0, {}), (ndim - 1, {"reverse": True}), (None, {"exclusive": True})):
            for memory in (None, 1 << 17) if output != ".zarr" else (None,):
                y = f"{folder}/y{comm.bcast(rng.integers(1 << 30))}{output}"
                scan_file(location, y, axis=axis, backend="cuda", check=True, memory=memory, **form)
                source = Location.parse(location).member
                result = load(f"{y}::{source}" if source and output != ".npy" else y)
                np.testing.assert_array_equal(result, wanted(x, "sum", axis=axis, **form))
                comm.Barrier()


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "shards"])
@pytest.mark.parametrize("op", ["sum", "prod", "fsum"])
@pytest.mark.parametrize("axis", [0, 1])
def test_floats(kind, op, axis, made, folder, comm, rng, monkeypatch):
    """``check`` compares tiles, too."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 2000)
    for output in (".npy", ".zarr"):
        location, x = made(kind, 3, "f4")
        options = {} if op == "fsum" else {"check": True}
        y = f"{folder}/y{comm.bcast(rng.integers(1 << 30))}{output}"
        x = x / 64 if op == "prod" else x
        scan_file(location, y, op=op, axis=axis, backend="cpu", **options)
        if op != "prod":
            source = Location.parse(location).member
            found = load(f"{y}::{source}" if source and output != ".npy" else y)
            want = x.astype("f8").cumsum(axis).astype(found.dtype)
            np.testing.assert_array_equal(found, want)
        comm.Barrier()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("output", [".npy", ".zarr"])
def test_a_wrong_element_is_found(reverse, output, folder, comm, rng, monkeypatch):
    """``check`` names its index in the array, and not in a tile."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 300)
    x, wrong = rng.integers(-9, 9, (20, 6, 7)), (13, 4, 5)
    if comm.rank == 0:
        zarr.create_array(f"{folder}/x.zarr", data=x, chunks=(4, 3, 2))
    comm.Barrier()
    real = shard.put_box

    def put(function, shape, elements, box):
        view = box.view(elements)
        inside = [at - low for at, (low, high) in zip(wrong, box.bounds, strict=True)]
        if all(low <= at < high for at, (low, high) in zip(wrong, box.bounds, strict=True)):
            view[tuple(inside)] += 1
        real(function, shape, elements, box)

    monkeypatch.setattr(shard, "put_box", put)
    with pytest.raises(CheckError, match=f"element {np.ravel_multi_index(wrong, x.shape)} "):
        scan_file(f"{folder}/x.zarr", f"{folder}/y{output}", axis=0, check=True, reverse=reverse,
                  backend="cpu")  # fmt: skip
    comm.Barrier()


@pytest.mark.parametrize("kind", ["hdf5", "zarr"])
@pytest.mark.parametrize("chunks", [(16, 2), (100, 1), (8, 5)])
def test_a_tile_is_read_by_one_rank(kind, chunks, folder, comm, rng, monkeypatch):
    """Each tile is read once where ranks have columns of tiles; never by two ranks."""
    x = rng.integers(-9, 9, (200, 24))
    location = f"{folder}/x"
    if comm.rank == 0:
        location = INPUTS[kind](rng, folder / "x", x, chunks)
    location, boxes, real = comm.bcast(location), [], shard.fill_box

    def fill(function, shape, elements, box):
        boxes.append(box.bounds)
        real(function, shape, elements, box)

    monkeypatch.setattr(shard, "fill_box", fill)
    for axis in (0, 1):
        boxes.clear()
        scan_file(location, f"{folder}/y.npy", axis=axis, backend="cpu", force=True)
        np.testing.assert_array_equal(np.load(folder / "y.npy"), x.cumsum(axis))
        counts = np.zeros((-(-200 // chunks[0]), -(-24 // chunks[1])), int)
        for (a, b), (c, d) in boxes:
            assert a % chunks[0] == c % chunks[1] == 0
            counts[a // chunks[0] : -(-b // chunks[0]), c // chunks[1] : -(-d // chunks[1])] += 1
        everywhere = comm.allreduce(counts)
        readers = comm.allreduce((counts > 0).astype(int))
        if comm.size == 1 or counts.shape[1 - axis] >= comm.size:
            np.testing.assert_array_equal(everywhere, 1)
        elif counts.shape[axis] >= comm.size:
            np.testing.assert_array_equal(readers, 1)
        comm.Barrier()


@pytest.mark.parametrize("output", ["y.zarr", "y.h5"])
def test_state(output, made, folder, comm, rng, monkeypatch):
    """The running value is a row of the array, whatever the tiles."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 400)
    x = rng.integers(-9, 9, (60, 7, 5))
    for reverse in (False, True):
        if comm.rank == 0:
            (folder / "state").unlink(missing_ok=True)
        parts = [(0, 22, (4, 3, 2)), (22, 23, (1, 7, 2)), (23, 60, (9, 2, 5))]
        for low, high, chunks in parts[:: -1 if reverse else 1]:
            if comm.rank == 0:
                shutil.rmtree(folder / "x.zarr", ignore_errors=True)
                store(rng, folder / "x.zarr", x[low:high], chunks)
                source = zarr.open(f"{folder}/x.zarr", mode="r")
                name = "x.zarr" if hasattr(source, "shape") else "x.zarr::g/x"
            name = comm.bcast(name if comm.rank == 0 else None)
            scan_file(f"{folder}/{name}", f"{folder}/{output}::z", axis=0, state=folder / "state",
                      force=True, reverse=reverse, backend="cpu", check=True)  # fmt: skip
            want = wanted(x, "sum", axis=0, reverse=reverse)[low:high]
            np.testing.assert_array_equal(load(f"{folder}/{output}::z"), want)
            comm.Barrier()


def test_memory(folder, comm, rng):
    """A tile that is written must be in memory; one that is read alone need not be."""
    x = rng.integers(-9, 9, (64, 64))
    if comm.rank == 0:
        zarr.create_array(f"{folder}/x.zarr", data=x, chunks=(64, 32))
    comm.Barrier()
    scan_file(f"{folder}/x.zarr", f"{folder}/y.npy", axis=0, memory=4000, backend="cpu")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), x.cumsum(0))
    with pytest.raises(ValueError, match="a tile of the file, with its result, takes 16384 bytes"):
        scan_file(f"{folder}/x.zarr", f"{folder}/y.zarr", axis=0, memory=4000, backend="cpu")
    assert not (folder / "y.zarr").exists()
    comm.Barrier()
