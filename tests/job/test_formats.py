"""A format is one module; the rest of a job does not know it."""

import errno
import json

import numpy as np
import pytest

from distscan.job import formats, output, plan
from support import text_format
from support.writers import raises

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def text(monkeypatch):
    """Files that end in .text are text."""
    monkeypatch.setitem(formats._FORMATS, ".text", text_format)


@pytest.fixture
def write(comm, folder):
    """Write an input that every rank then sees."""

    def write(name, x):
        if comm.rank == 0:
            made = text_format.create(folder / name, x.dtype, x.shape, fortran=False)
            with made.writing() as put:
                put(x, 0)
        comm.Barrier()

    return write


def read(path):
    found = text_format.inspect(path)
    y = np.empty(found.n, found.dtype)
    with found.reading() as fill:
        fill(y, 0)
    return y


def drawn(rng):
    return rng.integers(-(1 << 40), 1 << 40, int(rng.integers(0, 3000)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_from_and_to_a_format(threads, reverse, run, folder, write, rng, monkeypatch):
    monkeypatch.setattr(plan, "CPU_CHUNK", 800)
    x, options = drawn(rng), ["--reverse"] * reverse
    write("x.text", x)
    given = ["x.text", "-o", "y.text", "--backend", "cpu", "--threads", threads, "--check"]
    status, out, err = run(*given, *options, "--json", "--quiet")
    assert status == 0, err
    step = -1 if reverse else 1
    np.testing.assert_array_equal(read(folder / "y.text"), x[::step].cumsum()[::step])
    assert json.loads(out)["elements"] == x.size


def test_formats_may_differ(run, folder, write, save, rng):
    x = drawn(rng)
    write("a.text", x)
    save("b.npy", x)
    for given, name, times in (
        (["a.text"], "a.text.scan.npy", 1),
        (["a.text", "b.npy", "-o", "both.npy"], "both.npy", 2),
    ):
        status, _, err = run(*given, "--backend", "cpu", "--quiet")
        assert status == 0, err
        np.testing.assert_array_equal(np.load(folder / name), np.tile(x, times).cumsum())


@pytest.mark.parametrize("same", [True, False])
def test_resumed(same, run, folder, write, rng, comm, monkeypatch):
    """What a format has created is opened again, and only if it is of the same array."""
    x = drawn(rng)
    write("x.text", x)
    write("other.text", np.append(x, 1))
    given = ["-o", "y.text", "--backend", "cpu", "--resume", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(output, "publish", raises(errno.EIO))
        assert run("x.text", *given)[0] == 1
    if same:
        created = []
        monkeypatch.setattr(text_format, "create", lambda *_, **__: created.append(1))
        status, _, err = run("x.text", *given)
        assert status == 0, err
        assert created == []
        np.testing.assert_array_equal(read(folder / "y.text"), x.cumsum())
    else:
        status, _, err = run("other.text", *given)
        assert status == 2
        assert "was left by a job with another output" in err
    comm.Barrier()


def test_a_type_that_a_format_cannot_hold(run, folder, save, comm):
    save("x.npy", np.ones(10))
    for options in ([], ["--resume"]):
        status, _, err = run("x.npy", "-o", "y.text", "--backend", "cpu", "--quiet", *options)
        assert status == 2
        assert "text cannot hold float64 of shape (10,)" in err
        assert sorted(path.name for path in folder.iterdir()) == ["x.npy"]
        comm.Barrier()
