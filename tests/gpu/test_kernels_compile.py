"""Every kernel compiles, without a GPU, fits the chip, and none spills registers to memory."""

import re
from itertools import product

import numpy as np
import pytest

from distscan.bench.uses import MATRICES
from distscan.core.dtypes import Types, fields
from distscan.core.form import Extents, Form
from distscan.core.operators import MAPS, Operator
from support.bfloat16 import BFLOAT16
from support.compiling import SHARED, asked, check, ptx, textbook
from support.data import CODES, OPS
from support.maps import COMPOSE, NIBBLES
from support.seed import drawn
from support.squares import SQUARES
from support.words import FINGERPRINTS, PRINT, WORDS

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.bench import block_scans
from distscan.bench.textbook import TextbookPolicy
from distscan.cuda import nvrtc
from distscan.cuda.policy import scan_policy

pytestmark = pytest.mark.compile

# What dtypes.resolve takes: operator, type of x, accumulating type, type of the result.
# The minimum is the maximum's template.
EVERY = [(op, x, dtype) for op in OPS if op != "min" for x in CODES for dtype in (None, x)]
EVERY += [("sum", *types) for types in ("ie", "Fe", "D?", "f?", "bhl", "dde", "iil", "lib")]
EVERY += [("sum", "D", None, "f"), ("max", "d", None, "b")]
EVERY += [("logaddexp", code) for code in "efd"]
EVERY += [("bitwise_xor", code) for code in "?bil"] + [("bitwise_or", "d", "i")]
EVERY += [("logical_and", code) for code in "?bifD"] + [("logical_or", "?", "?", "f")]
EVERY += [(op, BFLOAT16) for op in ("sum", "max", "logaddexp", "logical_or")]
EVERY += [("sum", BFLOAT16, "d"), ("sum", "F", BFLOAT16), ("sum", "d", "d", BFLOAT16)]
EVERY += [(FINGERPRINTS, PRINT), (WORDS, "L")]
EVERY += [(MAPS, np.dtype([("x0", code), ("x1", code)])) for code in "fdFD"]
EVERY += [(COMPOSE, "L"), (NIBBLES, "B"), (NIBBLES, "B", "L", "B")]
# Each kernel with each element size, with each width of the running value, and promoting.
SOME = [(FINGERPRINTS, PRINT), ("logaddexp", "f"),
        ("sum", "b"), ("sum", "b", "b"), ("max", "b"), ("min", "H"), ("sum", "e"), ("sum", "i"),
        ("sum", "f"), ("sum", "d"), ("prod", "F"), ("prod", "D"), ("sum", "l", "i", "b"),
        (COMPOSE, "L")]  # fmt: skip
