"""Kernels as strategies ask for them, compiled for a GPU that is not there."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import pytest

from distscan.core import dtypes, operators
from distscan.core.errors import KernelError
from distscan.core.form import PLAIN, Form

cuda = pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import kernel_cache, launches, nvrtc  # noqa: E402
from distscan.cuda.policy import TextbookPolicy  # noqa: E402

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
    sizes: tuple[int, ...]  # of its arguments, in words of 8 bytes
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


def asked(
    cases: list[tuple[Any, ...]],
    arch: str,
    textbook: TextbookPolicy | None = None,
    sizes: tuple[int, ...] = (1 << 40,),
    form: Form = PLAIN,
) -> list[Asked]:
    """Make every strategy, for a GPU that is not there; return the kernels that they ask for."""
    kernels: dict[Asked, None] = {}  # in order, each once

    def record(entry, given, sizes, threads, shared=0):
        kernels[Asked(entry, tuple(given.items()), tuple(sizes), threads, shared)] = None
        return MagicMock()

    with (
        patch.object(cuda, "cupy") as cupy,
        patch.object(cuda, "HostTotal"),
        patch.object(cuda, "Workspace"),
        patch.object(cuda, "is_capturing", lambda stream: False),
        patch.object(launches, "cupy", cupy),
        patch.object(launches, "HostOffset"),
        patch.object(launches, "Kernel", record),
    ):
        cupy.cuda.Device().compute_capability = arch
        cupy.cuda.Device().attributes = {"MultiProcessorCount": 100}
        for op, x, *types in cases:
            operator = operators.resolve(op)
            resolved = dtypes.resolve(operator, x, *types)
            for n, strategy in product(sizes, STRATEGIES[: 1 if form.outer > 1 else 3]):
                if form.segmented and strategy is cuda.ScanAdd:
                    continue
                strategy(operator, resolved, n, form, textbook)
    return list(kernels)


def faults(kernel, arch):
    """Compile one kernel; say what is wrong with it."""
    name = f"{kernel} for sm_{arch}"
    try:
        code, report = kernel.build(arch)
    except KernelError as error:
        return f"{name}: {error}"
    numbers = {
        what: sum(map(int, re.findall(rf"(\d+) {what}", report)))
        for what in ("bytes spill stores", "bytes spill loads", "registers", "bytes smem")
    }
    spills, registers = numbers["bytes spill stores"], numbers["registers"]
    shared = numbers["bytes smem"] + kernel.shared
    if report.count("Compiling entry") != 1 or not registers or not code:
        return f"{name}: no report of one kernel in {report!r}"
    if spills or numbers["bytes spill loads"]:
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
    with patch.object(kernel_cache, "folder", lambda: None):
        text = kernel.build("999")[0].decode()
    return text[text.index(".visible .entry") :]


def parameters(text):
    """The sizes of a kernel's parameters, in words of 8 bytes."""
    bits = r"\.param (?:\.align \d+ )?\.[bfsu](\d+) [^\[\n]*?(?:\[(\d+)\])?,?\n"
    found = re.findall(bits, text[: text.index(".maxntid")])
    return [-(-(int(size) // 8 * int(n or 1)) // 8) for size, n in found]
