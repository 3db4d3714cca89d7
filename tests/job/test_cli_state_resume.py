"""``--state`` with ``--resume``: a job that has stopped goes on behind the state it began with."""

from itertools import product

import numpy as np
import pytest

from distscan.job import restart
from support.maps import maps
from support.streams import some, wanted
from support.writers import full_after, spoil

pytestmark = pytest.mark.timeout(60)
MAPS = "support.maps:COMPOSE"
# Chunks of 6 elements; each one is recorded.
OPTIONS = ["--op", MAPS, "--state", "s.json", "--resume", "--quiet", "--backend", "cpu",
           "--memory", "650", "--threads", "1"]  # fmt: skip


@pytest.fixture(autouse=True)
def records(monkeypatch):
    monkeypatch.setattr(restart, "PERIOD", 0)
    monkeypatch.setattr(restart, "_SHARE", 0)


def contents(path):
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize(
    ("form", "kind"),
    some(product([[], ["--reverse"], ["--exclusive"]], ["plain", "rows", "segments"])),
)
def test_a_series(form, kind, run, save, comm, folder, rng, monkeypatch):
    """Each job stops twice; the state changes when it has ended, and not before."""
    n, shape, marked = 90 * comm.size, (3,) if kind == "rows" else (), kind == "segments"
    x = maps(rng, n * (3 if shape else 1)).reshape(n, *shape)
    marks = np.cumsum(rng.random(n) < 0.05)
    files = np.split(np.arange(n), [n // 3, 2 * n // 3])
    given = [*OPTIONS, *form, "--axis", "0", *(["--segments", "k.npy"] if marked else [])]
    made = {}
    for i in (2, 1, 0) if "--reverse" in form else (0, 1, 2):
        save("x.npy", x[files[i]])
        save("k.npy", marks[files[i]])
        state = contents(folder / "s.json")
        comm.Barrier()
        guilty = int(rng.integers(comm.size))  # the others may have come to their ends meanwhile
        for turn in rng.integers(1, 3, 2):
            with monkeypatch.context() as patch:
                if comm.rank == guilty:
                    spoil(patch, full_after(turn))
                assert run("x.npy", "-o", f"y{i}.npy", *given)[0] == 1
            assert contents(folder / "s.json") == state
            comm.Barrier()
        status, _, err = run("x.npy", "-o", f"y{i}.npy", *given)
        assert status == 0, err
        made[i] = np.load(folder / f"y{i}.npy")
    want = wanted(x, MAPS, form, 0 if shape else None, marks if marked else None)
    np.testing.assert_array_equal(np.concatenate([made[i] for i in range(3)]), want)


def test_another_state(run, save, comm, folder, rng, monkeypatch):
    """A job that has stopped does not go on behind another one: what it has written is wrong."""
    save("x.npy", maps(rng, 60 * comm.size))
    with monkeypatch.context() as patch:
        spoil(patch, full_after(2))
        assert run("x.npy", "-o", "y.npy", *OPTIONS)[0] == 1
    save("other.npy", maps(rng, 5))
    given = ["--op", MAPS, "--state", "s.json", "--quiet"]
    assert run("other.npy", "-o", "z.npy", *given)[0] == 0
    state = contents(folder / "s.json")
    status, _, err = run("x.npy", "-o", "y.npy", *OPTIONS)
    assert status == 2
    assert "the state was" in err
    assert "--resume" in err
    assert contents(folder / "s.json") == state
    comm.Barrier()
    # Without --resume it begins anew.
    assert run("x.npy", "-o", "y.npy", *given)[0] == 0
    both = np.concatenate([np.load(folder / name) for name in ("other.npy", "x.npy")])
    y = np.concatenate([np.load(folder / name) for name in ("z.npy", "y.npy")])
    np.testing.assert_array_equal(y, wanted(both, MAPS, [], None, None))
