"""The Python in README.md and in docs/*.rst runs, and does what it says for each of two ranks."""

import json
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

import distscan

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCKS = {
    ".md": re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL),
    ".rst": re.compile(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", re.MULTILINE),
}
# An expression, and what rank 0 and rank 1 get, each perhaps with a word on it after a colon.
SAID = re.compile(r"^([a-z].*?)  # ([^|:\n]+) \| ([^|:\n]+?)(?:: .*)?$", re.MULTILINE)
# How many results each page shows. A page with Python that is not here is a fault.
PAGES = {
    "README.md": 10,
    "docs/start.rst": 8,
    "docs/recipes.rst": 21,
    "docs/operators.rst": 7,
    "docs/plans.rst": 2,
}


def python(page):
    """The Python of a page, block by block."""
    text = page.read_text()
    return [textwrap.dedent(block) for block in BLOCKS[page.suffix].findall(text)]


def test_all_pages_are_known():
    pages = [README, *sorted((ROOT / "docs").glob("*.rst"))]
    assert {str(page.relative_to(ROOT)) for page in pages if python(page)} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_examples(name, comm, capsys):
    if comm.size > 2:
        pytest.skip("the examples are for one or two ranks")
    page, names, seen, said = ROOT / name, {}, [], []
    with np.printoptions(legacy=False):
        for block in python(page):
            exec(_kept(block), names)
            seen += names.pop("seen")
            said += [tuple(each) for _, *each in SAID.findall(block)]
    assert len(said) == PAGES[name]
    if comm.size == 2:
        assert [" ".join(text.split()) for text in seen] == [each[comm.rank] for each in said]
        shown = {line.strip() for line in page.read_text().splitlines()}
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in printed if line not in shown] == []


def _kept(block):
    """A block of Python that keeps the text of each result that is said, in a list ``seen``."""
    return "seen = []\n" + SAID.sub(r"seen.append(str(\1))", block)


@pytest.mark.one_rank
def test_speeds():
    """README's few figures are those of docs/measured."""
    table = json.loads((ROOT / "docs/measured/01-one-gpu.json").read_text())
    cells = {f"{us} ({share:.2f})" for _, *row in table["rows"][1:] for us, share in row}
    section = README.read_text().partition("\n## Speed\n")[2].partition("\n## ")[0]
    said = re.findall(r"\d+ \(\d\.\d\d\)", section)
    assert len(said) >= 10
    assert set(said) <= cells


@pytest.mark.one_rank
def test_reference():
    """Everything that is exported is in the reference."""
    listed = re.findall(r"^   (\w+)$", (ROOT / "docs/api.rst").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(distscan.__all__)
