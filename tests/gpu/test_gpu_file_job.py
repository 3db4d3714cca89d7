"""The file job on GPUs: the same files as on CPUs, in chunks of any size, resident and not."""

import numpy as np
import pytest

import distscan
from distscan.job import plan

pytestmark = pytest.mark.gpu

CASES = [((10007,), None), ((503, 7), 0), ((40, 11, 9), 1), ((3, 4001), 0), ((1,), None)]
FORMS = [{}, {"reverse": True}, {"exclusive": True, "initial": 2, "reverse": True}]


@pytest.fixture(autouse=True)
def _inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def both(comm, **options):
    """The results on GPUs and on CPUs."""
    found = []
    for backend in ("cuda", "cpu"):
        distscan.scan_file("x.npy", "y.npy", comm=comm, backend=backend, force=True, **options)
        found.append(np.load("y.npy"))
        comm.Barrier()
    return found


@pytest.mark.parametrize("way", ["resident", "streaming"])
@pytest.mark.parametrize("form", FORMS, ids=["plain", "reverse", "exclusive"])
@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize(("code", "op"), [("i4", "sum"), ("u1", "max")])
def test_as_on_cpus(code, op, shape, axis, form, way, cp, comm, save, rng, monkeypatch):
    if way == "resident":
        monkeypatch.setattr(plan, "GPU_CHUNK", 1 << 10)
    memory = None if way == "resident" else 1 << 12
    save("x.npy", rng.integers(0, 9, shape).astype(code))
    on_gpus, on_cpus = both(comm, op=op, axis=axis, memory=memory, **form)
    assert on_gpus.dtype == on_cpus.dtype
    np.testing.assert_array_equal(on_gpus, on_cpus)


@pytest.mark.parametrize("kind", ["keys", "flags"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_segments(kind, reverse, cp, comm, save, rng):
    n = 10007
    save("x.npy", rng.integers(0, 9, n))
    save("s.npy", np.sort(rng.integers(0, 250, n)) if kind == "keys" else rng.random(n) < 0.02)
    for memory in (None, 1 << 13):
        np.testing.assert_array_equal(*both(comm, segments="s.npy", reverse=reverse, memory=memory))


def test_a_state_goes_from_gpus_to_cpus(cp, comm, save, folder, rng):
    """They accumulate float32 in other types."""
    x = rng.integers(-9, 9, (600, 5)).astype("f4")
    save("a.npy", x[:350])
    save("b.npy", x[350:])
    for axis, first in ((None, "cuda"), (0, "cuda"), (0, "cpu")):
        (folder / "s.json").unlink(missing_ok=True)
        comm.Barrier()
        for name, backend in (("a", first), ("b", "cpu" if first == "cuda" else "cuda")):
            distscan.scan_file(f"{name}.npy", f"{name}.out.npy", comm=comm, axis=axis, force=True,
                               state="s.json", backend=backend)  # fmt: skip
            comm.Barrier()
        want = np.cumsum(x, axis, "f8")[350 * (5 if axis is None else 1) :]
        np.testing.assert_array_equal(
            np.load("b.out.npy"), want.reshape(-1) if axis is None else want
        )
        comm.Barrier()


def test_the_current_gpu_stays(cp, comm, save, rng):
    before = cp.cuda.runtime.getDevice()
    save("x.npy", rng.integers(0, 9, 100))
    distscan.scan_file("x.npy", "y.npy", comm=comm, backend="cuda")
    assert cp.cuda.runtime.getDevice() == before
