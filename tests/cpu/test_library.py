"""The compiled kernels for CPUs: the library is built, found and chosen; its tables."""

import ctypes
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from distscan.core import dtypes, operators, segments
from distscan.cpu import compiled, library
from support.cpu import CASES, HALVES, INTEGERS
from support.data import KEY_TYPES as KEYS
from support.exact import BFLOAT16, dtype_of

pytestmark = pytest.mark.one_rank


# ---- The compiled kernels for CPUs: which library is built, found and chosen ---------------------

BUILD = Path(__file__).parents[2] / "launch" / "build_cpu.py"
SOURCE = """
#include "seven.hpp"
extern "C" __attribute__((visibility("default"))) int seven() { return SEVEN; }
"""
V3, V4 = (library.LEVELS["x86_64"][level].flags for level in ("x86-64-v3", "x86-64-v4"))
BASELINE = next(reversed(library.machine_levels()), "")


@pytest.fixture(scope="session")
def build_cpu():
    spec = importlib.util.spec_from_file_location("build_cpu", BUILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def compiler(build_cpu):
    """The compiler; a test that needs one is skipped where there is none."""
    try:
        return build_cpu.find_compiler()
    except build_cpu.BuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def checkout(tmp_path, build_cpu, monkeypatch):
    """A checkout with one source and one header, and without libraries."""
    kernels = tmp_path / "kernels"
    (kernels / "cpu").mkdir(parents=True)
    (kernels / "cpu" / "seven.cpp").write_text(SOURCE)
    (kernels / "cpu" / "seven.hpp").write_text('#include "../seven.cuh"\n')
    (kernels / "seven.cuh").write_text("#define SEVEN 7\n")
    monkeypatch.setattr(build_cpu, "KERNELS", kernels)
    monkeypatch.setattr(library, "KERNELS", str(kernels))
    monkeypatch.setattr(library, "FOLDER", str(tmp_path / "lib"))
    monkeypatch.delenv("DISTSCAN_CPU", raising=False)
    forget()
    yield SimpleNamespace(kernels=kernels, lib=tmp_path / "lib")
    forget()


def forget():
    for function in (library._best, library._load_choice, library._load):
        function.cache_clear()


@pytest.fixture
def x86(monkeypatch):
    """Set the flags of this machine's CPU, which is an x86-64."""
    monkeypatch.setattr(library, "machine_levels", lambda: library.LEVELS["x86_64"])
    return lambda flags: monkeypatch.setattr(library, "cpu_flags", lambda: flags)


@pytest.mark.usefixtures("checkout")
def test_flags(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model\t: 1\nflags\t\t: fpu avx2 abm\nvmx flags\t: ept\n\nflags\t: none\n")
    assert library.cpu_flags(str(cpuinfo)) == {"fpu", "avx2", "abm"}
    cpuinfo.write_text("Features\t: fp asimd\n")
    assert library.cpu_flags(str(cpuinfo)) == set()
    assert library.cpu_flags(str(tmp_path / "none")) == set()


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (frozenset(), ["x86-64"]),
        (V3 - {"movbe"}, ["x86-64"]),
        (V3, ["x86-64-v3", "x86-64"]),
        (V4 - {"avx512vl"}, ["x86-64-v3", "x86-64"]),
        (V4 | {"avx512fp16"}, ["x86-64-v4", "x86-64-v3", "x86-64"]),
    ],
    ids=["none", "no-movbe", "v3", "no-avx512vl", "v4"],
)
def test_native_levels(flags, levels, build_cpu, monkeypatch):
    known = build_cpu.cpu_library.LEVELS["x86_64"]
    monkeypatch.setattr(build_cpu.cpu_library, "machine_levels", lambda: known)
    monkeypatch.setattr(build_cpu.cpu_library, "cpu_flags", lambda: flags)
    assert build_cpu.choose_levels("native", "x86_64") == levels
    assert build_cpu.choose_levels("native", "aarch64") == ["armv8-a"]  # a cross compiler


@pytest.mark.usefixtures("checkout")
def test_levels_by_name(build_cpu):
    assert build_cpu.choose_levels("all", "x86_64") == ["x86-64-v4", "x86-64-v3", "x86-64"]
    assert build_cpu.choose_levels("x86-64,x86-64-v3", "x86_64") == ["x86-64-v3", "x86-64"]
    with pytest.raises(build_cpu.BuildError, match=r"avx2: no level of x86_64; .*x86-64-v3"):
        build_cpu.choose_levels("x86-64,avx2", "x86_64")


