"""Times the kernels, and with --policies others like them; distscan/cuda/policy.py cites it.

    python launch/tools/tune.py [--policies] [OP:TYPE[:RESULT] ...]      such as sum:f max:b sum:i:i

One GPU. The device's time in microseconds, medians of 11, at 2^20 elements, at 2^24 and at 1 GiB on
the wider side; in brackets the share of the speed at which a copy of that size moves the same
bytes. Every result is checked before it is timed. Without arguments: every form and strategy for
types of each size, then the plain scan by every operator.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import cupy as cp
import gpu_steps
import numpy as np
from gpu_steps import poison
from mpi4py import MPI

import distscan
from distscan.bench import timing
from distscan.bench.timing import Gpu
from distscan.core import dtypes, operators
from distscan.core.errors import KernelError
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
Work = Callable[[Any, Any], object]  # on x [n] and out [n]
MACHINE = Gpu("")


class WrongError(Exception):
    """A result is wrong."""


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
        copies = [
            partial(to.data.copy_from_device_async, of.data, bytes_each)
            for of, to in zip(a, b, strict=True)
        ]
        self.rate = 2 * bytes_each / timing.queued(MACHINE, copies).median
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

    def plan(self, n: int | None = None, strategy: str = "single-pass", **form: Any) -> Any:
        """Plan a scan of ``n`` elements on this rank alone."""
        types = self.types
        n = self.n if n is None else n
        return distscan.Plan(MPI.COMM_SELF, n, types.x, self.op.name, out_dtype=types.out,
                             strategy=strategy, backend="cuda", **form)  # fmt: skip

    def scanned(self, x: Any, *segments: Any, **form: Any) -> Any:
        """Scan ``x`` in some form, into memory that held something else."""
        out = cp.empty(x.shape, self.types.out)
        poison(out)
        return self.plan(len(x), **form)(x, out, *segments)

    def time(self, work: Work, *moved: np.dtype[Any], before: timing.Call = lambda: None) -> str:
        """Time what moves an element of each type in ``moved``, call by call on other buffers."""
        pairs = zip(self.x, self.out, strict=True)
        return self.time_calls([partial(work, *pair) for pair in pairs], *moved, before=before)

    def time_calls(
        self,
        calls: list[timing.Call],
        *moved: np.dtype[Any],
        before: timing.Call = lambda: None,
    ) -> str:
        """Time calls that move as much each."""
        time = timing.queued(MACHINE, calls, before).median
        share = sum(dtype.itemsize for dtype in moved) * self.n / time / self.rate
        return f"{time:7.1f} ({share:4.2f})"


# ---- what is timed -------------------------------------------------------------------------


def scan(case: Case, **form: Any) -> str:
    """Single-pass: 1 copy."""
    if not form:
        case.check(case.scanned(case.x[0]), case.want)
    return case.time(case.plan(**form), case.types.x, case.types.out)


def in_place(case: Case) -> str:
    """Time a scan onto the shard, which is put back before each round, or values would grow."""
    if case.types.x != case.types.out:
        return ""
    plan = case.plan()

    def put_back() -> None:
        case.out[...] = case.x

    put_back()
    case.check(plan(case.out[0], case.out[0]), case.want)
    calls = [partial(plan, row, row) for row in case.out]
    return case.time_calls(calls, case.types.x, case.types.out, before=put_back)


def exclusive(case: Case) -> str:
    """1 copy."""
    form = {"exclusive": True, "initial": case.offset}
    out = case.scanned(case.x[0], **form)
    case.check(out[0], case.offset.astype(case.types.out))
    case.check(out[1:], case.want[:-1])
    return scan(case, **form)


def reverse(case: Case) -> str:
    """1 copy."""
    case.check(case.scanned(case.x[0, ::-1].copy(), reverse=True)[::-1], case.want)
    return scan(case, reverse=True)


def segments(case: Case) -> str:
    """1 copy, and a flag an element is read."""
    heads = cp.random.randint(0, SEGMENT, case.x.shape, "b") == 0
    heads[0, 0] = True
    x = case.x[0].astype(case.types.acc)
    out = case.scanned(case.x[0], heads[0], segments=True)
    # Each element of the result from the one before; segments are too short to round.
    case.check(out, cp.where(heads[0], x, case.op.numpy(cp.roll(out, 1), x)))
    plan = case.plan(segments=True)
    calls = [partial(plan, *row) for row in zip(case.x, case.out, heads, strict=True)]
    return case.time_calls(calls, case.types.x, heads.dtype, case.types.out)


def unaligned(case: Case) -> str:
    """Single-pass, x and the result one and three elements behind where vectors begin."""
    n = case.n - 3
    plan = case.plan(n)
    x, out = [row[1 : n + 1] for row in case.x], [row[3:] for row in case.out]
    poison(out[0])
    case.check(plan(x[0], out[0]), case.scanned(x[0].copy()))
    calls = [partial(plan, *pair) for pair in zip(x, out, strict=True)]
    return case.time_calls(calls, case.types.x, case.types.out)


def reduce(case: Case) -> str:
    """Half a copy."""
    call = gpu_steps.reducer(case.op, case.types, case.n)
    case.check(call(case.x[0], case.out[0]).total().astype(case.types.out), case.want[-1])
    return case.time(call, case.types.x)


def add(case: Case) -> str:
    """1 copy, of the wider type."""
    calls = [
        gpu_steps.adder(case.op, case.types, x, out, case.offset)
        for x, out in zip(case.x, case.out, strict=True)
    ]
    calls[0]()
    case.check(case.out[0], case.want)
    return case.time_calls(calls, case.types.acc, case.types.out)


def reduce_scan(case: Case) -> str:
    """1.5 copies, and the host's wait for the total in between."""
    return _both(case, "reduce-scan", case.types.x, case.types.x, case.types.out)


