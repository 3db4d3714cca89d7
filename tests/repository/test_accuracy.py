"""What measures the error of sums, on errors that are known."""

import accuracy
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(accuracy, "PIECE", 1 << 8)


def joined(pieces):
    """What ``pieces`` yields, in one array; each piece begins where the one before it ends."""
    starts, parts = zip(*pieces, strict=True)
    assert list(np.diff(starts)) == [len(part) for part in parts[:-1]]
    return np.concatenate(parts)


@pytest.mark.parametrize("condition", [1, 100])
def test_values_are_the_same_however_they_are_cut(condition):
    values = accuracy.Values(3, 1000, condition)
    whole = joined(values.pieces(0, 1000))
    assert whole.dtype == np.float32
    assert len(np.unique(whole)) > 990
    for low, high in [(0, 1), (255, 257), (256, 512), (100, 1000), (499, 501), (700, 800)]:
        np.testing.assert_array_equal(joined(values.pieces(low, high)), whole[low:high])
    assert not list(values.pieces(7, 7))
    assert (joined(accuracy.Values(4, 1000, condition).pieces(0, 1000)) != whole).any()


@pytest.mark.parametrize("condition", [1, 10, 1_000_000])
def test_float64_is_exact(condition):
    values = accuracy.Values(3, 1000, condition)
    x = joined(values.pieces(0, 1000))
    units = (x.astype(np.float64) * 2**24).astype(np.int64)
    np.testing.assert_array_equal(units / 2**24, x)
    assert np.abs(units).max() < 2**24
    assert (units.min() < 0) == (condition > 1)
    plain, absolute = values.sums(0, 1000)
    assert (plain * 2**24, absolute * 2**24) == (units.sum(), np.abs(units).sum())


@pytest.mark.parametrize("condition", [1, 10, 1000, 100_000])
def test_condition_numbers(condition):
    """The sum of all has it; no prefix has a larger one."""
    x = joined(accuracy.Values(3, 1 << 14, condition).pieces(0, 1 << 14)).astype(np.float64)
    conditions = np.cumsum(np.abs(x)) / np.abs(np.cumsum(x))
    assert conditions[-1] == pytest.approx(condition, rel=0.03)
    assert conditions.max() <= conditions[-1] * 1.001


@pytest.mark.parametrize(("low", "high"), [(0, 1000), (300, 301), (300, 900)])
@pytest.mark.parametrize("condition", [1, 100])
def test_largest_errors(condition, low, high):
    values = accuracy.Values(3, 1000, condition)
    x = joined(values.pieces(0, 1000)).astype(np.float64)
    exact, sizes = np.cumsum(x), np.cumsum(np.abs(x))
    result = exact.copy()

    def worst():
        before = accuracy.Sums(*((exact[low - 1], sizes[low - 1]) if low else (0, 0)))
        return accuracy.largest_errors(values, low, high, before, lambda a, b: result[a:b])

    assert worst() == (0, 0)
    last = high - 1
    result[last] += exact[last] * 2**-10
    share = abs(exact[last]) / sizes[last]
    assert worst() == pytest.approx((2**-10, 2**-10 * share), rel=1e-6)
    result[low] = 2 * exact[low]
    assert worst().relative == pytest.approx(1)
    result[low] = np.nan
    assert np.isnan(worst()).all()


def tables(out):
    """Rows of each table: name, ranks, where, errors."""
    found = []
    for line in out.splitlines():
        if line.startswith("| |"):
            found.append({})
        elif line.startswith("| "):
            name, _, _, *errors = (cell.strip() for cell in line.split("|")[1:-1])
            found[-1][name] = [float(error) for error in errors]
    return found


def test_table(comm, capsys):
    assert accuracy.main(["--size", "16", "--backend", "cpu"]) == 0
    out = capsys.readouterr().out
    if comm.rank > 0:
        assert out == ""
        return
    (worst,) = tables(out)
    assert 0 < worst["distscan.scan"][0] <= 2**-24 < worst["numpy.cumsum"][0] < 1e-3
    assert worst["distscan.scan, dtype=np.float64"] == worst["distscan.scan"]


def test_tables_over_condition_numbers(comm, capsys):
    """Sums in float64 are rounded once, whatever cancels; sums in float32 lose what cancels."""
    assert accuracy.main(["--size", "14", "--backend", "cpu", "--conditions"]) == 0
    out = capsys.readouterr().out
    if comm.rank > 0:
        assert out == ""
        return
    relative, scaled = tables(out)
    assert len(relative["distscan.scan"]) == len(accuracy.CONDITIONS)
    assert max(relative["distscan.scan"]) <= 2**-24
    assert relative["numpy.cumsum"][0] < 1e-4
    assert relative["numpy.cumsum"][-1] > 1e-2
    assert max(scaled["numpy.cumsum"]) < 1e-4
    for name in relative:
        assert (np.array(scaled[name]) <= relative[name]).all()


@pytest.mark.parametrize(
    "wrong", [["--size", "30"], ["--size", "0"], ["--size", "x"], ["--seed", "-1"]]
)
def test_wrong_arguments(comm, capsys, wrong):
    assert accuracy.main(wrong) == 2
    err = capsys.readouterr().err
    assert err.count("accuracy: error:") == (comm.rank == 0)
