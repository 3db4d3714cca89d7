"""The kernels of partition compile for every type, without spills, and load whole vectors."""

import re

import numpy as np
import pytest

from support.bfloat16 import BFLOAT16
from support.compiling import SHARED, absent_gpu, check, ptx

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda.reductions import TileKernels

pytestmark = pytest.mark.compile
TYPES = [*"?bBhHiIlLefd", BFLOAT16]


def asked(types, arch):
    """The kernels for weights of these types."""
    with absent_gpu(arch) as kernels:
        for dtype in types:
            TileKernels(np.dtype(dtype))
    return list(kernels)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", SHARED)
def test_compiles_without_spills(arch):
    kernels = asked(TYPES if arch == "90" else "bfd", arch)
    assert {kernel.entry for kernel in kernels} == {"tile_totals", "find_cuts"}
    check(kernels, arch)


@pytest.mark.parametrize("kernel", asked("bhfd", "90"))
def test_accesses(kernel):
    """The threads of a block are the host's; both kernels load 16 bytes at a time."""
    text = ptx(kernel)
    assert f".maxntid {kernel.threads}\n" in text
    assert re.search(r"ld\.global\.(v4\.[bfu]32|v2\.[bfu]64)", text)


def test_the_loads_of_a_step_are_queued_together():
    """Four vectors are in flight before the first is used."""
    (kernel,) = (each for each in asked("f", "90") if each.entry == "tile_totals")
    used = re.findall(r"ld\.global\.v4|cvt\.f64\.f32", ptx(kernel))
    assert "ld.global.v4 " * 4 in " ".join([*used, ""])
