"""Every kernel compiles, without a GPU, fits the chip, and none spills registers to memory."""

import math
import re
from itertools import product

import numpy as np
import pytest

from distscan.bench.uses import MATRICES
from distscan.core import dtypes, operators
from distscan.core.dtypes import Types, fields, resolve
from distscan.core.errors import KernelError
from distscan.core.form import PLAIN, Extents, Form
from distscan.core.operators import GRADIENT_MAPS, MAPS, MAPS_IN_SEGMENTS, Operator
from distscan.cuda import columns
from distscan.cuda.columns import columns_policy, thread_policy
from distscan.fsum.words import ONE_WORD, TWO_WORDS, fixed_sum
from support.cases import sample
from support.compiling import SHARED, absent_gpu, check, ptx, strategy_kernels, textbook
from support.data import CODES, OPS
from support.exact import BFLOAT16
from support.operators import COMPOSE, FINGERPRINTS, NIBBLES, PRINT, SQUARES, WORDS
from support.steps import of_size

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.bench.textbook import BLOCK_SCANS, CHAINS, THREADS, TextbookPolicy
from distscan.core.operators import Predicate
from distscan.cuda import exchange_steps, kernel, launches, steps
from distscan.cuda.compaction import compact_policy
from distscan.cuda.definitions import predicate_body, type_name
from distscan.cuda.policy import scan_policy
from distscan.cuda.reductions import TileKernels, bit_range_operator
from support.compiling import PREDICATES, SIZES, compactions

pytestmark = pytest.mark.one_rank

# ---- Every kernel compiles, without a GPU, fits the chip, and none spills registers to memory ----

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


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", SHARED)
def test_compiles_without_spills(arch):
    """Every type on one GPU, some on all; what is for few elements on two."""
    kernels, entries = (
        strategy_kernels(EVERY if arch == "90" else SOME, arch),
        {"scan", "reduce", "add"},
    )
    if arch in {"80", "90"}:  # for few elements
        kernels += strategy_kernels(SOME, arch, sizes=(1 << 10, 1 << 17, 1 << 20, 1 << 22))
        entries.add("scan_short")
    assert {kernel.entry for kernel in kernels} == entries
    always = strategy_kernels(SOME, arch) if arch == "90" else []
    check(dict.fromkeys([*always, *sample(dict.fromkeys(kernels), 16)]), arch)


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90", "120"])
def test_every_form_compiles_without_spills(arch):
    """Every form on one GPU, those that need most registers on others; for many and for few."""
    names = FORMS if arch == "90" else [name for name in FORMS if "exclusive, reverse" in name]
    cases = FEW if arch == "90" else [("sum", "b", "b"), ("sum", "f"), (COMPOSE, "L")]
    kernels = dict.fromkeys(
        kernel for name in names for n in (1 << 10, 1 << 20, 1 << 40)
        for kernel in strategy_kernels(cases, arch, sizes=(n,), form=FORMS[name])
    )  # fmt: skip
    assert {kernel.entry for kernel in kernels} == {"scan", "scan_short", "add", "reduce"}
    sources = {dict(kernel.macros).get("DISTSCAN_SOURCE") for kernel in kernels} - {None}
    assert sources == {
        "Items",
        "FlaggedItems",
        "RowItems",
        "ItemPointer",
        "FlaggedPointer",
        "KeyedBy<unsigned int>::Items",
        "KeyedBy<unsigned int>::Pointer",
    }
    check(sample(kernels, 16), arch)


NINE = Operator(
    "nine", lambda a, b: a, "{" + ", ".join(f"a.x{i} + b.x{i}" for i in range(9)) + "}", arity=9
)


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", SHARED)
def test_every_width_of_keys_compiles_without_spills(arch):
    """Beside elements of each size; stages fit where keys are much wider than elements."""
    cases = [("max", "b"), ("sum", "b"), ("sum", "e"), ("prod", "D"), (MAPS, fields("ff")),
             (NINE, fields("f" * 9))]  # fmt: skip
    kernels = dict.fromkeys(
        kernel
        for keys in ("u1", "u2", "u8", "f2", "f8", BFLOAT16)
        for kernel in strategy_kernels(cases, arch, form=Form(segmented=True, keys=np.dtype(keys)))
    )
    kernels |= dict.fromkeys(strategy_kernels(cases[4:], arch, form=Form(segmented=True)))
    check(sample(kernels, 16), arch)


