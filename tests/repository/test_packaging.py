"""The recipes in ``packaging/`` have the version and the requirements of ``pyproject.toml``."""

import re
from pathlib import Path

import pytest

import distscan

ROOT = Path(__file__).parents[2]
CONDA = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
SPACK = (ROOT / "packaging" / "spack" / "package.py").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()

pytestmark = pytest.mark.one_rank


def test_versions():
    assert f'  version: "{distscan.__version__}"\n' in CONDA
    assert f'    version("{distscan.__version__}"' in SPACK


def requirements():
    """Return what pyproject.toml requires, as pairs of a name and the oldest version."""
    python = re.search(r'^requires-python = ">=([\d.]+)"$', PROJECT, re.MULTILINE)[1]
    lines = re.findall(r"^(?:dependencies|requires) = \[(.*)\]$", PROJECT, re.MULTILINE)
    return [("python", python), *re.findall(r'"(\w+)>=([\d.]+)"', " ".join(lines))]


def test_all_requirements_are_found():
    assert [name for name, _ in requirements()] == [
        "python", "hatchling", "numpy", "mpi4py", "xxhash",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "oldest"), requirements())
def test_requirements(name, oldest):
    conda = {"xxhash": "python-xxhash"}.get(name, name)
    spack = name if name == "python" else f"py-{name}"
    assert f"    - {conda} >={oldest}\n" in CONDA
    assert f'    depends_on("{spack}@{oldest}:", ' in SPACK
