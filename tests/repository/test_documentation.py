"""The Python of README.md, docs/ and docstrings runs, and does what the text says."""

import doctest
import importlib
import pkgutil
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

import distscan

ROOT = Path(__file__).resolve().parents[2]
# Blocks without the name of a file: launch/doc_commands.py runs those that a reader saves.
BLOCKS = {
    ".md": re.compile(r"^```python\n(?!# \w+\.py\n)(.*?)^```", re.MULTILINE | re.DOTALL),
    ".rst": re.compile(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", re.MULTILINE),
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


# ---- pages beside the code ----------------------------------------------------------------------


@pytest.mark.one_rank
def test_environment():
    """The page has every variable that is read."""
    page = (ROOT / "docs/environment.rst").read_text()
    sources = [*(ROOT / "distscan").rglob("*.py"), *(ROOT / "launch").glob("*.*")]
    pattern = re.compile(r"""environ(?:\.get\(|\[)["'](\w+)|\$\{(DISTSCAN_\w+)""")
    names = {a or b for path in sources for a, b in pattern.findall(path.read_text())}
    assert {"DISTSCAN_CPU", "DISTSCAN_LABELS"} <= names
    # The meaning of the others is not distscan's.
    others = {"PATH", "PYTHONPATH", "COLUMNS", "SLURM_STEP_TASKS_PER_NODE"}
    assert [name for name in sorted(names - others) if f"``{name}``" not in page] == []


@pytest.mark.one_rank
def test_pictures(tmp_path, monkeypatch):
    """They are checked in as ``docs/pictures.py`` draws them."""
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT / "docs")
    importlib.import_module("pictures").write(tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    there = {path.name: path.read_text() for path in (ROOT / "docs/pictures").iterdir()}
    assert drawn.keys() == there.keys()
    version = f"Matplotlib v{matplotlib.__version__},"
    for name, text in drawn.items():  # another version draws otherwise
        assert version not in there[name] or text == there[name], f"{name}: run docs/pictures.py"
