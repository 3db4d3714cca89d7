"""Kernels as strategies ask for them, compiled for a GPU that is not there."""

import os
import re
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import numpy as np
import pytest

from distscan.core import dtypes, operators
from distscan.core.errors import KernelError
from distscan.core.form import PLAIN, Form
from distscan.core.operators import Predicate
from support.steps import of_size

cuda = pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.bench.textbook import TextbookPolicy, TextbookScan  # noqa: E402
from distscan.cuda import (  # noqa: E402
    columns,
    compaction,
    exchange_steps,
    kernel,
    launches,
    peers,
    policy,
    steps,
    workspace,
)
from distscan.cuda.kernel import Kernel  # noqa: E402

STRATEGIES = (cuda.SinglePass, cuda.ReduceScan, cuda.ScanAdd)
KIB = 1024
# What a block may have of shared memory, static and dynamic (CUDA C++ Programming Guide). sm_86 and
# sm_89 have what sm_120 has.
SHARED = {"80": 163, "90": 227, "100": 227, "120": 99}
REGISTERS = 64 * KIB  # of a multiprocessor


class KernelRequest(NamedTuple):
    """One kernel, as a strategy asks for it."""

    entry: str
    macros: tuple[tuple[str, object], ...]
    places: tuple[tuple[int, int], ...]  # of its parameters: offset and size in bytes
    threads: int
    shared: int  # dynamic, in bytes

    def __str__(self) -> str:
        return " ".join((self.entry, *(str(value) for _, value in self.macros)))

    @property
    def name(self) -> str:
        """Short: the entry, the operator, the type of x. Some share one."""
        macros = dict(self.macros)
        op = "".join(re.findall('"operator (.*)"', str(macros.get("combine.h"))))
        return f"{self.entry} {op} {macros.get('DISTSCAN_X')}".replace("<", "_").replace(">", "")

    def build(self, arch: str) -> tuple[bytes, str]:
        return kernel.build(f"{self.entry}.cu", dict(self.macros), arch)


@contextmanager
def absent_gpu(arch: str) -> Iterator[dict[KernelRequest, None]]:
    """Let strategies be made for a GPU that is not there; give the kernels that they ask for."""
    kernels: dict[KernelRequest, None] = {}  # in order, each once

    def record(kernel: Kernel) -> int:
        macros, (threads, _, _, shared) = tuple(kernel.definitions.items()), kernel.block
        kernels[KernelRequest(kernel.entry, macros, tuple(kernel.places), threads, shared)] = None
        return 0

    gpu = MagicMock()
    gpu.cuda.Device().compute_capability = arch
    gpu.cuda.Device().attributes = {"MultiProcessorCount": 100, "L2CacheSize": 50 << 20}
    gpu.zeros().data.ptr = gpu.empty().data.ptr = 0
    with ExitStack() as stack:
        modules = columns, compaction, exchange_steps, peers, policy, launches, steps, workspace
        for module in modules:
            stack.enter_context(patch.object(module, "cupy", gpu))
        for name in ("HostTotal", "Row", "Workspace", "violation_word"):
            stack.enter_context(patch.object(steps, name))
        for name in ("FaultWord", "Workspace"):
            stack.enter_context(patch.object(exchange_steps, name))
        for module in (steps, workspace):
            stack.enter_context(patch.object(module, "is_capturing", lambda stream: False))
        stack.enter_context(patch.object(Kernel, "load", record))
        yield kernels


def strategy_kernels(
    cases: list[tuple[Any, ...]],
    arch: str,
    sizes: tuple[int, ...] = (1 << 40,),
    form: Form = PLAIN,
) -> list[KernelRequest]:
    """Make every strategy; return the kernels that they ask for."""
    with absent_gpu(arch) as kernels:
        for op, x, *types in cases:
            operator = operators.resolve(op)
            resolved = dtypes.resolve(operator, x, *types)
            for n, make in product(sizes, STRATEGIES[: 1 if form.extents.outer > 1 else 3]):
                if make is cuda.ScanAdd and (form.segmented or resolved.x.names):
                    continue
                make(operator, resolved, of_size(n, form))
    return list(kernels)


def textbook(
    cases: list[tuple[Any, ...]], arch: str, chosen: TextbookPolicy
) -> list[KernelRequest]:
    """The textbook's kernels of many elements."""
    with absent_gpu(arch) as kernels:
        for op, *types in cases:
            operator = operators.resolve(op)
            TextbookScan(operator, dtypes.resolve(operator, *types), 1 << 40, chosen)
    return list(kernels)


_SECTIONS = struct.Struct("<40xQ10xHHH")  # of an ELF file: offset, size of each, number, names
_SECTION = struct.Struct("<I20xQQ24x")  # name, offset, size
_ATTRIBUTE = struct.Struct("<BBH")  # format, kind, value
_SIZED, _PARAMETER_INFO = 4, 0x17  # the format with bytes after the value; EIATTR_KPARAM_INFO
_PARAMETER = struct.Struct("<IHHI")  # index, number, offset; size from bit 18 on


