"""Kernels as strategies ask for them, compiled for a GPU that is not there."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import pytest

from distscan.core import dtypes, operators
from distscan.core.errors import KernelError
from distscan.core.form import PLAIN, Form
from support.steps import of_size

cuda = pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.bench.textbook import TextbookPolicy, TextbookScan  # noqa: E402
from distscan.cuda import columns, compaction, launches, nvrtc, policy, steps  # noqa: E402
from distscan.cuda.kernel import Kernel, parameters  # noqa: E402
from distscan.cuda.kernel import check as check_parameters  # noqa: E402

STRATEGIES = (cuda.SinglePass, cuda.ReduceScan, cuda.ScanAdd)
KIB = 1024
# What a block may have of shared memory, static and dynamic (CUDA C++ Programming Guide). sm_86 and
# sm_89 have what sm_120 has.
SHARED = {"80": 163, "90": 227, "100": 227, "120": 99}
REGISTERS = 64 * KIB  # of a multiprocessor


class Asked(NamedTuple):
    """One kernel, as a strategy asks for it."""

    entry: str
    given: tuple[tuple[str, object], ...]
    places: tuple[tuple[int, int], ...]  # of its parameters: offset and size in bytes
    threads: int
    shared: int  # dynamic, in bytes

    def __str__(self) -> str:
        return " ".join((self.entry, *(str(value) for _, value in self.given)))

    @property
    def name(self) -> str:
        """Short: the entry, the operator, the type of x. Some share one."""
        given = dict(self.given)
        op = re.findall('"operator (.*)"', str(given["combine.h"]))[0]
        return f"{self.entry} {op} {given['DISTSCAN_X']}".replace("<", "_").replace(">", "")

    def build(self, arch: str) -> tuple[bytes, str]:
        return nvrtc.build(f"{self.entry}.cu", dict(self.given), arch)


@contextmanager
def absent_gpu(arch: str) -> Iterator[dict[Asked, None]]:
    """Let strategies be made for a GPU that is not there; give the kernels that they ask for."""
    kernels: dict[Asked, None] = {}  # in order, each once

    def record(kernel: Kernel) -> int:
        given, (threads, _, _, shared) = tuple(kernel.definitions.items()), kernel.block
        kernels[Asked(kernel.entry, given, tuple(kernel.places), threads, shared)] = None
        return 0

    gpu = MagicMock()
    gpu.cuda.Device().compute_capability = arch
    gpu.cuda.Device().attributes = {"MultiProcessorCount": 100}
    gpu.zeros().data.ptr = gpu.empty().data.ptr = 0
    with ExitStack() as stack:
        for module in (columns, compaction, policy, launches, steps, cuda):
            stack.enter_context(patch.object(module, "cupy", gpu))
        for name in ("HostTotal", "Row", "Workspace", "violation_word"):
            stack.enter_context(patch.object(cuda, name))
        stack.enter_context(patch.object(steps, "is_capturing", lambda stream: False))
        stack.enter_context(patch.object(Kernel, "load", record))
        yield kernels


def asked(
    cases: list[tuple[Any, ...]],
    arch: str,
    sizes: tuple[int, ...] = (1 << 40,),
    form: Form = PLAIN,
) -> list[Asked]:
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


def textbook(cases: list[tuple[Any, ...]], arch: str, chosen: TextbookPolicy) -> list[Asked]:
    """The textbook's kernels of many elements."""
    with absent_gpu(arch) as kernels:
        for op, *types in cases:
            operator = operators.resolve(op)
            TextbookScan(operator, dtypes.resolve(operator, *types), 1 << 40, chosen)
    return list(kernels)


def faults(kernel, arch):
    """Compile one kernel; say what is wrong with it."""
    name = f"{kernel} for sm_{arch}"
    try:
        code, report = kernel.build(arch)
        check_parameters(kernel.entry, code, [*kernel.places])
    except KernelError as error:
        return f"{name}: {error}"
    numbers = {
        what: sum(map(int, re.findall(rf"(\d+) {what}", report)))
        for what in ("bytes spill stores", "bytes spill loads", "registers", "bytes smem")
    }
    spills, registers = numbers["bytes spill stores"], numbers["registers"]
    shared = numbers["bytes smem"] + kernel.shared
    known = parameters(code, f"distscan_{kernel.entry}")
    if report.count("Compiling entry") != 1 or not registers or not known:
        return f"{name}: no report of one kernel in {report!r}"
    # A function that is called in rare cases may cost some registers around the call.
    if spills > (128 if "scan_apart" in report else 0) or (
        numbers["bytes spill loads"] and not spills
    ):
        return f"{name}: spills {spills} bytes"
    if registers * kernel.threads > REGISTERS:
        return f"{name}: {registers} registers in each of {kernel.threads} threads"
    if shared > SHARED[arch] * KIB:
        return f"{name}: {shared} bytes of shared memory, {shared - SHARED[arch] * KIB} too many"
    return ""


def check(kernels, arch):
    """Compile all; the results are kept between runs."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = list(filter(None, pool.map(lambda each: faults(each, arch), kernels)))
    assert not wrong, "\n".join(wrong)


def ptx(kernel):
    """What, unlike machine code, can be read; for the newest GPU that this NVRTC knows."""
    with patch.object(nvrtc, "folder", lambda: None):
        text = kernel.build("999")[0].decode()
    return text[text.index(".visible .entry") :]