@pytest.mark.compile
def test_look_ahead_warps_end_in_stages_of_their_own():
    """Also for tuples so large that little shared memory has room for few stages."""
    codes = [
        code * k for code in "bhfdD" for k in range(2, 65) if np.dtype(code).itemsize * k <= 168
    ]
    forms = [Form(), Form(segmented=True), Form(segmented=True, keys=np.dtype("u8"))]
    for code, arch, form in product(codes, ("80", "86", "90", "120"), forms):
        structure = fields(code)
        types = Types(structure, np.dtype(structure.descr, align=True), structure)
        for n in (1, 10**5, 10**9):
            policy = scan_policy(types, form, arch, n, 132)
            assert policy.look_ahead_warps <= policy.stages, (code, arch, form)


@pytest.mark.compile
def test_columns_of_large_tuples_have_stages():
    """As many as a loader and the look-ahead warps need, in the little shared memory of totals."""
    codes = [
        code * k for code in "bhfdD" for k in range(1, 65) if np.dtype(code).itemsize * k <= 168
    ]
    for code, arch, inner in product(
        codes, ("80", "86", "90", "120"), (2, 20, 33, 64, 999, 1 << 14)
    ):
        structure = fields(code)
        types = Types(structure, np.dtype(structure.descr, align=True), structure)
        policy, strips = columns_policy(types, inner, arch, 132)
        assert policy.stages > 0
        assert policy.look_ahead_warps + policy.loaders <= policy.stages + 1, (code, arch, inner)
        assert policy.columns >= strips.width * policy.items


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("inner", [1, 20, 64])
def test_large_tuples_compile_where_shared_memory_is_small(inner):
    """Of columns, ptxas spills some registers."""
    form = Form(Extents(inner=inner))
    kernels = strategy_kernels([(MATRICES, fields("f" * 16))], "120", sizes=(1 << 20,), form=form)
    if inner == 1:
        check(kernels, "120")
    for each in kernels:
        each.build("120")
        assert each.shared <= SHARED["120"] << 10


@pytest.mark.compile
def test_an_empty_shard_asks_for_no_kernel():
    assert strategy_kernels(SOME, "90", sizes=(0,)) == []
    assert strategy_kernels(SOME, "90", sizes=(1,))


STRUCTS = [struct for struct, _ in BLOCK_SCANS.values()]
CHAIN_STRUCTS = list(CHAINS.values())
TEXTBOOK = [("sum", "f"), ("sum", "l"), ("sum", "D"), ("max", "b"), ("sum", "b"), ("sum", "e"),
            (COMPOSE, "L"), (NIBBLES, "B")]  # fmt: skip
PAIRS = [*zip(STRUCTS, [*CHAIN_STRUCTS, CHAIN_STRUCTS[-1]], strict=True)]


def textbooks(arch):
    """All that the benchmark asks for; for other GPUs than the first, one of each."""
    pairs = product(STRUCTS, CHAIN_STRUCTS) if arch == "90" else PAIRS
    cases = TEXTBOOK if arch == "90" else [("sum", "D"), ("sum", "b"), (COMPOSE, "L")]
    kernels = [kernel for pair in pairs for kernel in textbook(cases, arch, TextbookPolicy(*pair))]
    for struct, threads in product(STRUCTS, THREADS):
        kernels += textbook([("sum", "f")], arch, TextbookPolicy(struct, threads=threads))
    return kernels


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90"])
def test_block_scans_compile_without_spills(arch):
    kernels = textbooks(arch)
    macros = {name: {dict(k.macros)[name] for k in kernels}
             for name in ("DISTSCAN_BLOCK_SCAN", "DISTSCAN_CHAIN")}  # fmt: skip
    assert macros == {"DISTSCAN_BLOCK_SCAN": set(STRUCTS), "DISTSCAN_CHAIN": set(CHAIN_STRUCTS)}
    check(sample(kernels, 16), arch)


