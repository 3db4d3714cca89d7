"""The structures that Python hands to the compiled kernels are the kernels' own."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest

from distscan.core import segments
from distscan.cpu import compiled, library, reductions
from support.bfloat16 import BFLOAT16
from support.keys import TYPES as KEYS

pytestmark = pytest.mark.one_rank

SOURCES = Path(library.KERNELS) / "cpu"
POINTER, INT64, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
TYPES = {"int64": INT64, "int": INT}


def text(header, name):
    """The lines of a structure, without comments."""
    source = re.sub(r"//.*", "", (SOURCES / header).read_text())
    (body,) = re.findall(rf"\bstruct {name} {{(.*?)\n}};", source, re.DOTALL)
    return [" ".join(line.split()) for line in body.split(";") if line.strip()]


def test_jobs():
    fields = []
    for line in text("job.hpp", "Job"):
        type_, names = re.fullmatch(r"((?:const )?[\w ]+?[ *]+)(\w+(?:, \w+)*)", line).groups()
        kind = POINTER if "*" in type_ else TYPES[type_.strip()]
        fields += [(name, kind) for name in names.split(", ")]
    assert fields == compiled.KernelArguments._fields_

    class Expected(ctypes.Structure):
        _fields_ = fields

    assert ctypes.sizeof(compiled.KernelArguments) == ctypes.sizeof(Expected)
    places = {name: getattr(Expected, name).offset for name, _ in fields}
    assert {name: getattr(compiled.KernelArguments, name).offset for name in places} == places
    assert (
        ctypes.sizeof(compiled.KernelArguments) == 8 * 8 + 9 * 8 + 4 * 4 + 7 * 8
    )  # without padding


def test_kernels():
    fields = []
    for line in text("table.hpp", "Kernel"):
        if function := re.fullmatch(r"void \(\*(\w+)\)\(Job&\)", line):
            fields.append((function[1], compiled._Function))
        else:
            names = re.fullmatch(r"const char (\*\w+(?:, \*\w+)*)", line)[1]
            fields += [(name.lstrip("*"), ctypes.c_char_p) for name in names.split(", ")]
    assert fields == compiled.Kernel._fields_
    assert compiled._Function._restype_ is None
    assert compiled._Function._argtypes_ == (ctypes.POINTER(compiled.KernelArguments),)
    assert ctypes.sizeof(compiled.Kernel) == 8 * len(fields)


def test_tables():
    """Python reads each table of the sources, and each of their lines."""
    tables, lines = [], 0
    names = "kernel|recurrence|in_segments|sum|prod|fsum"
    for source in SOURCES.glob("*.cpp"):
        found = source.read_text()
        tables += re.findall(r"^DISTSCAN_TABLE\((\w+)\)", found, re.MULTILINE)
        lines += len(re.findall(rf"^    (?:{names})<", found, re.MULTILINE))
    assert sorted(tables) == sorted(compiled._TABLES)
    if (loaded := library.load()) is None:
        pytest.skip("no compiled kernels")
    assert len(compiled._tables(loaded.handle)) == lines
    for kernel in compiled._tables(loaded.handle).values():
        assert kernel.scan
        assert kernel.reduce
        assert kernel.scan_columns
        assert kernel.reduce_columns


def test_keys():
    """Kernels find heads among keys of every type that they are said to compare."""
    assert text("keys.hpp", "Keys") == ["const char* type", "FindHeads* find"]
    assert [name for name, _ in compiled.Keys._fields_] == ["type", "find"]
    if library.load() is None:
        pytest.skip("no compiled kernels")
    for dtype in [*KEYS, BFLOAT16, np.dtype("M8[s]"), np.dtype("m8[ns]")]:
        assert compiled.finder(segments.compared(np.dtype(dtype)))
    assert compiled.finder(None) is None


def test_windows():
    assert text("window.hpp", "Found") == ["int64 low, high, special"]
    assert reductions.WindowResult._fields_ == [
        (name, INT64) for name in ("low", "high", "special")
    ]
    assert text("window.hpp", "Window") == [
        "const char* type",
        "void (*find)(const void* x, int64 count, Found& found)",
    ]
    assert [name for name, _ in reductions._WindowKernel._fields_] == ["type", "find"]


def test_strips_and_blocks_fit_the_kernels():
    widest = re.search(r"WIDEST = (\d+) / VECTOR", (SOURCES / "columns.hpp").read_text())
    assert int(widest[1]) == compiled._STRIP
    widest = re.search(r"WIDEST = (\d+) / sizeof", (SOURCES / "fixed_columns.hpp").read_text())
    assert int(widest[1]) == compiled._STRIP
    ready = re.search(r"READY = (\d+);", (SOURCES / "job.hpp").read_text())
    assert int(ready[1]) == compiled._READY
    assert compiled.BLOCK % 64 == 0  # bytes of a vector