def section(code, name):
    """Return a section of machine code, which is an ELF file."""
    begin, each, number, of_names = _SECTIONS.unpack_from(code)
    sections = [_SECTION.unpack_from(code, begin + i * each) for i in range(number)]
    names = code[sections[of_names][1] :]
    (found,) = (each for each in sections if names[each[0] :].startswith(name.encode() + b"\0"))
    return code[found[1] : found[1] + found[2]]


def places(code, entry):
    """Return the offset and the size of each parameter of a kernel, as its machine code has them.

    Offsets are from the first parameter, which may have an alignment.

    The section ``.nv.info`` of a function is a list of attributes, one for each parameter.
    """
    attributes, at, parameters = section(code, f".nv.info.distscan_{entry}"), 0, []
    while at < len(attributes):
        form, kind, value = _ATTRIBUTE.unpack_from(attributes, at)
        at += _ATTRIBUTE.size
        if kind == _PARAMETER_INFO:
            parameters.append(_PARAMETER.unpack_from(attributes, at)[1:])
        at += value if form == _SIZED else 0
    (_, first, _), *_ = parameters = sorted(parameters)
    return [(offset - first, bits >> 18) for _, offset, bits in parameters]


def faults(kernel, arch):
    """Compile one kernel; say what is wrong with it."""
    name = f"{kernel} for sm_{arch}"
    try:
        code, report = kernel.build(arch)
    except KernelError as error:
        return f"{name}: {error}"
    numbers = {
        quantity: sum(map(int, re.findall(rf"(\d+) {quantity}", report)))
        for quantity in ("bytes spill stores", "bytes spill loads", "registers", "bytes smem")
    }
    spills, registers = numbers["bytes spill stores"], numbers["registers"]
    shared = numbers["bytes smem"] + kernel.shared
    compiled, declared = places(code, kernel.entry), [*kernel.places]
    # A function that is called in rare cases may cost some registers around the call.
    most_spills = 128 if "scan_apart" in report else 0
    fault = ""
    if report.count("Compiling entry") != 1 or not registers:
        fault = f"no report of one kernel in {report!r}"
    elif compiled != declared:
        fault = f"parameters at (offset, size) {compiled}, declared at {declared}"
    elif spills > most_spills or (numbers["bytes spill loads"] and not spills):
        fault = f"spills {spills} bytes"
    elif registers * kernel.threads > REGISTERS:
        fault = f"{registers} registers in each of {kernel.threads} threads"
    elif shared > SHARED[arch] * KIB:
        fault = f"{shared} bytes of shared memory, {shared - SHARED[arch] * KIB} too many"
    return fault and f"{name}: {fault}"


def check(kernels, arch):
    """Compile all; the results are kept between runs."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = list(filter(None, pool.map(lambda each: faults(each, arch), kernels)))
    assert not wrong, "\n".join(wrong)


def ptx(kernel):
    """What, unlike machine code, can be read; for the newest GPU that this NVRTC knows."""
    with patch("distscan.cuda.kernel.cache_folder", lambda: None):
        text = kernel.build("999")[0].decode()
    return text[text.index(".visible .entry") :]


# ---- compactions ---------------------------------------------------------------------------------


SIZES = (1, 2, 4, 8, 16)  # bytes
PREDICATES = [
    ("bool", 1, "x"),
    ("signed char", 1, "x > 0"),
    ("half", 2, "x > 0"),
    ("bfloat16", 2, "x > 0"),
    ("int", 4, "{ return x % 3 == 1; }"),
    ("float", 4, "x != x"),
    ("double", 8, "x > 0 && x < 1"),
    ("complex<double>", 16, "x.re * x.re + x.im * x.im < 1"),
]


def compactions(
    arch: str, sizes: Iterable[int] = SIZES, predicates: Iterable[tuple[str, int, str]] = ()
) -> list[KernelRequest]:
    """Compactions of few and many elements, and what copies rows."""
    units, policy = compaction._UNITS, compaction.compact_policy
    kinds = [compaction.Selection("Masked", units[size], size) for size in sizes]
    kinds += [
        compaction.Selection("Indices", units[size], size) for size in sizes if size in (4, 8)
    ]
    kinds += [
        compaction.Selection("Selected", dtype, size, Predicate("mine", np.isnan, text))
        for dtype, size, text in predicates
    ]
    with absent_gpu(arch) as kernels:
        for selection in kinds:
            for n in (1000, 1 << 21, 1 << 30):
                chosen = policy(selection.size, n, arch, 100, masked=selection.masked)
                compaction.Compact(selection, chosen, n)
        for size in sizes:
            for index in (np.uint32, np.uint64):
                compaction.Gather(size, np.dtype(index))
    return list(kernels)
