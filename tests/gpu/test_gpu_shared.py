"""A GPU that several processes share: a kernel that waits may be switched out at any moment."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core import dtypes, operators
from support.steps import of_size

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(120)]

SECONDS = 5  # for each length of the exchange


@pytest.fixture
def hog(cp):
    """Another process takes the GPU again and again: the stress test's neighbour."""
    script = Path(__file__).parents[2] / "launch" / "stress_device.py"
    command = [sys.executable, str(script), str(cp.cuda.Device().id)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        time.sleep(5)  # it starts CUDA
        yield
        assert process.poll() is None, "it ended early"
        process.stdin.close()


@pytest.mark.one_rank
@pytest.mark.parametrize("n", [1 << 18, 1 << 23])
def test_offsets_in_time(n, hog, cp, rng):
    """An offset that the host knows to be in time is taken, whenever the kernel looks for it."""
    from distscan.cuda import steps as cuda

    x = cp.asarray(rng.integers(0, 100, n, np.int32))
    want, out = cp.cumsum(x, dtype=np.int32), cp.empty(n, np.int32)
    steps = cuda.ReduceScan(
        operators.BUILTIN["sum"], dtypes.Types(*[np.dtype("i")] * 3), of_size(n)
    )
    for pause in (0, 100e-6, 300e-6):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            out.fill(-1)
            cp.cuda.Device().synchronize()
            steps.too_late = 0  # or nothing would be launched ahead any more
            call = steps.begin(x, out, overlap=True)
            call.total()
            begin = time.perf_counter()
            while time.perf_counter() - begin < pause:
                pass
            steps.finish(call, None)
            assert bool((out == want).all())


def test_ranks_share_one(comm, rng):
    """Without MPS, kernels of two ranks take turns."""
    import cupy as cp

    if comm.size == 1:
        pytest.skip("one rank shares with nobody")
    n = 1 << 20
    x = rng.integers(0, 100, (comm.size, n), np.int32)
    want = np.cumsum(x.reshape(-1), dtype=np.int32).reshape(x.shape)[comm.rank]
    with cp.cuda.Device(0):
        mine, want, out = cp.asarray(x[comm.rank]), cp.asarray(want), cp.empty(n, np.int32)
        plan = distscan.Plan(comm, n, "i", out_dtype="i", strategy="reduce-scan", backend="cuda")
        wrong = 0
        for _ in range(500):
            out.fill(-1)
            plan._scan.steps.too_late = 0  # or nothing would be launched ahead any more
            plan(mine, out)
            wrong += not bool((out == want).all())
    assert comm.allreduce(wrong, MPI.SUM) == 0
