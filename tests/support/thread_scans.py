"""Threads that scan one after the other and do not wait for the GPU; run as a script."""

import os
import sys

if sys.argv[1] == "per-thread":
    os.environ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"] = "1"

import threading

import cupy
import numpy as np
from mpi4py import MPI

import distscan

n = 1 << 26
xs = [cupy.asarray(np.random.default_rng(i).integers(0, 100, n, np.int32)) for i in range(2)]
wants = [cupy.cumsum(x, dtype=np.int32) for x in xs]
outs = [cupy.zeros(n, np.int32) for _ in xs]
plan = distscan.Plan(MPI.COMM_SELF, n, "i", out_dtype="i", backend="cuda")
cupy.cuda.Device().synchronize()
faults: list[str] = []


def work(i: int) -> None:
    try:
        distscan.scan(xs[i], comm=MPI.COMM_SELF, dtype="i", out=outs[i])
        plan(xs[i], outs[i])
    except Exception as error:
        faults.append(repr(error))


for turn in range(30):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
        if turn % 2:
            thread.join()
    for thread in threads:
        thread.join()
    cupy.cuda.Device().synchronize()
    faults += [f"turn {turn}, shard {i}" for i in range(2) if not bool((outs[i] == wants[i]).all())]
    for out in outs:
        out.fill(-1)
    cupy.cuda.Device().synchronize()
assert not faults, faults[:5]
