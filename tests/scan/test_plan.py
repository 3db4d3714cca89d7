"""Plan: decided once, run many times, by one call at a time; its faults."""

import gc
import sys
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import BackendError, DisagreementError, RankError, plan
from distscan.cpu import library
from distscan.engine import shard_scan
from distscan.mpi import agree
from distscan.mpi.exscan import Exscan
from support import gpu
from support.arrays import host
from support.cases import STRATEGIES, length, pairs
from support.data import OPS, exact
from support.display import rows
from support.operators import COMPOSE, maps, one_by_one
from support.processes import everywhere

# ---- plan: decided once, run many times ----------------------------------------------------------

# ---- right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max", COMPOSE])
def test_other_work_meanwhile(op, planned, xp, comm, rng):
    """Other collectives, of the same communicator too, between start and wait."""
    x = maps(rng, 100 * comm.size)
    mine = slice(100 * comm.rank, 100 * comm.rank + 100)
    want = one_by_one(x) if op is COMPOSE else OPS[op].accumulate(x)
    run = planned(100, np.uint64, op)
    shard = xp.asarray(x[mine])
    run.start(shard)
    comm.Barrier()
    assert comm.allreduce(comm.rank) == sum(range(comm.size))
    np.testing.assert_array_equal(host(distscan.scan(shard, op)), want[mine])
    np.testing.assert_array_equal(host(run.wait()), want[mine])


def test_plans_interleaved(planned, xp, cut, rng):
    a, b = exact(rng, "sum", "l", 500), exact(rng, "max", "d", 700)
    sums = planned(length(cut(500)), "l", "sum")
    maxima = planned(length(cut(700)), "d", "max")
    sums.start(xp.asarray(a[cut(500)]))
    maxima.start(xp.asarray(b[cut(700)]))
    y, z = sums.wait(), maxima.wait()
    np.testing.assert_array_equal(host(y), np.cumsum(a)[cut(500)])
    np.testing.assert_array_equal(host(z), np.maximum.accumulate(b)[cut(700)])
    maxima.start(xp.asarray(b[cut(700)]))
    sums(xp.asarray(a[cut(500)]), y)
    np.testing.assert_array_equal(host(maxima.wait()), np.maximum.accumulate(b)[cut(700)])
    np.testing.assert_array_equal(host(y), np.cumsum(a)[cut(500)])


def test_shape_and_type_of_the_result(planned, xp, comm, rng):
    x = rng.integers(-9, 9, (2 * comm.size, 3), dtype="i2")
    mine = slice(2 * comm.rank, 2 * comm.rank + 2)
    run = planned((2, 3), "i2", out_dtype="f")
    y = run(xp.asarray(x[mine]))
    assert (y.shape, y.dtype) == ((6,), np.float32)
    np.testing.assert_array_equal(host(y), np.cumsum(x)[6 * comm.rank :][:6])


def test_what_was_decided_can_be_read(planned, xp, comm):
    run = planned((2, 3), "i2", MPI.SUM)
    assert (run.comm, run.shape, run.size) == (comm, (2, 3), 6)
    assert run.op is distscan.core.operators.BUILTIN["sum"]
    assert (run.types.x, run.types.acc, run.types.out) == (np.int16, np.int64, np.int64)
    several = {"reduce-scan", "fused"}
    if xp is np:
        several = {"scan-add" if library.load() is None else "reduce-scan"}
    assert run.strategy in ({"single-pass"} if comm.size == 1 else several)
    reasons = {"single-pass": "there is one rank",
               "scan-add": "NumPy does the work, in one association for any ranks",
               "reduce-scan": "it moves least memory on several ranks",
               "fused": "the ranks' GPUs reach each other's memory"}  # fmt: skip
    assert run.reason.startswith(reasons[run.strategy])
    assert planned((2, 3), "i2", axis=1).reason == "the axis needs no exchange"
    assert planned(2, "d", strategy="reduce-scan").reason == "it was asked for"
    assert repr(run) == (
        f"<distscan.Plan: sum of int16[2, 3] to int64, rank {comm.rank} of {comm.size}, "
        f"{run.strategy} on {run.backend}>"
    )
    shown = rows(run._repr_html_())
    assert shown["op"] == "sum"
    assert shown["shard"] == f"int16[2, 3], rank {comm.rank} of {comm.size}"
    assert shown["result"] == "int64[6], accumulated in int64"
    assert shown["strategy"] == f"{run.strategy}: {run.reason}"