# For each form that kernels are compiled for.
FEW = [("sum", "b"), ("sum", "b", "b"), ("sum", "f"), ("prod", "D"), (NIBBLES, "B")]
FIRST = np.array(1)
FORMS = {
    "exclusive": Form(exclusive=True, seed=FIRST),
    "reverse": Form(reverse=True),
    "exclusive, reverse": Form(exclusive=True, reverse=True, seed=FIRST),
    "segments": Form(segmented=True),
    "segments, exclusive, reverse": Form(exclusive=True, reverse=True, segmented=True, seed=FIRST),
    "keys": Form(segmented=True, keys=np.dtype("u4")),
    "keys, exclusive, reverse": Form(
        exclusive=True, reverse=True, segmented=True, seed=FIRST, keys=np.dtype("u4")
    ),
    "rows": Form(Extents(outer=2)),
    "rows, initial": Form(Extents(outer=2), seed=FIRST),
    "rows, exclusive, reverse": Form(Extents(outer=2), exclusive=True, reverse=True, seed=FIRST),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", SHARED)
def test_compiles_without_spills(arch):
    """Every type on one GPU, some on all; what is for few elements on two."""
    kernels, entries = asked(EVERY if arch == "90" else SOME, arch), {"scan", "reduce", "add"}
    if arch in {"80", "90"}:  # for few elements
        kernels += asked(SOME, arch, sizes=(1 << 10, 1 << 17, 1 << 20, 1 << 22))
        entries.add("scan_short")
    assert {kernel.entry for kernel in kernels} == entries
    always = asked(SOME, arch) if arch == "90" else []
    check(dict.fromkeys([*always, *drawn(dict.fromkeys(kernels), 16)]), arch)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90", "120"])
def test_every_form_compiles_without_spills(arch):
    """Every form on one GPU, those that need most registers on others; for many and for few."""
    names = FORMS if arch == "90" else [name for name in FORMS if "exclusive, reverse" in name]
    cases = FEW if arch == "90" else [("sum", "b", "b"), ("sum", "f"), (COMPOSE, "L")]
    kernels = dict.fromkeys(
        kernel for name in names for n in (1 << 10, 1 << 20, 1 << 40)
        for kernel in asked(cases, arch, sizes=(n,), form=FORMS[name])
    )  # fmt: skip
    assert {kernel.entry for kernel in kernels} == {"scan", "scan_short", "add", "reduce"}
    sources = {dict(kernel.given).get("DISTSCAN_SOURCE") for kernel in kernels} - {None}
    assert sources == {
        "Items",
        "FlaggedItems",
        "RowItems",
        "ItemPointer",
        "FlaggedPointer",
        "KeyedBy<unsigned int>::Items",
        "KeyedBy<unsigned int>::Pointer",
    }
    check(drawn(kernels, 16), arch)


NINE = Operator(
    "nine", lambda a, b: a, "{" + ", ".join(f"a.x{i} + b.x{i}" for i in range(9)) + "}", arity=9
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", SHARED)
def test_every_width_of_keys_compiles_without_spills(arch):
    """Beside elements of each size; stages fit where keys are much wider than elements."""
    cases = [("max", "b"), ("sum", "b"), ("sum", "e"), ("prod", "D"), (MAPS, fields("ff")),
             (NINE, fields("f" * 9))]  # fmt: skip
    kernels = dict.fromkeys(
        kernel
        for keys in ("u1", "u2", "u8", "f2", "f8", BFLOAT16)
        for kernel in asked(cases, arch, form=Form(segmented=True, keys=np.dtype(keys)))
    )
    kernels |= dict.fromkeys(asked(cases[4:], arch, form=Form(segmented=True)))
    check(drawn(kernels, 16), arch)


def test_look_ahead_warps_end_in_stages_of_their_own():
    """Also for tuples so large that little shared memory has room for few stages."""
    codes = [
        code * k for code in "bhfdD" for k in range(2, 65) if np.dtype(code).itemsize * k <= 64
    ]
    forms = [Form(), Form(segmented=True), Form(segmented=True, keys=np.dtype("u8"))]
    for given, arch, form in product(codes, ("80", "86", "90", "120"), forms):
        every = fields(given)
        types = Types(every, np.dtype(every.descr, align=True), every)
        for n in (1, 10**5, 10**9):
            policy = scan_policy(types, form, arch, n, 132)
            assert policy.look_ahead_warps <= policy.stages, (given, arch, form)


@pytest.mark.timeout(600)
def test_large_tuples_compile_where_shared_memory_is_small():
    check(asked([(MATRICES, fields("f" * 16))], "120"), "120")


def test_an_empty_shard_asks_for_no_kernel():
    assert asked(SOME, "90", sizes=(0,)) == []
    assert asked(SOME, "90", sizes=(1,))


BLOCK_SCANS = [struct for struct, _ in block_scans.BLOCK_SCANS.values()]
CHAINS = list(block_scans.CHAINS.values())
TEXTBOOK = [("sum", "f"), ("sum", "l"), ("sum", "D"), ("max", "b"), ("sum", "b"), ("sum", "e"),
            (COMPOSE, "L"), (NIBBLES, "B")]  # fmt: skip
PAIRS = [*zip(BLOCK_SCANS, [*CHAINS, CHAINS[-1]], strict=True)]


def textbooks(arch):
    """All that the benchmark asks for; for other GPUs than the first, one of each."""
    pairs = product(BLOCK_SCANS, CHAINS) if arch == "90" else PAIRS
    cases = TEXTBOOK if arch == "90" else [("sum", "D"), ("sum", "b"), (COMPOSE, "L")]
    found = [kernel for pair in pairs for kernel in textbook(cases, arch, TextbookPolicy(*pair))]
    for struct, threads in product(BLOCK_SCANS, block_scans.THREADS):
        found += textbook([("sum", "f")], arch, TextbookPolicy(struct, threads=threads))
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90"])
def test_block_scans_compile_without_spills(arch):
    kernels = textbooks(arch)
    given = {name: {dict(k.given)[name] for k in kernels}
             for name in ("DISTSCAN_BLOCK_SCAN", "DISTSCAN_CHAIN")}  # fmt: skip
    assert given == {"DISTSCAN_BLOCK_SCAN": set(BLOCK_SCANS), "DISTSCAN_CHAIN": set(CHAINS)}
    check(drawn(kernels, 16), arch)


def test_steps_and_work_are_what_the_benchmark_says():
    """The kernels' own figures, by the compiler."""
    lines = ['#include "textbook.cu"', "using namespace distscan;"]
    for struct, counts in block_scans.BLOCK_SCANS.values():
        for n in block_scans.THREADS:
            for name, number in zip(("STEPS", "BARRIERS", "WORK"), counts(n), strict=True):
                lines.append(f"static_assert({struct}<Op, T, {n}>::{name} == {number});")
    given = dict(textbook([("sum", "f")], "90", TextbookPolicy(BLOCK_SCANS[0]))[0].given)
    headers = {n.encode(): given.pop(n).encode() for n in list(given) if n.endswith(".h")}
    options = [f"-D{name}={value}" for name, value in given.items()]
    program = nvrtc.nvrtc.createProgram("\n".join(lines), "counts.cu", list(headers.values()),
                                        list(headers))  # fmt: skip
    folder = f"-I{nvrtc.kernels()}"
    try:
        nvrtc.nvrtc.compileProgram(program, ("-arch=sm_90", "-std=c++17", folder, *options))
    except nvrtc.nvrtc.NVRTCError:
        pytest.fail(nvrtc.nvrtc.getProgramLog(program))
    finally:
        nvrtc.nvrtc.destroyProgram(program)


SAME = [("max", code) for code in "bHfdFD"]
SHORT = [kernel for n in (1 << 10, 1 << 20) for kernel in asked(SAME, "90", sizes=(n,))
         if kernel.entry == "scan_short"]  # fmt: skip


FORMED = [
    kernel
    for form in FORMS.values()
    for kernel in asked([("max", "b"), ("sum", "f")], "90", form=form)
]


ELEMENTS = [*asked(SAME, "90"), *SHORT, *FORMED]
OTHERS = asked([("sum", "e")], "90") + [
    kernel for pair in PAIRS for kernel in textbook([("sum", "f"), ("sum", "D")], "90",
                                                    TextbookPolicy(*pair))
]  # fmt: skip


@pytest.mark.parametrize("kernel", ELEMENTS + OTHERS)
def test_launches_and_accesses(kernel):
    """The threads of a block are the host's.

    Where x, the running value and the result are of one type, the kernel loads and stores whole
    vectors of 16 bytes, or has tiles fetched by the engine.
    """
    text, wide = ptx(kernel), r"(v4\.[bf]32|v2\.[bf]64)"
    assert f".maxntid {kernel.threads}\n" in text
    if kernel not in ELEMENTS:
        return
    fetches = "cp.async.bulk.shared::cluster.global" in text
    assert fetches == (kernel.entry.startswith("scan") and kernel.entry != "scan_short")
    assert re.search(rf"ld\.{'shared' if fetches else 'global'}\.{wide}", text)
    assert kernel.entry.startswith("reduce") or re.search(rf"st\.global\.{wide}", text)


@pytest.mark.parametrize("kernel", asked([("prod", "i", "i", "l")], "90"))
def test_products_wrap_before_they_are_widened(kernel):
    """int32 products stored as int64: the compiler may not multiply in 64 bits."""
    assert not re.search(r"mul\.wide\.s32\s+%rd\d+, %r\d+, %r", ptx(kernel))


@pytest.mark.parametrize("form", FORMS)
def test_elements_are_changed_in_every_form(form):
    """As they are read: by each source of items."""
    kernels = asked(
        [(SQUARES, "f"), (SQUARES, "e")], "90", sizes=(1 << 10, 1 << 20), form=FORMS[form]
    )
    assert all(dict(kernel.given)["DISTSCAN_LOADS"] == "true" for kernel in kernels)
    check(drawn(dict.fromkeys(kernels), 16), "90")
