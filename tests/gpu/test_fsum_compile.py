"""The kernels of exact sums compile, without a GPU, fit the chip, and none spills registers."""

from itertools import product

import numpy as np
import pytest

from distscan.core.dtypes import Types, resolve
from distscan.core.form import PLAIN, Extents, Form
from distscan.fsum.words import ONE_WORD, TWO_WORDS, fixed_sum
from support.bfloat16 import BFLOAT16
from support.compiling import absent_gpu, check
from support.seed import drawn
from support.steps import of_size

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import launches, steps
from distscan.cuda.reductions import bit_range_operator

pytestmark = pytest.mark.compile

WORDS = [(ONE_WORD, 1), (TWO_WORDS, 1), (TWO_WORDS, 2)]
SUMS = [fixed_sum(-20, *words) for words in WORDS]
CHECKED = [fixed_sum(-20, *words, (-20, 20), check=print) for words in WORDS]
# Of elements and results.
TYPES = [*((code, code) for code in ("e", "f", "d", BFLOAT16)), ("d", "f"), ("f", "d"), ("d", "e")]
FIRST = np.array(1)
FORMS = {
    "plain": PLAIN,
    "exclusive": Form(exclusive=True, seed=FIRST),
    "reverse": Form(reverse=True),
    "exclusive, reverse": Form(exclusive=True, reverse=True, seed=FIRST),
    "segments": Form(segmented=True),
    "keys, exclusive, reverse": Form(
        exclusive=True, reverse=True, segmented=True, seed=FIRST, keys=np.dtype("u4")
    ),
    "rows": Form(Extents(outer=2)),
    "rows, exclusive, reverse": Form(Extents(outer=2), exclusive=True, reverse=True, seed=FIRST),
    "columns": Form(Extents(inner=64)),
    "few columns": Form(Extents(inner=4)),
    "columns, exclusive": Form(Extents(inner=64), exclusive=True, seed=FIRST),
    "many columns": Form(Extents(outer=1 << 10, inner=1 << 14)),
}


def kernels_of(arch, forms, sizes):
    """What both strategies ask for; scan-add is refused."""
    with absent_gpu(arch) as kernels:
        for op, (x, out), form, n in product(SUMS + CHECKED, TYPES, forms, sizes):
            steps.SinglePass(op, resolve(op, x, out), of_size(n, FORMS[form]))
            steps.ReduceScan(op, resolve(op, x, out), of_size(n, FORMS[form]))
    return list(kernels)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90", "100", "120"])
def test_compiles_without_spills(arch):
    """Every form on one GPU, the plain one on all; for many elements and for few."""
    forms = FORMS if arch == "90" else ["plain"]
    kernels = kernels_of(arch, forms, (1 << 17, 1 << 40))
    assert {kernel.entry for kernel in kernels} >= {"scan", "reduce", "scan_short"}
    types = {dict(kernel.given)["DISTSCAN_T"] for kernel in kernels}
    assert types == {"Fixed<1>", "Fixed<2, 1>", "Fixed<2, 2>"}
    checked = {f"Checked<{name}>" for name in types}
    assert {dict(kernel.given)["DISTSCAN_PARTIAL"] for kernel in kernels} == types | checked
    check(drawn(kernels, 32), arch)  # twice as many as other operators have


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90", "120"])
def test_the_kernels_that_find_bits_compile_without_spills(arch):
    with absent_gpu(arch) as kernels:
        for code, size in (("e", 4), (BFLOAT16, 4), ("f", 4), ("d", 8)):
            op, dtype = bit_range_operator(size), np.dtype(code)
            launches.Reduce(op, Types(dtype, op.acc, dtype), 1 << 28, PLAIN)
    assert len(kernels) == 4
    check(kernels, arch)
