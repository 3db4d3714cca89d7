"""launch/parts.sh: tests at several ranks in several jobs side by side."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.parts import part_of

ROOT = Path(__file__).parents[1]
SEVEN = """
import os
import pytest
from mpi4py import MPI

@pytest.mark.parametrize("n", range(7))
def test_it(n):
    with open(f"{os.environ['SEEN']}/{MPI.COMM_WORLD.rank}", "a") as file:
        file.write(f"{n}\\n")
    assert n != int(os.environ["FAILS"]), "as it should"
"""


@pytest.mark.one_rank
@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_every_test_is_in_one_part(n):
    names = [f"tests/test_x.py::test_{i % 3}[{i}]" for i in range(8)]
    parts = [part_of(names[:: 1 if i % 2 else -1], f"{i}/{n}") for i in range(1, n + 1)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.fixture
def parts(tmp_path):
    """Run seven tests at 2 ranks in 2 parts; return the end of it, and what each rank has run."""
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    shutil.copytree(ROOT / "tests" / "support", tmp_path / "support")
    (tmp_path / "test_seven.py").write_text(SEVEN)
    (tmp_path / "seen").mkdir()
    # This process may itself be one that an mpirun has started.
    kept = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}

    def run(fails):
        environment.update(PYTHON=sys.executable, SEEN=str(tmp_path / "seen"), FAILS=str(fails))
        command = ["launch/parts.sh", "2", "2", "-c", "pyproject.toml", str(tmp_path)]
        end = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        seen = [file.read_text().split() for file in sorted((tmp_path / "seen").iterdir())]
        return end, [sorted(map(int, numbers)) for numbers in seen]

    return run


@pytest.mark.one_rank
def test_parts_add_up(parts):
    end, seen = parts(-1)
    assert end.returncode == 0, end.stdout + end.stderr
    assert re.fullmatch(r"2 ranks, 2 parts: 7 passed, 0 parts failed, \d+ s\n", end.stdout)
    assert seen == [list(range(7))] * 2


@pytest.mark.one_rank
def test_a_part_that_fails_is_shown(parts):
    end, seen = parts(4)
    assert end.returncode == 1
    assert end.stdout.count("distscan: 2 ranks") == 1  # that part's log alone
    assert "AssertionError: as it should" in end.stdout
    closing = end.stdout.splitlines()[-1]
    assert "6 passed" in closing
    assert "1 failed" in closing
    assert "1 parts failed" in closing
    assert seen == [list(range(7))] * 2
