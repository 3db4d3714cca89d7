"""Times the kernels, and with --policies others like them; distscan/cuda/policy.py cites it.

    python launch/tune.py [--policies] [OP:TYPE[:RESULT] ...]      such as sum:f max:b sum:i:i

One GPU. The device's time in microseconds, medians of 11, at 2^20 elements, at 2^24 and at 1 GiB on
the wider side; in brackets the share of the speed at which a copy of that size moves the same
bytes. Every result is checked before it is timed. Without arguments: every form and strategy for
types of each size, then the plain scan by every operator.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import cupy as cp
import numpy as np

from distscan.core import dtypes, operators
from distscan.core.errors import KernelError
from distscan.core.form import PLAIN, Form
from distscan.cuda import configs, launches, policy
from distscan.cuda import steps as cuda
from distscan.cuda.policy import VECTOR

LARGE = 1 << 30  # bytes
BATCH, BATCH_BYTES = 32, 1 << 28  # calls between two events: so many, touching no more than that
# Operator, type and, where it is another than NumPy's, type of the result.
CASES = ["sum:f", "sum:d", "sum:i:i", "sum:l", "sum:F", "sum:D"]
CASES += ["sum:b", "sum:i", "sum:e", "min:H", "max:b"]  # promoting, and narrow ones
OPERATORS = ["prod:f", "max:f", "min:f", "logaddexp:f", "logical_and:f", "logical_xor:f"]
OPERATORS += ["prod:i:i", "max:i", "min:i", "bitwise_and:i", "bitwise_or:i", "bitwise_xor:i"]
OPERATORS += ["logical_and:i", "logical_or:i"]
SEGMENT = 64  # elements of a segment on average
BESIDE = 4096  # bytes of shared memory that a scan leaves for other things than tiles
Work = Callable[[int], object]  # on buffers number i


class WrongError(Exception):
    """A result is wrong."""


def median(work: Work, calls: int, before: Work = lambda i: None) -> float:
    """Time one of ``calls`` in a row, each on buffers of its own; ``before`` them is not timed.

    The copy that is queued first empties the cache, and lets the host run ahead; for that it does
    not wait for totals either.
    """
    ballast = [cp.empty(LARGE, np.uint8) for _ in range(2)]
    times = []
    for _ in range(13):
        for i in range(calls):
            before(i)
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        ballast[1].data.copy_from_device_async(ballast[0].data, LARGE)
        begin.record()
        with patch.object(launches.HostTotal, "wait", lambda self, *_: np.zeros((), self.dtype)):
            for i in range(calls):
                work(i)
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3 / calls)
    return float(np.median(times[2:]))


def whole(steps: Any, x: Any, out: Any, offset: Any = None, marks: Any = None) -> None:
    """Queue both halves of a call, with nothing between them."""
    steps.finish(steps.begin(x, out, marks, overlap=isinstance(steps, cuda.SinglePass)), offset)


class Case:
    """One operator, type and size: buffers, the speed of a copy, the right result."""

    def __init__(self, text: str, power: int | None) -> None:
        op_name, code, *result = text.split(":")
        self.op = operators.resolve(op_name)
        self.types = dtypes.resolve(self.op, code, *result)
        wider = max(self.types.x.itemsize, self.types.out.itemsize)
        self.n = LARGE // wider if power is None else 1 << power
        self.calls = max(1, min(BATCH, BATCH_BYTES // (2 * wider * self.n)))
        x = cp.random.randint(-3, 4, (self.calls, self.n))
        if op_name == "prod":
            x = cp.where(x > 0, 1, -1)  # like sums of small integers: exact in every order
        if op_name in ("max", "min"):  # a slope, or the result is soon constant
            x += cp.arange(self.n)[:: 1 if op_name == "max" else -1] * 100 // self.n + 3
        self.x = x.astype(code)
        self.out = cp.empty((self.calls, self.n), self.types.out)
        self.offset = np.array(self.op.identity(self.types.acc))  # costs what others do
        bytes_each = wider * self.n
        a, b = (cp.empty((self.calls, bytes_each), np.uint8) for _ in range(2))
        copy = median(lambda i: b[i].data.copy_from_device_async(a[i].data, bytes_each), self.calls)
        self.rate = 2 * bytes_each / copy
        if op_name in ("sum", "prod"):
            call = cp.cumsum if op_name == "sum" else cp.cumprod
            self.want = call(self.x[0], dtype=self.types.acc).astype(self.types.out)
        elif op_name == "logaddexp":
            self.want = cp.log(cp.cumsum(cp.exp(self.x[0].astype(np.float64))))
        else:
            x = cp.asnumpy(self.x[0])
            self.want = cp.asarray(self.op.numpy.accumulate(x, dtype=self.types.acc))

    def check(self, got: Any, want: Any) -> None:
        """Raise where a result is not the right one, or for logaddexp not near it."""
        got, want = cp.asarray(got), cp.asarray(want)
        near = cp.allclose(got, want, 1e-4, 1e-4) if self.op.name == "logaddexp" else got == want
        if not bool(near.all()):
            raise WrongError

    def scanned(self, x: Any, form: Form = PLAIN, heads: Any = None) -> Any:
        """Scan ``x`` in some form, into memory that held something else."""
        out = cp.empty(x.shape, self.types.out)
        out.view(np.uint8)[...] = 0xA5
        whole(cuda.SinglePass(self.op, self.types, len(x), form), x, out, None, heads)
        return out

    def time(self, work: Work, *moved: np.dtype[Any], before: Work = lambda i: None) -> str:
        """Time what moves an element of each type in ``moved``."""
        time = median(work, self.calls, before)
        share = sum(dtype.itemsize for dtype in moved) * self.n / time / self.rate
        return f"{time:7.1f} ({share:4.2f})"


# ---- what is timed: the steps of one rank, none of which waits for the other ----------------


def scan(case: Case, form: Form = PLAIN) -> str:
    """Single-pass: 1 copy."""
    if form is PLAIN:
        case.check(case.scanned(case.x[0]), case.want)
    steps = cuda.SinglePass(case.op, case.types, case.n, form)
    return case.time(lambda i: whole(steps, case.x[i], case.out[i]), case.types.x, case.types.out)


def in_place(case: Case) -> str:
    """Time a scan onto the shard, which is put back before each round, or values would grow."""
    if case.types.x != case.types.out:
        return ""
    steps = cuda.SinglePass(case.op, case.types, case.n)

    def put_back(i: int) -> None:
        case.out[i] = case.x[i]

    def work(i: int) -> None:
        whole(steps, case.out[i], case.out[i])

    put_back(0)
    work(0)
    case.check(case.out[0], case.want)
    return case.time(work, case.types.x, case.types.out, before=put_back)


def exclusive(case: Case) -> str:
    """1 copy."""
    form = Form(exclusive=True, first=case.offset)
    out = case.scanned(case.x[0], form)
    case.check(out[0], case.offset.astype(case.types.out))
    case.check(out[1:], case.want[:-1])
    return scan(case, form)


def reverse(case: Case) -> str:
    """1 copy."""
    form = Form(reverse=True)
    case.check(case.scanned(case.x[0, ::-1].copy(), form)[::-1], case.want)
    return scan(case, form)


def segments(case: Case) -> str:
    """1 copy, and a flag an element is read."""
    form = Form(segmented=True)
    heads = cp.random.randint(0, SEGMENT, case.x.shape, "b") == 0
    heads[0, 0] = True
    x = case.x[0].astype(case.types.acc)
    out = case.scanned(case.x[0], form, heads[0])
    # Each element of the result from the one before; segments are too short to round.
    case.check(out, cp.where(heads[0], x, case.op.numpy(cp.roll(out, 1), x)))
    steps = cuda.SinglePass(case.op, case.types, case.n, form)
    return case.time(
        lambda i: whole(steps, case.x[i], case.out[i], None, heads[i]),
        case.types.x,
        heads.dtype,
        case.types.out,
    )


def unaligned(case: Case) -> str:
    """Single-pass, x and the result one and three elements behind where vectors begin."""
    n = case.n - 3
    steps = cuda.SinglePass(case.op, case.types, n)
    x, out = [row[1 : n + 1] for row in case.x], [row[3:] for row in case.out]
    out[0].view(np.uint8)[...] = 0xA5
    whole(steps, x[0], out[0])
    case.check(out[0], case.scanned(x[0].copy()))
    return case.time(lambda i: whole(steps, x[i], out[i]), case.types.x, case.types.out)


def reduce(case: Case) -> str:
    """Half a copy."""
    steps = cuda.ReduceScan(case.op, case.types, case.n)
    total = steps.begin(case.x[0], case.out[0]).total()
    case.check(total.astype(case.types.out), case.want[-1])
    return case.time(lambda i: steps.begin(case.x[i], case.out[i]), case.types.x)


def add(case: Case) -> str:
    """1 copy, of the wider type."""
    steps = cuda.ScanAdd(case.op, case.types, case.n)
    whole(steps, case.x[0], case.out[0], case.offset)
    case.check(case.out[0], case.want)
    calls = [steps.begin(x, out) for x, out in zip(case.x, case.out, strict=True)]
    return case.time(lambda i: steps.finish(calls[i], case.offset), case.types.acc, case.types.out)


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
        whole(steps, case.x[i], case.out[i], case.offset)

    case.out.view(np.uint8)[...] = 0xA5
    work(0)
    case.check(case.out[0], case.want)
    return case.time(work, *moved)


# ---- the policies ---------------------------------------------------------------------------


def scan_policies(case: Case, form: Form = PLAIN) -> Iterator[Any]:
    """Give the policy in use, then others like it, with as many stages as there is room for."""
    device = cp.cuda.Device()
    types = configs.register_types(case.op, case.types)
    sm_count = device.attributes["MultiProcessorCount"]
    used = policy.scan_policy(types, form, device.compute_capability, LARGE, sm_count)
    yield used
    room = device.attributes["MaxSharedMemoryPerBlockOptin"] - BESIDE
    wide = [used.items * times // 2 for times in ((2,) if form is PLAIN else (1, 2, 4))]
    for threads, rows, items in product((256, 384, 512), (2, 3, 4, 6, 8), wide):
        if not 0 < items * types.x.itemsize <= VECTOR:
            continue
        tile = threads * rows * items * (types.x.itemsize + form.segmented)
        stages = min(room // (tile + 32), 12)
        cut = {"threads": threads, "rows": rows, "items": items, "stages": stages}
        # As many warp tiles for each; a warp tile for each warp.
        reducers = next(r for r in (used.reducers, 6) if threads // 32 % r == 0)
        other = used._replace(**cut, reducers=reducers)
        if stages >= 2 and other != used:
            yield other


def segment_policies(case: Case) -> Iterator[Any]:
    """Give the same for segments, with other vectors too."""
    return scan_policies(case, Form(segmented=True))


def reduce_policies(case: Case) -> Iterator[Any]:
    """Give the policy in use, then others like it."""
    arch = cp.cuda.Device().compute_capability
    used = policy.reduce_policy(case.op, configs.register_types(case.op, case.types), PLAIN, arch)
    yield used
    for threads, rows, blocks in product((256, 512), (4, 8), (2, 4)):
        other = used._replace(threads=threads, rows=rows, blocks=blocks)
        if other != used:
            yield other


POLICIES = [
    (scan, configs, "scan_policy", scan_policies),
    (segments, configs, "scan_policy", segment_policies),
    (reduce, launches, "reduce_policy", reduce_policies),
]
ROWS = scan, in_place, exclusive, reverse, segments, unaligned, reduce, add, reduce_scan, scan_add


def show(name: str, cases: list[Case], timed: Callable[[Case], str]) -> None:
    """Print a row: one thing at every size."""
    found = []
    for case in cases:
        try:
            found.append(timed(case))
        except (WrongError, KernelError, cp.cuda.driver.CUDADriverError) as error:
            found.append(type(error).__name__)
    print(f"{name:50}" + "".join(f"{text:>17}" for text in found), flush=True)


def main() -> None:
    """Time every case."""
    gpu = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"].decode()
    print(f"{gpu}\n{'':50}{'2^20':>17}{'2^24':>17}{'1 GiB':>17}")
    given = [text for text in sys.argv[1:] if not text.startswith("-")]
    for text in given or CASES + OPERATORS:
        cases = [Case(text, power) for power in (20, 24, None)]
        rates = "".join(f"{case.rate / 1e6:12.2f} TB/s" for case in cases)
        print(f"{text + ' copy':50}{rates}")
        for timed in ROWS if given or text in CASES else (scan,):
            show(f"{text} {timed.__name__}", cases, timed)
        if "--policies" in sys.argv:
            for timed, user, name, policies in POLICIES:
                for other in policies(cases[0]):
                    with patch.object(user, name, lambda *_, chosen=other: chosen):
                        show(f"{text} {timed.__name__} {tuple(other)}", cases, timed)
        del cases
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
