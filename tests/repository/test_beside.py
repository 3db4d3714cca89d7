"""The pairs of blocks on the page "distscan beside other libraries" give equal results."""

import re
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest

from support.arrays import host

PAGE = Path(__file__).resolve().parents[2] / "docs/beside.rst"
BLOCK = re.compile(
    r"^\.\. code-block:: python\n(?:    :caption: (.+)\n)?\n((?:    .*\n|\n)+)", re.MULTILINE
)
one_rank, gpu = pytest.mark.one_rank, pytest.mark.gpu
LIBRARIES = {  # the caption of its block: its module, and where the block runs
    "mpi4py": ("mpi4py", ()),
    "CuPy": ("cupy", (one_rank, gpu)),
    "cuda.compute": ("cuda.compute", (one_rank, gpu)),
    "PyTorch": ("torch", one_rank),
    "JAX": ("jax", one_rank),
    "Heat": ("heat", ()),
    "cuPyNumeric": ("cupynumeric", one_rank),
    "dask": ("dask.array", one_rank),
}
FIRST, *BLOCKS = [(title, textwrap.dedent(text)) for title, text in BLOCK.findall(PAGE.read_text())]


@pytest.mark.one_rank
def test_each_library_has_a_pair():
    assert [title for title, _ in BLOCKS[::2]] == [*LIBRARIES]
    assert {title for title, _ in BLOCKS[1::2]} == {"distscan"}


def run(block, folder):
    """Run the first block of the page and another one; return ``y``, or what y.zarr holds."""
    names = {}
    exec(FIRST[1] + block, names)
    if "y" in names:
        return host(names["y"])
    import zarr

    y = zarr.open_array(folder / "y.zarr")[:]
    shutil.rmtree(folder / "y.zarr")
    return y


@pytest.mark.parametrize(
    ("library", "module"),
    [pytest.param(name, module, marks=marks) for name, (module, marks) in LIBRARIES.items()],
)
def test_pair(library, module, comm, folder, monkeypatch):
    if comm.size > 2:
        pytest.skip("the examples are for one or two ranks")
    pytest.importorskip(module, exc_type=ImportError)
    monkeypatch.chdir(folder)
    if library == "dask":
        zarr = pytest.importorskip("zarr")
        x = np.arange(1000, dtype=np.float32) % 7
        zarr.create_array("x.zarr", data=x, chunks=(64,))
    theirs, ours = (run(block, folder) for block in pair_of(library))
    assert theirs.size > 1
    assert theirs.dtype == ours.dtype
    np.testing.assert_array_equal(ours, theirs)


def pair_of(library):
    """The text of a library's block, and of distscan's behind it."""
    place = [title for title, _ in BLOCKS].index(library)
    return [text for _, text in BLOCKS[place : place + 2]]
