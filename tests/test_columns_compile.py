"""The kernels for columns compile, without a GPU, fit the chip, and none spills registers."""

import re
from itertools import product
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
from test_kernels_compile import Asked, check, parameters, ptx
from test_order import COMPOSE

from distscan import dtypes, operators
from distscan.forms import Form

cuda = pytest.importorskip("distscan.backends.cuda", reason="no CuPy", exc_type=ImportError)
from distscan.backends import columns, launches  # noqa: E402
from distscan.backends.policy import columns_policy  # noqa: E402

CASES = [("sum", "b"), ("max", "b"), ("sum", "?", "?"), ("sum", "e"), ("sum", "f"), ("sum", "d"),
         ("prod", "D"), (COMPOSE, "L")]  # fmt: skip
FEW = [("max", "b"), ("sum", "f"), ("sum", "d")]
INNER = [4096, 1 << 15, 4, 33]  # strips, walks, staged vectors, elements


def resolved(op, *types):
    operator = operators.resolve(op)
    return operator, dtypes.resolve(operator, *types)


def asked(cases, arch, inners=INNER):
    """Make every strategy, for a GPU that is not there; return the kernels that they ask for."""
    kernels: dict[Asked, None] = {}  # in order, each once

    def record(entry, given, sizes, threads, shared=0):
        kernels[Asked(entry, tuple(given.items()), tuple(sizes), threads, shared)] = None
        memory = np.zeros(sum(sizes), np.uint64)
        return MagicMock(memory=memory, words=memory.data)

    with (
        patch.object(columns, "cupy") as cupy,
        patch.object(launches, "cupy", cupy),
        patch.object(columns, "Kernel", record),
        patch.object(cuda, "Row"),
    ):
        cupy.cuda.Device().compute_capability = arch
        cupy.cuda.Device().attributes = {"MultiProcessorCount": 100}
        cupy.zeros().data.ptr = cupy.empty().data.ptr = 0
        for case, inner, exclusive in product(cases, inners, (False, True)):
            op, types = resolved(*case)
            form = Form(exclusive=exclusive, inner=inner, first=np.zeros((), types.acc))
            for strategy in (cuda.SinglePass, cuda.ReduceScan):
                strategy(op, types, 1 << 20, form)
    return list(kernels)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arch", ["80", "90", "100", "120"])
def test_compiles_without_spills(arch):
    kernels = asked(CASES, arch) if arch == "90" else asked(FEW, arch, INNER[:1])
    assert {kernel.entry for kernel in kernels} == {"columns", "columns_reduce"}
    check(kernels, arch)


@pytest.mark.parametrize("kernel", asked([("sum", "e"), ("sum", "f"), ("prod", "D")], "90", [4096]),
                         ids=str)  # fmt: skip
def test_launches_are_what_was_compiled(kernel):
    """The host's words and the kernel's; loads and stores of 16 bytes."""
    text = ptx(kernel)
    assert f".maxntid {kernel.threads}\n" in text
    assert parameters(text) == list(kernel.sizes)
    assert re.search(r"ld\.global\.(v4\.[bf]32|v2\.[bf]64)", text)
    assert kernel.entry == "columns_reduce" or re.search(r"st\.global\.(v4|v2\.[bf]64)", text)


@pytest.mark.parametrize("codes", ["bbb", "hhh", "fff", "ddd", "DDD", "bll", "efe", "lib"])
def test_strips(codes):
    """Strips cover each row, by a cache line at least where rows have one, and fit the kernels."""
    types = dtypes.Types(*map(np.dtype, codes))
    size = max(types.x.itemsize, types.out.itemsize)
    for inner, length in product(range(2, 1000), (1, 7, 30, 100, 1 << 40)):
        policy, (width, strips) = columns_policy(types, inner, "90", length)
        columns_of_strip = width * policy.items
        assert inner % policy.items == 0
        assert (strips - 1) * columns_of_strip < inner <= strips * columns_of_strip
        assert width <= 32
        assert columns_of_strip * size <= 256
        assert columns_of_strip <= policy.threads
        if policy.staged == "true":
            assert strips == 1
            assert columns_of_strip == inner
            assert inner * size < 128
        elif policy.items * size >= 4:
            assert columns_of_strip * size >= 128


def test_groups_are_read_in_time():
    """Tiles look back over all that may be under way, as far as there is room."""
    _, types = resolved("sum", "f")
    for inner, blocks in product((2, 64, 1024, 1 << 20), (1, 3, 100, 396)):
        with patch.object(columns, "cupy") as cupy:
            cupy.cuda.Device().compute_capability = "90"
            matrix = columns._Matrix(types, 1 << 20, Form(inner=inner))
        group, window = matrix.groups(blocks, 64)
        assert 1 <= window <= 64
        assert 1 <= group <= 64
        assert group * window * matrix.strips >= blocks
