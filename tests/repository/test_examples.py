"""Each file in examples/ runs on all ranks, passes its own checks and draws a picture."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from support.host import host

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))
NAMES = [path.stem for path in FILES]
# pip install '.[examples]' brings both.
image = pytest.importorskip("matplotlib.image", reason="the examples need matplotlib")


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_example(path, comm, folder, capsys, monkeypatch):
    if path.stem == "particles":
        pytest.importorskip("h5py", reason="particles.py needs h5py")
    monkeypatch.setattr(sys, "argv", [str(path), str(folder)])
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    if comm.rank > 0:
        assert not lines
        return
    assert 2 <= len(lines) <= 3
    assert all(line.startswith(f"{path.stem}: ") for line in lines)
    picture = image.imread(folder / f"{path.stem}.png")  # raises where it is not a whole PNG
    height, width, _ = picture.shape
    assert min(height, width) >= 300
    ink = np.any(picture[..., :3] < 0.9, axis=2).mean()
    assert 0.01 < ink < 0.99, "the picture is blank"


def test_without_a_folder(comm, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["lines.py"])
    runpy.run_path(str(EXAMPLES / "lines.py"), run_name="__main__")
    if comm.rank == 0:
        assert [path.name for path in folder.iterdir()] == ["lines.png"]


def test_radix_sort(xp, cut, comm, rng, folder, capsys, monkeypatch):
    """Shards of any length keep it; keys of any integer type."""
    path = EXAMPLES / "radix_sort.py"
    monkeypatch.setattr(sys, "argv", [str(path), str(folder)])
    example = runpy.run_path(str(path))
    capsys.readouterr()
    for n, code in ((0, "l"), (1, "B"), (1000, "H"), (5000, "i"), (5000, "L")):
        whole = rng.integers(0, 250 if code == "B" else 1 << 12, n).astype(code)
        mine = cut(n)
        keys, ends = xp.asarray(whole[mine]), np.array(comm.allgather(mine.stop))
        for number in range(3):
            keys = example["sort_by_digit"](keys, number, ends)
        assert isinstance(keys, xp.ndarray)
        assert keys.dtype == whole.dtype
        np.testing.assert_array_equal(host(keys), np.sort(whole)[mine])


@pytest.mark.one_rank
@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_docstring(path):
    """It says how the file is run, and which function it is about."""
    text = path.read_text()
    docstring = text.split('"""')[1]
    assert f"    mpirun -n 4 python examples/{path.name} [FOLDER]\n" in docstring
    used = set(re.findall(r"= (distscan\.\w+)\(", text))
    assert used
    assert used & set(re.findall(r"``(distscan\.\w+)", docstring))


@pytest.mark.one_rank
def test_readme():
    """Its table names every file once."""
    text = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[`(\w+)\.py`\]\(\1\.py\) \|", text, re.M)) == NAMES