def test_operator_shown_in_html(comm):
    """The text of a user is escaped."""
    op = distscan.Operator("<b>&sum", numpy=np.add, identity=0)
    with distscan.Plan(comm, 1, "i8", op, backend="cpu") as run:
        assert ">&lt;b&gt;&amp;sum<" in run._repr_html_()


# ---- what a call does not do ---------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max"])
def test_calls_allocate_nothing(op, strategy, comm, rng):
    run = distscan.Plan(comm, 30000, "d", op, strategy=strategy, backend="cpu")
    x = rng.normal(size=30000)
    out = np.empty_like(x)

    def calls():
        for _ in range(10):
            run(x, out)
            run.start(x, out)
            run.wait()

    ours = tracemalloc.Filter(True, f"{Path(plan.__file__).parent}/*", all_frames=True)

    def held():  # on behalf of the package: other threads of the test's process allocate, too
        gc.collect()
        shot = tracemalloc.take_snapshot().filter_traces([ours])
        return sum(trace.size for trace in shot.traces)

    calls()
    tracemalloc.start(8)  # frames
    try:
        calls()
        before = held()
        begin = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        calls()
        peak = tracemalloc.get_traced_memory()[1]
        assert held() - before < 2000
    finally:
        tracemalloc.stop()
    assert peak - begin < x.nbytes / 2  # a chunk at most


@pytest.mark.parametrize("types", [("d", "d"), ("i", "l")])
def test_arrays_take_turns(types, planned, xp, comm, rng):
    """Arrays that differ in their addresses alone: apart, in place, at any alignment."""
    code, out_code = types
    run, n = planned(1000, code, "sum", out_dtype=out_code), 1000
    memory, results = xp.empty(3 * n + 7, code), xp.empty(2 * n + 3, out_code)
    pairs = [
        (memory[at : at + n], results[to : to + n])
        for at, to in ((0, 0), (n, n + 3), (2 * n + 1, 1), (2 * n + 7, n))
    ]
    if code == out_code:
        pairs.insert(2, (memory[5 : n + 5],) * 2)
    for _ in range(3):
        for x, out in pairs:
            shards = exact(rng, "sum", code, comm.size * n).reshape(comm.size, n)
            x[...] = xp.asarray(shards[comm.rank])
            want = np.cumsum(shards).reshape(comm.size, n)[comm.rank]
            if x is not out:
                out[...] = 99
            np.testing.assert_array_equal(host(run(x, out)), want)


def test_arrays_that_differ_in_little_are_checked(xp):
    """From those of the calls before: by type, by address, by whether they may be written."""
    run = distscan.Plan(MPI.COMM_SELF, 4, "d", backend="cpu" if xp is np else "cuda")
    memory = xp.arange(12.0)
    x, out = memory[:4], memory[6:10]
    for _ in range(2):
        np.testing.assert_array_equal(host(run(x, out)), [0, 1, 3, 6])
    for one, other, fault in (
        (x.view("i8"), out, TypeError),
        (x, out.view("i8"), TypeError),
        (x, memory[3:7], ValueError),
        (memory[5:9], out, ValueError),
        (x.reshape(2, 2), out, ValueError),
        (memory[:8:2], out, ValueError),
        (x, memory[4::2], ValueError),
    ):
        with pytest.raises(fault):
            run(one, other)
        np.testing.assert_array_equal(host(run(x, out)), [0, 1, 3, 6])
    if xp is np:
        out.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            run(x, out)
    x[:] = 2
    np.testing.assert_array_equal(host(run(x, x)), [2, 4, 6, 8])


@pytest.mark.skipif(library.load() is None, reason="no compiled kernels")
def test_calls_are_few_functions_of_python(comm):
    """The time of a call on few elements is that of the functions around the kernel."""
    x, out = np.ones(256), np.empty(256)
    run = distscan.Plan(comm, 256, "d", backend="cpu")

    def calls_of(function):
        events = []
        for _ in range(3):  # the first calls decide, and allocate
            function()
        sys.setprofile(lambda frame, event, _: events.append(event))
        try:
            function()
        finally:
            sys.setprofile(None)
        return events.count("call") - 1

    one = comm.size == 1
    assert calls_of(lambda: run(x, out)) <= (12 if one else 40)
    assert calls_of(lambda: distscan.scan(x, comm=comm)) <= (25 if one else 55)


