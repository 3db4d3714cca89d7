"""No file is too long to be read at once."""

from pathlib import Path

import pytest

MOST = 300  # lines
ROOT = Path(__file__).parent.parent
SUFFIXES = {".py", ".cu", ".cuh", ".cpp", ".hpp", ".sh"}
FOLDERS = "distscan", "kernels", "launch", "tests", "examples"


@pytest.mark.one_rank
@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_short(folder):
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files}
    assert lengths
    assert {name: length for name, length in lengths.items() if length > MOST} == {}
