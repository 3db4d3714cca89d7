"""GPUs that exchange totals themselves: "fused", also by "auto", and "nccl".

Each rank needs a GPU of its own.
"""

import itertools
import os
import time
from contextlib import suppress

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import RankError
from distscan.mpi import communicators
from support.arrays import host
from support.data import OPERATORS, elements

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda.peers import Inbox
from distscan.engine import peers

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(120)]

SIZE = MPI.COMM_WORLD.size
KINDS = ["sum l", "sum f", "sum D", "max b", "sum e", "logaddexp f", "compose L", "nibbles B",
         "logical_or ?", "prod d"]  # fmt: skip
SIZES = [1, 1000, 70_000, 3_000_000]
STRATEGIES = ["fused", "auto", "nccl"]


@pytest.fixture(autouse=True)
def _a_gpu_for_each_rank(cp):
    if not 1 < SIZE <= cp.cuda.runtime.getDeviceCount():
        pytest.skip("needs several ranks, and a GPU for each")


def cut(rng, n, comm):
    """Deal out n elements: every rank has some."""
    ends = np.sort(rng.choice(np.arange(1, n), comm.size - 1, replace=False)) if n > 1 else []
    ends = [0, *ends, n]
    return slice(ends[comm.rank], ends[comm.rank + 1])


def on_one_rank(x, op, **options):
    return distscan.scan(x, op=op, comm=MPI.COMM_SELF, **options)


def check(name, result, want):
    """Compare bit for bit, but where the order of operations rounds otherwise."""
    if name == "logaddexp":
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("kind", KINDS)
def test_values(kind, cp, comm, rng):
    """In every form, with new data in each of some calls, into poisoned memory and in place."""
    name, code = kind.split()
    op = OPERATORS.get(name, name)
    first = elements(rng, name, code, 1)[0]
    forms = {}, {"exclusive": True, "initial": first}, {"reverse": True}
    for options, strategy, n in itertools.product(forms, STRATEGIES, SIZES):
        mine = cut(rng, n + SIZE, comm)
        length = mine.stop - mine.start
        plan = distscan.Plan(comm, length, code, op=op, strategy=strategy, **options)
        assert plan.strategy == ("fused" if strategy == "auto" else strategy)
        x, out = cp.empty(length, code), cp.empty(length, plan.types.out)
        for turn in range(4):
            shards = elements(rng, name, code, n + SIZE)
            want = on_one_rank(shards, op, **options)[mine]
            x.set(shards[mine])
            out.view(np.uint8)[...] = 0xA5
            result = plan(x, x if turn == 3 and x.dtype == out.dtype else out)
            check(name, host(result), want)
        plan.close()


# An operator, the type of x, flags or the type of keys.
SEGMENTS = ["sum l ?", "compose L i", "max b b", "sum D l", "logaddexp f e", "compose L ?"]


def marks(rng, code, n, runs):
    """Flags or keys of some runs, of which few have one element."""
    heads = rng.random(n) < runs / n
    return heads if code == "?" else (np.cumsum(heads) % 7).astype(code)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("kind", SEGMENTS)
