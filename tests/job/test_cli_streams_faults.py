"""A job in many chunks that fails in one of them: all ranks end, soon, and nothing is left."""

import os
import time
from contextlib import contextmanager

import numpy as np
import pytest

from distscan.cpu import steps
from distscan.job import plan, sweeps
from distscan.job.formats import files, storage
from distscan.mpi.exscan import Exscan
from support.pairs import pairs
from support.together import left

pytestmark = pytest.mark.timeout(60)
STAGES = ["read", "begin", "exchange", "finish", "write"]
CHUNKS = 30  # of each rank
OPTIONS = ["--backend", "cpu", "--force", "--quiet"]


@pytest.fixture
def job(run, save, comm, folder, rng, monkeypatch):
    """Run a job whose chunks have 10 elements, with ``threads``; return what ``run`` does."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 80)
    monkeypatch.setattr(storage, "is_in_memory", lambda path: False)
    x = rng.integers(0, 99, 10 * CHUNKS * comm.size)
    save("x.npy", x)

    resident = bool(rng.integers(2))

    def job(threads):
        memory = [] if resident else ["--memory", str(80 * (threads + 2))]
        return run("x.npy", *OPTIONS, *memory, "--threads", str(threads))

    yield job
    # The ranks are together: the next job is right.
    assert job(1)[0] == 0
    np.testing.assert_array_equal(np.load(folder / "x.scan.npy"), np.cumsum(x))


def failing(function, turn, fault):
    """The function, whose call number ``turn`` fails."""
    calls = []

    def call(*args, **options):
        calls.append(None)  # threads append one at a time
        if len(calls) == turn + 1:
            raise fault
        return function(*args, **options)

    return call


def filled_by(wrap):
    """``File.reading``, with another function in place of the one that fills."""
    reading = files.File.reading

    @contextmanager
    def wrapped(self, **options):
        with reading(self, **options) as fill:
            yield wrap(fill)

    return wrapped


def break_stage(monkeypatch, stage, turn):
    fault = (OSError if stage in ("read", "write") else RuntimeError)("no more")
    if stage == "read":
        monkeypatch.setattr(os, "preadv", failing(os.preadv, turn, fault))
    elif stage == "write":
        monkeypatch.setattr(
            storage.Writer, "__call__", failing(storage.Writer.__call__, turn, fault)
        )
    elif stage == "begin":
        begin = failing(steps.ReduceScan.begin, turn, fault)
        monkeypatch.setattr(steps.ReduceScan, "begin", begin)
    elif stage == "finish":
        finish = failing(steps.ReduceScan.finish, turn, fault)
        monkeypatch.setattr(steps.ReduceScan, "finish", finish)
    else:  # the memory of the exchange, after the first sweep
        begin, reserve, begun = steps.ReduceScan.begin, Exscan.reserve, []

        def noted(*args, **options):
            begun.append(None)
            return begin(*args, **options)

        monkeypatch.setattr(steps.ReduceScan, "begin", noted)

        def full(self):
            if begun:
                raise fault
            reserve(self)

        monkeypatch.setattr(Exscan, "reserve", full)


@pairs(stage=STAGES, who=["first", "last", "every"], threads=[1, 3])
def test_a_stage_fails(stage, who, threads, job, comm, folder, rng, monkeypatch):
    if stage == "exchange" and comm.size == 1:
        pytest.skip("one rank exchanges nothing")
    turn = int(rng.integers(CHUNKS))
    guilty = {"first": [0], "last": [comm.size - 1], "every": range(comm.size)}[who]
    with monkeypatch.context() as patch:
        if comm.rank in guilty:
            break_stage(patch, stage, turn)
        status, out, err = job(threads)
    assert (status, out) == (2 if stage == "read" else 1, ""), err
    assert ("cannot read x.npy" in err) == (stage == "read")
    assert err.count("no more") == 1
    assert err.count("\n") == 1
    assert left(comm, folder) == ["x.npy"]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_input_that_becomes_shorter(threads, job, comm, folder, rng, monkeypatch):
    """It is an error of the input, on whichever rank finds it."""
    content = (folder / "x.npy").read_bytes()
    comm.Barrier()
    turn = int(rng.integers(CHUNKS - 5))

    def wrap(fill):
        calls = []

        def shorten(elements, low):
            calls.append(None)
            if len(calls) == turn + 1:
                os.truncate(folder / "x.npy", 500)
            fill(elements, low)

        return shorten

    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(files.File, "reading", filled_by(wrap))
        status, out, err = job(threads)
    comm.Barrier()
    if comm.rank == 0:
        (folder / "x.npy").write_bytes(content)
    assert (status, out) == (1, "") or (status, out) == (2, "")
    assert "x.npy became shorter while it was read" in err or "was changed" in err
    assert left(comm, folder) == ["x.npy"]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_input_that_is_changed(threads, job, comm, folder, rng, monkeypatch):
    """Its time of the last change tells."""
    turn = int(rng.integers(CHUNKS))

    def wrap(fill):
        calls = []

        def touch(elements, low):
            calls.append(None)
            if len(calls) == turn + 1:
                os.utime(folder / "x.npy", (1, 1))
            fill(elements, low)

        return touch

    with monkeypatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(files.File, "reading", filled_by(wrap))
        status, out, err = job(threads)
    assert status != 0
    assert out == ""
    assert "x.npy was changed while it was read" in err
    assert left(comm, folder) == ["x.npy"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("who", ["first", "last"])
def test_others_do_not_work_on(who, threads, job, comm, folder, monkeypatch):
    """They would need seconds for their chunks."""
    guilty = 0 if who == "first" else comm.size - 1

    def slow(fill):
        def filled(elements, low):
            time.sleep(0.5)
            fill(elements, low)

        return filled

    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "_WATCHED", 0)
        if comm.rank == guilty:
            break_stage(patch, "begin", 0)
        else:
            patch.setattr(files.File, "reading", filled_by(slow))
        begin = time.monotonic()
        status, _, err = job(threads)
        seconds = time.monotonic() - begin
    assert status == 1
    assert "no more" in err
    assert seconds < 0.7 * (0.5 * CHUNKS / threads)
    assert left(comm, folder) == ["x.npy"]