def test_calls_agree_on_nothing(planned, xp, comm, monkeypatch):
    """Nothing collective but the exchange, and no plan is made."""

    def refuse(*_, **__):
        raise AssertionError("not in a call")

    watched = type("Watched", (MPI.Intracomm,), {})(comm)
    run = distscan.Plan(watched, 3, "l", backend="cpu" if xp is np else "cuda")
    out = xp.empty(3, "l")
    for name in ("Allreduce", "Iallreduce", "allreduce", "allgather", "bcast", "Barrier"):
        setattr(type(watched), name, refuse)
    monkeypatch.setattr(plan, "make", refuse)
    monkeypatch.setattr(shard_scan, "make", refuse)
    agreements = agree.Agreement(agree.Votes.of(watched)).number
    run(xp.arange(3), out)
    run.start(xp.arange(3), out)
    run.wait()
    assert agree.Agreement(agree.Votes.of(watched)).number == agreements + (
        comm.size > 1
    )  # this one
    np.testing.assert_array_equal(host(out), np.cumsum(np.arange(3)) + 3 * comm.rank)


def test_a_plan_keeps_no_arrays(xp, comm):
    """Neither a Plan nor what scan() remembers."""
    if xp is not np:
        pytest.skip("CuPy arrays take no weak references")

    class Watched(np.ndarray):
        pass

    run = distscan.Plan(comm, 5, "d", backend="cpu")
    x, out = np.arange(5.0).view(Watched), np.empty(5).view(Watched)
    watched = weakref.ref(x), weakref.ref(out)
    run(x, out)
    run.start(x, out)
    run.wait()
    distscan.scan(x, out=out)
    distscan.scan(x)
    del x, out
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_a_plan_that_is_forgotten_between_its_halves(comm):
    """MPI still writes into its buffers."""

    def exchanges():
        gc.collect()
        return {each for each in gc.get_objects() if isinstance(each, Exscan)}

    before = exchanges()
    run = distscan.Plan(comm, 3, "d", backend="cpu")
    run.start(np.ones(3))
    del run
    left = exchanges() - before
    assert len(left) == (comm.size > 1)
    if left:
        offset = left.pop().wait(comm)
        assert comm.rank == 0 or offset == 3 * comm.rank
        assert exchanges() == before


def test_ranks_with_and_without_compiled_kernels(comm, monkeypatch):
    """They choose different strategies, and exchange the same totals."""
    if comm.rank % 2:
        monkeypatch.setenv("DISTSCAN_CPU", "numpy")
    run = distscan.Plan(comm, 1000, "d", backend="cpu")
    np.testing.assert_array_equal(run(np.ones(1000)), np.arange(1, 1001) + 1000 * comm.rank)


# ---- what is wrong with a plan, or with a call of it, and who hears of that ----------------------

