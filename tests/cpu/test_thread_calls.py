"""The threads of a rank share a call and return: with forks, signals, faults, other threads."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.cpu import compiled, library, threads
from support import fresh

pytestmark = pytest.mark.one_rank


def test_threads_of_python_scan_at_once(rng, monkeypatch):
    """Each has a plan of its own, and threads of its own or shared ones."""
    monkeypatch.setenv("DISTSCAN_THREADS", "2")
    xs = [rng.standard_normal(1 << 19) for _ in range(4)]
    wants = [distscan.scan(x, comm=MPI.COMM_SELF, threads=1).tobytes() for x in xs]

    def work(i):
        plan = distscan.Plan(MPI.COMM_SELF, xs[i].shape, "d", backend="cpu")
        for _ in range(10):
            assert plan(xs[i]).tobytes() == wants[i]
            assert distscan.scan(xs[i], comm=MPI.COMM_SELF).tobytes() == wants[i]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


FORKED = """
import os, threading
import numpy as np
import distscan
from mpi4py import MPI

x = np.random.default_rng(0).standard_normal(1 << 19)
scan = lambda: distscan.scan(x, comm=MPI.COMM_SELF).tobytes()
want, stop = scan(), threading.Event()

def others():
    while not stop.is_set():
        assert scan() == want

busy = threading.Thread(target=others)
busy.start()
for turn in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if scan() == want and scan() == want else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
busy.join()
assert scan() == want
print("done")
"""

EXIT = """
import atexit, threading, time
import numpy as np
import distscan
from mpi4py import MPI

x = np.random.default_rng(0).standard_normal(1 << 19)
want = distscan.scan(x, comm=MPI.COMM_SELF, threads=1).tobytes()

def scan():
    return distscan.scan(x, comm=MPI.COMM_SELF).tobytes() == want

def forever():
    while True:
        scan()

atexit.register(lambda: print("at exit", scan(), flush=True))
threading.Thread(target=forever, daemon=True).start()
threading.Thread(target=lambda: [scan() for _ in range(20)]).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize(("program", "said"), [(FORKED, "done\n"), (EXIT, "at exit True\n")],
                         ids=["fork", "exit"])  # fmt: skip
def test_processes(program, said):
    done = fresh.python(program, DISTSCAN_THREADS="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


@pytest.mark.parametrize("dtype", ["d", "e"])  # results in float16 are converted by Python
def test_interrupts(dtype, rng, monkeypatch):
    """Ctrl-C at any moment: the exception comes up when no thread uses the arrays any more."""
    inside: list[int] = []  # one for each other thread
    plain = compiled.Compiled._run

    def run(self, work, *given):
        def watched():
            others = threading.current_thread() is not threading.main_thread()
            inside.extend([1] * others)
            work()
            del inside[: int(others)]

        plain(self, watched, *given)

    monkeypatch.setattr(compiled.Compiled, "_run", run)
    x = rng.standard_normal(1 << 19)
    plan = distscan.Plan(MPI.COMM_SELF, x.shape, "d", out_dtype=dtype, backend="cpu", threads=3)
    want, own, interrupted = plan(x).tobytes(), np.random.default_rng(0), 0
    for _ in range(100):
        timer = threading.Timer(own.random() * 4e-3, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            for _ in range(4):
                assert plan(x).tobytes() == want
                assert not inside
            timer.join()
        except KeyboardInterrupt:
            interrupted += 1
            assert not inside
        timer.join()
    assert interrupted
    assert plan(x).tobytes() == want


@pytest.mark.parametrize("who", ["caller", "worker"])
def test_a_fault_in_a_piece(who, rng, monkeypatch):
    """The other threads do not wait for it."""
    if library.load() is None:
        pytest.skip("NumPy has one thread")
    x, caller = rng.standard_normal(1 << 19), threading.get_ident()
    plan = distscan.Plan(MPI.COMM_SELF, x.shape, "d", out_dtype="e", backend="cpu", threads=3)
    want, store, meet = plan(x).tobytes(), compiled.store, threading.Barrier(3, timeout=60)
    met = threading.local()

    def fail(*arrays):
        if not getattr(met, "once", False):
            met.once = True
            meet.wait()
            if (threading.get_ident() == caller) == (who == "caller"):
                raise MemoryError("a fault")
        store(*arrays)

    monkeypatch.setattr(compiled, "store", fail)
    with pytest.raises(MemoryError, match="a fault"):
        plan(x)
    monkeypatch.undo()
    assert plan(x).tobytes() == want


def together(number):
    """A function that ends when so many threads have called it."""
    return threading.Barrier(number, timeout=60).wait


def test_as_many_threads_as_are_asked_for():
    for number in (1, 2, 7, 3):
        threads.run(together(number), number)


@pytest.mark.parametrize("who", ["caller", "worker", "all"])
def test_a_fault_in_a_thread(who):
    """Of the caller, of another thread, of all; the others end first."""
    caller, meet, ends = threading.get_ident(), together(3), []

    def work():
        meet()
        if who == "all" or (threading.get_ident() == caller) == (who == "caller"):
            raise OSError("a fault")
        ends.append(1)

    with pytest.raises(OSError, match="a fault"):
        threads.run(work, 3)
    assert len(ends) == {"caller": 2, "worker": 1, "all": 0}[who]
    threads.run(together(3), 3)


def test_a_system_without_more_threads(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    calls = []
    monkeypatch.setattr(threads, "_workers", threads._Workers())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads.run(lambda: calls.append(1), 4)
    assert calls == [1]
