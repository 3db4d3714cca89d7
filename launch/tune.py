"""Times the kernels of every strategy under several policies; distscan/backends/policy.py cites it.

    python launch/tune.py

One GPU, 1 GiB of random numbers on the wider side, medians of 11 in microseconds; in brackets the
share of the speed at which a copy moves the same bytes. A star marks the policy in use.
"""

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import cupy as cp
import numpy as np

from distscan import dtypes, operators
from distscan.backends import cuda
from distscan.backends.policy import Policy

SIZE = 1 << 30  # bytes
CASES = [("sum", "f"), ("sum", "d"), ("sum", "i"), ("prod", "F"), ("sum", "D"), ("sum", "b"),
         ("sum", "e"), ("min", "H"), ("max", "b")]  # fmt: skip
POLICIES = [(256, 1, 4), (256, 2, 2), (256, 2, 3), (256, 2, 4), (256, 4, 2), (512, 2, 2)]


def median(work: Callable[[], object]) -> float:
    """Time the current stream's work by events, after two runs to warm up."""
    times = []
    for _ in range(13):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3)
    return float(np.median(times[2:]))


def case(op_name: str, code: str, copy: float) -> None:
    """Print one line per policy; ``copy`` is the time of a copy of SIZE bytes."""
    op = operators.resolve(op_name)
    types = dtypes.resolve(op, np.dtype(code))
    n = SIZE // max(types.x.itemsize, types.out.itemsize)
    x = cp.random.randint(1 if op_name == "prod" else -3, 4, n).astype(code)
    out, other, offset = cp.empty(n, types.out), cp.empty(n, types.out), np.zeros((), types.acc)
    size_x, size_acc, size_out = types.x.itemsize, types.acc.itemsize, types.out.itemsize
    used = cuda.policy(types)
    for policy in sorted({used, *(Policy(*shape, used.add_blocks) for shape in POLICIES)}):
        with patch.object(cuda, "policy", lambda _, chosen=policy: chosen):
            steps, others = cuda.ScanAdd(op, types, x), cuda.ReduceScan(op, types, x)
        for strategy, result in ((steps, out), (others, other)):
            strategy.total(x, result)
            strategy.seed(x, result, None)
        if op_name != "prod" and not bool((out == other).all()):  # small integers are exact
            raise SystemExit(f"{op_name} {code} {policy}: the strategies differ")
        kernels = {
            "scan": (size_x + size_acc, partial(steps.total, x, out)),
            "add": (size_acc + size_out, partial(steps.seed, x, out, offset)),
            "reduce": (size_x, partial(others.total, x, other)),
            "seeded": (size_x + size_out, partial(others.seed, x, other, offset)),
        }
        line = f"{op_name:4} {code} {policy[:3]!s:13} {'*' if policy == used else ' '}"
        for name, (moved, work) in kernels.items():
            time = median(work)
            line += f"  {name} {time:7.1f} ({n * moved / (2 * SIZE) * copy / time:4.2f})"
        print(line, flush=True)


def main() -> None:
    """Time a copy, then every case."""
    a, b = cp.random.rand(SIZE // 4, dtype="f"), cp.empty(SIZE // 4, "f")
    copy = median(partial(b.data.copy_from_device_async, a.data, SIZE))
    name = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"].decode()
    print(f"{name}: a copy of {SIZE >> 20} MiB takes {copy:.1f} us")
    for op_name, code in CASES:
        case(op_name, code, copy)
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
