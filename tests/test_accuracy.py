"""What measures the error of sums, on errors that are known."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "launch" / "accuracy.py"


@pytest.fixture
def accuracy(monkeypatch):
    """The script as a module, with small pieces."""
    spec = importlib.util.spec_from_file_location("accuracy", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PIECE", 1 << 8)
    return module


def joined(pieces):
    """What ``values`` yields, in one array; each piece begins where the one before it ends."""
    starts, parts = zip(*pieces, strict=True)
    assert list(np.diff(starts)) == [len(part) for part in parts[:-1]]
    return np.concatenate(parts)


def test_values_are_the_same_however_they_are_cut(accuracy):
    whole = joined(accuracy.values(3, 0, 1000))
    assert whole.dtype == np.float32
    assert len(np.unique(whole)) > 990
    for low, high in [(0, 1), (255, 257), (256, 512), (100, 1000)]:
        np.testing.assert_array_equal(joined(accuracy.values(3, low, high)), whole[low:high])
    assert not list(accuracy.values(3, 7, 7))
    assert (joined(accuracy.values(4, 0, 1000)) != whole).any()


def test_float64_is_exact(accuracy):
    x = joined(accuracy.values(3, 0, 1000))
    units = (x.astype(np.float64) * 2**24).astype(np.int64)
    np.testing.assert_array_equal(units / 2**24, x)
    assert 0 <= units.min() < units.max() < 2**24
    assert accuracy.total(3, 0, 1000) == units.sum() / 2**24


@pytest.mark.parametrize(("low", "high"), [(0, 1000), (300, 301), (300, 900)])
def test_largest_error(accuracy, low, high):
    exact = np.cumsum(joined(accuracy.values(3, 0, 1000)), dtype=np.float64)
    result = exact.copy()

    def worst():
        before = exact[low - 1] if low else 0.0
        return accuracy.largest_error(3, low, high, before, lambda start, stop: result[start:stop])

    assert worst() == 0
    result[high - 1] *= 1 - 2**-10
    assert worst() == pytest.approx(2**-10)
    result[low] = 2 * exact[low]
    assert worst() == pytest.approx(1)
    result[low] = np.nan
    assert np.isnan(worst())


def test_table(accuracy, comm, capsys):
    assert accuracy.main(["--size", "16", "--backend", "cpu"]) == 0
    out = capsys.readouterr().out
    if comm.rank > 0:
        assert out == ""
        return
    cells = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("|")]
    worst = {name.strip(): float(error) for name, _, _, error in cells[2:]}
    assert 0 < worst["distscan.scan"] <= 2**-24 < worst["numpy.cumsum"] < 1e-3
    assert worst["distscan.scan, dtype=np.float64"] == worst["distscan.scan"]


@pytest.mark.parametrize("wrong", [["--size", "30"], ["--size", "x"], ["--seed", "-1"]])
def test_wrong_arguments(accuracy, comm, capsys, wrong):
    assert accuracy.main(wrong) == 2
    err = capsys.readouterr().err
    assert err.count("accuracy: error:") == (comm.rank == 0)