@pytest.mark.compile
def test_steps_and_work_are_what_the_benchmark_says():
    """The kernels' own figures, by the compiler."""
    lines = ['#include "textbook.cu"', "using namespace distscan;"]
    for struct, counts in BLOCK_SCANS.values():
        for n in THREADS:
            for name, number in zip(("STEPS", "BARRIERS", "WORK"), counts(n), strict=True):
                lines.append(f"static_assert({struct}<Op, T, {n}>::{name} == {number});")
    macros = dict(textbook([("sum", "f")], "90", TextbookPolicy(STRUCTS[0]))[0].macros)
    headers = {n.encode(): macros.pop(n).encode() for n in list(macros) if n.endswith(".h")}
    options = [f"-D{name}={value}" for name, value in macros.items()]
    program = kernel.nvrtc.createProgram("\n".join(lines), "counts.cu", list(headers.values()),
                                        list(headers))  # fmt: skip
    folder = f"-I{kernel.source_folder()}"
    try:
        kernel.nvrtc.compileProgram(program, ("-arch=sm_90", "-std=c++17", folder, *options))
    except kernel.nvrtc.NVRTCError:
        pytest.fail(kernel.nvrtc.getProgramLog(program))
    finally:
        kernel.nvrtc.destroyProgram(program)


SAME = [("max", code) for code in "bHfdFD"]
SHORT = [kernel for n in (1 << 10, 1 << 20) for kernel in strategy_kernels(SAME, "90", sizes=(n,))
         if kernel.entry == "scan_short"]  # fmt: skip


FORMED = [
    kernel
    for form in FORMS.values()
    for kernel in strategy_kernels([("max", "b"), ("sum", "f")], "90", form=form)
]


ELEMENTS = [*strategy_kernels(SAME, "90"), *SHORT, *FORMED]
OTHERS = strategy_kernels([("sum", "e")], "90") + [
    kernel for pair in PAIRS for kernel in textbook([("sum", "f"), ("sum", "D")], "90",
                                                    TextbookPolicy(*pair))
]  # fmt: skip


@pytest.mark.compile
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


@pytest.mark.compile
@pytest.mark.parametrize("kernel", strategy_kernels([("prod", "i", "i", "l")], "90"))
def test_products_wrap_before_they_are_widened(kernel):
    """int32 products stored as int64: the compiler may not multiply in 64 bits."""
    assert not re.search(r"mul\.wide\.s32\s+%rd\d+, %r\d+, %r", ptx(kernel))


@pytest.mark.compile
@pytest.mark.parametrize("form", FORMS)
def test_elements_are_changed_in_every_form(form):
    """As they are read: by each source of items."""
    kernels = strategy_kernels(
        [(SQUARES, "f"), (SQUARES, "e")], "90", sizes=(1 << 10, 1 << 20), form=FORMS[form]
    )
    assert all(dict(kernel.macros)["DISTSCAN_LOADS"] == "true" for kernel in kernels)
    check(sample(dict.fromkeys(kernels), 16), "90")


# ---- The kernels for columns compile, without a GPU, fit the chip, and none spills registers -----

cuda = pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)


COLUMN_PAIRS = np.dtype([("x0", "D"), ("x1", "D")])
CASES = [("sum", "b"), ("max", "b"), ("sum", "?", "?"), ("sum", "e"), ("sum", "f"), ("sum", "d"),
         ("prod", "D"), (COMPOSE, "L"), (MAPS, COLUMN_PAIRS)]  # fmt: skip
CASES += [  # as linear_recurrence takes them: x, what accumulates, and the result, which is h alone
    (MAPS_IN_SEGMENTS, *(fields(codes) for codes in codes_of_pair),
     np.dtype([("x1", codes_of_pair[0][1])]))
    for codes_of_pair in (("ff?", "ff?"), ("ee?", "ff?"), ("ef?", "ff?"))
]  # fmt: skip
CASES += [(GRADIENT_MAPS, fields(code * 2), fields(("f" if code == "e" else code) * 2),
           fields(code * 3)) for code in "efdF"]  # fmt: skip
RECURRENCES = [case for case in CASES if case[0] in {MAPS, GRADIENT_MAPS}]
RECURRENCES += [(MAPS, fields(code * 2), fields(("f" if code == "e" else code) * 2),
           np.dtype([("x1", code)])) for code in "efdD"]  # fmt: skip
