"""What does not compile is said; what does is compiled once, by whichever NVRTC there is."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_kernels_compile import asked, ptx

from distscan import operators
from distscan.backends import nvrtc
from distscan.errors import KernelError

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


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ([("a", "f8"), ("b", "f4"), ("c", "f8")], "has 20 bytes; a GPU takes"),
        ([("a", "f4"), ("b", "f8"), ("c", "f4")], "does not lie in memory as in C"),
        ([("a", "f8"), ("b b", "f8")], "'b b' of .* cannot be the name of a field"),
        ([("a", "f8"), ("b", "i1"), ("c", "i1"), ("d", "S6")], "x is "),
        ([("a", "g")], "float128 does not exist on a GPU"),
        ([("a", "f8", 2)], "field 'a' of .* is .*; on a GPU a field is one number"),
        ([("a", [("b", "f8")])], "field 'a' of .* is .*; on a GPU a field is one number"),
    ],
)
def test_structures_that_a_gpu_does_not_take(dtype, message):
    op = operators.Operator("mine", lambda a, b: b, "b")
    with pytest.raises(TypeError, match=message):
        asked([(op, np.dtype(dtype))], "90")


def test_one_process_compiles_and_the_others_read(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "_cache", lambda: tmp_path)
    compiled = []
    compile_once = nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda *a: compiled.append(a) or compile_once(*a))
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: REDUCE.build("90"), range(4)))
    assert len(compiled) == 1
    assert len(set(built)) == 1
    other = REDUCE._replace(given=(*REDUCE.given, ("DISTSCAN_ROWS", 1)))
    assert other.build("90") != built[0]
    assert len(compiled) == 2


def test_no_cache_is_no_fault(tmp_path, monkeypatch):
    """No home, a full disk, a file system without locks: compiled all the same, and at once."""
    monkeypatch.delenv("DISTSCAN_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def fails(error):
        def fail(*_):
            raise error

        return fail

    with monkeypatch.context() as homeless:
        homeless.setattr(nvrtc.Path, "home", fails(RuntimeError("Could not determine home")))
        assert nvrtc._cache.__wrapped__() is None
    monkeypatch.setattr(nvrtc, "_cache", lambda: tmp_path)
    monkeypatch.setattr(nvrtc.fcntl, "flock", fails(OSError(37, "No locks available")))
    monkeypatch.setattr(nvrtc, "_write", fails(OSError(28, "No space left on device")))
    code, _ = REDUCE.build("90")
    assert code.startswith(b"\x7fELF")


def test_a_gpu_older_than_nvrtc():
    with pytest.raises(KernelError, match="compute capability, 35, is older"):
        REDUCE.build("35")


def test_an_older_nvrtc_gives_ptx():
    assert ptx(REDUCE).startswith(".visible .entry distscan_reduce")