def test_the_best_library_of_this_cpu(compiler, build_cpu, checkout, monkeypatch):
    build_cpu.build("native", checkout.lib)
    with ThreadPoolExecutor(8) as pool:
        best, *others = pool.map(lambda _: library.load(), range(8))
    assert all(other is best for other in others)
    assert best.handle.seven() == 7
    assert best.level == build_cpu.choose_levels("native", compiler.machine)[0]
    levels = ["AVX-512", "AVX2", "SSE2", "NEON"]
    assert library.built_levels() == [level for level in levels if level in library.built_levels()]
    assert best.name == library.built_levels()[0]

    monkeypatch.setenv("DISTSCAN_CPU", "numpy")
    assert library.load() is None
    monkeypatch.setenv("DISTSCAN_CPU", BASELINE)
    assert library.load().level == BASELINE
    monkeypatch.setenv("DISTSCAN_CPU", "")
    assert library.load() is best


@pytest.mark.parametrize("flags", [V3, V4], ids=["v3", "v4"])
def test_the_best_library_of_those_that_are_there(flags, x86, checkout, monkeypatch):
    x86(flags)
    assert library.load() is None
    checkout.lib.mkdir()
    for level in ("x86-64", "x86-64-v4"):
        Path(library.path_of(level, checkout.lib)).touch()
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(library, "_load", lambda level: level)
        assert library.load() == ("x86-64-v4" if flags == V4 else "x86-64")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("avx2", r"is one of numpy, x86-64-v4 \(AVX-512\), x86-64-v3 \(AVX2\), x86-64 \(SSE2\)"),
        ("x86-64-v4", "this CPU lacks avx512bw, avx512cd, avx512dq, avx512f, avx512vl"),
        ("x86-64-v3", "python launch/build_cpu.py --levels x86-64-v3"),
        ("x86-64", "cannot be loaded"),
    ],
)
def test_a_choice_that_cannot_be(choice, message, x86, checkout, monkeypatch):
    x86(V3)
    checkout.lib.mkdir()
    Path(library.path_of("x86-64", checkout.lib)).write_text("no library")
    monkeypatch.setenv("DISTSCAN_CPU", choice)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^DISTSCAN_CPU={choice}: .*{message}"):
            library.load()


def test_a_library_that_cannot_be_loaded(x86, checkout):
    x86(V3)
    checkout.lib.mkdir()
    Path(library.path_of("x86-64", checkout.lib)).write_text("no library")
    with pytest.warns(RuntimeWarning, match="NumPy is used"):
        assert library.load() is None
    assert library.load() is None


def test_a_machine_without_kernels(checkout, monkeypatch):
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    assert library.load() is None


def test_what_is_built_again(compiler, build_cpu, checkout, monkeypatch, capfd):
    def is_built():
        build_cpu.build(BASELINE, checkout.lib)
        out, err = capfd.readouterr()
        assert out == ""
        return err != ""

    assert is_built()
    assert not is_built()
    (checkout.kernels / "other.cuh").write_text("#define OTHER 1\n")
    assert not is_built()
    (checkout.kernels / "seven.cuh").write_text("#define SEVEN 8\n")
    assert is_built()
    assert not is_built()
    monkeypatch.setattr(build_cpu, "FLAGS", [*build_cpu.FLAGS, "-g"])
    assert is_built()
    monkeypatch.setenv("CXX", shlex.join([*compiler.command, "-DCHANGED"]))
    assert is_built()
    Path(library.path_of(BASELINE, checkout.lib)).unlink()
    assert is_built()
    assert not is_built()
    assert sorted(path.name for path in checkout.lib.iterdir()) == [
        f"{BASELINE}.so",
        f"{BASELINE}.stamp",
    ]


def test_some_of_the_sources(compiler, build_cpu, checkout):
    for name in ("eight", "nine"):
        text = SOURCE.replace("seven()", f"{name}()")
        (checkout.kernels / "cpu" / f"{name}.cpp").write_text(text)
    for only, there in (("eight", [0, 1, 0]), ("seven,nine", [1, 0, 1]), ("*", [1, 1, 1])):
        folder = checkout.lib / str(sum(there))
        build_cpu.build(BASELINE, folder, only=only)
        handle = ctypes.CDLL(library.path_of(BASELINE, folder))
        assert [hasattr(handle, name) for name in ("seven", "eight", "nine")] == there
    with pytest.raises(build_cpu.BuildError, match=r"has no ten\.cpp"):
        build_cpu.build(BASELINE, checkout.lib, only="seven,ten")


