"""Times the kernels, and with --policies others like them, on one GPU.

    python launch/tools/tune.py [--policies] [OP:TYPE[:RESULT] ...]      such as sum:f max:b sum:i:i
    python launch/tools/tune.py --axes [--policies] [TYPE ...]           such as f d (default)

Times are the device's, in microseconds, medians of 11. In brackets: the share of the speed at which
a copy moves the same bytes. Every result is checked before it is timed.

- distscan/cuda/policy.py cites the first form: at 2^20 elements, at 2^24, and at 1 GiB on the wider
  side. Without arguments: every form and strategy for types of each size, then the plain scan by
  every operator.
- distscan/cuda/columns.py cites --axes: sums along every axis, over 1 GiB or less. In brackets also
  the share of the speed of the 1-D scan.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from math import prod
from typing import Any
from unittest.mock import patch

import cupy as cp
import numpy as np
from mpi4py import MPI

import distscan
from distscan.bench import timing
from distscan.bench.timing import Gpu
from distscan.core import dtypes, operators
from distscan.core.dtypes import Types
from distscan.core.errors import KernelError
from distscan.core.form import PLAIN, Extents, Form
from distscan.core.operators import Operator
from distscan.cuda import columns, definitions, launches, policy
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
Work = Callable[[Any, Any], object]  # on x [n] and out [n]
MACHINE = Gpu("")


# ---- beside the public names: steps of the GPU, and policies --------------------------------


def reducer(op: Operator, types: Types, n: int) -> Callable[[Any, Any], Any]:
    """Return a call that begins to reduce x [n], and returns what knows the total.

    The call's second argument is where a scan would be stored; nothing is.
    """
    return cuda.ReduceScan(op, types, Form(Extents(length=n))).begin


def adder(op: Operator, types: Types, x: Any, out: Any, offset: Any) -> Callable[[], object]:
    """Scan ``x`` [n] into ``out`` [n]; return a call that adds ``offset`` [()] to every element."""
    steps = cuda.ScanAdd(op, types, Form(Extents(length=len(x))))
    pending = steps.begin(x, out)
    return lambda: steps.finish(pending, offset)


def column_reducer(
    op: Operator, types: Types, shape: tuple[int, int]
) -> tuple[Any, Callable[[Any], object]]:
    """Return totals [shape[1]], and a call that reduces the columns of x [shape] to them."""
    n, inner = shape
    kernel = columns.Reduce(op, types, n, Form(Extents(inner=inner)))
    totals = cp.empty(inner, types.acc)

    def reduce(x: Any) -> None:
        kernel.prepare(x, totals.data.ptr, epoch=1)
        cuda.launch(kernel, cp.cuda.get_current_stream())

    return totals, reduce


def scan_policy(op: Operator, types: Types, nbytes: int, *, segmented: bool) -> tuple[Types, Any]:
    """Return the types that threads hold, and the policy of a scan of so many elements."""
    types = definitions.register_types(op, types)
    form = Form(segmented=True) if segmented else PLAIN
    arch = cp.cuda.Device().compute_capability
    return types, policy.scan_policy(types, form, arch, nbytes, policy.sm_count())


def reduce_policy(op: Operator, types: Types) -> Any:
    """Return the policy of a reduction."""
    types = definitions.register_types(op, types)
    return policy.reduce_policy(op, types, PLAIN, cp.cuda.Device().compute_capability)


@contextmanager
def replaced(name: str, instead: Any) -> Iterator[None]:
    """Put ``instead`` in the place of what ``name`` would return, while kernels are made."""
    with patch.object(policy if name == "scan_policy" else launches, name, lambda *_: instead):
        yield


@contextmanager
def column_policy(change: dict[str, int] | None) -> Iterator[None]:
    """Change fields of the policy down columns; None: take the kernel that is not in use."""
    by_blocks, by_threads = columns.columns_policy, columns.thread_policy

    def changed(*arguments: Any) -> Any:
        fields, strips = by_blocks(*arguments)
        return fields._replace(**(change or {})), strips

    def other(types: Any, inner: int, count: int, sm_count: int) -> Any:
        """Scan by threads where blocks would, and the other way round."""
        if by_threads(types, inner, count, sm_count) is not None:
            return None
        return by_threads(types, inner, 1 << 40, sm_count)

    with ExitStack() as stack:
        threads = other if change is None else lambda *_: None
        stack.enter_context(patch.object(columns, "thread_policy", threads))
        if change is not None:
            stack.enter_context(patch.object(columns, "columns_policy", changed))
        yield


def poison(array: Any) -> None:
    """Overwrite every byte, so that no result can be left from before."""
    array.view(np.uint8)[...] = 0xA5


# ---- forms, at several sizes ---------------------------------------------------------------


class WrongError(Exception):
    """A result is wrong."""


FAULTS = (WrongError, KernelError, NotImplementedError, cp.cuda.driver.CUDADriverError)


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
        self.rate = 2 * bytes_each / timing.time_queued(MACHINE, copies).median
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
        self, calls: list[timing.Call], *moved: np.dtype[Any], before: timing.Call = lambda: None
    ) -> str:
        """Time calls that move as much each."""
        time = timing.time_queued(MACHINE, calls, before).median
        share = sum(dtype.itemsize for dtype in moved) * self.n / time / self.rate
        return f"{time:7.1f} ({share:4.2f})"


# ---- the rows of the table -----------------------------------------------------------------


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
    """Single-pass, x and the result one and three elements after the begin of a vector."""
    n = case.n - 3
    plan = case.plan(n)
    x, out = [row[1 : n + 1] for row in case.x], [row[3:] for row in case.out]
    poison(out[0])
    case.check(plan(x[0], out[0]), case.scanned(x[0].copy()))
    calls = [partial(plan, *pair) for pair in zip(x, out, strict=True)]
    return case.time_calls(calls, case.types.x, case.types.out)


def reduce(case: Case) -> str:
    """Half a copy."""
    call = reducer(case.op, case.types, case.n)
    case.check(call(case.x[0], case.out[0]).total().astype(case.types.out), case.want[-1])
    return case.time(call, case.types.x)


def add(case: Case) -> str:
    """1 copy, of the wider type."""
    calls = [
        adder(case.op, case.types, x, out, case.offset)
        for x, out in zip(case.x, case.out, strict=True)
    ]
    calls[0]()
    case.check(case.out[0], case.want)
    return case.time_calls(calls, case.types.acc, case.types.out)


def reduce_scan(case: Case) -> str:
    """1.5 copies, and the host's wait for the total in between."""
    return _two_passes(case, "reduce-scan", case.types.x, case.types.x, case.types.out)


