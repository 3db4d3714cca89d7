"""The kernels that compact compile, without a GPU, fit the chip, and none spills registers."""

import re

import numpy as np
import pytest

from distscan.core.errors import KernelError

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.core.operators import Predicate
from distscan.cuda.compaction import compact_policy
from distscan.cuda.definitions import predicate_body, type_name
from support.compactions import PREDICATES, SIZES, compactions
from support.compiling import SHARED, check, ptx
from support.seed import drawn


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", SHARED)
def test_compiles_without_spills(arch):
    kernels = compactions(arch, SIZES, PREDICATES)
    sources = {dict(kernel.given).get("DISTSCAN_SOURCE") for kernel in kernels}
    assert sources == {"Masked", "Indices", "Selected", None}
    check(drawn(kernels, 4 if arch == "90" else 16), arch)


@pytest.mark.compile
@pytest.mark.parametrize("size", SIZES)
def test_launches_and_accesses(size):
    """The threads of a block are the host's. Elements move in one access each."""
    for kernel in compactions("90", [size]):
        text = ptx(kernel)
        source = dict(kernel.given).get("DISTSCAN_SOURCE")
        assert f".maxntid {kernel.threads}\n" in text
        access = {1: r"\.[bu]8", 2: r"\.[bu]16", 4: r"\.[bu]32", 8: r"\.[bu]64",
                  16: r"\.v2\.[bu]64"}[size]  # fmt: skip
        if source == "Masked":
            assert text.count("cp.async.bulk.shared::cluster.global") == 2
            assert re.search(r"st\.shared" + access, text)
        assert re.search(r"st\.global" + access, text)
        assert source or re.search(r"ld\.global(\.nc)?" + access, text)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("text", "line"), [("x > undeclared", 1), ("{\n  return y;\n}", 2), ("x.re > 0", 1)]
)
def test_a_fault_in_a_predicate_is_named(text, line):
    (kernel, *_) = compactions("90", [], [("float", 4, text)])
    with pytest.raises(KernelError, match=rf"predicate mine\({line}\): error"):
        kernel.build("90")


@pytest.mark.compile
@pytest.mark.parametrize("text", ["if (x > 7) return true;", "x > 7 // return"])
def test_a_predicate_that_may_return_nothing_is_refused(text):
    (kernel, *_) = compactions("90", [], [("float", 4, text)])
    with pytest.raises(KernelError, match="missing return statement"):
        kernel.build("90")


def test_arrays_of_another_byte_order_are_refused():
    with pytest.raises(TypeError, match=">f4 is not in the byte order of GPUs"):
        type_name(np.dtype(">f4"))


def test_a_predicate_for_cpus_alone():
    with pytest.raises(TypeError, match="predicate 'p' has no CUDA form"):
        predicate_body(Predicate("p", np.isnan))


@pytest.mark.parametrize("arch", ["80", "86", "89", "90", "100", "120"])
@pytest.mark.parametrize("size", SIZES)
def test_policies(size, arch):
    """Of any number of elements: enough stages for the look-ahead, and one word per lane."""
    for masked in (False, True):
        for n in (1, 1000, 10**5, 10**6, 10**7, 10**10):
            policy = compact_policy(size, n, arch, 132, masked=masked)
            assert policy.stages > policy.look_ahead_warps
            assert policy.rows * policy.items <= 32
            assert policy.threads // 32 % policy.reducers == 0
