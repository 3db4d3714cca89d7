"""What a call uses lives until its last kernel has ended, on whichever streams. GPU only."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core import dtypes, operators
from distscan.engine import cache
from support import gpu
from support.steps import of_size

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.one_rank, pytest.mark.timeout(120)]
STRATEGIES = ["single-pass", "scan-add", "reduce-scan"]


@pytest.fixture(autouse=True)
def ready(cp):
    """The kernel that holds others up is loaded, and nothing runs."""
    gpu.warm(cp)
    cache.clear()
    yield
    cp.cuda.Device().synchronize()


@pytest.fixture
def numbers(cp, rng):
    """A function of n: as many integers, and their sums."""

    def draw(n):
        x = cp.asarray(rng.integers(0, 100, n, np.int32))
        want = cp.cumsum(x, dtype=np.int32)
        cp.cuda.Device().synchronize()
        return x, want

    return draw


def plan(n, strategy="auto", **more):
    return distscan.Plan(MPI.COMM_SELF, n, "i", out_dtype="i", strategy=strategy, backend="cuda",
                         **more)  # fmt: skip


def streams(cp, count):
    return [cp.cuda.Stream(non_blocking=True) for _ in range(count)]


def test_a_plan_dropped_while_its_kernel_is_queued(cp, numbers):
    """The next plan gets neither its words nor its epoch."""
    n = 1 << 24
    first, second = streams(cp, 2)
    (x1, want1), (x2, want2) = numbers(n), numbers(n)
    out1, out2 = cp.zeros(n, "i"), cp.zeros(n, "i")

    def scan_on(stream, x, out):
        scan_plan = plan(n, "single-pass")
        with stream:
            scan_plan(x, out)

    scan_on(first, x1, out1)
    cp.cuda.Device().synchronize()
    out1.fill(0)
    cp.cuda.Device().synchronize()
    holder = gpu.Held(first)
    scan_on(first, x1, out1)
    scan_on(second, x2, out2)
    second.synchronize()
    right = bool((out2 == want2).all())
    holder.release()
    cp.cuda.Device().synchronize()
    assert right
    assert bool((out1 == want1).all())


def test_mail_of_a_plan_that_is_dropped(cp, numbers):
    """The kernel may look into pinned memory after the host has sent the offset and gone on."""
    from distscan.cuda import steps as cuda
    from distscan.cuda.launches import HostTotal

    attributes = cp.cuda.Device().attributes
    chip = attributes["MultiProcessorCount"], attributes["MaxSharedMemoryPerBlockOptin"]
    n, op = 1 << 26, operators.BUILTIN["sum"]
    types = dtypes.Types(*[np.dtype("i")] * 3)
    x, want = numbers(n)
    other = cp.cuda.Stream(non_blocking=True, priority=-1)
    gpu.Held(other, *chip, 0.01).release()
    cp.cuda.Device().synchronize()
    wrong = tried = 0
    for _ in range(40):
        out = cp.full(n, -1, "i")
        steps = cuda.ReduceScan(op, types, of_size(n))
        cp.cuda.Device().synchronize()
        call = steps.begin(x, out, overlap=True)
        holder = gpu.Held(other, *chip, 0.2)  # takes each multiprocessor that the reduction leaves
        begin = time.perf_counter()
        steps.finish(call, None)
        late = time.perf_counter() - begin > 0.05  # whether the kernel was in time: not this time
        tried += not late
        del steps, call
        totals = [HostTotal(np.dtype("i")) for _ in range(4)]  # what a next plan allocates
        holder.release()
        cp.cuda.Device().synchronize()
        wrong += not bool((out == want).all())
        del totals
    assert wrong == 0
    assert tried > 0


def test_a_segmented_plan_on_two_streams(cp, monkeypatch):
    """Heads are found behind the scan, on another stream, that still reads those before."""
    from distscan.core import segments

    n = 1 << 22
    first, second = streams(cp, 2)
    x = cp.ones(n, "i")
    keys = [(cp.arange(n) // length).astype("D") for length in (7, 1000)]
    wants = [(cp.arange(n) % length + 1).astype("i") for length in (7, 1000)]
    scan_plan = plan(n, segments="D")
    outs = [cp.zeros(n, "i") for _ in keys]
    scan_plan(x, outs[0], keys[0])
    cp.cuda.Device().synchronize()
    for _ in range(100):
        for stream, out, marks in zip((first, second), outs, keys, strict=True):
            with stream:
                out.fill(0)
                scan_plan(x, out, marks)
        cp.cuda.Device().synchronize()
        assert all(bool((out == want).all()) for out, want in zip(outs, wants, strict=True))
    find, holder = segments.find_heads, []

    def find_and_hold(*arguments, **options):
        find(*arguments, **options)
        holder.append(gpu.Held(cp.cuda.get_current_stream(), seconds=2))

    outs[0].fill(0)
    cp.cuda.Device().synchronize()
    with monkeypatch.context() as patch, first:
        patch.setattr(segments, "find_heads", find_and_hold)
        scan_plan(x, outs[0], keys[0])
    threading.Timer(0.5, holder[0].release).start()
    with second:
        scan_plan(x, outs[1], keys[1])
    cp.cuda.Device().synchronize()
    assert all(bool((out == want).all()) for out, want in zip(outs, wants, strict=True))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_made_on_another_stream(strategy, cp, numbers):
    """Its words are zeroed where it is made, and read where it is used."""
    n = 1 << 24
    (stream,) = streams(cp, 1)
    (x1, _), (x2, want) = numbers(n), numbers(n)
    out = cp.zeros(n, "i")
    scan_plan = plan(n, strategy)
    for _ in range(3):
        scan_plan(x1, out)
    cp.cuda.Device().synchronize()
    del scan_plan
    holder = gpu.Held(cp.cuda.Stream.null, seconds=2)  # the caller's own work where it is made
    scan_plan = plan(n, strategy)
    threading.Timer(0.5, holder.release).start()
    with stream:
        scan_plan(x2, out)
    stream.synchronize()
    holder.release()
    assert bool((out == want).all())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_started_on_one_stream_and_waited_for_on_another(strategy, cp, numbers):
    n = 1 << 25
    first, second = streams(cp, 2)
    scan_plan = plan(n, strategy, initial=3)
    (x1, want1), (x2, want2) = numbers(n), numbers(n)
    out1, out2 = cp.zeros(n, "i"), cp.zeros(n, "i")
    cp.cuda.Device().synchronize()
    for turn in range(60):
        out1.fill(0)
        out2.fill(0)
        cp.cuda.Device().synchronize()
        with first:
            if turn % 3 == 0:
                holder = gpu.Held(first, seconds=0.002)  # noqa: F841 - its memory
            scan_plan.start(x1, out1)
        with second:
            scan_plan.wait()
        with first:
            scan_plan(x2, out2)
        cp.cuda.Device().synchronize()
        assert bool((out1 == want1 + 3).all())
        assert bool((out2 == want2 + 3).all())


def test_the_input_is_ready_on_the_stream_of_start(cp, numbers):
    """What ``wait`` queues on its stream comes behind the work that made x."""
    n = 1 << 20
    first, second = streams(cp, 2)
    numbers_of_x, want = numbers(n)
    for strategy in STRATEGIES:
        scan_plan = plan(n, strategy)
        x, out = cp.zeros(n, "i"), cp.zeros(n, "i")
        cp.cuda.Device().synchronize()
        with first:
            holder = gpu.Held(first, seconds=0.3)
            x[...] = numbers_of_x
            threading.Timer(0.1, holder.release).start()
            scan_plan.start(x, out)
        with second:
            scan_plan.wait()
        second.synchronize()
        assert bool((out == want).all()), strategy


def test_another_librarys_input_is_waited_for(cp):
    """PyTorch's stream waits for a scan of its tensor into a CuPy array."""
    torch = pytest.importorskip("torch")
    n = 1 << 26
    (side,) = streams(cp, 1)
    for _ in range(5):
        x, out = torch.ones(n, dtype=torch.int32, device="cuda"), cp.zeros(n, "i")
        torch.cuda.synchronize()
        with side:
            holder = gpu.Held(side, seconds=0.05)  # noqa: F841 - its memory
            distscan.scan(x, comm=MPI.COMM_SELF, dtype="i", out=out)
        x.fill_(7)  # on PyTorch's stream, as soon as that may
        cp.cuda.Device().synchronize()
        assert int(out[-1]) == n


