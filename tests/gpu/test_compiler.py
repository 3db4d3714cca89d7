"""What does not compile is said; what does is compiled once, by whichever NVRTC there is."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from distscan.core import operators
from distscan.core.errors import KernelError
from support.compiling import asked, ptx, textbook

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.bench.textbook import TextbookPolicy
from distscan.cuda import nvrtc

pytestmark = pytest.mark.compile

REDUCE = asked([("sum", "f")], "90")[1]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a + nonsense", 1), ("a  // a comment\n + nonsense", 2), ("a +;", 1),
     ("const T c = b;\nreturn c + nonsense;", 2)],
)  # fmt: skip
def test_compiler_errors_show_the_line(text, line):
    broken = operators.Operator('"broken"', np.add, text)
    with pytest.raises(KernelError) as caught:
        asked([(broken, "f")], "90")[0].build("90")
    assert f"operator _broken_({line}): error" in str(caught.value)
    assert text.splitlines()[line - 1].strip() in str(caught.value)


def test_an_operator_without_a_cuda_form():
    with pytest.raises(TypeError, match="operator 'mine' has no CUDA form"):
        asked([(operators.Operator("mine", lambda a, b: b), "f")], "90")


def test_a_field_that_a_gpu_does_not_take():
    op = operators.Operator("mine", lambda a, b: b, "b", arity=2)
    with pytest.raises(TypeError, match="float128 does not exist on a GPU"):
        asked([(op, np.dtype([("x0", "f8"), ("x1", "g")]))], "90")


@pytest.fixture
def new_process(tmp_path, monkeypatch):
    """Begin with an empty cache; the call that is returned forgets what a process remembers."""
    remembered = nvrtc.sources, nvrtc.compiler, nvrtc.folder

    def forget():
        for function in remembered:
            function.cache_clear()

    monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield forget
    monkeypatch.undo()
    forget()


@pytest.fixture
def compiled(monkeypatch, new_process):
    """The calls of the compiler."""
    calls, compile_once = [], nvrtc.nvrtc.compileProgram

    def counted(*arguments):
        calls.append(arguments)
        return compile_once(*arguments)

    monkeypatch.setattr(nvrtc.nvrtc, "compileProgram", counted)
    return calls


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the kernels' sources, which the compiler is given in their place."""
    folder = tmp_path / "kernels"
    shutil.copytree(nvrtc.kernels(), folder)
    monkeypatch.setattr(nvrtc, "kernels", lambda: folder)
    return folder


def test_one_process_compiles_and_the_others_read(compiled):
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: REDUCE.build("90"), range(4)))
    assert len(compiled) == 1
    assert len(set(built)) == 1
    assert built[0][0].startswith(b"\x7fELF")
    assert "registers" in built[0][1]
    other = REDUCE._replace(given=(*REDUCE.given, ("DISTSCAN_ROWS", 1)))
    assert other.build("90") != built[0]
    assert len(compiled) == 2


def test_operators_of_ones_own_are_told_apart(compiled):
    """By the text of their CUDA forms, under one name."""
    built = {
        asked([(operators.Operator("mine", np.add, cuda), "f")], "90")[0].build("90")[0]
        for cuda in ("a + b", "a * b", "a + b")
    }
    assert len(compiled) == len(built) == 2


def test_a_truncated_entry_is_not_loaded(compiled, tmp_path):
    code, _ = REDUCE.build("90")
    (entry,) = (tmp_path / "cache").glob("*.kernel")
    entry.write_bytes(entry.read_bytes()[:5000])
    assert REDUCE.build("90")[0] == code
    assert len(compiled) == 2


def test_sources_change_under_a_process(compiled, copied, new_process):
    """It goes on with those it has read, under their key; the next one reads the new ones."""
    other = REDUCE._replace(given=(*REDUCE.given, ("DISTSCAN_UNUSED", 1)))
    old = REDUCE.build("90")
    source = copied / "reduce.cu"
    text = source.read_text()
    source.write_text(text.replace("distscan_reduce", "distscan_other"))
    assert b"distscan_other" not in other.build("90")[0]
    new_process()
    assert b"distscan_other" in REDUCE.build("90")[0]
    source.write_text(text)
    new_process()
    compiled.clear()
    assert REDUCE.build("90") == old
    assert b"distscan_other" not in other.build("90")[0]
    assert not compiled


def test_nothing_is_read_from_the_disk(copied, new_process, tmp_path, monkeypatch):
    """Kernels that include from folders and across them, once the sources are gone."""
    kernels = {
        kernel.entry: kernel
        for kernel in [REDUCE, *textbook([("sum", "f")], "90", TextbookPolicy("Blelloch"))]
    }
    assert "textbook" in kernels
    nvrtc.sources()
    shutil.rmtree(copied)
    for name in ("config.cuh", "tile.cuh", "steps.cuh", "combine.h"):
        (tmp_path / name).write_text("#error this is not it")
    monkeypatch.chdir(tmp_path)
    for kernel in kernels.values():
        assert kernel.build("90")[0].startswith(b"\x7fELF")


def test_includes_are_named_from_the_folder_on():
    known = dict.fromkeys(["types.cuh", "base/types.cuh", "base/warp.cuh", "linear/tile.cuh"], "")
    text = """\
#include "types.cuh"
#  include "../base/warp.cuh"  // and why
#include "linear/tile.cuh"
#include "./../linear/./tile.cuh"
#include "structure.h"
#include <cuda_fp16.h>
// #include "tile.cuh"
"""
    assert (
        nvrtc.with_full_names("base/scan.cuh", text, known)
        == """\
#include "base/types.cuh"
#  include "base/warp.cuh"  // and why
#include "linear/tile.cuh"
#include "linear/tile.cuh"
#include "structure.h"
#include <cuda_fp16.h>
// #include "tile.cuh"
"""
    )
    assert nvrtc.with_full_names("a.cu", '#include "types.cuh"', known) == '#include "types.cuh"'


def test_every_include_is_known():
    texts = nvrtc.sources().texts
    for name, text in texts.items():
        for _, included in nvrtc._INCLUDE.findall(text):
            assert included in texts or included.endswith(".h"), name


def test_builds_of_the_compiler_are_told_apart(compiled, monkeypatch):
    version, *files = nvrtc.compiler()
    assert version == nvrtc.nvrtc.getVersion()
    assert files  # of the library that is loaded
    REDUCE.build("90")
    monkeypatch.setattr(nvrtc, "compiler", lambda: (version, (files[0][0] + 1, files[0][1])))
    REDUCE.build("90")
    assert len(compiled) == 2


def test_words_of_the_compiler_that_are_no_text(monkeypatch, new_process):
    def cut(program):
        return b"info \xc2".decode()

    monkeypatch.setattr(nvrtc.nvrtc, "getProgramLog", cut)
    assert REDUCE.build("90")[1] == "info \ufffd"
    with pytest.raises(KernelError, match="info \ufffd"):
        asked([(operators.Operator("mine", np.add, "nonsense"), "f")], "90")[0].build("90")


def test_a_gpu_older_than_nvrtc():
    with pytest.raises(KernelError, match="compute capability, 35, is older"):
        REDUCE.build("35")


def test_an_older_nvrtc_gives_ptx():
    assert ptx(REDUCE).startswith(".visible .entry distscan_reduce")
