"""What measures the error of logcumsumexp, on errors that are known; and the errors on CPUs."""

import accuracy_logs as accuracy
import numpy as np
import pytest

from distscan.cpu import library


def test_largest_error():
    exact = np.array([0.0, -4.0, 100.0])
    assert accuracy.largest_error(exact.astype("f"), exact) == 0
    for i, unit in ((0, 1), (1, 4), (2, 100)):
        wrong = exact.copy()
        wrong[i] += 3 * unit * 2**-24
        assert accuracy.largest_error(wrong, exact) == pytest.approx(3, rel=1e-6)
    assert np.isnan(accuracy.largest_error(np.array([0, np.nan, 100]), exact))


def test_table(comm, capsys):
    assert accuracy.main(["--size", "14", "--backend", "cpu"]) == 0
    out = capsys.readouterr().out
    if comm.rank > 0:
        assert out == ""
        return
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()]
    ours, theirs = (
        [[float(cell) for cell in row[3:]] for row in rows if row and row[0].startswith(name)]
        for name in ("distscan", "numpy")
    )
    assert {row[1] for row in rows if row and row[0].startswith("distscan")} == {str(comm.size)}
    assert np.shape(ours) == (len(accuracy.ORDERS), len(accuracy.RANGES))
    # NumPy goes from element to element, so its errors add up.
    assert np.all(ours <= np.maximum(theirs, 40))
    assert library.load() is None or np.max(ours) <= 16


@pytest.mark.parametrize("wrong", [["--size", "31"], ["--size", "0"], ["--seed", "-1"]])
def test_wrong_arguments(comm, capsys, wrong):
    assert accuracy.main(wrong) == 2
    err = capsys.readouterr().err
    assert err.count("accuracy_logs: error:") == (comm.rank == 0)