@pytest.mark.parametrize("mode", ["per-thread", "threads"])
def test_threads_one_after_the_other(mode):
    """Per-thread default streams have one pointer, and idents of threads come again."""
    script = Path(gpu.__file__).with_name("thread_scans.py")
    process = subprocess.run(
        [sys.executable, str(script), mode],
        timeout=100,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_a_stream_that_is_gone(cp, numbers):
    """A plan, and what scan() keeps, go on when the stream of their last call does not exist."""
    n = 1 << 22
    x, want = numbers(n)
    scan_plan = plan(n)
    for turn in range(30):
        stream = cp.cuda.Stream(non_blocking=True)
        out, other = cp.zeros(n, "i"), cp.zeros(n, "i")
        cp.cuda.Device().synchronize()
        with stream:
            if turn % 2:
                holder = gpu.Held(stream, seconds=0.002)  # noqa: F841 - its memory
            scan_plan(x, out)
            distscan.scan(x, comm=MPI.COMM_SELF, dtype="i", out=other)
        del stream
        scan_plan(x, other)
        cp.cuda.Device().synchronize()
        assert bool((out == want).all())
        assert bool((other == want).all())


def test_memory_comes_back(cp, numbers):
    """A plan that is dropped or closed leaves its memory when its last kernel has ended."""
    from distscan.cuda import workspace

    x, _ = numbers(1 << 20)
    for close in (False, True):
        scan_plan = distscan.Plan(MPI.COMM_SELF, x.size, "i", out_dtype="h", strategy="scan-add",
                             backend="cuda")  # fmt: skip
        out = cp.zeros(x.size, "h")
        (stream,) = streams(cp, 1)
        cp.cuda.Device().synchronize()
        with stream:
            holder = gpu.Held(stream)
            scan_plan.start(x, out)  # scans behind what is held
            before = len(workspace.releases)
            threading.Timer(0.3, holder.release).start()
            scan_plan.wait()
        if close:
            scan_plan.close()
        del scan_plan
        stream.synchronize()
        workspace.releases.sweep()
        assert len(workspace.releases) <= before