FEW_COLUMNS = [("max", "b"), ("sum", "f"), ("sum", "d")]
INNER = [1 << 14, 1 << 17, 4, 33]  # strips, a thread to each vector, staged vectors, elements


def resolved(op, *types):
    operator = operators.resolve(op)
    return operator, dtypes.resolve(operator, *types)


def columns_of(cases, arch, inners=INNER, exclusives=(False, True)):
    """Make every strategy, for a GPU that is not there; return the kernels that they ask for."""
    with absent_gpu(arch) as kernels:
        for case, inner, exclusive in product(cases, inners, exclusives):
            op, types = resolved(*case)
            form = Form(Extents(inner=inner), exclusive=exclusive, seed=np.zeros((), types.acc))
            for strategy in (cuda.SinglePass, cuda.ReduceScan):
                strategy(op, types, of_size(1 << 20, form))
    return list(kernels)


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90", "100", "120"])
def test_columns_compile_without_spills(arch):
    kernels = (
        columns_of(CASES, arch)
        if arch == "90"
        else columns_of(FEW_COLUMNS, arch, INNER[:2], [False])
    )
    assert {kernel.entry for kernel in kernels} == {
        "columns",
        "columns_reduce",
        "columns_per_thread",
    }
    check(sample(kernels, 16), arch)


@pytest.mark.compile
@pytest.mark.parametrize("kernel", columns_of([("sum", "f"), ("prod", "D")], "90", [1 << 14]))
def test_launches_are_what_was_compiled(kernel):
    """Threads of a block; copies of boxes and of 16 bytes, stores of 16 bytes."""
    text = ptx(kernel)
    assert f".maxntid {kernel.threads}\n" in text
    assert "cp.async.cg.shared.global" in text
    assert "cp.async.bulk.tensor.2d" in text
    assert kernel.entry == "columns_reduce" or re.search(r"st\.global\.(v4|v2\.[bf]64)", text)


@pytest.mark.compile
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


@pytest.mark.compile
def test_shares():
    """No more blocks than there are, none without a strip, and all strips have their turn."""
    for strips, tiles, sm_count in product(
        (1, 2, 7, 64, 131, 133, 1000), (1, 2, 40, 9999), (1, 132)
    ):
        blocks, side = columns.shares(strips, tiles, sm_count)
        assert 1 <= blocks <= tiles
        assert 1 <= side <= strips
        assert blocks * side <= sm_count


@pytest.mark.compile
def test_walks():
    """Where a thread has columns for itself, its vectors divide a row."""
    types = dtypes.Types(*map(np.dtype, "fff"))
    assert thread_policy(types, 1 << 10, 1 << 10, 132) is None
    assert thread_policy(types, 3, 3 << 20, 132) is None
    for inner, outer in product((16, 100, 1001, 1 << 14), (20, 1000, 1 << 20)):
        policy = thread_policy(types, inner, inner * outer, 132)
        assert policy is None or inner % policy.items == 0


# ---- The kernels of exact sums -----------------------------------------------------------------

SUM_WORDS = [(ONE_WORD, 1), (TWO_WORDS, 1), (TWO_WORDS, 2)]
SUMS = [fixed_sum(-20, *words) for words in SUM_WORDS]
CHECKED = [fixed_sum(-20, *words, (-20, 20), check=print) for words in SUM_WORDS]
# Of elements and results.
SUM_TYPES = [
    *((code, code) for code in ("e", "f", "d", BFLOAT16)),
    ("d", "f"),
    ("f", "d"),
    ("d", "e"),
]
SUMS_FIRST = np.array(1)
SUM_FORMS = {
    "plain": PLAIN,
    "exclusive": Form(exclusive=True, seed=SUMS_FIRST),
    "reverse": Form(reverse=True),
    "exclusive, reverse": Form(exclusive=True, reverse=True, seed=SUMS_FIRST),
    "segments": Form(segmented=True),
    "keys, exclusive, reverse": Form(
        exclusive=True, reverse=True, segmented=True, seed=SUMS_FIRST, keys=np.dtype("u4")
    ),
    "rows": Form(Extents(outer=2)),
    "rows, exclusive, reverse": Form(
        Extents(outer=2), exclusive=True, reverse=True, seed=SUMS_FIRST
    ),
    "columns": Form(Extents(inner=64)),
    "few columns": Form(Extents(inner=4)),
    "columns, exclusive": Form(Extents(inner=64), exclusive=True, seed=SUMS_FIRST),
    "many columns": Form(Extents(outer=1 << 10, inner=1 << 14)),
}


