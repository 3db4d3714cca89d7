"""A stress test of plans whose GPUs exchange totals themselves, beside the same by reduce-scan.

    launch/mpirun.sh 2 python launch/tools/stress_exchange.py                   # 100,000 calls
    launch/mpirun.sh 2 python launch/tools/stress_exchange.py --graphs          # 10,000 replays

Each rank has a GPU of its own. Forms, types and sizes are random, and shards may begin at any
address. Each call has new data and a poisoned output. The results are compared on the GPU, bit for
bit: floats are small integers, so all their sums are exact. The exit status is 1 if a result was
wrong.
"""

import argparse
import secrets
import sys
import time
from collections import Counter
from typing import Any

import cupy
import numpy as np
from mpi4py import MPI
from stress_cases import COMPOSE, LATEST
from stress_device import KERNELS, POISON

import distscan
from distscan.engine.shard_scan import LONGEST_ROW

OPERATORS = {"compose": COMPOSE, "latest": LATEST}
TYPES = [line.split() for line in (
    "sum f f", "sum d d", "sum i l", "sum l l", "sum b l", "sum D D", "sum e f", "max f f",
    "max b b", "min i i", "prod l l", "logical_xor ? ?", "bitwise_xor i i", "compose L L",
    "latest i i",
)]  # fmt: skip
STRATEGIES = ["fused", "auto", "nccl"]
SEGMENTS = [None, None, None, "?", "b", "i", "d"]  # flags, and keys


def draw_marks(rng: np.random.Generator, dtype: str, n: int) -> Any:
    """Draw flags or keys, of no runs, few or many."""
    heads = rng.random(n) < rng.choice([0, 1 / n, 20 / n, 0.3])
    return cupy.asarray(heads if dtype == "?" else (np.cumsum(heads) % 7).astype(dtype))


def draw_data(rng: np.random.Generator, dtype: np.dtype[Any], n: int) -> Any:
    """Draw elements whose combinations are all exact."""
    if dtype.kind == "b":
        return rng.random(n) < 0.5
    if dtype == np.uint64:
        return rng.integers(0, 1 << 64, n, dtype, endpoint=False)
    return rng.integers(0, 3, n).astype(dtype)