def test_segments(kind, seeded, cp, comm, rng):
    """Runs that end inside of shards, between them, or go on through several."""
    name, x_code, code = kind.split()
    op = OPERATORS.get(name, name)
    options = {"exclusive": True, "initial": elements(rng, name, x_code, 1)[0]} if seeded else {}
    if code in "il":
        options["reverse"] = True
    for n, strategy in itertools.product((3, 1000, 200_000), STRATEGIES):
        mine = cut(rng, n + SIZE, comm)
        length = mine.stop - mine.start
        with distscan.Plan(
            comm, length, x_code, op=op, strategy=strategy, segments=code, **options
        ) as plan:
            assert plan.strategy == ("fused" if strategy == "auto" else strategy)
            out = cp.empty(length, plan.types.out)
            for runs in (0, 1, SIZE, n // 2):
                shards, segments = (
                    elements(rng, name, x_code, n + SIZE),
                    marks(rng, code, n + SIZE, runs),
                )
                want = on_one_rank(shards, op, segments=segments, **options)[mine]
                out.view(np.uint8)[...] = 0xA5
                result = host(plan(cp.asarray(shards[mine]), out, cp.asarray(segments[mine])))
                check(name, result, want)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_segments_that_begin_between_shards(strategy, cp, comm):
    """A shard is one segment, or part of one; a NaN is a segment by itself."""
    keys = {"two shards": comm.rank // 2, "each": comm.rank, "all": 7, "none": np.nan}
    for reverse, (name, key) in itertools.product((False, True), keys.items()):
        n, initial = 5, 10
        x, segments = np.ones(n, "l"), np.full(n, key, "f")
        with distscan.Plan(
            comm, n, "l", initial=initial, reverse=reverse, strategy=strategy, segments="f"
        ) as plan:
            result = host(plan(cp.asarray(x), None, cp.asarray(segments)))
        wholes = np.concatenate(comm.allgather(x)), np.concatenate(comm.allgather(segments))
        want = on_one_rank(wholes[0], "sum", segments=wholes[1], initial=initial, reverse=reverse)
        np.testing.assert_array_equal(result, np.split(want, SIZE)[comm.rank], err_msg=name)


@pytest.mark.parametrize("inner", [2, 37, 1024, 4000])
@pytest.mark.parametrize("kind", ["sum f", "compose L", "max b", "sum D", "logaddexp f"])
def test_rows_of_totals(kind, inner, cp, comm, rng):
    """Along an axis that is not the last."""
    name, code = kind.split()
    op = OPERATORS.get(name, name)
    first = elements(rng, name, code, 1)[0]
    forms = {}, {"exclusive": True, "initial": first}, {"reverse": True}
    for options, strategy in itertools.product(forms, STRATEGIES):
        rows = int(rng.integers(SIZE, 200_000 // inner + SIZE + 1))
        mine = cut(rng, rows, comm)
        shape = mine.stop - mine.start, inner
        with distscan.Plan(comm, shape, code, op=op, axis=0, strategy=strategy, **options) as plan:
            assert plan.strategy == ("fused" if strategy == "auto" else strategy)
            x, out = cp.empty(shape, code), cp.empty(shape, plan.types.out)
            for turn in range(4):
                shards = elements(rng, name, code, rows * inner).reshape(rows, inner)
                want = on_one_rank(shards, op, axis=0, **options)[mine]
                x.set(shards[mine])
                out.view(np.uint8)[...] = 0xA5
                result = plan(x, x if turn == 3 and x.dtype == out.dtype else out)
                check(name, host(result), want)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_that_run_ahead(strategy, cp, comm, rng):
    """Each rank in turn is late; the others queue several calls meanwhile."""
    n, calls = 5000, 40
    plan = distscan.Plan(comm, n, "l", strategy=strategy)
    shards = rng.integers(0, 100, (calls, SIZE, n))
    want = np.cumsum(shards.reshape(calls, -1), axis=1).reshape(shards.shape)[:, comm.rank]
    xs = cp.asarray(shards[:, comm.rank])
    outs = cp.full((calls, n), -1, "l")
    for i in range(calls):
        if i % 5 == 0 and i // 5 % SIZE == comm.rank:
            time.sleep(0.02)
        plan(xs[i], outs[i])
    np.testing.assert_array_equal(host(outs), want)
    plan.close()


def call_and_check(plan, *arrays, **segments):
    """The call raises its own fault if the GPU is fast."""
    plan(*arrays, **segments)
    plan.check()


@pytest.mark.parametrize("strategy", ["fused", "nccl"])
@pytest.mark.parametrize(
    ("code", "poison"), [("l", 0), ("d", np.nan), ("F", complex(np.nan, np.nan))]
)
def test_a_refused_call(code, poison, strategy, cp, comm, rng):
    """Its rank raises at once. Later ranks get no results, and raise, too; then all go on."""
    n = 1000
    plan = distscan.Plan(comm, n, code, strategy=strategy)
    shards = rng.integers(0, 100, SIZE * n)
    want = np.cumsum(shards).reshape(SIZE, n)[comm.rank]
    x = cp.asarray(shards.reshape(SIZE, n)[comm.rank].astype(code))
    out = cp.full(n, -1, code)
    if comm.rank == 0:
        with pytest.raises(TypeError):
            plan(cp.zeros(n, "b"), out)
    else:
        with pytest.raises(RankError, match="its call was refused"):
            call_and_check(plan, x, out)
        np.testing.assert_array_equal(
            host(out).view(code.lower()), np.full(n, poison, code).view(code.lower())
        )
    for _ in range(5):
        np.testing.assert_array_equal(host(plan(x)), want)
    plan.close()


def test_a_refused_call_behind_a_handshake(cp, comm, rng):
    """Its rank and later ones raise at once, earlier ones in the next call; then all go on."""
    n = 1000
    plan = distscan.Plan(comm, n, "l")
    assert plan.strategy == "fused"
    shards = rng.integers(0, 100, SIZE * n)
    want = np.cumsum(shards).reshape(SIZE, n)[comm.rank]
    x = cp.asarray(shards.reshape(SIZE, n)[comm.rank])
    for faulty in range(SIZE):
        out = cp.full(n, -1, "l")
        if comm.rank == faulty:
            with pytest.raises(TypeError):
                plan(x.astype("f"), out)
        elif comm.rank > faulty:
            with pytest.raises(RankError, match="an earlier rank failed in this call"):
                plan(x, out)
        else:
            plan(x, out)
            np.testing.assert_array_equal(host(out), want)
        comm.Barrier()
        time.sleep(0.1)
        if comm.rank < faulty:
            with pytest.raises(RankError, match=f"rank {faulty}: TypeError"):
                plan(x, out)
        else:
            plan(x, out)
        np.testing.assert_array_equal(host(out), want)
        for _ in range(3):
            np.testing.assert_array_equal(host(plan(x)), want)
    plan.close()


def test_a_late_rank_is_no_fault_behind_a_handshake(cp, comm, rng, monkeypatch):
    """The hosts wait for it, longer than a GPU would; so do both halves of a call."""
    monkeypatch.setenv("DISTSCAN_WAIT", "0.2")
    n = 1000
    shards = rng.integers(0, 100, SIZE * n)
    want = np.cumsum(shards).reshape(SIZE, n)[comm.rank]
    x = cp.asarray(shards.reshape(SIZE, n)[comm.rank])
    with distscan.Plan(comm, n, "l") as plan:
        for late in range(SIZE):
            if comm.rank == late:
                time.sleep(1)
            np.testing.assert_array_equal(host(plan(x)), want)
            if comm.rank == late:
                time.sleep(1)
            out = cp.full(n, -1, "l")
            plan.start(x, out)
            plan.wait()
            plan.check()
            np.testing.assert_array_equal(host(out), want)


def test_what_auto_chooses(cp, comm):
    """GPUs exchange totals where they can; the reason says why they do not."""
    with distscan.Plan(comm, 5, "l") as plan:
        assert plan.strategy == "fused"
        assert plan.reason == "the ranks' GPUs reach each other's memory"
    for arguments, options, reason in [
        ((0 if comm.rank == 0 else 5, "l"), {}, "a rank has no elements"),
        ((5, "l"), {"segments": True, "reverse": True}, "no flags of segments in a reverse scan"),
        ((5, "l"), {"segments": "D"}, "do not compare keys of type complex128"),
        (((5, 10_000), "l"), {"axis": 0}, "a row of totals has more than 64 KiB"),
        ((5, "d"), {"agree": True}, "calls do not agree on faults"),
    ]:
        with distscan.Plan(comm, *arguments, **options) as plan:
            assert plan.strategy == "reduce-scan"
            assert reason in plan.reason


def reduce_scan_because(reason, comm, rng):
    """Check that "auto" says why the hosts exchange totals, and does it right."""
    shards = rng.integers(0, 100, (SIZE, 1000))
    want = np.cumsum(shards).reshape(SIZE, 1000)[comm.rank]
    cp = pytest.importorskip("cupy")
    with distscan.Plan(comm, 1000, "l") as plan:
        assert plan.strategy == "reduce-scan"
        assert reason in plan.reason
        np.testing.assert_array_equal(host(plan(cp.asarray(shards[comm.rank]))), want)
    with pytest.raises(ValueError, match=reason):
        distscan.Plan(comm, 1000, "l", strategy="fused")


def test_ranks_that_share_a_gpu(cp, comm, rng):
    with cp.cuda.Device(0):
        reduce_scan_because("ranks share a GPU", comm, rng)


@pytest.mark.parametrize("refused", ["handle", "open"])
def test_peer_memory_that_is_refused(refused, cp, comm, rng, monkeypatch):
    """On one rank, as in a container; no later plan takes what was opened."""
    monkeypatch.setattr(peers, "_free", [])

    def refuse(*_):
        raise cp.cuda.runtime.CUDARuntimeError(801)  # cudaErrorNotSupported

    if comm.rank == SIZE - 1:
        monkeypatch.setattr(Inbox, refused, refuse)
    reason = {"handle": "CUDA IPC is refused", "open": "does not reach another one's memory"}
    reduce_scan_because(reason[refused], comm, rng)


def test_several_nodes(cp, comm, rng, monkeypatch):
    """Each rank on a node of its own, as it seems: the hosts exchange totals, or NCCL does."""
    monkeypatch.setattr(
        communicators, "node", lambda comm: communicators.Node(0, comm.size, 1, first=True)
    )
    reduce_scan_because("the ranks are on several nodes", comm, rng)
    shards = rng.integers(0, 100, (SIZE, 1000))
    want = np.cumsum(shards).reshape(SIZE, 1000)[comm.rank]
    with distscan.Plan(comm, 1000, "l", strategy="nccl") as plan:
        np.testing.assert_array_equal(host(plan(cp.asarray(shards[comm.rank]))), want)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gpu_that_is_busy(strategy, cp, comm, rng):
    """Somebody's kernel has all multiprocessors of each GPU in turn: the others wait for it."""
    n = 1000
    shards = rng.integers(0, 100, (SIZE, n))
    want = np.cumsum(shards).reshape(SIZE, n)[comm.rank]
    x = cp.asarray(shards[comm.rank])
    kernel = cp.RawKernel(
        """extern "C" __global__ void busy(long long nanoseconds) {
          long long begin, now;
          asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
          do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
          while (now - begin < nanoseconds);
        }""",
        "busy",
    )
    with distscan.Plan(comm, n, "l", strategy=strategy) as plan:
        plan(x)
        for busy in range(SIZE):
            with cp.cuda.Stream(non_blocking=True) as stream:
                if comm.rank == busy:
                    kernel((2000,), (1024,), (np.int64(50_000_000),))
            out = cp.full(n, -1, "l")
            np.testing.assert_array_equal(host(plan(x, out)), want)
            stream.synchronize()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_call_that_is_refused_in_a_capture(strategy, cp, comm):
    """It takes part in no exchange, so later calls do not mix totals: they raise."""
    n = 1000
    x, out = cp.ones(n, "l"), cp.empty(n, "l")
    plan = distscan.Plan(comm, n, "l", strategy=strategy)
    plan(x, out)
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(TypeError):
            plan(x.view("d"), out)
        stream.end_capture()
        for _ in range(2):
            comm.Barrier()
            with pytest.raises((RuntimeError, RankError)):
                plan(x, out)
    with suppress(RankError):  # of another rank's last fault
        plan.close()


@pytest.mark.parametrize("asks", ["check", "close"])
def test_a_rank_that_does_not_come_in_time(asks, cp, comm, rng, monkeypatch):
    """Later ranks learn of it by ``check``; or every rank by ``close``."""
    monkeypatch.setenv("DISTSCAN_WAIT", "0.2")
    n = 1000
    plan = distscan.Plan(comm, n, "l", strategy="fused")
    x = cp.asarray(rng.integers(0, 100, n))
    out = cp.full(n, -1, "l")
    if comm.rank == 0:
        time.sleep(1)
    plan(x, out)
    cp.cuda.Device().synchronize()
    late = comm.rank > 0
    assert (host(out) == 0).all() == late
    if asks == "close":
        with pytest.raises(RankError, match="did not call in time"):
            plan.close()
        return
    if late:
        with pytest.raises(RankError, match="did not call in time"):
            plan.check()
    plan.close()


@pytest.mark.parametrize("strategy", ["fused", "nccl"])
@pytest.mark.parametrize(("code", "poison"), [("l", 0), ("d", np.nan)])
@pytest.mark.parametrize("options", [{"axis": 0}, {"segments": "i"}, {"segments": "?"}])
def test_a_refused_call_of_other_forms(options, code, poison, strategy, cp, comm, rng):
    """Rows and segments: later ranks get no results, and raise; then all go on."""
    shape = (50, 20) if "axis" in options else 1000
    shards = rng.integers(0, 100, (SIZE, 1000))
    want = np.cumsum(shards.reshape(-1, 20), axis=0) if "axis" in options else np.cumsum(shards)
    want = want.reshape(SIZE, *np.atleast_1d(shape))[comm.rank]
    x = cp.asarray(shards[comm.rank].reshape(shape).astype(code))
    segments = {} if "axis" in options else {"segments": cp.zeros(1000, options["segments"])}
    with distscan.Plan(comm, shape, code, strategy=strategy, **options) as plan:
        for _ in range(3):
            out = cp.full(shape, -1, code)
            if comm.rank == 0:
                with pytest.raises(TypeError):
                    plan(x.astype("b"), out, **segments)
            else:
                with pytest.raises(RankError, match="its call was refused"):
                    call_and_check(plan, x, out, **segments)
                np.testing.assert_array_equal(host(out), np.full(shape, poison, code))
            for _ in range(3):
                np.testing.assert_array_equal(host(plan(x, out, **segments)), want)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("options", [{"axis": 0}, {"segments": "i"}, {"segments": "?"}])
def test_a_graph_of_other_forms(options, strategy, cp, comm, rng):
    """Rows and segments: replays with new data."""
    shape = (500, 20) if "axis" in options else 10_000
    segments = {} if "axis" in options else {"segments": cp.zeros(10_000, options["segments"])}
    with (
        distscan.Plan(comm, shape, "l", strategy=strategy, **options) as plan,
        cp.cuda.Stream(non_blocking=True) as stream,
    ):
        x, out = cp.zeros(shape, "l"), cp.empty(shape, "l")
        cp.cuda.Device().synchronize()
        stream.begin_capture()
        plan(x, out, **segments)
        graph = stream.end_capture()
        for _ in range(20):
            shards = rng.integers(0, 100, (SIZE, 10_000))
            if "axis" in options:
                want = np.cumsum(shards.reshape(-1, 20), axis=0).reshape(SIZE, *shape)[comm.rank]
            else:
                want = np.cumsum(shards).reshape(SIZE, 10_000)[comm.rank]
            x.set(shards[comm.rank].reshape(shape))
            out[...] = -1
            graph.launch(stream)
            stream.synchronize()
            np.testing.assert_array_equal(host(out), want)
        plan.check()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_graph(strategy, cp, comm, rng):
    """Replays with new data, among calls outside of the graph."""
    n = 100_000
    plan = distscan.Plan(comm, n, "l", strategy=strategy)
    with cp.cuda.Stream(non_blocking=True) as stream:
        x, out = cp.zeros(n, "l"), cp.empty(n, "l")
        stream.begin_capture()
        plan(x, out)
        plan(out, out)
        graph = stream.end_capture()
        for turn in range(50):
            shards = rng.integers(0, 100, SIZE * n)
            once = np.cumsum(shards)
            x.set(shards.reshape(SIZE, n)[comm.rank])
            if turn % 3 == 0:
                plan(x, out)
                stream.synchronize()
                np.testing.assert_array_equal(host(out), once.reshape(SIZE, n)[comm.rank])
            graph.launch(stream)
            stream.synchronize()
            want = np.cumsum(once).reshape(SIZE, n)[comm.rank]
            np.testing.assert_array_equal(host(out), want)
    plan.close()


def test_many_plans(cp, comm, rng):
    """Side by side, and one after the other, without a leak."""
    n = 100
    x = cp.asarray(rng.integers(0, 100, n))
    offset = comm.scan(int(x.sum())) - int(x.sum())
    plans = [distscan.Plan(comm, n, "l", strategy=STRATEGIES[i % 3]) for i in range(9)]
    for plan in plans:
        np.testing.assert_array_equal(host(plan(x)), np.cumsum(host(x)) + offset)
    for plan in plans:
        plan.close()
    free = None
    for turn in range(60):
        plan = distscan.Plan(comm, n, "l", strategy=STRATEGIES[turn % 3])
        plan(x)
        plan.close()
        if turn == 20:
            free = cp.cuda.runtime.memGetInfo()[0]
    comm.Barrier()
    assert abs(cp.cuda.runtime.memGetInfo()[0] - free) < 64 << 20


def test_other_communicators(cp, comm, rng):
    """A duplicate, and the ranks in reverse, side by side."""
    n = 1000
    shards = rng.integers(0, 100, (SIZE, n))
    x = cp.asarray(shards[comm.rank])
    comms = [comm, comm.Dup(), comm.Split(0, -comm.rank)]
    wants = [np.cumsum(shards).reshape(SIZE, n)[comm.rank]] * 2
    wants += [np.cumsum(shards[::-1]).reshape(SIZE, n)[::-1][comm.rank]]
    for strategy in STRATEGIES:
        plans = [distscan.Plan(each, n, "l", strategy=strategy) for each in comms]
        for _ in range(10):
            results = [plan(x) for plan in plans]
            for result, want in zip(results, wants, strict=True):
                np.testing.assert_array_equal(host(result), want)
        for plan in plans:
            plan.close()
    for each in comms[1:]:
        each.Free()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_halves_on_two_streams(strategy, cp, comm, rng):
    """The result is ready in the order of the stream of wait()."""
    n = 500_000
    shards = rng.integers(0, 100, (SIZE, n))
    want = np.cumsum(shards).reshape(SIZE, n)[comm.rank]
    x = cp.asarray(shards[comm.rank])
    cp.cuda.Device().synchronize()
    here, there = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    with distscan.Plan(comm, n, "l", strategy=strategy) as plan:
        for _ in range(20):
            with there:
                out = cp.full(n, -1, "l")
            there.synchronize()
            with here:
                plan.start(x, out)
            with there:
                plan.wait()
                np.testing.assert_array_equal(host(out), want)


@pytest.mark.timeout(300)
def test_plans_that_are_dropped(cp, comm, rng):
    """Without close(), on streams of their own, while their work is queued: nothing grows."""
    n = 1000
    shards = rng.integers(0, 100, SIZE * n)
    want = np.cumsum(shards).reshape(SIZE, n)[comm.rank]
    x = cp.asarray(shards.reshape(SIZE, n)[comm.rank])
    free = files = None
    for turn in range(10_000):
        plan = distscan.Plan(comm, n, "l", strategy=STRATEGIES[turn // 3 % 3])
        with cp.cuda.Stream(non_blocking=True) as stream:
            for _ in range(turn % 3):
                result = plan(x)
            del plan
            if turn % 3 and turn % 10 == 0:
                stream.synchronize()
                np.testing.assert_array_equal(host(result), want)
        if turn == 100:
            free, files = cp.cuda.runtime.memGetInfo()[0], len(os.listdir("/proc/self/map_files"))
    comm.Barrier()
    assert abs(cp.cuda.runtime.memGetInfo()[0] - free) < 64 << 20
    assert len(os.listdir("/proc/self/map_files")) < files + 50


def test_calls_that_one_rank_alone_has_made(cp, comm, rng, monkeypatch):
    """A later plan does not take inboxes whose exchanges the ranks have counted differently."""
    monkeypatch.setenv("DISTSCAN_WAIT", "0.2")
    n = 1000
    shards = rng.integers(0, 100, SIZE * n)
    want = np.cumsum(shards).reshape(SIZE, n)[comm.rank]
    x = cp.asarray(shards.reshape(SIZE, n)[comm.rank])
    for _ in range(3):
        plan = distscan.Plan(comm, n, "l", strategy="fused")
        if comm.rank > 0:
            plan(x)
        del plan
        with distscan.Plan(comm, n, "l", strategy="fused") as plan:
            for _ in range(3):
                np.testing.assert_array_equal(host(plan(x)), want)


@pytest.mark.parametrize("strategy", ["fused", "nccl"])
def test_refused_plans(strategy, cp, comm):
    for arguments, options in [
        ((0 if comm.rank == 0 else 5, "l"), {}),
        ((5, "l"), {"segments": True, "reverse": True}),
        (((5, 10_000), "l"), {"axis": 0}),
        ((5, "d"), {"op": "fsum"}),
        ((5, "d"), {"agree": True}),
    ]:
        with pytest.raises(ValueError, match=f"strategy '{strategy}' cannot be had"):
            distscan.Plan(comm, *arguments, strategy=strategy, **options)
    with pytest.raises(ValueError, match="unknown strategy"):
        distscan.scan(cp.arange(5), strategy=strategy)
