"""The Python of README.md, docs/, docstrings and examples/ runs, and does what the text says."""

import doctest
import importlib
import pkgutil
import re
import runpy
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import distscan
from support.arrays import host

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = {
    ".md": re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL),
    ".rst": re.compile(
        r"^\.\. code-block:: python\n(?: +:.*\n)*\n((?:    .*\n|\n)+)", re.MULTILINE
    ),
}
# An expression, and the results on rank 0 and rank 1, each perhaps with a remark after a colon.
RESULTS = re.compile(r"^([a-z].*?)  # ([^|:\n]+) \| ([^|:\n]+?)(?:: .*)?$", re.MULTILINE)


def python(page):
    """The Python of a page, block by block."""
    return [textwrap.dedent(block) for block in BLOCKS[page.suffix].findall(page.read_text())]


PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.rst"))]
         if python(page)]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page, comm, capsys):
    """Each shows results of two ranks."""
    if comm.size > 2:
        pytest.skip("the examples are for one or two ranks")
    names, results, expected = {}, [], []
    with np.printoptions(legacy=False):
        for block in python(page):
            # The text of each result goes into a list.
            exec("results = []\n" + RESULTS.sub(r"results.append(str(\1))", block), names)
            results += names.pop("results")
            expected += [tuple(texts) for _, *texts in RESULTS.findall(block)]
    assert expected
    if comm.size == 2:
        assert [" ".join(text.split()) for text in results] == [
            each[comm.rank] for each in expected
        ]
        lines = {line.strip() for line in page.read_text().splitlines()}
        assert [line for line in capsys.readouterr().out.splitlines() if line not in lines] == []


@pytest.mark.one_rank
def test_reference():
    """Everything that is exported is in the reference."""
    names = re.findall(r"^   (\w+)$", (ROOT / "docs/api.rst").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(distscan.__all__)


@pytest.mark.one_rank
@pytest.mark.parametrize(
    "name", ["distscan", *(m.name for m in pkgutil.walk_packages(distscan.__path__, "distscan."))]
)
def test_docstrings(name):
    if name.startswith("distscan.cuda."):
        pytest.importorskip("cupy")
    for framework in ("torch", "jax", "xarray", "pandas"):
        if name.startswith(f"distscan.{framework}"):
            pytest.importorskip(framework)
    module = importlib.import_module(name)
    with np.printoptions(legacy=False):
        assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


# ---- examples/ ---------------------------------------------------------------------------------

EXAMPLES = ROOT / "examples"


@pytest.fixture
def run_example(folder, capsys, monkeypatch):
    """Run a file with arguments; return its names, and the lines that this rank printed."""
    pytest.importorskip("matplotlib", reason="the examples need matplotlib")

    def run(name, *arguments, main=True):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__" if main else "example")
        return names, capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example(name, run_example, comm, folder):
    """It runs on all ranks, passes its own checks, and draws a picture."""
    if name == "particles.py":
        pytest.importorskip("h5py", reason="particles.py needs h5py")
    if name == "rain.py":
        pytest.importorskip("h5netcdf", reason="rain.py needs h5netcdf")
        pytest.importorskip("xarray", reason="rain.py needs xarray")
    if name == "degree_days.py":
        pytest.importorskip("zarr", reason="degree_days.py needs zarr")
        pytest.importorskip("xarray", reason="degree_days.py needs xarray")
    if name == "accounts.py":
        pytest.importorskip("pyarrow", reason="accounts.py needs pyarrow")
    if name == "long_sequence.py":
        pytest.importorskip("torch", reason="long_sequence.py needs PyTorch")
    _, lines = run_example(name, str(folder))
    if comm.rank > 0:
        assert not lines
        return
    stem = name.removesuffix(".py")
    assert 2 <= len(lines) <= 3
    assert all(line.startswith(f"{stem}: ") for line in lines)
    from matplotlib import image

    picture = image.imread(folder / f"{stem}.png")  # raises if it is not a complete PNG
    height, width, _ = picture.shape
    assert min(height, width) >= 300
    ink = np.any(picture[..., :3] < 0.9, axis=2).mean()
    assert 0.01 < ink < 0.99, "the picture is blank"


def test_without_a_folder(run_example, comm, folder, monkeypatch):
    monkeypatch.chdir(folder)
    run_example("lines.py")
    if comm.rank == 0:
        assert [path.name for path in folder.iterdir()] == ["lines.png"]


def test_radix_sort(run_example, xp, cut, comm, rng, folder):
    """Shards of any length keep it; keys of any integer type."""
    example, _ = run_example("radix_sort.py", str(folder), main=False)
    for n, code in ((0, "l"), (1, "B"), (1000, "H"), (5000, "i"), (5000, "L")):
        numbers = rng.integers(0, 250 if code == "B" else 1 << 12, n).astype(code)
        mine = cut(n)
        keys, ends = xp.asarray(numbers[mine]), np.array(comm.allgather(mine.stop))
        for number in range(3):
            keys = example["sort_by_digit"](keys, number, ends)
        assert isinstance(keys, xp.ndarray)
        assert keys.dtype == numbers.dtype
        np.testing.assert_array_equal(host(keys), np.sort(numbers)[mine])
