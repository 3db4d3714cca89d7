"""Signals in the middle of a job, several of them: no rank waits for another one ever after."""

import os
import signal
import threading
from contextlib import contextmanager
from time import monotonic

import numpy as np
import pytest

import distscan
from distscan.job import plan
from support.together import left

pytestmark = [
    pytest.mark.timeout(120),
    # An exception between open() and ``with`` leaves the file to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Stop(BaseException):
    """What the handler of a signal raises, as Ctrl-C does."""


@contextmanager
def signalled(call, delays):
    """Signals reach this process after each of ``delays``; they raise inside ``call``."""

    def inside(frame):
        return frame is not None and (frame.f_code is call.__code__ or inside(frame.f_back))

    def raises(number, frame):
        if inside(frame):
            raise Stop("a signal")

    def send():
        for delay in delays:
            if ended.wait(delay):
                break
            os.kill(os.getpid(), signal.SIGUSR1)

    ended, thread = threading.Event(), threading.Thread(target=send)
    before = signal.signal(signal.SIGUSR1, raises)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("resume", [False, True], ids=["anew", "resume"])
@pytest.mark.parametrize("who", ["one", "several", "all"])
def test_signals(who, resume, comm, folder, save, rng, monkeypatch):
    """At any moment, on any ranks; the job ends everywhere, and the next one is right."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 4096)
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
        first = [own.uniform(0, 1.2 * seconds)] * mine
        with signalled(job, first + [seconds / 20] * int(mine and own.choice([0, 5]))):
            try:
                job()
            except (RuntimeError, Stop) as error:
                said.append(str(error))
        comm.Barrier()
    assert all("another rank" in text or "signal" in text for text in said)
    job()
    np.testing.assert_array_equal(np.load(folder / "y.npy"), x.cumsum())
    assert left(comm, folder) == ["x.npy", "y.npy"]