def scan_add(case: Case) -> str:
    """2 copies, and the host's wait for the total in between."""
    acc = case.types.acc
    return _two_passes(case, "scan-add", case.types.x, acc, acc, case.types.out)


def _two_passes(case: Case, strategy: str, *moved: np.dtype[Any]) -> str:
    plan = case.plan(strategy=strategy)
    poison(case.out)
    case.check(plan(case.x[0], case.out[0]), case.want)
    return case.time(plan, *moved)


# ---- the policies ---------------------------------------------------------------------------


def scan_policies(case: Case, *, segmented: bool = False) -> Iterator[Any]:
    """Yield the policy in use, then others like it, with as many stages as there is room for.

    Those of segments have other vectors, too.
    """
    types, current = scan_policy(case.op, case.types, LARGE, segmented=segmented)
    yield current
    room = cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"] - BESIDE
    wide = [current.items * times // 2 for times in ((1, 2, 4) if segmented else (2,))]
    for threads, rows, items in product((256, 384, 512), (2, 3, 4, 6, 8), wide):
        if not 0 < items * types.x.itemsize <= VECTOR:
            continue
        tile = threads * rows * items * (types.x.itemsize + segmented)
        stages = min(room // (tile + 32), 12)
        cut = {"threads": threads, "rows": rows, "items": items, "stages": stages}
        # As many warp tiles for each; a warp tile for each warp.
        reducers = next(r for r in (current.reducers, 6) if threads // 32 % r == 0)
        other = current._replace(**cut, reducers=reducers)
        if stages >= 2 and other != current:
            yield other


def reduce_policies(case: Case) -> Iterator[Any]:
    """Yield the policy in use, then others like it."""
    current = reduce_policy(case.op, case.types)
    yield current
    for threads, rows, blocks in product((256, 512), (4, 8), (2, 4)):
        other = current._replace(threads=threads, rows=rows, blocks=blocks)
        if other != current:
            yield other


POLICIES = [
    (scan, "scan_policy", scan_policies),
    (segments, "scan_policy", partial(scan_policies, segmented=True)),
    (reduce, "reduce_policy", reduce_policies),
]
ROWS = scan, in_place, exclusive, reverse, segments, unaligned, reduce, add, reduce_scan, scan_add


def show_row(name: str, cases: list[Case], row: Callable[[Case], str]) -> None:
    """Print a row: a time for every size."""
    cells = []
    for case in cases:
        try:
            cells.append(row(case))
        except FAULTS as error:
            cells.append(type(error).__name__)
    print(f"{name:50}" + "".join(f"{text:>17}" for text in cells), flush=True)


def tune_forms(names: list[str]) -> None:
    """Time every case."""
    print(f"{'':50}{'2^20':>17}{'2^24':>17}{'1 GiB':>17}")
    for name in names or CASES + OPERATORS:
        cases = [Case(name, power) for power in (20, 24, None)]
        rates = "".join(f"{case.rate / 1e6:12.2f} TB/s" for case in cases)
        print(f"{name + ' copy':50}{rates}")
        for row in ROWS if names or name in CASES else (scan,):
            show_row(f"{name} {row.__name__}", cases, row)
        if "--policies" in sys.argv:
            for row, function, policies in POLICIES:
                for other in policies(cases[0]):
                    with replaced(function, other):
                        show_row(f"{name} {row.__name__} {tuple(other)}", cases, row)
        del cases
        cp.get_default_memory_pool().free_all_blocks()


# ---- --axes --------------------------------------------------------------------------------

# Shape and axis, for 4-byte elements; of wider ones the first axis is shorter.
AXES: list[tuple[tuple[int, ...], int]] = [
    *(((1 << 28,), 0), ((1 << 14, 1 << 14), 0), ((1 << 20, 256), 0), ((1 << 26, 4), 0)),
    *(((64, 1 << 11, 1 << 11), 1), ((1 << 10, 1 << 9, 1 << 9), 1), ((1 << 20, 4, 64), 1)),
    *(((1 << 14, 1 << 14), 1), ((1 << 26, 4), 1)),
    *((((1 << 28) // 5, 5), 1), (((1 << 28) // 1000, 1000), 1)),
    # Rows that vectors do not divide, or sectors.
    *(((1 << 22, 63), 0), ((1 << 18, 1001), 0), ((1 << 14, 16383), 0), ((5 << 19, 100), 0)),
    *(((1 << 26, 3), 0), ((1 << 25, 8), 0), ((1 << 24, 16), 0), ((1 << 23, 32), 0)),
    *(((1 << 22, 64), 0), ((1 << 18, 1024), 0)),
]


class AxisCase:
    """One shape, axis and type: buffers, the right result."""

    def __init__(self, shape: tuple[int, ...], axis: int, code: str) -> None:
        dtype = cp.dtype(code)
        while prod(shape) * dtype.itemsize > LARGE:
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
        return timing.time_queued(MACHINE, [copy]).median

    def scan(self) -> float:
        """Check, then time."""
        scan = partial(self.plan(), self.x, self.y)
        poison(self.y)
        scan()
        if not bool((self.y == self.x.cumsum(self.axis, dtype=self.x.dtype)).all()):
            raise WrongError
        return timing.time_queued(MACHINE, [scan]).median

    def reduce(self) -> float:
        """Check, then time the totals of the columns."""
        plan = self.plan()
        totals, reduce = column_reducer(plan.op, plan.types, (self.n, self.inner))
        reduce(self.x)
        if not bool((totals == self.x.reshape(self.n, -1).sum(axis=0)).all()):
            raise WrongError
        return timing.time_queued(MACHINE, [partial(reduce, self.x)]).median


# Other policies than the one in use; None: the kernel that is not in use.
OTHERS: list[dict[str, int] | None] = [
    *({"reducers": 8}, {"look_ahead_warps": 1, "loaders": 2}),
    *({"look_ahead_warps": 2, "loaders": 1}, {"look_ahead_warps": 3}),
    *({"reads": 4}, {"reads": 8}, {"panel": 1}, {"panel": 4}, {"panel": 16}),
    *({"group": 8}, {"group": 16}, None),
]


def show_axis(
    case: AxisCase, title: str, work: Callable[[], float], copy: float, plain: float
) -> float:
    """Print a time, with its shares of a copy's speed and of the 1-D scan's; return it, or 0."""
    time = 0.0
    try:
        time = work()
        text = f"{time:8.1f} ({copy / time:4.2f} {(plain or time) / time:4.2f})"
    except FAULTS as error:
        text = type(error).__name__
    print(f"{case.x.dtype.char} {case.shape!s:20} axis {case.axis}  {title:26} {text}", flush=True)
    return time


def tune_axes(names: list[str]) -> None:
    """Time every case."""
    for code in names or ["f", "d"]:
        rate = 0.0  # bytes per microsecond of the 1-D scan, which comes first
        for shape, axis in AXES:
            case = AxisCase(shape, axis, code)
            copy, plain = case.copy(), case.bytes / rate if rate else 0.0
            time = show_axis(case, "scan", case.scan, copy, plain)
            if not rate and time:
                rate = case.bytes / time
            if case.inner > 1 and case.outer == 1:
                show_axis(case, "reduce", case.reduce, copy / 2, plain / 2)
            for other in OTHERS if "--policies" in sys.argv and case.inner > 1 else ():
                changes = ", ".join(f"{field} {number}" for field, number in (other or {}).items())
                with column_policy(other):
                    show_axis(case, changes or "other kernel", case.scan, copy, plain)
            del case
            cp.get_default_memory_pool().free_all_blocks()


def main() -> None:
    """Time as the arguments ask for."""
    name = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"].decode()
    print(f"{name}, microseconds (share of a copy's speed)")
    names = [text for text in sys.argv[1:] if not text.startswith("-")]
    (tune_axes if "--axes" in sys.argv else tune_forms)(names)


if __name__ == "__main__":
    main()
