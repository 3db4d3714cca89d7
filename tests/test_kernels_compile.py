"""Every kernel compiles, without a GPU, and none spills registers to memory."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from data import CODES, OPS
from test_order import COMPOSE

from distscan import dtypes, operators
from distscan.errors import KernelError

cuda = pytest.importorskip("distscan.backends.cuda", reason="no CuPy", exc_type=ImportError)
from distscan.backends import nvrtc  # noqa: E402

EVERY = [(operators.resolve(op), code, None) for op in OPS for code in CODES]
EVERY += [(operators.resolve("sum"), *pair) for pair in ("ie", "Fe", "D?", "f?")]  # dtype= given
EVERY += [(COMPOSE, "L", None)]
# One of each element size and of each width of the running value.
SOME = [(operators.resolve(op), code, None) for op, code in
        [("sum", "b"), ("max", "b"), ("min", "H"), ("sum", "e"), ("sum", "f"), ("sum", "d"),
         ("prod", "F"), ("prod", "D")]]  # fmt: skip


def faults(case, arch):
    """Compile one module; say what is wrong with it."""
    source, (op, code, dtype) = case
    types = dtypes.resolve(op, np.dtype(code), dtype)
    name = f"{source}: {op.name} of {types} for sm_{arch}"
    try:
        code, report = nvrtc.build(source, cuda.definitions(op, types), arch)
    except KernelError as error:
        return f"{name}: {error}"
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", report)]
    if len(spills) != 4 or not code:  # stores and loads of two kernels
        return f"{name}: no report of two kernels in {report!r}"
    return f"{name}: spills {spills} bytes" if any(spills) else ""


SOURCES = sorted(path.name for path in nvrtc.kernels().glob("*.cu"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("arch", "cases"), [("90", EVERY), ("80", SOME), ("100", SOME), ("120", SOME)]
)
def test_compiles_without_spills(arch, cases, comm):
    """Each rank compiles its share; the results are kept between runs."""
    cases = list(product(SOURCES, cases))
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // comm.size)) as pool:
        found = list(pool.map(lambda case: faults(case, arch), cases[comm.rank :: comm.size]))
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize("code", ["b", "H", "f", "d", "F", "D"])
@pytest.mark.parametrize("source", SOURCES)
def test_accesses_are_16_bytes_wide(source, code, monkeypatch):
    """Each kernel loads and stores whole vectors; PTX, unlike machine code, can be read."""
    monkeypatch.setattr(nvrtc, "_cache", lambda: None)
    op = operators.resolve("max")
    ptx, _ = nvrtc.build(source, cuda.definitions(op, dtypes.resolve(op, code)), "999")
    total, seed = sorted(ptx.decode().split(".visible .entry ")[1:], reverse=True)
    for kernel in (total, seed):
        reduces = kernel is total and source == "reduce_scan.cu"
        for access in ("ld",) if reduces else ("ld", "st"):
            assert re.search(rf"{access}\.global\.(v4\.[bf]32|v2\.[bf]64)", kernel), access


def test_compiler_errors_are_shown(tmp_path, monkeypatch):
    broken = operators.Operator("broken", np.add, "a + nonsense", lambda dtype: dtype.type(0))
    types = dtypes.resolve(broken, "f")
    with pytest.raises(KernelError, match="nonsense"):
        nvrtc.build("scan_add.cu", cuda.definitions(broken, types), "90")


def test_one_process_compiles_and_the_others_read(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "_cache", lambda: tmp_path)
    compiled = []
    compile_once = nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda *a: compiled.append(a) or compile_once(*a))
    given = cuda.definitions(
        operators.resolve("sum"), dtypes.resolve(operators.resolve("sum"), "f")
    )
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: nvrtc.build("scan_add.cu", given, "90"), range(4)))
    assert len(compiled) == 1
    assert len(set(built)) == 1
    assert nvrtc.build("scan_add.cu", {**given, "DISTSCAN_ROWS": 1}, "90") != built[0]
    assert len(compiled) == 2


def test_no_cache_is_no_fault(tmp_path, monkeypatch):
    """No home, a full disk, a file system without locks: compiled all the same, and at once."""
    given = cuda.definitions(
        operators.resolve("sum"), dtypes.resolve(operators.resolve("sum"), "f")
    )
    monkeypatch.delenv("DISTSCAN_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def fails(error):
        def fail(*_):
            raise error

        return fail

    with monkeypatch.context() as patch:
        patch.setattr(nvrtc.Path, "home", fails(RuntimeError("Could not determine home")))
        assert nvrtc._cache.__wrapped__() is None
    monkeypatch.setattr(nvrtc, "_cache", lambda: tmp_path)
    monkeypatch.setattr(nvrtc.fcntl, "flock", fails(OSError(37, "No locks available")))
    monkeypatch.setattr(nvrtc, "_write", fails(OSError(28, "No space left on device")))
    code, _ = nvrtc.build("scan_add.cu", given, "90")
    assert code.startswith(b"\x7fELF")


def test_a_gpu_older_than_nvrtc():
    given = cuda.definitions(
        operators.resolve("sum"), dtypes.resolve(operators.resolve("sum"), "f")
    )
    with pytest.raises(KernelError, match="compute capability, 35, is older"):
        nvrtc.build("scan_add.cu", given, "35")


def test_products_wrap_before_they_are_widened(monkeypatch):
    """int32 products stored as int64: the compiler may not multiply in 64 bits."""
    monkeypatch.setattr(nvrtc, "_cache", lambda: None)
    op = operators.resolve("prod")
    for source in SOURCES:
        given = cuda.definitions(op, dtypes.resolve(op, "i", "i", "l"))
        ptx, _ = nvrtc.build(source, given, "999")
        assert b"mul.wide.s32" not in ptx


def test_an_older_nvrtc_gives_ptx(monkeypatch):
    monkeypatch.setattr(nvrtc, "_cache", lambda: None)
    given = cuda.definitions(
        operators.resolve("sum"), dtypes.resolve(operators.resolve("sum"), "f")
    )
    code, _ = nvrtc.build("scan_add.cu", given, "999")
    assert b".visible .entry distscan_total" in code
