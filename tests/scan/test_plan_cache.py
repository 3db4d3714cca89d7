"""The plans that scan() remembers."""

import functools
import threading
import typing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import DisagreementError
from distscan.engine import array_scan, cache, shard_scan
from support.arrays import host
from support.cases import length
from support.data import OPS, exact
from support.processes import everywhere


@pytest.fixture
def made(monkeypatch):
    """What ``make`` was asked for since the test began."""
    cache.clear()
    calls, make = [], shard_scan.make

    def spy(*given, **options):
        calls.append((given, options))
        return make(*given, **options)

    monkeypatch.setattr(array_scan, "make", spy)
    return calls


def test_the_same_call_again(made, strategy, xp, cut, rng):
    n = 3001
    mine = cut(n)
    out = xp.empty(length(mine), "d")
    for _ in range(4):
        x = exact(rng, "sum", "d", n)
        distscan.scan(xp.asarray(x[mine]), out=out, strategy=strategy)
        np.testing.assert_array_equal(host(out), np.cumsum(x)[mine])
    assert len(made) == 1


def test_other_arguments_make_other_plans(made, xp, comm):
    x = xp.arange(6)
    several = ["scan-add"] if comm.size > 1 else ["scan-add", "single-pass"]
    calls = [
        lambda: distscan.scan(x),
        lambda: distscan.scan(x, np.maximum),
        lambda: distscan.scan(x, dtype="f"),
        lambda: distscan.scan(x, out=xp.empty(6, "d")),
        lambda: distscan.scan(x[:5]),
        lambda: distscan.scan(x.reshape(2, 3)),
        lambda: distscan.scan(x.astype("h")),
        *(functools.partial(distscan.scan, x, strategy=name) for name in several),
    ]
    if comm.size > 1:
        calls.append(lambda: distscan.scan(x, comm=MPI.COMM_SELF))
    for count, call in enumerate(calls, 1):
        first, second = host(call()), host(call())
        np.testing.assert_array_equal(first, second)
        assert len(made) == count


def test_names_of_one_operator_share_a_plan(made, comm):
    for op in ("sum", np.add, MPI.SUM):
        distscan.scan(np.arange(3), op)
    assert len(made) == 1


class Stored:
    """A number in a file, as Zarr's: its pickle has its place, not its value."""

    file: typing.ClassVar = {}

    def __init__(self, value):
        self.file["place"] = value

    def __array__(self, dtype=None, copy=None):
        return np.array(self.file["place"], dtype)


def test_initial_is_compared_by_its_value(made, comm):
    x, before = np.ones(3, np.int64), 3 * comm.rank
    for count, value in enumerate((10, 100, 100), 1):
        result = distscan.scan(x, initial=Stored(value))
        np.testing.assert_array_equal(result, before + value + np.arange(1, 4))
        assert len(made) == min(count, 2)


def test_every_bit_of_initial_counts(made):
    """Of plain numbers, NumPy's, and structures, whose fields have no type in common."""
    earliest = distscan.Operator("earliest", lambda a, b: a)
    x = np.zeros(3)
    for initial in (0.0, -0.0, np.float64(-0.0), np.array(-0.0), np.nan, 0, 1, True, 1.0):
        found = distscan.scan(x, earliest, initial=initial)
        assert found[0].tobytes() == np.float64(initial).tobytes()
    x = np.zeros(3, [("a", "i8"), ("b", "f8")])
    for initial in ((2**53 + 1, 0.5), (2**53, 0.5), (np.int64(2**53 + 1), 0.5)):
        assert distscan.scan(x, earliest, initial=initial)[0].item() == initial
    number = len(made)
    distscan.scan(x, earliest, initial=(2**53 + 1, 0.5))
    assert len(made) == number


def test_few_plans_are_kept(made):
    for n in [*range(40), *range(40)]:
        distscan.scan(np.zeros(n))
    assert len(made) == 80
    assert len(cache.everything()) == 16


