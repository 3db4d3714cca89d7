"""CUB as the benchmark calls it: found, compiled, or missing with a reason. Needs no GPU."""

import subprocess

import numpy as np
import pytest

from distscan.bench import cub
from distscan.bench.case import Case
from distscan.core.operators import BUILTIN
from support.seed import drawn

pytestmark = pytest.mark.one_rank


@pytest.fixture
def nvcc():
    try:
        return cub.cccl()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.fixture
def fresh():
    """What earlier tests found is forgotten, before and after."""
    cub.cccl.cache_clear()
    yield
    cub.cccl.cache_clear()


def case(x="f4", out=None, op="sum"):
    return Case(BUILTIN[op], np.dtype(x), np.dtype(out or x), 1 << 10, 1)


def test_without_nvcc(fresh, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ImportError, match="no nvcc"):
        cub.version()


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (subprocess.CompletedProcess("", 1, "", "a\nx.cu(1): error: no such header\nb"), "header"),
        (subprocess.CompletedProcess("", 2, "", ""), "exit status 2"),
        (subprocess.CompletedProcess("", 0, "CCCL_VERSION\n", ""), "CCCL_VERSION"),
    ],
)
def test_nvcc_that_fails(done, said, fresh, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: "nvcc")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: done)
    with pytest.raises(ImportError, match=said):
        cub.version()


def test_nvcc_that_hangs(fresh, monkeypatch):
    def run(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr("shutil.which", lambda *_, **__: "nvcc")
    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(ImportError, match="more than 300 s"):
        cub.version()


@pytest.mark.parametrize(("cccl", "ok"), [((3, 0, 1), False), ((3, 5, 0), True)])
def test_the_deterministic_scan_needs_a_new_cub(cccl, ok, monkeypatch):
    monkeypatch.setattr(cub, "cccl", lambda: cccl)
    if ok:
        assert cub.run_to_run_version() == "CCCL 3.5.0"
    else:
        with pytest.raises(ImportError, match=r"needs CCCL 3\.5\.0, here is 3\.0\.1"):
            cub.run_to_run_version()


# What is compiled, for which case, and the functions in it.
PARTS = [
    ("SCAN", case(), ["scan"]),
    ("SCAN", case("i1", "i8", "max"), ["scan"]),
    ("RUN_TO_RUN", case("f8"), ["keep_pool", "scan_run_to_run"]),
    ("BY_HAND", case("i4"), ["reduce", "scan_behind"]),
    ("BY_KEY", case(), ["sum_by_key"]),
    ("FLAGGED", case(), ["flagged"]),
]


@pytest.mark.compile
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("part", "given", "entries"), drawn(PARTS, 3))
def test_compiles(part, given, entries, nvcc):
    if part == "RUN_TO_RUN" and nvcc < (3, 5, 0):
        pytest.skip("this CUB has no deterministic scan")
    library = cub.compiled(part, given, "90")
    for entry in entries:
        assert getattr(library, entry).__name__ == entry
    with pytest.raises(AttributeError):
        _ = library.nothing
