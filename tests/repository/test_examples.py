"""The programs of examples/ run on all ranks, and notice wrong results; the gallery shows them."""

import contextlib
import dataclasses
import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from support.arrays import host

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
GALLERY = ROOT / "docs" / "gallery"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
#: Packages that are not for all examples.
PACKAGES = {
    "accounts": ["pyarrow"],
    "csr": ["scipy"],
    "degree_days": ["xarray", "zarr"],
    "filter": ["scipy"],
    "long_sequence": ["torch"],
    "rain": ["h5netcdf", "xarray"],
    "snapshots": ["h5py"],
}

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def run_example(folder, capsys, monkeypatch):
    """Run an example with arguments; return its names, and the lines that this rank printed."""

    def run(name, *arguments):
        for package in PACKAGES.get(name, []):
            pytest.importorskip(package, reason=f"{name}.py needs {package}")
        path = EXAMPLES / f"{name}.py"
        if "--folder" in path.read_text():
            arguments = *arguments, "--folder", str(folder)
        if name == "particles":  # with many ranks on few cores, an exchange takes long
            arguments = *arguments, "--steps", "8"
        monkeypatch.setattr(sys, "argv", [path.name, *arguments])
        return runpy.run_path(str(path), run_name="__main__"), capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("name", NAMES)
def test_example(name, run_example, xp, comm, folder):
    """It passes its own checks, says so, and draws a picture."""
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
    gpu = [] if xp is np else ["--gpu"]
    if gpu and "--gpu" not in (EXAMPLES / f"{name}.py").read_text():
        pytest.skip(f"{name}.py is for CPUs")
    _, lines = run_example(name, *gpu, "--picture", str(folder / "picture.png"))
    if comm.rank > 0:
        assert not lines
        return
    assert 1 <= len(lines) <= 2
    assert all(line.startswith(f"{name}: ") for line in lines)
    from matplotlib import image

    picture = image.imread(folder / "picture.png")  # raises if it is not a complete PNG
    height, width, _ = picture.shape
    assert min(height, width) >= 300
    ink = np.any(picture[..., :3] < 0.9, axis=2).mean()
    assert 0.01 < ink < 0.99, "the picture is blank"


@pytest.mark.parametrize("name", ["lexer", "lines"])
def test_without_a_picture(name, run_example, comm, folder, monkeypatch):
    """Then matplotlib is not needed, and files are in the folder alone."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    before = sorted(EXAMPLES.iterdir())
    _, lines = run_example(name)
    assert bool(lines) == (comm.rank == 0)
    assert not list(folder.glob("*.png"))
    assert sorted(EXAMPLES.iterdir()) == before


# ---- wrong results -------------------------------------------------------------------------------


def wrong_operator(scan):
    """A scan with another operator than it should have, or with its operands exchanged."""

    def run(x, op="sum", **options):
        if op == "sum":
            return scan(x, "max", **options)
        return scan(x, dataclasses.replace(op, numpy=lambda a, b: op.numpy(b, a)), **options)

    return run


WRONG = {
    "accounts": ("scan_file", lambda f: lambda *files, **options: f(*files, "max", **options)),
    "balance": ("partition", lambda f: lambda *a, comm: np.maximum(f(*a, comm=comm) - 1, 0)),
    "continued_fraction": ("scan", wrong_operator),
    "csr": ("scan", wrong_operator),
    "degree_days": ("scan_file", lambda f: lambda *files, **options: f(*files, "max", **options)),
    "filter": ("linear_recurrence", lambda f: lambda a, b, **options: f(a, 2 * b, **options)),
    "lexer": ("scan", wrong_operator),
    "lines": ("offsets", lambda f: lambda n, comm: (f(n, comm=comm)[0] + 1, f(n, comm=comm)[1])),
    "long_sequence": ("torch.linear_recurrence", lambda f: lambda a, b, comm: 0 * (a + b)),
    "particles": ("compact", lambda f: lambda x, mask, **options: f(x, ~mask, **options)),
    "polynomial": ("linear_recurrence", lambda f: lambda a, b, **options: f(a, 2 * b, **options)),
    "radix_sort": ("offsets", lambda f: lambda n, comm: (f(n, comm=comm)[0] - 1, 0)),
    "rain": ("scan_file", lambda f: lambda *files, **options: f(*files, "max", **options)),
    "snapshots": ("offsets", lambda f: lambda n, comm: (f(n, comm=comm)[0], f(n)[1] + 1)),
    "summed_area": ("scan", wrong_operator),
}


@pytest.mark.parametrize("name", NAMES)
def test_wrong_result(name, run_example, comm, monkeypatch):
    """The check of an example fails where a function of distscan is wrong; rank 0 alone has it."""
    if comm.size > 2:
        pytest.skip("one rank and two are enough")
    if name == "long_sequence":
        pytest.importorskip("torch", reason="long_sequence.py needs PyTorch")
    module, _, function = f"distscan.{WRONG[name][0]}".rpartition(".")
    owner, spoil = importlib.import_module(module), WRONG[name][1]
    monkeypatch.setattr(owner, function, spoil(getattr(owner, function)))
    others = contextlib.suppress(AssertionError)
    with pytest.raises(AssertionError) if comm.rank == 0 else others:
        run_example(name)


def test_radix_sort(run_example, xp, cut, comm, rng):
    """Shards of any length keep it; keys of any integer type that is wide enough."""
    example, _ = run_example("radix_sort", *([] if xp is np else ["--gpu"]), "--n", "1000")
    for n, code in ((0, "q"), (1, "I"), (1000, "L"), (5000, "i"), (5000, "q")):
        numbers = rng.integers(0, 1 << 31, n).astype(code)
        mine = cut(n)
        keys = example["sort"](xp.asarray(numbers[mine]))[-1]
        assert isinstance(keys, xp.ndarray)
        assert keys.dtype == numbers.dtype
        np.testing.assert_array_equal(host(keys), np.sort(numbers)[mine])


@pytest.mark.compile
@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("name", "operator", "element"),
    [
        ("continued_fraction", "matrices", [(f"x{i}", "f8") for i in range(4)]),
        ("lexer", "then", "u1"),
    ],
)
def test_operators_for_gpus(name, operator, element, run_example):
    """They compile, also where there is no GPU."""
    pytest.importorskip("cupy")
    from support.compiling import strategy_kernels

    example, _ = run_example(name)
    kernels = strategy_kernels([(example[operator], np.dtype(element))], "90")
    assert kernels
    kernels[0].build("90")


# ---- the gallery ---------------------------------------------------------------------------------


@pytest.mark.one_rank
def test_gallery():
    """Gallery and README have all examples; the pictures are small."""
    page, readme = (
        (ROOT / name).read_text() for name in ("docs/gallery.rst", "examples/README.md")
    )
    assert sorted(path.stem for path in GALLERY.glob("*.png")) == NAMES
    for name in NAMES:
        assert f".. image:: gallery/{name}.png" in page
        assert f".. literalinclude:: ../examples/{name}.py" in page
        assert f"[`{name}.py`]({name}.py)" in readme
        assert (GALLERY / f"{name}.png").stat().st_size < 60_000