def scan_add(case: Case) -> str:
    """2 copies, and the host's wait for the total in between."""
    acc = case.types.acc
    return _both(case, "scan-add", case.types.x, acc, acc, case.types.out)


def _both(case: Case, strategy: str, *moved: np.dtype[Any]) -> str:
    plan = case.plan(strategy=strategy)
    poison(case.out)
    case.check(plan(case.x[0], case.out[0]), case.want)
    return case.time(plan, *moved)


# ---- the policies ---------------------------------------------------------------------------


def scan_policies(case: Case, *, segmented: bool = False) -> Iterator[Any]:
    """Give the policy in use, then others like it, with as many stages as there is room for."""
    types, used = gpu_steps.scan_policy(case.op, case.types, LARGE, segmented=segmented)
    yield used
    room = cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"] - BESIDE
    wide = [used.items * times // 2 for times in ((1, 2, 4) if segmented else (2,))]
    for threads, rows, items in product((256, 384, 512), (2, 3, 4, 6, 8), wide):
        if not 0 < items * types.x.itemsize <= VECTOR:
            continue
        tile = threads * rows * items * (types.x.itemsize + segmented)
        stages = min(room // (tile + 32), 12)
        cut = {"threads": threads, "rows": rows, "items": items, "stages": stages}
        # As many warp tiles for each; a warp tile for each warp.
        reducers = next(r for r in (used.reducers, 6) if threads // 32 % r == 0)
        policy = used._replace(**cut, reducers=reducers)
        if stages >= 2 and policy != used:
            yield policy


def segment_policies(case: Case) -> Iterator[Any]:
    """Give the same for segments, with other vectors too."""
    return scan_policies(case, segmented=True)


def reduce_policies(case: Case) -> Iterator[Any]:
    """Give the policy in use, then others like it."""
    used = gpu_steps.reduce_policy(case.op, case.types)
    yield used
    for threads, rows, blocks in product((256, 512), (4, 8), (2, 4)):
        policy = used._replace(threads=threads, rows=rows, blocks=blocks)
        if policy != used:
            yield policy


POLICIES = [
    (scan, "scan_policy", scan_policies),
    (segments, "scan_policy", segment_policies),
    (reduce, "reduce_policy", reduce_policies),
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
            for timed, name, policies in POLICIES:
                for policy in policies(cases[0]):
                    with gpu_steps.chosen(name, policy):
                        show(f"{text} {timed.__name__} {tuple(policy)}", cases, timed)
        del cases
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
