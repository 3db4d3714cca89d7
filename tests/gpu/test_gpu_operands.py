"""On a GPU, operators meet elements and combinations of them, never what else lies in memory.

The operator here traps on everything but 1 to 1000, and a trap leaves a process without its GPU: so
scans run in a child process, after all shared memory was filled with other numbers.
"""

import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank, pytest.mark.timeout(600)]

LONG, FEW = 2_500_003, (1, 5, 5000, 300_007)  # elements: for scan.cuh, for scan_short.cuh
WIDTHS = (2, 3, 24, 33, 100, 1000, 1001)
FORMS = [{"reverse": r, "exclusive": e} for r, e in product((False, True), repeat=2)]
FILL = r"""
extern "C" __global__ void fill(int n) {
  extern __shared__ int whole[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) ((volatile int*)whole)[i] = 0x7f7f7f7f;
}"""


def flat(check, strategies=("single-pass", "reduce-scan", "scan-add")):
    for n, strategy, form in product((*FEW, LONG), strategies, FORMS):
        check((n,), strategy=strategy, **form)


def commutative(check):
    flat(check)


def begun(check):
    for n, form in product((5000, LONG), FORMS):
        check((n,), strategy="reduce-scan", initial=7, **form)


def segments(check):
    for n, strategy, form in product((5, 5000, LONG), ("single-pass", "reduce-scan"), FORMS):
        check((n,), heads=1 / 64, strategy=strategy, **form)
        check((n,), heads=1e-5, strategy=strategy, initial=7, **form)


def rows(check):
    for length, form in product((4, 5, 1000, 12347), FORMS):
        check((LONG // length, length), axis=1, **form)
        check((LONG // length, length), axis=1, initial=7, **form)


def columns(check):
    for width, strategy, form in product(WIDTHS, ("single-pass", "reduce-scan"), FORMS):
        check((LONG // width, width), axis=0, strategy=strategy, **form)
    for width in WIDTHS:
        check((300, width), axis=0)
        check((LONG // width, width), axis=0, initial=7)


def layers(check):
    """Several scans down columns, of which many begin in one tile, and walks."""
    for width, n, form in product(WIDTHS, (3, 37, 1000), FORMS):
        check((LONG // (n * width) + 2, n, width), axis=1, **form)
    for width, form in product((4096, 4100, 4102), FORMS):
        check((60, 37, width), axis=1, **form)


def textbooks(check):
    from distscan.bench.textbook import BLOCK_SCANS

    for (struct, _), n in product(BLOCK_SCANS.values(), (1, 5000, LONG)):
        check((n,), block_scan=struct)


GROUPS = [flat, commutative, begun, segments, rows, columns, layers, textbooks]


@pytest.mark.parametrize(
    ("group", "code"),
    [("flat", "h"), ("flat", "i"), ("flat", "l"), ("commutative", "h"), ("begun", "i"),
     ("segments", "h"), ("segments", "i"), ("rows", "i"), ("columns", "h"), ("columns", "i"),
     ("layers", "i"), ("textbooks", "i")],
)  # fmt: skip
def test_operands_are_elements(group, code, cp):
    process = subprocess.run(
        [sys.executable, __file__, group, code, str(cp.cuda.Device().id)],
        # The launcher's variables stay: where Open MPI can start no daemon, a process without them
        # cannot start MPI. The child takes its parent's place in a job of one rank.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert process.returncode == 0, f"{process.stdout[-300:]}{process.stderr[-2000:]}"


# ---- In the child --------------------------------------------------------------------------------


def expected(x, numbers, begin, *, reverse=False, exclusive=False):
    """The running maxima of x [outer, n, inner], behind ``begin``; numbers [n] count segments."""
    if reverse:
        x, numbers = x[:, ::-1], numbers[-1] - numbers[::-1]
    lift = 1001 * numbers[:, None]  # above all that comes before
    y = np.maximum(np.maximum.accumulate(x + lift, axis=1) - lift, begin)
    if exclusive:
        y[:, 1:] = y[:, :-1].copy()
        y[:, np.flatnonzero(np.diff(numbers, prepend=-1))] = begin
    return y[:, ::-1] if reverse else y


def child(group, code, device):
    import cupy as cp
    from mpi4py import MPI

    import distscan
    from distscan.bench.textbook import TextbookPolicy, TextbookScan
    from distscan.core import dtypes
    from support.steps import whole

    cp.cuda.Device(device).use()
    rng = np.random.default_rng(0)
    op = distscan.Operator(
        "largest",
        numpy=np.maximum,
        identity=1,
        cuda="if (a < 1 || a > 1000 || b < 1 || b > 1000) __trap(); return a > b ? a : b;",
        commutative=group == "commutative",
    )
    kernel = cp.RawKernel(FILL, "fill")
    size = cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    kernel.max_dynamic_shared_size_bytes = size

    def check(shape, axis=None, heads=None, block_scan=None, strategy="single-pass", **form):
        print(group, code, shape, heads, block_scan, strategy, form, flush=True)
        x = rng.integers(1, 1001, shape).astype(code)
        flags = np.zeros(x.size, bool) if heads is None else rng.random(x.size) < heads
        numbers = np.cumsum(flags) - flags[0]
        kernel((1000,), (256,), (np.int32(size // 4),), shared_mem=size)
        if block_scan is not None:
            types = dtypes.resolve(op, x.dtype)
            steps = TextbookScan(op, types, x.size, TextbookPolicy(block_scan))
            y = steps.empty()
            whole(steps, cp.asarray(x), y)
        else:
            more = {} if heads is None else {"segments": cp.asarray(flags)}
            y = distscan.scan(cp.asarray(x), op, comm=MPI.COMM_SELF, axis=axis,
                              strategy=strategy, **form, **more)  # fmt: skip
        along = 0 if axis is None else axis
        outer, inner = int(np.prod(shape[:along])), int(np.prod(shape[along + 1 :]))
        numbers = numbers if axis is None else np.zeros(shape[axis], int)
        wide = x.reshape(outer, shape[along], inner).astype(int)
        want = expected(wide, numbers, form.pop("initial", 1), **form)
        np.testing.assert_array_equal(y.get(), want.reshape(shape))

    next(each for each in GROUPS if each.__name__ == group)(check)


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