def test_a_library_that_is_older_than_its_sources(compiler, build_cpu, checkout, monkeypatch):
    build_cpu.build(BASELINE, checkout.lib)
    (checkout.kernels / "seven.cuh").write_text("#define SEVEN 8\n")
    with pytest.warns(RuntimeWarning, match="run python launch/build_cpu.py"):
        assert library.load() is None
    build_cpu.build(BASELINE, checkout.lib)
    forget()
    assert library.load().handle.seven() == 8


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("int seven( { return 7; }", "error: "),
        ("int six(); int seven() { return six() + 1; }", "undefined reference"),
    ],
    ids=["compile", "link"],
)
def test_a_fault_in_the_sources(source, fault, compiler, build_cpu, checkout):
    build_cpu.build(BASELINE, checkout.lib)
    old = Path(library.path_of(BASELINE, checkout.lib)).read_bytes()
    (checkout.kernels / "cpu" / "seven.cpp").write_text(source)
    with pytest.raises(build_cpu.BuildError, match=fault):
        build_cpu.build("all", checkout.lib)
    assert Path(library.path_of(BASELINE, checkout.lib)).read_bytes() == old
    assert len(list(checkout.lib.iterdir())) == 2


@pytest.mark.parametrize(
    ("cxx", "fault"),
    [
        (None, "there is no C++ compiler: install g++ or clang++"),
        ("false", "false --version failed"),
        ("no-such-program", "no-such-program cannot be run: No such file"),
    ],
    ids=["none", "false", "no-program"],
)
def test_without_a_compiler(cxx, fault, checkout):
    variables = {"PATH": str(checkout.lib)} if cxx is None else os.environ | {"CXX": cxx}
    run = subprocess.run([sys.executable, BUILD, "--output", checkout.lib], env=variables,
                         text=True, capture_output=True, timeout=60, check=False)  # fmt: skip
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("build_cpu.py: no compiled kernels for CPUs: ")
    assert fault in run.stderr
    assert not checkout.lib.exists()


def test_this_checkout_has_its_library(compiler, monkeypatch):
    """Else the whole suite would run without the compiled kernels, and pass."""
    monkeypatch.delenv("DISTSCAN_CPU", raising=False)
    assert library.load() is not None, "run python launch/build_cpu.py"


# ---- The kernels and the constants of the sources are those that Python knows --------------------

SOURCES = Path(library.KERNELS) / "cpu"


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


def has_kernel(op, *types):
    return compiled.find(operators.BUILTIN[op], dtypes.Types(*map(dtype_of, types))) is not None


@pytest.mark.skipif(library.load() is None, reason="no compiled kernels")
def test_which_kernels_there_are():
    """Else NumPy would do their work, and all tests would pass."""
    wide = {"int64": ["bool", *INTEGERS[::2]], "uint64": INTEGERS[1::2]}
    for op, name in CASES:
        alike = name == "bool" or (name not in HALVES and not op.startswith("logical"))
        assert has_kernel(op, name, name, name) == alike, (op, name)
        if name in HALVES and not op.startswith("logical"):
            assert has_kernel(op, name, "float32", name) == (op in ("sum", "prod", "max", "min"))
    for op, (acc, narrow) in itertools.product(("sum", "prod"), wide.items()):
        assert all(has_kernel(op, name, acc, acc) for name in narrow)
    assert has_kernel("sum", "float32", "float64", "float32")
    assert has_kernel("sum", "float32", "float64", "float64")
    for name in ("float32", "float64"):
        assert has_kernel("logaddexp", name, name, name)
    assert not has_kernel("logaddexp", "float16", "float32", "float16")  # NumPy converts


def test_keys():
    """Kernels find heads among keys of every type that they are said to compare."""
    if library.load() is None:
        pytest.skip("no compiled kernels")
    for dtype in [*KEYS, BFLOAT16, np.dtype("M8[s]"), np.dtype("m8[ns]")]:
        assert compiled.finder(segments.compared(np.dtype(dtype)))
    assert compiled.finder(None) is None


def test_strips_and_blocks_fit_the_kernels():
    widest = re.search(r"WIDEST = (\d+) / VECTOR", (SOURCES / "columns.hpp").read_text())
    assert int(widest[1]) == compiled._STRIP
    widest = re.search(r"WIDEST = (\d+) / sizeof", (SOURCES / "fixed_columns.hpp").read_text())
    assert int(widest[1]) == compiled._STRIP
    ready = re.search(r"READY = (\d+);", (SOURCES / "job.hpp").read_text())
    assert int(ready[1]) == compiled._READY
    assert compiled.BLOCK % 64 == 0  # bytes of a vector