def kernels_of(arch, forms, sizes):
    """What both strategies ask for; scan-add is refused."""
    with absent_gpu(arch) as kernels:
        for op, (x, out), form, n in product(SUMS + CHECKED, SUM_TYPES, forms, sizes):
            steps.SinglePass(op, resolve(op, x, out), of_size(n, SUM_FORMS[form]))
            steps.ReduceScan(op, resolve(op, x, out), of_size(n, SUM_FORMS[form]))
    return list(kernels)


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90", "100", "120"])
def test_sums_compile_without_spills(arch):
    """Every form on one GPU, the plain one on all; for many elements and for few."""
    forms = SUM_FORMS if arch == "90" else ["plain"]
    kernels = kernels_of(arch, forms, (1 << 17, 1 << 40))
    assert {kernel.entry for kernel in kernels} >= {"scan", "reduce", "scan_short"}
    types = {dict(kernel.macros)["DISTSCAN_T"] for kernel in kernels}
    assert types == {"Fixed<1>", "Fixed<2, 1>", "Fixed<2, 2>"}
    checked = {f"Checked<{name}>" for name in types}
    assert {dict(kernel.macros)["DISTSCAN_PARTIAL"] for kernel in kernels} == types | checked
    check(sample(kernels, 32), arch)  # twice as many as other operators have


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90", "120"])
def test_the_kernels_that_find_bits_compile_without_spills(arch):
    with absent_gpu(arch) as kernels:
        for code, size in (("e", 4), (BFLOAT16, 4), ("f", 4), ("d", 8)):
            op, dtype = bit_range_operator(size), np.dtype(code)
            launches.Reduce(op, Types(dtype, op.acc, dtype), 1 << 28, PLAIN)
    assert len(kernels) == 4
    check(kernels, arch)


# ---- The kernels that compact compile, without a GPU, fit the chip, and none spills registers ----


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", SHARED)
def test_compactions_compile_without_spills(arch):
    kernels = compactions(arch, SIZES, PREDICATES)
    sources = {dict(kernel.macros).get("DISTSCAN_SOURCE") for kernel in kernels}
    assert sources == {"Masked", "Indices", "Selected", None}
    check(sample(kernels, 4 if arch == "90" else 16), arch)


@pytest.mark.compile
@pytest.mark.parametrize("size", SIZES)
def test_compactions_launch_and_access(size):
    """The threads of a block are the host's. Elements move in one access each."""
    for request in compactions("90", [size]):
        text = ptx(request)
        source = dict(request.macros).get("DISTSCAN_SOURCE")
        assert f".maxntid {request.threads}\n" in text
        access = {1: r"\.[bu]8", 2: r"\.[bu]16", 4: r"\.[bu]32", 8: r"\.[bu]64",
                  16: r"\.v2\.[bu]64"}[size]  # fmt: skip
        if source == "Masked":
            assert text.count("complete_tx::bytes [") == 2  # without a hint for the cache
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


# ---- The kernels of partition compile for every type, without spills, and load whole vectors -----

WEIGHTS = [*"?bBhHiIlLefd", BFLOAT16]


def tile_totals_of(types, arch):
    """The kernels for weights of these types."""
    with absent_gpu(arch) as kernels:
        for dtype in types:
            TileKernels(np.dtype(dtype))
    return list(kernels)


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", SHARED)
def test_tile_totals_compile_without_spills(arch):
    kernels = tile_totals_of(WEIGHTS if arch == "90" else "bfd", arch)
    assert {kernel.entry for kernel in kernels} == {"tile_totals", "find_cuts"}
    check(kernels, arch)


@pytest.mark.compile
@pytest.mark.parametrize("kernel", tile_totals_of("bhfd", "90"))
def test_accesses(kernel):
    """The threads of a block are the host's; both kernels load 16 bytes at a time."""
    text = ptx(kernel)
    assert f".maxntid {kernel.threads}\n" in text
    assert re.search(r"ld\.global\.(v4\.[bfu]32|v2\.[bfu]64)", text)


