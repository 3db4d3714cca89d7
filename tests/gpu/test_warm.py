"""``python -m distscan warm``: kernels are compiled before a scan needs them, without its GPU."""

import shutil

import numpy as np
import pytest

from distscan.__main__ import main
from distscan.core import dtypes, operators
from distscan.core.errors import BackendError
from distscan.core.form import Form
from support.steps import of_size

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.cuda import catalogue, exchange_steps, kernel, steps
from support.compiling import absent_gpu

pytestmark = pytest.mark.one_rank


def kernels_of_scans(op, code, arch, sizes):
    """What one rank and several ask for: entries, and macros in any order."""
    operator = operators.resolve(op)
    types = dtypes.resolve(operator, code)
    with absent_gpu(arch) as kernels:
        for segmented, exclusive in [(s, e) for s in (False, True) for e in (False, True)]:
            seed = np.zeros((), types.acc) if exclusive else None
            form = Form(exclusive=exclusive, segmented=segmented, seed=seed)
            for n in sizes:
                for strategy in (steps.SinglePass, steps.ReduceScan):
                    strategy(operator, types, of_size(n, form))
                exchange_steps.Fused(operator, types, of_size(n, form), follows_hosts=True)
    return kernels


@pytest.mark.parametrize("arch", ["80", "90", "120"])
@pytest.mark.parametrize(
    ("op", "code"), [("sum", "f"), ("max", "b"), ("sum", "b"), ("logaddexp", "d"), ("prod", "D")]
)
def test_every_kernel_of_a_scan_is_in_the_catalogue(op, code, arch):
    """Also of sizes that no power of two is near."""
    operator = operators.resolve(op)
    listed = {
        (request.entry, frozenset(request.macros))
        for request in catalogue.scan_kernels(operator, dtypes.resolve(operator, code), arch)
    }
    sizes = [1 << 8, 3000, 10**5, 10**6, 3 * 10**6, 10**7, 7 * 10**7, 1 << 30]
    kernels = kernels_of_scans(op, code, arch, sizes)
    assert {(each.entry, frozenset(each.macros)) for each in kernels} <= listed
    entries = {"scan", "scan_short", "reduce", "reduce_exchange", "call_off"}
    assert {entry for entry, _ in listed} == entries


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of compiled kernels."""
    monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "cache"))
    kernel.cache_folder.cache_clear()
    yield tmp_path / "cache"
    monkeypatch.undo()
    kernel.cache_folder.cache_clear()


@pytest.mark.compile
@pytest.mark.timeout(300)
def test_nothing_is_compiled_after_it(folder, monkeypatch, capsys):
    sizes = [1 << 10, 1 << 28]
    monkeypatch.setattr(catalogue, "SIZES", sizes)
    arguments = ["--types", "float32", "--arch", "90"]
    assert main(["warm", *arguments]) == 0
    out, err = capsys.readouterr()
    number = len(list(folder.glob("*.kernel")))
    assert f"{number} kernels are in {folder}" in out
    lines = err.splitlines()
    assert [line.split()[1] for line in lines] == [f"{i}/{number}" for i in range(1, number + 1)]
    assert all("sum of float32  sm_90" in line and line.endswith(" s") for line in lines)

    def compile_program(*_):
        pytest.fail("a kernel was compiled")

    monkeypatch.setattr(kernel.nvrtc, "compileProgram", compile_program)
    for request in kernels_of_scans("sum", "f", "90", sizes):
        assert request.build("90")[0].startswith(b"\x7fELF")
    assert main(["warm", *arguments, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.compile
@pytest.mark.timeout(300)
def test_the_archive_of_a_wheel(folder, tmp_path, monkeypatch, capsys):
    """It is read before the cache, whatever NVRTC there is; and anew compiled if it is damaged."""
    monkeypatch.setattr(catalogue, "SIZES", [1 << 10])
    output = tmp_path / "new" / "compiled"
    arguments = ["--types", "float32", "--arch", "80", "--output", str(output), "--quiet"]
    assert main(["warm", *arguments]) == 0
    archive = output / "sm_80.zip"
    content = archive.read_bytes()
    assert main(["warm", *arguments]) == 0
    assert archive.read_bytes() == content

    requests = [*kernels_of_scans("sum", "f", "80", [1 << 10])]
    built = [request.build("80") for request in requests]
    shutil.rmtree(folder)
    monkeypatch.setattr(kernel, "_ARCHIVES", output)
    with monkeypatch.context() as without_nvrtc:
        without_nvrtc.setattr(kernel, "installed_compiler", lambda: None)
        without_nvrtc.setattr(kernel, "compiler", lambda: pytest.fail("NVRTC was loaded"))
        assert [request.build("80") for request in requests] == built
    assert not folder.exists()

    compiled = []
    monkeypatch.setattr(kernel, "_compile", lambda *_: compiled.append(1) or (b"new", ""))
    folder.mkdir(mode=0o700)
    assert requests[0].build("90") == (b"new", "")
    with monkeypatch.context() as other:
        other.setenv("DISTSCAN_NVRTC_OPTIONS", "-lineinfo")
        assert requests[0].build("80") == (b"new", "")
    for damaged in (content[:-100], content[: len(content) // 2], b""):
        archive.write_bytes(damaged)
        assert requests[0].build("80") == (b"new", "")
    for at in range(100, len(content) // 2, len(content) // 20):
        archive.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        for request, entry in zip(requests, built, strict=True):
            assert request.build("80") in (entry, (b"new", ""))


@pytest.mark.compile
def test_an_archive_has_no_ptx(folder, tmp_path, capsys):
    arguments = ["--types", "float32", "--arch", "999", "--output", str(tmp_path / "new")]
    assert main(["warm", *arguments]) == 1
    assert capsys.readouterr().err.endswith("this NVRTC is too old for sm_999\n")
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--types", "floaty"], "dtype 'floaty' is not understood"),
        (["--ops", "summ"], "unknown operator 'summ'"),
        (["--ops", "bitwise_xor", "--types", "float32"], "'bitwise_xor' does not take float32"),
        (["--types", "longdouble"], "does not exist on a GPU"),
        (["--arch", "9.0"], "such as 90, and not below 80: '9.0'"),
        (["--arch", "75"], "not below 80: '75'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_arguments(arguments, message, folder, capsys):
    """One line, and status 2; also for what the default of another argument does not go with."""
    arguments = ["--arch", "90", *arguments] if "--arch" not in arguments else arguments
    assert main(["warm", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("distscan: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not list(folder.glob("*.kernel"))


def test_without_a_folder_or_a_gpu(tmp_path, monkeypatch, capsys, folder):
    monkeypatch.setattr(
        catalogue, "current_arch", lambda: (_ for _ in ()).throw(BackendError("no GPU"))
    )
    assert main(["warm"]) == 1
    assert capsys.readouterr().err == "distscan: error: no GPU\n"
    (tmp_path / "file").touch()
    monkeypatch.setenv("DISTSCAN_CACHE_DIR", str(tmp_path / "file"))
    kernel.cache_folder.cache_clear()
    assert main(["warm", "--arch", "90"]) == 1
    assert "no folder for compiled kernels; set DISTSCAN_CACHE_DIR" in capsys.readouterr().err


def test_help(capsys):
    assert main(["warm", "--help"]) == 0
    assert "--arch" in capsys.readouterr().out
