"""Times of NumPy: NaT and all else as ``ufunc.accumulate`` has it."""

import numpy as np
import pytest

import distscan

NAT = np.iinfo(np.int64).min


def drawn(rng, n, dtype, nats):
    x = rng.integers(-1000, 1000, n).astype(dtype)
    x[rng.choice(n, min(n, nats), replace=False)] = np.datetime64("NaT").astype(dtype)
    return x


@pytest.mark.parametrize("nats", [0, 1, 3])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", "m8[s]"), ("max", "m8[ns]"), ("min", ">m8[D]"), ("max", "M8[ms]"), ("min", "M8[D]")],
)
def test_values(op, dtype, nats, comm, cut, rng):
    ufunc = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    for n in (1, 700, 20_000):
        x = drawn(rng, n, dtype, nats)
        mine = cut(n)
        for reverse in (False, True):
            step = -1 if reverse else 1
            want = ufunc.accumulate(x[::step])[::step][mine]
            out = np.full(want.shape, 7, want.dtype)
            for given in ({}, {"out": out}):
                got = distscan.scan(x[mine], op, reverse=reverse, **given)
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got.view("i8"), want.view("i8"))


@pytest.mark.parametrize("dtype", ["m8[us]", "M8[s]"])
def test_forms(dtype, comm, cut, rng):
    """Exclusive, from a first value, along axes, in segments, by plans."""
    x = drawn(rng, 600, dtype, 2).reshape(200, 3)
    mine, first = cut(200), np.array(-5).astype(dtype)[()]
    want = np.maximum.accumulate(x, 0)
    for axis in (0, 1):
        got = distscan.scan(x[mine], "max", axis=axis)
        np.testing.assert_array_equal(
            got.view("i8"), np.maximum.accumulate(x, axis)[mine].view("i8")
        )
    got = distscan.scan(x[mine], "max", axis=0, exclusive=True, initial=first)
    seeded = np.maximum(np.concatenate([np.full((1, 3), first), want[:-1]]), first)
    np.testing.assert_array_equal(got.view("i8"), seeded[mine].view("i8"))
    got = distscan.scan(x[mine], "max", exclusive=True)
    if mine.start == 0 < mine.stop:
        assert got.ravel()[:1].view("i8") == NAT + 1  # the lowest time
    keys = np.arange(600) // 7
    parts = [np.maximum.accumulate(x.ravel()[keys == key]) for key in range(86)]
    got = distscan.scan(x[mine], "max", segments=keys.reshape(200, 3)[mine])
    want = np.concatenate(parts).reshape(200, 3)[mine].ravel()
    np.testing.assert_array_equal(got.view("i8"), want.view("i8"))
    with distscan.Plan(comm, x[mine].shape, dtype, op="min", backend="cpu") as plan:
        want = np.minimum.accumulate(x.ravel()).reshape(200, 3)[mine].ravel()
        np.testing.assert_array_equal(plan(x[mine]).view("i8"), want.view("i8"))


def test_units(comm):
    x = np.arange(5).astype("m8[s]")
    got = distscan.scan(x, dtype="m8[ms]", comm=comm)
    assert got.dtype == "m8[ms]"
    np.testing.assert_array_equal(got, (np.cumsum(x) + comm.rank * x.sum()).astype("m8[ms]"))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", "M8[s]"), ("prod", "m8[s]"), ("logaddexp", "m8[s]"), ("fsum", "m8[s]")],
)
def test_what_times_have_not(op, dtype, comm):
    with pytest.raises(TypeError, match=r"does not take|x is timedelta64"):
        distscan.scan(np.zeros(3, dtype), op)


@pytest.mark.parametrize("dtype", ["m8[s]", "M8[h]"])
def test_files(dtype, folder, comm, rng):
    x = drawn(rng, 5000, dtype, 0)
    if comm.rank == 0:
        np.save(folder / "x.npy", x)
    comm.Barrier()
    report = distscan.scan_file(folder / "x.npy", folder / "y.npy", "max", backend="cpu")
    want = np.maximum.accumulate(x)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), want)
    assert report.total == str(want[-1])
    with pytest.raises(ValueError, match="check=True has no reference for"):
        distscan.scan_file(folder / "x.npy", folder / "z.npy", "max", backend="cpu", check=True)
    comm.Barrier()
