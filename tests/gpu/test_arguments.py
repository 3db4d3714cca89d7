"""The parameters that the host declares are those of the kernels, by name, type and place."""

import ctypes
import re

import numpy as np
import pytest

from distscan.core.form import Extents, Form

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import arguments, exchange_steps, kernel
from distscan.cuda.reductions import TileKernels
from support.compiling import (
    TextbookPolicy,
    absent_gpu,
    check,
    compactions,
    cuda,
    dtypes,
    faults,
    operators,
    places,
    strategy_kernels,
    textbook,
)
from support.operators import PRINT
from support.steps import of_size

pytestmark = pytest.mark.one_rank

STRUCTURES = [kind for kind in vars(arguments).values()
              if isinstance(kind, type) and issubclass(kind, ctypes.Structure)
              and kind is not ctypes.Structure]  # fmt: skip
ACC = np.dtype(np.float32)
ENTRIES = ["scan", "scan_short", "reduce", "add", "textbook", "columns", "columns_per_thread",
           "columns_reduce", "compact", "gather", "tile_totals", "find_cuts",
           "call_off", "reduce_exchange", "fused", "gathered_offset", "row_exchange",
           "gathered_row", "fill"]  # fmt: skip
TYPES = [("sum", "f"), ("prod", "D")]


def every_kernel(arch):
    """Every entry."""
    kernels = strategy_kernels(TYPES, arch) + textbook(
        [("sum", "d")], arch, TextbookPolicy("Blelloch")
    )
    kernels += strategy_kernels([("sum", "f")], arch, sizes=(1 << 10,))
    for form in (Form(segmented=True), Form(Extents(outer=2), seed=np.array(1))):
        kernels += strategy_kernels([("sum", "d")], arch, form=form)
    with absent_gpu(arch) as columns:
        operator = operators.resolve("sum")
        types = dtypes.resolve(operator, "f")
        for inner in (1 << 14, 1 << 17):  # together, and each for itself
            for strategy in (cuda.SinglePass, cuda.ReduceScan):
                strategy(operator, types, of_size(1 << 20, inner=inner))
        TileKernels(np.dtype("f"))
        for n in (1 << 20, 1 << 40):
            exchange_steps.Fused(operator, types, of_size(n), follows_hosts=False)
        exchange_steps.Nccl(operator, types, of_size(1 << 20), ranks=4)
        rows = of_size(1 << 20, inner=64)
        exchange_steps.FusedRows(operator, types, rows, follows_hosts=True)
        exchange_steps.NcclRows(operator, types, rows, ranks=4)
    return dict.fromkeys([*kernels, *columns, *compactions(arch, [4])])


def test_every_entry_is_declared():
    """By the names and types of its source, in its order."""
    words = {"int64": arguments.Int64, "int": arguments.Int, "unsigned": arguments.UInt,
             "bool": arguments.Bool, "T": None,
             "TensorMaps": ctypes.c_uint8 * 128}  # fmt: skip
    words |= {kind.__name__: kind for kind in STRUCTURES}
    for entry in ENTRIES:
        declared = dict(arguments.parameters_of(entry, ACC)._fields_)
        source = re.sub(r"/\*.*?\*/", "", kernel.sources().texts[f"{entry}.cu"])
        (text,) = re.findall(rf"\bdistscan_{entry}\(([^)]*)\)", source)
        text = text.replace("const __grid_constant__", "")
        parameters = [parameter.split() for parameter in text.split(",")]
        for (_, *name), expected in zip(parameters, declared, strict=True):
            # One that the kernel does not use has no name there.
            assert not name or name[-1] == expected, entry
        for parameter, (name, type_) in zip(parameters, declared.items(), strict=True):
            text = " ".join(parameter)
            if "*" in text or parameter[0] in {"Input", "Output"}:
                assert type_ is arguments.Pointer, f"{entry}: {text}"
            elif words[parameter[0]] is not None:
                assert type_ is words[parameter[0]], f"{entry}: {text}"
            else:
                assert ctypes.sizeof(type_) == ACC.itemsize, f"{entry}: {name}"


@pytest.mark.compile
def test_structures_are_the_kernels():
    """Their names, and the names and places of their fields, by the compiler."""
    texts = kernel.sources().texts
    lines = ["using namespace distscan;"]
    for kind in STRUCTURES:
        (path,) = (path for path, text in texts.items() if f"struct {kind.__name__} {{" in text)
        lines.insert(0, f'#include "{path}"')
        lines.append(f"static_assert(sizeof({kind.__name__}) == {ctypes.sizeof(kind)});")
        for name, _ in kind._fields_:
            place, offset = f"{kind.__name__}, {name}", getattr(kind, name).offset
            lines.append(f'static_assert(__builtin_offsetof({place}) == {offset}, "{place}");')
    program = kernel.nvrtc.createProgram(
        "\n".join(lines),
        "structures.cu",
        [text.encode() for text in texts.values()],
        [path.encode() for path in texts],
    )
    try:
        kernel.nvrtc.compileProgram(program, ("-arch=sm_90", "-std=c++17"))
    except kernel.nvrtc.NVRTCError:
        pytest.fail(kernel.nvrtc.getProgramLog(program))
    finally:
        kernel.nvrtc.destroyProgram(program)


@pytest.mark.compile
@pytest.mark.timeout(600)
def test_every_kernel_has_what_is_declared():
    """Number, places and sizes, in machine code; other tests do so for every type."""
    kernels = every_kernel("90")
    assert {kernel.entry for kernel in kernels} == {*ENTRIES}
    check(kernels, "90")


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["80", "90", "100", "120"])
def test_a_wrong_declaration_is_noticed(arch):
    (kernel,) = (
        kernel for kernel in strategy_kernels([("sum", "f")], arch) if kernel.entry == "add"
    )
    compiled = places(kernel.build(arch)[0], "add")
    assert compiled == [*kernel.places]
    for wrong in (
        arguments.parameters_of("add", np.dtype(np.float64)),
        arguments.parameters_of("reduce", ACC),
    ):
        assert compiled != arguments.places(wrong)
    other = kernel._replace(places=(*kernel.places, (48, 8)))
    assert "declared at" in faults(other, arch)


def test_values_have_the_alignment_of_c():
    for dtype, alignment in (("b", 1), ("?", 1), ("e", 2), ("f", 4), ("d", 8), ("F", 4), ("D", 8),
                             (PRINT, 8), ([("a", "f"), ("b", "f")], 4)):  # fmt: skip
        acc = np.dtype(dtype)
        value = arguments.parameters_of("add", acc).offset
        assert value.size == acc.itemsize
        assert (
            ctypes.alignment(dict(arguments.parameters_of("add", acc)._fields_)["offset"])
            == alignment
        )


def test_a_value_is_in_the_arguments_memory():
    for code in "?bhfdFD":
        values = arguments.parameters_of("add", np.dtype(code))()
        arguments.view(values, "offset", np.dtype(code))[0] = 1
        assert bytes(values.offset) == np.ones((), code).tobytes()
        values.y, values.has_offset = (1 << 64) - 1, True
        assert values.y == (1 << 64) - 1


def test_an_argument_that_is_not_declared_is_refused():
    values = arguments.parameters_of("scan_short", ACC)()
    for wrong in (values, values.shard, values.work, values.mail):
        with pytest.raises(AttributeError):
            wrong.heads = 1
