"""The kernels for columns compile, without a GPU, fit the chip, and none spills registers."""

import math
import re
from itertools import product

import numpy as np
import pytest

from distscan.core import dtypes, operators
from distscan.core.dtypes import fields
from distscan.core.form import Extents, Form
from distscan.core.operators import MAPS, MAPS_IN_SEGMENTS
from support.compiling import absent_gpu, check, ptx
from support.maps import COMPOSE
from support.seed import drawn
from support.steps import of_size

cuda = pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import columns  # noqa: E402
from distscan.cuda.columns import columns_policy, thread_policy  # noqa: E402

pytestmark = pytest.mark.compile

PAIRS = np.dtype([("x0", "D"), ("x1", "D")])
CASES = [("sum", "b"), ("max", "b"), ("sum", "?", "?"), ("sum", "e"), ("sum", "f"), ("sum", "d"),
         ("prod", "D"), (COMPOSE, "L"), (MAPS, PAIRS)]  # fmt: skip
CASES += [  # as linear_recurrence takes them: x, what accumulates, and the result, which is h alone
    (MAPS_IN_SEGMENTS, *(fields(codes) for codes in every),
     np.dtype([("x1", every[0][1])]))
    for every in (("ff?", "ff?"), ("ee?", "ff?"), ("ef?", "ff?"))
]  # fmt: skip
FEW = [("max", "b"), ("sum", "f"), ("sum", "d")]
INNER = [1 << 14, 1 << 17, 4, 33]  # strips, a thread to each vector, staged vectors, elements


def resolved(op, *types):
    operator = operators.resolve(op)
    return operator, dtypes.resolve(operator, *types)


def asked(cases, arch, inners=INNER, exclusives=(False, True)):
    """Make every strategy, for a GPU that is not there; return the kernels that they ask for."""
    with absent_gpu(arch) as kernels:
        for case, inner, exclusive in product(cases, inners, exclusives):
            op, types = resolved(*case)
            form = Form(Extents(inner=inner), exclusive=exclusive, seed=np.zeros((), types.acc))
            for strategy in (cuda.SinglePass, cuda.ReduceScan):
                strategy(op, types, of_size(1 << 20, form))
    return list(kernels)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90", "100", "120"])
def test_compiles_without_spills(arch):
    kernels = asked(CASES, arch) if arch == "90" else asked(FEW, arch, INNER[:2], [False])
    assert {kernel.entry for kernel in kernels} == {
        "columns",
        "columns_reduce",
        "columns_per_thread",
    }
    check(drawn(kernels, 16), arch)


@pytest.mark.parametrize("kernel", asked([("sum", "f"), ("prod", "D")], "90", [1 << 14]))
def test_launches_are_what_was_compiled(kernel):
    """Threads of a block; copies and stores of 16 bytes."""
    text = ptx(kernel)
    assert f".maxntid {kernel.threads}\n" in text
    assert "cp.async.cg.shared.global" in text
    assert kernel.entry == "columns_reduce" or re.search(r"st\.global\.(v4|v2\.[bf]64)", text)


@pytest.mark.parametrize("codes", ["bbb", "hhh", "fff", "ddd", "DDD", "bll", "efe", "lib"])
def test_strips(codes):
    """Strips cover each row, and what the kernels need of a policy holds."""
    types = dtypes.Types(*map(np.dtype, codes))
    for inner, arch in product(range(2, 1000), ("80", "90", "120")):
        policy, (width, strips, *_) = columns_policy(types, inner, arch, 132)
        of_strip = width * policy.items
        assert inner % policy.items == 0
        assert (strips - 1) * of_strip < inner <= strips * of_strip
        assert width <= 32
        # Rows whose vectors lie alike: some for 32 lanes, a lane to each vector.
        row, strip = inner * types.x.itemsize, of_strip * types.x.itemsize
        assert strips == 1 or -(-strip // 16) * (16 // math.gcd(row, 16)) <= 32
        assert of_strip <= policy.columns < 2 * max(of_strip, 2)
        assert policy.columns & (policy.columns - 1) == 0
        assert policy.stages >= policy.look_ahead_warps + policy.loaders - 1
        assert policy.stages >= 3
        assert policy.panel & (policy.panel - 1) == 0
        if policy.staged == "true":
            assert strips == 1
            assert types.x.itemsize == types.out.itemsize


def test_shares():
    """No more blocks than there are, none without a strip, and all strips have their turn."""
    for strips, tiles, sm_count in product(
        (1, 2, 7, 64, 131, 133, 1000), (1, 2, 40, 9999), (1, 132)
    ):
        blocks, side = columns.shares(strips, tiles, sm_count)
        assert 1 <= blocks <= tiles
        assert 1 <= side <= strips
        assert blocks * side <= sm_count


def test_walks():
    """Where a thread has columns for itself, its vectors divide a row."""
    types = dtypes.Types(*map(np.dtype, "fff"))
    assert thread_policy(types, 1 << 10, 1 << 10, 132) is None
    assert thread_policy(types, 3, 3 << 20, 132) is None
    for inner, outer in product((16, 100, 1001, 1 << 14), (20, 1000, 1 << 20)):
        policy = thread_policy(types, inner, inner * outer, 132)
        assert policy is None or inner % policy.items == 0