def test_one_large_plan_is_kept(made, xp, comm, monkeypatch):
    """With the buffer of scan-add, where the running value is wider than the result."""
    monkeypatch.setattr(cache, "LARGE", 200 if xp is np else 2000)
    halves, floats = xp.ones(64 if xp is np else 640, "e"), xp.ones(64, "d")
    for x, count, calls in (
        (floats, 1, 1),
        (halves, 2, 2),
        (floats, 2, 2),
        (halves[:-1], 2, 3),  # not the other large one
        (halves, 2, 4),
        (halves[: len(halves) // 2], 3, 5),
    ):
        distscan.scan(x, strategy="scan-add")
        assert len(cache.everything()) == count
        assert len(made) == calls


@pytest.mark.parametrize("op", ["sum", "logaddexp"])  # by MPI's operator, and by NumPy's
def test_one_long_row_is_kept(op, made, comm, monkeypatch):
    """Its pieces are exchanged through buffers as long as the row, on each rank."""
    monkeypatch.setattr(cache, "LARGE", 7000)
    for width in (1000, 1001, 1002, 10):
        distscan.scan(np.ones((2, width)), op, axis=0)
    large = [plan for plan in cache.everything() if plan.nbytes > 7000]
    assert len(large) == (comm.size > 1)
    assert len(cache.everything()) == (2 if comm.size > 1 else 4)


def test_faults_are_not_remembered(made, comm):
    for _ in range(2):
        everywhere(comm, TypeError, "x is object", lambda: distscan.scan(np.zeros(3, object)))
    assert len(made) == 2


def test_threads_share_a_plan_one_after_the_other(made):
    distscan.scan(np.arange(3), comm=MPI.COMM_SELF)
    with ThreadPoolExecutor(1) as pool:
        y = pool.submit(distscan.scan, np.arange(3), comm=MPI.COMM_SELF).result()
    np.testing.assert_array_equal(y, [0, 1, 3])
    assert len(made) == 1


def test_threads_share_no_plan_at_once(made):
    """While one is in a call, as in its operator here, another makes a plan of its own."""
    inside, go_on = threading.Event(), threading.Event()

    def waits(a, b):
        if not inside.is_set():
            inside.set()
            assert go_on.wait(60)
        return a + b

    op = distscan.Operator("waits", waits)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(distscan.scan, np.arange(3), op, comm=MPI.COMM_SELF)
        assert inside.wait(60)
        np.testing.assert_array_equal(
            distscan.scan(np.arange(3), op, comm=MPI.COMM_SELF), [0, 1, 3]
        )
        go_on.set()
        np.testing.assert_array_equal(first.result(), [0, 1, 3])
    assert len(made) == 2
    for _ in range(3):
        distscan.scan(np.arange(3), op, comm=MPI.COMM_SELF)
    assert len(made) == 2


@pytest.mark.gpu
def test_streams_share_no_workspace(made, comm):
    import cupy

    x = cupy.arange(1000)
    for stream in (cupy.cuda.Stream(), cupy.cuda.Stream()):
        with stream:
            distscan.scan(x)
    assert len(made) == 2


def test_some_ranks_remember_and_others_do_not(made, comm, rng):
    x = rng.integers(-9, 9, 4 * comm.size)
    mine = slice(4 * comm.rank, 4 * comm.rank + 4)
    for who in (0, comm.size - 1):
        distscan.scan(x[mine])
        if comm.rank == who:
            cache.clear()
        np.testing.assert_array_equal(distscan.scan(x[mine]), np.cumsum(x)[mine])
    assert len(made) == 1 + (comm.rank == 0) + (comm.rank == comm.size - 1)


def test_ranks_that_disagree_on_remembered_calls(made, comm, rng):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    x = rng.integers(-9, 9, 4 * comm.size) * 1.0
    mine = slice(4 * comm.rank, 4 * comm.rank + 4)
    for _ in range(3):
        for op in ("sum", "max"):
            np.testing.assert_array_equal(distscan.scan(x[mine], op), OPS[op].accumulate(x)[mine])
        mixed = "sum" if comm.rank else "max"
        text = everywhere(comm, DisagreementError, "on op",
                          lambda op=mixed: distscan.scan(x[mine], op))  # fmt: skip
        assert "rank 0: max" in text
    assert len(made) == 4  # a call that is broken off forgets its plan


@pytest.mark.parametrize("method", ["begin", "finish"])
def test_a_fault_in_a_remembered_call(method, strategy, comm, rng, monkeypatch):
    from distscan.cpu import steps as cpu

    steps = {"scan-add": cpu.ScanAdd, "reduce-scan": cpu.ReduceScan, "single-pass": cpu.SinglePass}

    def full(*_, **__):
        raise MemoryError("no room")

    x = rng.integers(-9, 9, 4 * comm.size)
    mine = slice(4 * comm.rank, 4 * comm.rank + 4)
    for _ in range(2):
        y = distscan.scan(x[mine], strategy=strategy)
        np.testing.assert_array_equal(y, np.cumsum(x)[mine])
        with monkeypatch.context() as patch:
            if comm.rank == comm.size // 2:
                patch.setattr(steps[strategy], method, full)
            everywhere(comm, MemoryError, "no room",
                       lambda: distscan.scan(x[mine], strategy=strategy))  # fmt: skip