class Campaign:
    """The plans of this rank, one after the other, and the results that were wrong."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.comm = options, MPI.COMM_WORLD
        self.common = np.random.default_rng(options.seed)  # the same on every rank
        self.local = np.random.default_rng([options.seed, self.comm.rank])
        self.differ = cupy.RawKernel(KERNELS, "differ")
        self.wrong = cupy.zeros(1, np.uint32)
        self.calls: Counter[str] = Counter()

    def compare(self, got: Any, want: Any) -> None:
        """Count the bytes that differ, on the current stream."""
        blocks = min(-(-got.nbytes // 256), 1024)
        self.differ((blocks,), (256,), (got, want, np.int64(got.nbytes), self.wrong))

    def plan(self) -> int:
        """Draw a form, and run its plan for some time; return the number of calls."""
        rng, local, most = self.common, self.local, self.options.largest
        name, x_type, out_type = TYPES[rng.integers(len(TYPES))]
        op, strategy = (
            OPERATORS.get(name, name),
            self.options.strategies[rng.integers(len(self.options.strategies))],
        )
        exclusive, reverse = (bool(flag) for flag in rng.random(2) < 0.3)
        initial = None if rng.random() < 0.6 else {"compose": 5 << 32 | 7}.get(name, 1)
        calls = int(rng.integers(1, 2 * self.options.each))
        segments, inner = SEGMENTS[rng.integers(len(SEGMENTS))], 1
        if segments == "?" and reverse:
            segments = None
        if segments is None and rng.random() < 0.3:
            inner = int(np.exp(rng.random() * np.log(LONGEST_ROW // np.dtype("D").itemsize))) + 1
        rows = int(np.exp(local.random() * np.log(max(most // inner, 1)))) + 1
        n, shape = rows * inner, rows if inner == 1 else (rows, inner)
        buffer = cupy.asarray(draw_data(local, np.dtype(x_type), 2 * n + 64))
        out, want = (cupy.empty(n + 16, out_type) for _ in range(2))
        marks = None if segments is None else draw_marks(local, segments, 2 * n + 64)
        form = {
            "exclusive": exclusive, "reverse": reverse, "initial": initial,
            "axis": None if inner == 1 else 0, "segments": segments,
        }  # fmt: skip
        made = [
            distscan.Plan(self.comm, shape, x_type, op, out_dtype=out_type, strategy=each, **form)
            for each in (strategy, "reduce-scan")
        ]
        for call in range(calls):
            begin, skipped = (int(local.integers(limit)) for limit in (n + 64, 16))
            x, y = buffer[begin : begin + n], out[skipped : skipped + n]
            if call % 3 == 0:  # the arrays of the call before, with new data
                x, y = buffer[:n], out[:n]
                buffer[: n + 1] = buffer[begin : begin + n + 1].copy()
            y.data.memset_async(POISON, y.nbytes)
            x, y = x.reshape(shape), y.reshape(shape)
            heads = None if marks is None else marks[begin : begin + n]
            made[0](x, y, heads)
            self.compare(y, made[1](x, want[:n].reshape(shape), heads))
            if local.random() < 0.001:
                time.sleep(0.01)
        kind = "rows" if inner > 1 else {None: "plain", "?": "flags"}.get(segments, "keys")
        self.calls[f"{made[0].strategy} {kind}"] += calls
        self.end(made, f"{strategy}: {name} {x_type} {out_type}, {shape} on this rank, {form}")
        return calls

    def graph(self) -> int:
        """Capture some calls of a plan, and replay them with new data; return the replays."""
        rng, local = self.common, self.local
        strategy = self.options.strategies[rng.integers(len(self.options.strategies))]
        n, calls = int(np.exp(local.random() * np.log(self.options.largest))) + 1, 1000
        made = [distscan.Plan(self.comm, n, "l", strategy=s) for s in (strategy, "reduce-scan")]
        buffer = cupy.asarray(draw_data(local, np.dtype("l"), 2 * n + 64))
        x, y, want = buffer[:n].copy(), cupy.empty(n, "l"), cupy.empty(n, "l")
        with cupy.cuda.Stream(non_blocking=True) as stream:
            cupy.cuda.Device().synchronize()
            stream.begin_capture()
            made[0](x, y)
            made[0](y, y)
            graph = stream.end_capture()
            for _ in range(calls):
                begin = int(local.integers(n + 64))
                x[...] = buffer[begin : begin + n]
                y.data.memset_async(POISON, y.nbytes)
                graph.launch(stream)
                made[1](x, want)
                self.compare(y, made[1](want, want))
            stream.synchronize()
            begin_time, repeats = time.perf_counter(), 200
            for _ in range(repeats):
                graph.launch(stream)
            stream.synchronize()
            each = (time.perf_counter() - begin_time) / repeats / 2 * 1e6
        made[0].check()
        self.calls[f"{made[0].strategy}, replays"] += calls
        if self.comm.rank == 0:
            print(f"{made[0].strategy}: {n} int64 on rank 0: {each:.1f} us a call", flush=True)
        self.end(made, f"a graph of {strategy}, {n} elements on this rank")
        return calls

    def end(self, plans: list[Any], form: str) -> None:
        """Close plans, and say if a result was wrong."""
        for plan in plans:
            plan.close()
        if int(self.wrong[0]):
            print(f"rank {self.comm.rank}: WRONG, {int(self.wrong[0])} bytes, {form}", flush=True)
            self.comm.Abort(1)


def main() -> None:
    """Run until enough calls are made."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--calls", type=int, help="the number of calls (100000), or replays (10000)"
    )
    parser.add_argument("--graphs", action="store_true", help="replay CUDA graphs")
    parser.add_argument("--each", type=int, default=1000, help="calls of a plan, on average")
    parser.add_argument("--largest", type=int, default=1 << 21, help="the most elements of a rank")
    parser.add_argument("--seed", type=int, help="the seed of all random numbers")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
    options.seed = comm.bcast(secrets.randbits(32) if options.seed is None else options.seed)
    campaign, calls, begin, latest = Campaign(options), 0, time.monotonic(), 0
    if comm.rank == 0:
        print(f"seed {options.seed}", flush=True)
    while calls < (options.calls or (10_000 if options.graphs else 100_000)):
        calls += campaign.graph() if options.graphs else campaign.plan()
        seconds = int(time.monotonic() - begin)
        if comm.rank == 0 and seconds >= latest + 10:
            print(f"{calls} calls in {seconds} s", flush=True)
            latest = seconds
    if comm.rank == 0:
        counts = ", ".join(f"{name} {count}" for name, count in campaign.calls.items())
        seconds = time.monotonic() - begin
        print(f"seed {options.seed}: {calls} calls, all right, in {seconds:.0f} s: {counts}")


if __name__ == "__main__":
    sys.exit(main())