FLAGS_AND_ADD = {"segments": True, "strategy": "scan-add"}
BAD = {
    "type": (TypeError, "x is object", lambda: {"dtype": object}),
    "no type": (TypeError, "nonsense", lambda: {"dtype": "nonsense"}),
    "out type": (TypeError, "dtype is <U", lambda: {"out_dtype": "U3"}),
    "negative": (
        ValueError,
        "each length of shape must be an integer of at least 0, not -3",
        lambda: {"shape": (2, -3)},
    ),
    "shape": (TypeError, "integer", lambda: {"shape": 2.5}),
    "op": (ValueError, "unknown operator", lambda: {"op": "mean"}),
    "axis": (np.exceptions.AxisError, "axis 1", lambda: {"axis": 1}),
    "strategy": (ValueError, "unknown strategy", lambda: {"strategy": "fast"}),
    "backend": (ValueError, "unknown backend", lambda: {"backend": "tpu"}),
    "initial": (TypeError, "initial is <U5", lambda: {"initial": "three"}),
    "segments": (ValueError, "'scan-add' does not take segments", lambda: FLAGS_AND_ADD),
    "N-d segments": (
        ValueError,
        "axis=None",
        lambda: {"shape": (2, 2), "axis": 1, "segments": "?"},
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_raise_everywhere(case, comm):
    """Also where one rank alone is at fault."""
    kind, message, bad = BAD[case]
    given = {"shape": 3, "dtype": "d", "backend": "cpu"}
    if comm.rank == comm.size - 1:
        given |= bad()
    everywhere(comm, kind, message, lambda: distscan.Plan(comm, **given))


def test_ranks_that_disagree(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.rank == comm.size - 1
    for name, ours, theirs, what in (
        ("dtype", "d", "f", "dtype of x"),
        ("op", "sum", "max", "on op"),
        ("out_dtype", "d", "D", "accumulating dtype"),
        ("shape", (2, 3), (3, 2), "shape beyond axis 0"),
        ("strategy", "scan-add", "reduce-scan", "strategy"),
        ("backend", "cpu", "auto", "backend"),
    ):
        given = {"shape": 6, "dtype": "d", "backend": "cpu"} | {name: theirs if last else ours}
        everywhere(comm, DisagreementError, what, lambda g=given: distscan.Plan(comm, **g))


def test_a_backend_for_every_rank(comm, monkeypatch):
    """The CPU, or an error, on all ranks where one has no GPU."""

    def count():
        if comm.rank == comm.size - 1:
            raise BackendError("no NVIDIA GPU is visible")
        return 1

    gpu.stand_in_gpus(monkeypatch, count=count)
    assert distscan.Plan(comm, 3, "d").backend == "cpu"
    everywhere(comm, BackendError, "no NVIDIA", lambda: distscan.Plan(comm, 3, "d", backend="cuda"))


@pytest.mark.parametrize("options", [{}, {"agree": True}])
def test_fused_needs_gpus(options, comm):
    """On one rank there is nothing to exchange."""

    def make():
        return distscan.Plan(comm, 3, "d", backend="cpu", strategy="fused", **options)

    if comm.size == 1:
        assert (make().strategy, make().reason) == ("single-pass", "there is one rank")
    else:
        everywhere(comm, ValueError, "strategy 'fused'", make)


def readonly(array):
    array.flags.writeable = False
    return array


def overlapping(x):
    base = x.repeat(2)
    return base[:6], base[5:11]


FAULTS = {  # of an array of six elements, what is wrong about (x, out)
    "shape": (ValueError, "x has shape", lambda x: (x.reshape(2, 3), None)),
    "type": (TypeError, "x is float32", lambda x: (x.astype("f"), None)),
    "list": (TypeError, "x is a list", lambda x: (x.tolist(), None)),
    "masked": (TypeError, "masked", lambda x: (np.ma.masked_array(x), None)),
    "strides": (ValueError, "x is not contiguous", lambda x: (x[::-1], None)),
    "out shape": (ValueError, "out has shape", lambda x: (x, np.zeros(7))),
    "out type": (TypeError, "out is float32", lambda x: (x, x.astype("f"))),
    "out list": (TypeError, "out is a list", lambda x: (x, x.tolist())),
    "out strides": (ValueError, "out is not contiguous", lambda x: (x, x.repeat(2)[::2])),
    "out read-only": (ValueError, "read-only", lambda x: (x, readonly(x.copy()))),
    "overlap": (ValueError, "overlaps", overlapping),
}


@pairs(group_by="case", case=FAULTS, op=["sum", "max", COMPOSE], strategy=STRATEGIES)
def test_a_fault_of_one_rank_is_its_own(case, op, strategy, comm, rng):
    """It raises there, and behind it; before it, behind the next call; and the plan goes on."""
    kind, message, bad = FAULTS[case]
    dtype = np.uint64 if op is COMPOSE else np.float64
    run = distscan.Plan(comm, 6, dtype, op, strategy=strategy, backend="cpu")
    x = maps(rng, 6 * comm.size) if op is COMPOSE else rng.integers(-9, 9, 6 * comm.size) * 1.0
    guilty = comm.size // 2
    mine = slice(6 * comm.rank, 6 * comm.rank + 6)
    want = (one_by_one if op is COMPOSE else OPS[op].accumulate)(x)[mine]

    def halves(x, out):
        run.start(x, out)
        return run.wait()

    for call in (run, halves):
        if comm.rank == guilty:
            with pytest.raises(kind, match=message):
                call(*bad(x[mine]))
        elif comm.rank > guilty:
            with pytest.raises(RankError, match="an earlier rank failed in this call"):
                call(x[mine], None)
        else:
            np.testing.assert_array_equal(call(x[mine], None), want)
        comm.Barrier()
        out = np.zeros_like(want)
        if comm.rank < guilty:
            with pytest.raises(RankError, match=f"rank {guilty}: {kind.__name__}: .*{message}"):
                call(x[mine], out)
        else:
            call(x[mine], out)
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(call(x[mine], None), want)


def test_an_operator_that_fails_in_the_exchange(comm):
    """No rank is given a wrong result: behind the fault, each raises."""
    if comm.size < 3:
        pytest.skip("two ranks have no totals to combine")

    def combine(a, b):
        if np.ndim(b) == 0 and broken:
            raise ZeroDivisionError("totals do not combine")
        return a + b

    op = distscan.Operator("fails", combine, "a + b", lambda dtype: dtype.type(0))
    run = distscan.Plan(comm, 2, "l", op, backend="cpu")
    x = np.array([comm.rank, 1])
    for halves in (False, True):
        raised, broken = False, True
        try:
            if halves:
                run.start(x)
                run.wait()
            else:
                run(x)
        except (ZeroDivisionError, RuntimeError):
            raised = True
        assert raised or comm.rank < 2
        broken = False
        comm.Barrier()
        y = np.zeros_like(x)
        with suppress(RankError):  # which ranks before it hear now
            run(x, y)
        assert y[-1] == sum(range(comm.rank + 1)) + comm.rank + 1


# ---- a plan is used by one call at a time --------------------------------------------------------


def test_start_and_wait_come_in_turns(planned, xp, comm):
    run = planned(2, "l")
    x = xp.arange(2)
    with pytest.raises(RuntimeError, match="not started"):
        run.wait()
    run.start(x)
    for again in (run.start, run):
        with pytest.raises(RuntimeError, match="was started"):
            again(x)
    np.testing.assert_array_equal(host(run.wait()), [comm.rank, comm.rank + 1])
    with pytest.raises(RuntimeError, match="not started"):
        run.wait()
    np.testing.assert_array_equal(host(run(x)), [comm.rank, comm.rank + 1])


def test_a_use_inside_another_is_refused():
    """As by a signal's handler, or by the operator; both the outer call and the plan go on."""
    inside = []

    def combine(a, b):
        for use in (lambda: run(x), lambda: run.start(x), run.wait, run.close):
            if len(inside) < 4:
                with pytest.raises(RuntimeError, match="in use by this thread") as raised:
                    use()
                inside.append(raised)
        return a + b

    op = distscan.Operator("uses its plan", combine)
    run, x = distscan.Plan(MPI.COMM_SELF, 3, "l", op, backend="cpu"), np.arange(3)
    for _ in range(2):
        np.testing.assert_array_equal(run(x), [0, 1, 3])
    assert len(inside) == 4


def test_threads_use_a_plan_one_after_the_other():
    within, go_on, seen = Event(), Event(), []

    def combine(a, b):
        seen.append(float(b.flat[0]))
        within.set()
        assert go_on.wait(60)
        return a + b

    op = distscan.Operator("waits", combine)
    run = distscan.Plan(MPI.COMM_SELF, 2, "d", op, backend="cpu")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, np.array([1.0, 2.0]))
        assert within.wait(60)
        second = pool.submit(run, np.array([10.0, 20.0]))
        assert seen == [2.0]
        go_on.set()
        np.testing.assert_array_equal(first.result(), [1, 3])
        np.testing.assert_array_equal(second.result(), [10, 30])
    assert seen == [2.0, 20.0]


def test_check_raises_the_faults_of_other_ranks(comm):
    """On ranks before the fault, once its notice is there; results are right all along."""
    run = distscan.Plan(comm, 2, "d", backend="cpu")
    run.check()
    guilty = comm.size - 1

    def check_until_it_raises():
        for _ in range(10_000):
            run.check()
            time.sleep(0.001)

    if comm.rank == guilty:
        with pytest.raises(TypeError):
            run([1.0, 2.0])
    else:
        np.testing.assert_array_equal(run(np.ones(2)), 2 * comm.rank + np.arange(1, 3))
    comm.Barrier()
    if comm.rank < guilty:
        with pytest.raises(RankError, match=f"rank {guilty}: .*TypeError"):
            check_until_it_raises()
    run.check()
    run.close()
    with pytest.raises(RuntimeError, match="closed"):
        run.check()


def test_a_block_closes_its_plan(comm):
    with distscan.Plan(comm, 2, "d", backend="cpu") as run:
        run(np.ones(2))
    with pytest.raises(RuntimeError, match="closed"):
        run(np.ones(2))


def test_a_block_that_raises_on_one_rank_alone_leaves_its_plan(comm):
    """It must not wait for the others."""
    run = distscan.Plan(comm, 2, "d", backend="cpu")
    if comm.rank == 0:
        with pytest.raises(KeyError), run:
            raise KeyError
    run(np.ones(2))
    run.close()


def test_a_closed_plan_is_refused_and_closed_again_in_silence(comm):
    run = distscan.Plan(comm, 2, "d", backend="cpu")
    for _ in range(2):
        run.close()
    for use in (run, run.start):
        with pytest.raises(RuntimeError, match="closed"):
            use(np.ones(2))
    with pytest.raises(RuntimeError, match="closed"):
        run.wait()
