"""Times the kernels under several policies; distscan/backends/policy.py cites it.

    python launch/tune.py [OP:TYPE ...]        such as sum:f max:b; default: one of each size

One GPU. The device's time in microseconds, medians of 11, at 2^20 elements, at 2^24 and at 1 GiB on
the wider side; in brackets the share of the speed at which a copy of that size moves the same
bytes. A star marks the policy in use. Every result is checked before it is timed.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import cupy as cp
import numpy as np

from distscan import dtypes, operators
from distscan.backends import cuda, launches
from distscan.errors import KernelError
from distscan.forms import PLAIN

LARGE = 1 << 30  # bytes
BATCH, BATCH_BYTES = 32, 1 << 28  # calls between two events: so many, touching no more than that
CASES = ["sum:f", "sum:d", "sum:i", "prod:F", "sum:D", "sum:b", "sum:e", "min:H", "max:b"]
BESIDE = 4096  # bytes of shared memory that a scan leaves for other things than tiles
Work = Callable[[int], object]  # on buffers number i


def median(work: Work, calls: int) -> float:
    """Time one of ``calls`` in a row, each on buffers of its own.

    The copy that is queued first empties the cache, and lets the host run ahead.
    """
    ballast = [cp.empty(LARGE, np.uint8) for _ in range(2)]
    times = []
    for _ in range(13):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        ballast[1].data.copy_from_device_async(ballast[0].data, LARGE)
        begin.record()
        for i in range(calls):
            work(i)
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3 / calls)
    return float(np.median(times[2:]))


class Case:
    """One operator, type and size: buffers, the speed of a copy, the right result."""

    def __init__(self, op_name: str, code: str, power: int | None) -> None:
        self.op = operators.resolve(op_name)
        self.types = dtypes.resolve(self.op, np.dtype(code))
        wider = max(self.types.x.itemsize, self.types.out.itemsize)
        self.n = LARGE // wider if power is None else 1 << power
        self.calls = max(1, min(BATCH, BATCH_BYTES // (2 * wider * self.n)))
        x = cp.random.randint(-3, 4, (self.calls, self.n))
        if op_name == "prod":
            x = cp.where(x > 0, 1, -1)  # like sums of small integers: exact in every order
        self.x = x.astype(code)
        self.out = cp.empty((self.calls, self.n), self.types.out)
        self.offset = np.array(self.op.identity(self.types.acc))  # costs what others do
        bytes_each = wider * self.n
        a, b = (cp.empty((self.calls, bytes_each), np.uint8) for _ in range(2))
        copy = median(lambda i: b[i].data.copy_from_device_async(a[i].data, bytes_each), self.calls)
        self.rate = 2 * bytes_each / copy
        self.want: Any = None
        if op_name in ("sum", "prod"):
            call = cp.cumsum if op_name == "sum" else cp.cumprod
            self.want = call(self.x[0], dtype=self.types.acc).astype(self.types.out)

    def time(self, work: Work, *moved: np.dtype[Any], writes: bool = True) -> str:
        """Check, then time what moves an element of each type in ``moved``."""
        if writes:
            self.out.view(np.uint8)[...] = 0xA5
            work(0)
            if self.want is None:  # for other operators all others must be as the first
                self.want = self.out[0].copy()
            rounds = self.op.name == "logaddexp"  # whatever is drawn
            if not bool(cp.allclose(self.out[0], self.want, 1e-4 if rounds else 0, 0)):
                return "wrong"
        time = median(work, self.calls)
        share = sum(dtype.itemsize for dtype in moved) * self.n / time / self.rate
        return f"{time:7.1f} ({share:4.2f})"


# ---- what is timed: the steps of one rank, none of which waits for the other ----------------


def scan(case: Case) -> str:
    """Single-pass: 1 copy."""
    steps = cuda.SinglePass(case.op, case.types, case.n)
    return case.time(
        lambda i: steps.seed(case.x[i], case.out[i], None), case.types.x, case.types.out
    )


def unaligned(case: Case) -> str:
    """Single-pass, x and the result one and three elements behind where vectors begin."""
    n = case.n - 3
    steps = cuda.SinglePass(case.op, case.types, n)
    x, out = [row[1 : n + 1] for row in case.x], [row[3:] for row in case.out]
    want = cp.empty(n, case.types.out)
    steps.seed(x[0].copy(), want, None)
    out[0].view(np.uint8)[...] = 0xA5
    steps.seed(x[0], out[0], None)
    if not bool((out[0] == want).all()):
        return "wrong"
    return case.time(
        lambda i: steps.seed(x[i], out[i], None), case.types.x, case.types.out, writes=False
    )


def reduce(case: Case) -> str:
    """Half a copy."""
    steps = cuda.ReduceScan(case.op, case.types, case.n)
    return case.time(lambda i: steps.total(case.x[i], case.out[i]), case.types.x, writes=False)


def add(case: Case) -> str:
    """1 copy, of the wider type."""
    steps = cuda.ScanAdd(case.op, case.types, case.n)
    return case.time(
        lambda i: steps.seed(case.x[i], case.out[i], case.offset),
        case.types.acc,
        case.types.out,
        writes=False,
    )


def reduce_scan(case: Case) -> str:
    """1.5 copies."""
    return _both(case, cuda.ReduceScan, case.types.x, case.types.x, case.types.out)


def scan_add(case: Case) -> str:
    """2 copies."""
    acc = case.types.acc
    return _both(case, cuda.ScanAdd, case.types.x, acc, acc, case.types.out)


def _both(case: Case, strategy: Any, *moved: np.dtype[Any]) -> str:
    steps = strategy(case.op, case.types, case.n)

    def work(i: int) -> None:
        steps.total(case.x[i], case.out[i])
        steps.seed(case.x[i], case.out[i], case.offset)

    return case.time(work, *moved)


# ---- the policies ---------------------------------------------------------------------------


def scan_policies(case: Case) -> Iterator[Any]:
    """Policies like the one in use, with as many slots as there is room for."""
    device = cp.cuda.Device()
    types = launches.running(case.op, case.types)
    processors = device.attributes["MultiProcessorCount"]
    used = launches.scan_policy(types, PLAIN, device.compute_capability, LARGE, processors)
    yield used
    room = device.attributes["MaxSharedMemoryPerBlockOptin"] - BESIDE
    items = launches.per_vector(types.x, types.out)
    for threads, rows in product((256, 384, 512), (2, 4, 6, 8)):
        slots = min(room // (threads * rows * items * types.x.itemsize + 16), 12)
        policy = used._replace(threads=threads, rows=rows, slots=slots)
        if slots >= 2 and policy != used:
            yield policy


def reduce_policies(case: Case) -> Iterator[Any]:
    """Policies like the one in use."""
    arch = cp.cuda.Device().compute_capability
    used = launches.reduce_policy(case.op, launches.running(case.op, case.types), PLAIN, arch)
    yield used
    for threads, rows, blocks in product((256, 512), (4, 8), (2, 4)):
        policy = used._replace(threads=threads, rows=rows, blocks=blocks)
        if policy != used:
            yield policy


def columns(cases: list[Case], timed: Callable[[Case], str]) -> str:
    """Time one thing at every size."""
    found = []
    for case in cases:
        try:
            found.append(timed(case))
        except (KernelError, cp.cuda.driver.CUDADriverError) as error:
            found.append(type(error).__name__)
    return "".join(f"{text:>17}" for text in found)


def main() -> None:
    """Time every case; the local parts of the strategies under the policies in use."""
    gpu = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"].decode()
    print(f"{gpu}\n{'':50}{'2^20':>17}{'2^24':>17}{'1 GiB':>17}")
    for op_name, _, code in (text.partition(":") for text in sys.argv[1:] or CASES):
        cases = [Case(op_name, code, power) for power in (20, 24, None)]
        rates = "".join(f"{case.rate / 1e6:12.2f} TB/s" for case in cases)
        print(f"{op_name}:{code:4} {'copy':43}{rates}")
        for timed, policies in ((scan, scan_policies), (reduce, reduce_policies)):
            name = f"{timed.__name__}_policy"
            if not hasattr(launches, name):
                continue
            for i, policy in enumerate(policies(cases[0])):
                with patch.object(launches, name, lambda *_, chosen=policy: chosen):
                    shown = f"{timed.__name__:7}{tuple(policy)} {'' if i else '*'}"
                    print(f"{op_name}:{code:4} {shown:43}{columns(cases, timed)}", flush=True)
        for timed in (unaligned, add, reduce_scan, scan_add):
            print(f"{op_name}:{code:4} {timed.__name__:43}{columns(cases, timed)}", flush=True)
        del cases
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    # The host runs ahead of the GPU: what is timed is the GPU's work alone.
    with patch.object(cuda.HostTotal, "wait", lambda self, launch: np.zeros((), self._dtype)):
        main()
