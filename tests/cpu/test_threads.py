"""Scans by several threads of a rank: how many, and the bits of one thread."""

import functools

import numpy as np
import pytest

import distscan
from distscan import binding
from distscan.cpu import compiled, library, threads
from distscan.engine import cache
from support.together import everywhere

N = 9 * (compiled.BLOCK // 8) + 77  # elements of one rank: blocks of every type, the last one short
NUMBERS = (1, 2, 3, 7)


@pytest.fixture(autouse=True)
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
    numbers, latest, each, several = set(), [], compiled.Compiled._run, threads.run

    def run(self, *given):
        latest.append(1)  # unless ``threads`` is asked for more
        each(self, *given)
        numbers.add(latest.pop())

    def run_threads(work, number, *given):
        latest[-1] = number
        several(work, number, *given)

    monkeypatch.setattr(compiled.Compiled, "_run", run)
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("op", "dtype"), [("sum", "f"), ("sum", "d"), ("sum", "D"), ("prod", "d"), ("max", "f"),
                      ("sum", "l"), ("bitwise_xor", "i")],
)  # fmt: skip
def test_the_number_changes_no_bit(op, dtype, form, asked, comm, rng):
    options = dict(FORMS[form])
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


def test_plans(asked, comm, rng):
    x = shard(data(rng, "f", length(comm)), comm)
    results = set()
    for number in NUMBERS:
        plan = distscan.Plan(comm, x.shape, x.dtype, backend="cpu", threads=number)
        results |= {plan(x).tobytes() for _ in range(3)}
        plan.close()
    assert len(results) == 1
    assert asked == set(NUMBERS)


def test_ranks_may_have_different_numbers(asked, comm, rng):
    x = shard(data(rng, "d", length(comm)), comm)
    one = distscan.scan(x, threads=1)
    asked.clear()
    np.testing.assert_array_equal(distscan.scan(x, threads=1 + comm.rank % 2), one)
    assert asked == {1 + comm.rank % 2}
    np.testing.assert_array_equal(distscan.cumsum(x, threads=2), one)


def test_the_default(asked, comm, monkeypatch):
    monkeypatch.setenv("DISTSCAN_THREADS", "3")
    distscan.scan(np.ones(N))
    assert asked == {3}
    distscan.scan(np.ones(N), threads=2)
    assert asked == {3, 2}


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


@pytest.mark.parametrize("number", ["0", "two"])
def test_a_bad_number_for_the_file_job(number, run, save):
    save("x.npy", np.arange(9.0))
    status, out, err = run("x.npy", "--threads", number)
    assert (status, out) == (2, "")
    assert "threads" in err