@pytest.mark.compile
def test_the_loads_of_a_step_are_queued_together():
    """Four vectors are in flight before the first is used."""
    (kernel,) = (each for each in tile_totals_of("f", "90") if each.entry == "tile_totals")
    instructions = re.findall(r"ld\.global\.v4|cvt\.f64\.f32", ptx(kernel))
    assert "ld.global.v4 " * 4 in " ".join([*instructions, ""])


# ---- the exchange of totals between GPUs ---------------------------------------------------------


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["80", "90"])
def test_exchange_compiles_without_spills(arch):
    """For every type of the running value; by one kernel and by two."""
    kernels = fused_kernels(EVERY if arch == "90" else SOME, arch)
    entries = {"reduce_exchange", "fused", "call_off"}
    chosen = [each for each in kernels if each.entry in entries]
    assert {each.entry for each in chosen} == entries
    assert len(chosen) > 40
    check(sample(dict.fromkeys(chosen), 8), arch)


EXCHANGED_FORMS = {
    "flags": Form(segmented=True),
    "flags, exclusive": Form(segmented=True, exclusive=True, seed=np.array(1)),
    "keys of 8 bytes, reverse": Form(segmented=True, keys=np.dtype("f8"), reverse=True),
}


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", EXCHANGED_FORMS.values(), ids=EXCHANGED_FORMS)
def test_exchange_of_segments_compiles_without_spills(form):
    """The totals of shards with flags or keys, on the way by peer memory and by NCCL."""
    with absent_gpu("90") as kernels:
        for case in SOME:
            operator, types = resolved(*case)
            if not types.x.names:
                exchange_steps.Fused(operator, types, of_size(1 << 20, form), follows_hosts=True)
                exchange_steps.Nccl(operator, types, of_size(1 << 20, form), ranks=4)
    chosen = [each for each in kernels if each.entry in {"reduce_exchange", "gathered_offset"}]
    assert len(chosen) > 10
    check(sample(dict.fromkeys(chosen), 8), "90")


@pytest.mark.compile
@pytest.mark.timeout(600)
def test_exchange_of_rows_compiles_without_spills():
    """In both directions."""
    with absent_gpu("90") as kernels:
        for case, reverse in product(SOME + RECURRENCES, (False, True)):
            operator, types = resolved(*case)
            rows = of_size(1 << 20, Form(reverse=reverse), inner=64)
            if types.x.names is None or operator in {MAPS, GRADIENT_MAPS}:
                exchange_steps.FusedRows(operator, types, rows, follows_hosts=False)
                exchange_steps.NcclRows(operator, types, rows, ranks=4)
    entries = {"row_exchange", "gathered_row", "fill"}
    chosen = [each for each in kernels if each.entry in entries]
    assert {each.entry for each in chosen} == entries
    check(sample(dict.fromkeys(chosen), 8), "90")


@pytest.mark.compile
@pytest.mark.timeout(600)
def test_fused_scans_compile_without_spills():
    """In each form."""
    forms = [FORMS[name] for name in ("exclusive", "reverse", "exclusive, reverse")]
    kernels = [kernel for form in forms for kernel in fused_kernels(SOME, "90", form)]
    check(sample(dict.fromkeys(each for each in kernels if each.entry == "fused"), 8), "90")


@pytest.mark.compile
def test_gathered_offsets_compile_without_spills():
    """For every type of the running value, from the first rank and from the last."""
    with absent_gpu("90") as kernels:
        for case, form in product(EVERY, (PLAIN, Form(reverse=True))):
            operator, types = resolved(*case)
            if not types.x.names:
                exchange_steps.Nccl(operator, types, of_size(1 << 20, form), ranks=4)
    chosen = [kernel for kernel in kernels if kernel.entry == "gathered_offset"]
    assert len(chosen) > 40
    check(sample(dict.fromkeys(chosen), 8), "90")


def fused_kernels(cases, arch, form=PLAIN):
    """The kernels of strategy "fused", for few elements and for many."""
    with absent_gpu(arch) as kernels:
        for case in cases:
            operator, types = resolved(*case)
            if not types.x.names:
                for n in (1 << 10, 1 << 20, 1 << 23, 1 << 40):
                    exchange_steps.Fused(operator, types, of_size(n, form), follows_hosts=False)
    return list(kernels)
