"""The threads of a rank: their number, the bits of one thread, forks, signals, faults."""

import functools
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import binding
from distscan.cpu import compiled, library, threads
from distscan.engine import cache
from support import processes
from support.cases import pairs
from support.processes import everywhere

# ---- Scans by several threads of a rank: how many, and the bits of one thread --------------------

N = 9 * (compiled.BLOCK // 8) + 77  # elements of one rank: blocks of every type, the last one short
NUMBERS = (1, 2, 3, 7)


@pytest.fixture
def eager(monkeypatch):
    """So few elements, and yet as many threads as are asked for."""
    if library.load() is None:
        pytest.skip("NumPy has one thread")
    monkeypatch.delenv("DISTSCAN_THREADS", raising=False)
    monkeypatch.setattr(compiled, "_THREAD", 1)
    cache.clear()


@pytest.fixture
def asked(monkeypatch):
    """The numbers of threads that kernels were run in."""
    numbers, latest, each, several = set(), [], compiled.CompiledSweeps._in_threads, threads.run

    def in_threads(self, *given):
        call = each(self, *given)

        def counted():
            latest.append(1)  # unless ``threads`` is asked for more
            call()
            numbers.add(latest.pop())

        return counted

    def run_threads(work, number, *given):
        latest[-1] = number
        several(work, number, *given)

    monkeypatch.setattr(compiled.CompiledSweeps, "_in_threads", in_threads)
    monkeypatch.setattr(threads, "run", run_threads)
    return numbers


def length(comm):
    """Elements of all ranks: N, or more, for a rank to have three blocks of 8-byte elements."""
    return max(N, 3 * comm.size * (compiled.BLOCK // 8))


def data(rng, dtype, n):
    x = rng.standard_normal(n)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(n)
    return x.astype(dtype) if np.dtype(dtype).kind != "i" else (x * 1000).astype(dtype)


def shard(x, comm):
    """This rank's part; the parts differ in length."""
    low = len(x) * comm.rank // comm.size
    return x[low + comm.rank : len(x) * (comm.rank + 1) // comm.size + comm.rank + 1]


FORMS = {
    "plain": {},
    "exclusive": {"exclusive": True, "initial": 3},
    "reverse": {"reverse": True},
    "narrow": {"dtype": "e"},
    "narrow-axis-0": {"dtype": "e", "axis": 0, "exclusive": True},
    "narrow-axis-1": {"dtype": "e", "axis": 1, "reverse": True},
    "axis-0": {"axis": 0},
    "axis-1": {"axis": 1},
    "axis-0-reverse": {"axis": 0, "reverse": True, "exclusive": True},
    "flags": {"segments": "flags"},
    "keys": {"segments": "keys", "exclusive": True},
    "flags-reverse": {"segments": "flags", "reverse": True},
}


@pytest.mark.usefixtures("eager")
@pairs(
    group_by="form",
    form=FORMS,
    of=[("sum", "f"), ("sum", "d"), ("sum", "D"), ("prod", "d"), ("max", "f"), ("sum", "l"),
        ("bitwise_xor", "i")],
)  # fmt: skip
def test_the_number_changes_no_bit(form, of, asked, comm, rng):
    (op, dtype), options = of, dict(FORMS[form])
    asked.clear()
    if options.get("dtype") and dtype not in "fd":
        options["dtype"] = None
    n = length(comm)
    x = shard(data(rng, dtype, n), comm)
    if op == "prod":
        x = 1 + x / 1000
    if "axis" in options:
        width = 129 if options["axis"] == 0 else n // comm.size // 7
        x = x[: len(x) // width * width].reshape(-1, width)
    if options.get("segments") == "flags":
        options["segments"] = shard(rng.random(n) < 1e-4, comm)
    elif "segments" in options:
        options["segments"] = shard(np.sort(rng.integers(0, 20, n)), comm)
    scan = functools.partial(distscan.scan, x, op, **options)
    for strategy in ["auto"] if options.get("axis") == 1 else ["auto", "reduce-scan"]:
        one, *others = (scan(strategy=strategy, threads=number).tobytes() for number in NUMBERS)
        assert others == [one] * len(others)
    assert asked >= {2, 3}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("dtype", ["f", "d", "D"])
@pytest.mark.parametrize("strategy", ["auto", "reduce-scan"])
def test_in_place(strategy, dtype, asked, comm, rng):
    x = shard(data(rng, dtype, length(comm)), comm)
    into = functools.partial(distscan.scan, strategy=strategy, comm=comm)
    want = into(x, threads=1, out=np.empty_like(x)).tobytes()
    for number in NUMBERS:
        y = x.copy()
        assert into(y, threads=number, out=y) is y
        assert y.tobytes() == want
    assert asked >= {2, 3}


@pytest.mark.usefixtures("eager")
def test_plans(asked, comm, rng):
    x = shard(data(rng, "f", length(comm)), comm)
    results = set()
    for number in NUMBERS:
        plan = distscan.Plan(comm, x.shape, x.dtype, backend="cpu", threads=number)
        results |= {plan(x).tobytes() for _ in range(3)}
        plan.close()
    assert len(results) == 1
    assert asked == set(NUMBERS)


@pytest.mark.usefixtures("eager")
def test_ranks_may_have_different_numbers(asked, comm, rng):
    x = shard(data(rng, "d", length(comm)), comm)
    one = distscan.scan(x, threads=1)
    asked.clear()
    np.testing.assert_array_equal(distscan.scan(x, threads=1 + comm.rank % 2), one)
    assert asked == {1 + comm.rank % 2}
    np.testing.assert_array_equal(distscan.cumsum(x, threads=2), one)


@pytest.mark.usefixtures("eager")
def test_the_default(asked, comm, monkeypatch):
    monkeypatch.setenv("DISTSCAN_THREADS", "3")
    distscan.scan(np.ones(N))
    assert asked == {3}
    distscan.scan(np.ones(N), threads=2)
    assert asked == {3, 2}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("number", [0, -1, 1.5, 2.0, True, "2", [2]])
def test_a_bad_number_on_one_rank(number, comm):
    distscan.scan(np.arange(9.0), threads=2)  # not what is found in the cache for 2.0
    given = number if comm.rank == comm.size - 1 else 2
    message = "threads must be an integer of at least 1"
    everywhere(comm, ValueError, message, lambda: distscan.scan(np.arange(9.0), threads=given))
    everywhere(comm, ValueError, message,
               lambda: distscan.Plan(comm, 9, "d", backend="cpu", threads=given))  # fmt: skip
    everywhere(comm, ValueError, message,
               lambda: binding.bind(comm, "cpu", pytest.fail, given))  # fmt: skip


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [("DISTSCAN_THREADS", "many", "DISTSCAN_THREADS must be .*'many'"),
     ("DISTSCAN_THREADS", "0", "DISTSCAN_THREADS must be .* not 0"),
     ("DISTSCAN_CPU", "none", "DISTSCAN_CPU=none: ")],
)  # fmt: skip
def test_a_bad_variable_on_one_rank(variable, value, message, run, save, comm, monkeypatch):
    save("x.npy", np.arange(9.0))
    if comm.rank == comm.size - 1:
        monkeypatch.setenv(variable, value)
    everywhere(comm, ValueError, message, lambda: distscan.scan(np.arange(9.0)))
    everywhere(comm, ValueError, message, lambda: distscan.Plan(comm, 9, "d", backend="cpu"))
    status, out, err = run("x.npy", "--backend", "cpu")
    assert (status, out) == (2, "")
    assert variable in err


@pytest.mark.usefixtures("eager")
def test_the_file_job(run, save, folder, asked, comm):
    x = np.random.default_rng(0).standard_normal(comm.size * N)
    save("x.npy", x)
    results = set()
    for number in NUMBERS:
        status, _, err = run("x.npy", "--force", "--quiet", "--threads", str(number))
        assert (status, err) == (0, "")
        results.add((folder / "x.scan.npy").read_bytes())
    assert len(results) == 1
    assert asked == set(NUMBERS)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("number", ["0", "two"])
def test_a_bad_number_for_the_file_job(number, run, save):
    save("x.npy", np.arange(9.0))
    status, out, err = run("x.npy", "--threads", number)
    assert (status, out) == (2, "")
    assert "threads" in err


# ---- Threads share a call and return: with forks, signals, faults, other threads -----------------


@pytest.mark.one_rank
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


@pytest.mark.one_rank
@pytest.mark.parametrize(("program", "said"), [(FORKED, "done\n"), (EXIT, "at exit True\n")],
                         ids=["fork", "exit"])  # fmt: skip
def test_processes(program, said):
    done = processes.python(program, DISTSCAN_THREADS="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


@pytest.mark.one_rank
@pytest.mark.parametrize("dtype", ["d", "e"])  # results in float16 are converted by Python
def test_interrupts(dtype, rng, monkeypatch):
    """Ctrl-C at any moment: the exception comes up when no thread uses the arrays any more."""
    inside: list[int] = []  # one for each other thread
    plain = compiled.CompiledSweeps._in_threads

    def in_threads(self, work, *given):
        def watched():
            others = threading.current_thread() is not threading.main_thread()
            inside.extend([1] * others)
            work()
            del inside[: int(others)]

        return plain(self, watched, *given)

    monkeypatch.setattr(compiled.CompiledSweeps, "_in_threads", in_threads)
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


@pytest.mark.one_rank
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


@pytest.mark.one_rank
def test_as_many_threads_as_are_asked_for():
    for number in (1, 2, 7, 3):
        threads.run(together(number), number)


@pytest.mark.one_rank
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


@pytest.mark.one_rank
def test_a_system_without_more_threads(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    calls = []
    monkeypatch.setattr(threads, "_workers", threads._Workers())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads.run(lambda: calls.append(1), 4)
    assert calls == [1]
