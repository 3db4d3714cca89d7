"""Times scans along every axis; distscan/cuda/columns.py cites it.

    python launch/tools/tune_axes.py [--policies] [TYPE ...]        such as f d; default: those two

One GPU. The device's time in microseconds, medians of 11, of a sum over 1 GiB or less; in brackets
the share of the speed at which a copy moves the same bytes, and of the speed of the 1-D scan. Each
result is checked before it is timed. --policies: scans down columns also under others than the
policy in use.
"""

import sys
from collections.abc import Callable
from functools import partial
from math import prod

import cupy as cp
import gpu_steps
from mpi4py import MPI

import distscan
from distscan.bench import timing
from distscan.bench.timing import Gpu
from distscan.core.errors import KernelError

MACHINE = Gpu("")
MOST = 1 << 30  # bytes
# Shape and axis, for 4-byte elements; of wider ones the first axis is shorter.
CASES: list[tuple[tuple[int, ...], int]] = [
    ((1 << 28,), 0),
    ((1 << 14, 1 << 14), 0),
    ((1 << 20, 256), 0),
    ((1 << 26, 4), 0),
    ((64, 1 << 11, 1 << 11), 1),
    ((1 << 10, 1 << 9, 1 << 9), 1),
    ((1 << 20, 4, 64), 1),
    ((1 << 14, 1 << 14), 1),
    ((1 << 26, 4), 1),
    (((1 << 28) // 5, 5), 1),
    (((1 << 28) // 1000, 1000), 1),
    ((1 << 22, 63), 0),  # rows that vectors do not divide, or sectors
    ((1 << 18, 1001), 0),
    ((1 << 14, 16383), 0),
    ((5 << 19, 100), 0),
    ((1 << 26, 3), 0),
    ((1 << 25, 8), 0),
    ((1 << 24, 16), 0),
    ((1 << 23, 32), 0),
    ((1 << 22, 64), 0),
    ((1 << 18, 1024), 0),
]


class Case:
    """One shape, axis and type: buffers, the right result."""

    def __init__(self, shape: tuple[int, ...], axis: int, code: str) -> None:
        dtype = cp.dtype(code)
        while prod(shape) * dtype.itemsize > MOST:
            shape = (shape[0] // 2, *shape[1:])
        self.shape, self.axis, self.n = shape, axis, shape[axis]
        self.outer, self.inner = prod(shape[:axis]), prod(shape[axis + 1 :])
        self.x = cp.random.randint(-3, 4, prod(shape), "b").astype(dtype).reshape(shape)
        self.y = cp.empty_like(self.x)
        self.bytes = self.x.nbytes

    def plan(self) -> distscan.Plan:
        """Plan the sum along the axis, on this rank alone; the result is of the same type."""
        dtype, form = self.x.dtype, {"axis": self.axis, "strategy": "single-pass"}
        return distscan.Plan(
            MPI.COMM_SELF, self.shape, dtype, out_dtype=dtype, backend="cuda", **form
        )

    def copy(self) -> float:
        """Time a copy of the same bytes."""
        copy = partial(self.y.data.copy_from_device_async, self.x.data, self.bytes)
        return timing.queued(MACHINE, [copy]).median

    def scan(self) -> float | None:
        """Check, then time; None if the result is wrong."""
        scan = partial(self.plan(), self.x, self.y)
        gpu_steps.poison(self.y)
        scan()
        return timing.queued(MACHINE, [scan]).median if self.right() else None

    def reduce(self) -> float | None:
        """Check, then time the totals of the columns."""
        plan = self.plan()
        totals, reduce = gpu_steps.column_reducer(plan.op, plan.types, (self.n, self.inner))
        reduce(self.x)
        if not bool((totals == self.x.reshape(self.n, -1).sum(axis=0)).all()):
            return None
        return timing.queued(MACHINE, [partial(reduce, self.x)]).median

    def right(self) -> bool:
        """Whether y is the scan of x: neighbours differ by x, and the first are those of x."""
        shape = self.outer, self.n, self.inner
        x, y = self.x.reshape(shape), self.y.reshape(shape)
        if not bool((y[:, 0] == x[:, 0]).all()):
            return False
        step = max(self.n * (32 << 20) // self.bytes, 1)
        for low in range(1, self.n, step):
            high = min(low + step, self.n)
            if not bool((y[:, low:high] - y[:, low - 1 : high - 1] == x[:, low:high]).all()):
                return False
        return True


# Other policies than the one in use; None: the kernel that is not in use.
OTHERS: list[dict[str, int] | None] = [
    {"reducers": 8},
    {"look_ahead_warps": 1, "loaders": 2},
    {"look_ahead_warps": 2, "loaders": 1},
    {"look_ahead_warps": 3},
    {"reads": 4},
    {"reads": 8},
    {"panel": 1},
    {"panel": 4},
    {"panel": 16},
    {"group": 8},
    {"group": 16},
    None,
]


def named(other: dict[str, int] | None) -> str:
    """Name a policy by what differs from the one in use."""
    return "other kernel" if other is None else ", ".join(f"{k} {n}" for k, n in other.items())


def timed(work: Callable[[], float | None]) -> float | str:
    """Return a time, or what stands for it."""
    try:
        return work() or "wrong"
    except (KernelError, NotImplementedError, cp.cuda.driver.CUDADriverError) as error:
        return type(error).__name__


def show(case: Case, what: str, time: float | str, copy: float, plain: float) -> None:
    """Print a time, with its shares of a copy's speed and of the 1-D scan's."""
    if not isinstance(time, str):
        time = f"{time:8.1f} ({copy / time:4.2f} {plain / time:4.2f})"
    code = case.x.dtype.char
    print(f"{code} {case.shape!s:20} axis {case.axis}  {what:26} {time}", flush=True)


def main() -> None:
    """Time every case."""
    gpu = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"].decode()
    print(f"{gpu}, microseconds (share of a copy, of the 1-D scan)")
    every = "--policies" in sys.argv
    for code in [text for text in sys.argv[1:] if not text.startswith("-")] or ["f", "d"]:
        rate = 0.0  # bytes per microsecond of the 1-D scan, which comes first
        for shape, axis in CASES:
            case = Case(shape, axis, code)
            copy, found = case.copy(), timed(case.scan)
            if not rate and not isinstance(found, str):
                rate = case.bytes / found
            plain = case.bytes / rate if rate else 0.0
            show(case, "scan", found, copy, plain)
            if case.inner > 1 and case.outer == 1:
                show(case, "reduce", timed(case.reduce), copy / 2, plain / 2)
            if every and case.inner > 1:
                for other in OTHERS:
                    with gpu_steps.column_policy(other):
                        show(case, named(other), timed(case.scan), copy, plain)
            del case
            cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
