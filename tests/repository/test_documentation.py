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
BLOCKS = {
    ".md": re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL),
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
