"""Signals in the middle of a job, several of them: no rank waits for another one ever after."""

import signal
from contextlib import contextmanager
from time import monotonic

import numpy as np
import pytest

import distscan
from distscan.job import budget
from distscan.mpi import signals
from support.together import left

pytestmark = pytest.mark.timeout(120)


class Stop(BaseException):
    """What the handler of a signal raises, as Ctrl-C does."""


@contextmanager
def stopped(after, period):
    """A signal comes ``after`` so many seconds, and again each ``period``; 0 is never."""
    late = []

    def raises(number, frame):
        raise Stop("a signal")

    before = signal.signal(signal.SIGALRM, raises)
    signals.defer()
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, after, period)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        late.append("a signal behind the job")
    finally:
        signal.signal(signal.SIGALRM, before)
        signals.deferred.clear()


@pytest.mark.parametrize("resume", [False, True], ids=["anew", "resume"])
@pytest.mark.parametrize("who", ["one", "several", "all"])
def test_signals(who, resume, comm, folder, save, rng, monkeypatch):
    """At any moment, on any ranks; the job ends everywhere, and the next one is right."""
    monkeypatch.setattr(budget, "CPU_CHUNK", 4096)
    x = rng.integers(0, 100, 1 << 18)
    save("x.npy", x)
    own = np.random.default_rng([int(rng.integers(1 << 32)), comm.rank])
    given = {"comm": comm, "backend": "cpu", "resume": resume, "force": True}

    def job():
        distscan.scan_file(folder / "x.npy", folder / "y.npy", **given)

    begun = monotonic()
    job()
    seconds = comm.allreduce(monotonic() - begun) / comm.size
    said = []
    for _ in range(12):
        guilty = int(rng.integers(comm.size))
        mine = {"one": comm.rank == guilty, "several": own.random() < 0.5, "all": True}[who]
        after = own.uniform(0.0001, 1.2 * seconds) if mine else 0
        with stopped(after, own.choice([0, seconds / 20])):
            try:
                job()
            except (RuntimeError, Stop) as error:
                said.append(str(error))
        comm.Barrier()
    assert all("another rank" in text or "signal" in text for text in said)
    job()
    np.testing.assert_array_equal(np.load(folder / "y.npy"), x.cumsum())
    assert left(comm, folder) == ["x.npy", "y.npy"]
